/* import_arrays: a plan of FlashInfer's FA2 planner, as the arrays it hands to its kernel, into a plan of
 * ours.
 *
 *   work w of the grid (blockIdx.x) = request_indices[w], qo_tile_indices[w], kv_tile_indices[w]
 *   kv head                         = blockIdx.z, the outer order of the CTAs
 *
 * Tiles are cta_tile_q packed rows. Chunks are kv_chunk_size keys; a request has
 * ceil(min(max(kv_len, 1), window_left + cta_tile_q) / kv_chunk_size) of them (without a window: the whole
 * kv_len), all tiles alike. Their positions are those of fi_cut (sched/fi_split.h): from key 0, with a window
 * from the page of the tile's first visible key; the last chunk takes what the start of that page costs, and
 * chunks past the tile's keys are empty. Not split: one chunk, whatever kv_chunk_size holds.
 *
 * Nothing is repaired: works may come in any order, but must be exactly those of the rule. */
#ifndef TANDEM_LAB_IMPORT_ARRAYS_H
#define TANDEM_LAB_IMPORT_ARRAYS_H

#include "sched/plan.h"

/* data NULL: absent. */
struct import_ints {
    int32_t *data;
    int32_t n;
};

struct import_arrays {
    int32_t cta_tile_q;    /* 16, 64 or 128 packed rows */
    int32_t kv_chunk_size; /* keys; the planner leaves anything here when it does not split */
    bool split_kv;         /* every work writes partials */
    struct import_ints request_indices, qo_tile_indices, kv_tile_indices;
    struct import_ints block_valid_mask; /* optional: 0 = padding, whose indices are not looked at */
    struct import_ints o_indptr;         /* optional, a request: tokens times chunks before it */
    struct import_ints merge_indptr;     /* optional, a token: chunks before it */
};

/* Reads one JSON object with these names as keys from a file or "-". Types only; STATUS_BAD_INPUT with place
 * and expectation, STATUS_IO. *out is safe to free either way. */
enum status import_arrays_read(const char *path, struct import_arrays *out, struct why *why);

void import_arrays_free(struct import_arrays *a);

/* One FIXED grid of a work a CTA, then the merges. STATUS_BAD_INPUT names the entry that is wrong. The batch
 * must have passed batch_check; *out is zeroed or an old plan, and is to be freed by the caller either way.
 *
 * Partial rows: FlashInfer puts token q, chunk k at row o_indptr[request] + q * chunks + k, heads beside it.
 * Here rows are packed rows of one kv head and an item's are contiguous: a tile takes the same span,
 * group_size times as long, and within it chunk follows chunk. */
enum status import_arrays_plan(const struct import_arrays *a, const struct batch *b, struct plan *out,
                               struct why *why);

#endif
