/* works: the common middle of every planner. A work is one tile of packed query rows against one chunk of
 * keys, for one kv head or the same for all; planners differ in how they cut works, in which order CTAs get
 * them and which CTA gets which.
 *
 *   requests --cut--> works --emit--> items (one a kv head), partial rows, merges
 */
#ifndef TANDEM_SCHED_WORKS_H
#define TANDEM_SCHED_WORKS_H

#include "sched/policy.h"

enum { WORK_ALL_HEADS = -1 };

/* Works of a tile follow each other: chunk 0, 1, ... n_chunks - 1, with the same kv_head. */
struct work {
    int32_t request;            /* or the id of a row group of the plan */
    int32_t row_begin, row_end; /* packed rows, in the row order of the kernel that will do them */
    int32_t kv_begin, kv_end;
    int32_t chunk, n_chunks;
    int32_t kv_head; /* WORK_ALL_HEADS: one item for each */
    int32_t list;    /* for works_emit_lists: the CTA or queue that gets it */
    bool deferred;   /* writes partial rows, however few chunks, and somebody else adds their merge */
};

struct works {
    struct work *data;
    int32_t n, cap;
};

void works_free(struct works *w);

/* Makes room for n works in all, so that adding them does not copy. */
enum status works_reserve(struct works *w, int64_t n);

/* Appends one work as it is. */
enum status works_add(struct works *w, const struct work *work);

/* Appends the chunks of one tile for all kv heads: keys cut every chunk_keys from keys.begin; an empty range
 * gives one empty work, so that its rows have a writer. */
enum status works_add_tile(struct works *w, int32_t request, int32_t row_begin, int32_t row_end,
                           struct range keys, int64_t chunk_keys);

/* How works become items of the open grid. */
struct works_emit {
    const struct works *works;
    enum kernel_id kernel;
    bool all_partial;   /* every work writes partials, as FlashInfer does once anything splits; else only cut
                           tiles */
    bool list_per_item; /* a list (CTA) an item; false: all in the current list, which the caller ends */
    bool heads_inner;   /* kv head fastest; false: work fastest (blockIdx.x = work, blockIdx.z = head) */
    const int32_t *order; /* permutation of the works, or NULL */
    int32_t *first;       /* [works.n] out: first partial row of each work (its heads one after another), -1
                             where it writes directly; or NULL */
};

/* Emits items, takes their partial rows and adds their merges (no merge grid). Every work gets one item a kv
 * head, or the one of its own head. */
enum status works_emit(const struct works_emit *e, const struct batch *b, struct plan *p);

/* The plain way to run a set: a FIXED grid with one item a CTA on `stream`, and behind it the merge grid of
 * what was split. Nothing for no works. */
enum status works_emit_grids(const struct works_emit *e, int32_t stream, const struct batch *b,
                             struct plan *p);

/* Several sets of works (one a kernel row) dealt to the same lists of the open FIXED or QUEUE grid by
 * work.list, 0 <= list < n_lists: list l holds the works of set 0 that name it, in their order, then those of
 * set 1. Of each emit only works, kernel, all_partial and order matter. */
enum status works_emit_lists(const struct works_emit *sets, int32_t n_sets, int32_t n_lists,
                             const struct batch *b, struct plan *p);

/* Requests of one role, in batch order. */
struct role_set {
    int32_t *requests;
    int32_t n;
    int64_t rows; /* query tokens */
};

/* Splits the batch by qo_len: == 1 is a decode, > 1 a prefill; requests without query rows are in neither. */
enum status role_sets(const struct batch *b, struct role_set *prefill, struct role_set *decode);

/* Every request with query rows. */
enum status role_set_all(const struct batch *b, struct role_set *all);
void role_set_free(struct role_set *s);

/* Packed query rows of a request. */
static inline int64_t packed_rows(const struct batch *b, int32_t request)
{
    return (int64_t)batch_qo_len(b, request) * batch_group_size(b);
}

/* Keys that packed rows [row_begin, row_end) (token-major) of a request see. */
struct range works_tile_keys(const struct batch *b, int32_t request, int32_t row_begin, int32_t row_end);

/* Tiles of kernel k over `tokens` query tokens of one kv head, in row order: tile_q packed rows each, the
 * last one shorter. Head-major kernels: the token tiles of the group's first q head, then of the next, never
 * across heads. */
int32_t tile_count(enum kernel_id k, int32_t tokens, int32_t group_size);
struct range tile_rows(enum kernel_id k, int32_t tokens, int32_t group_size, int32_t i);

/* Where (token, q head of the group) is: the tile and the row within it. */
struct tile_place {
    int32_t tile, row;
};
struct tile_place tile_locate(enum kernel_id k, int32_t tokens, int32_t group_size, int32_t token,
                              int32_t head);

/* The tiles of a request; `keys` is what the tile's rows see. */
struct tile {
    int32_t row_begin, row_end;
    struct range keys;
};
int32_t works_n_tiles(const struct batch *b, enum kernel_id k, int32_t request);
struct tile works_tile(const struct batch *b, enum kernel_id k, int32_t request, int32_t i);

/* Work indices by keys, most first (ties in work order), into order[works.n]. */
enum status works_longest_first(const struct works *works, int32_t *order);

#endif
