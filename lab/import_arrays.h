/* import_arrays: a plan from the index arrays of FlashInfer's FA2 planner (batched prefill, tensor-core
 * decode), so that another library's decisions are checked, executed and simulated like our own.
 *
 * The arrays file is one JSON object:
 *   cta_tile_q          16, 64 or 128: packed rows (query token x q head of the group) of a work
 *   kv_chunk_size       tokens of a KV chunk
 *   split_kv            did the plan split? Then every work writes partial rows
 *   request_indices     [works] the request of a work
 *   qo_tile_indices     [works] its query tile within the request
 *   kv_tile_indices     [works] its KV chunk within the request
 *   block_valid_mask    optional [works]: 0 marks padding works, which are skipped
 *   o_indptr            optional [requests + 1]: first partial row of a request, qo_len * chunks each
 *   merge_indptr        optional [query tokens + 1]: partial rows of each token's row, its request's chunks
 * each A CTA is (work = blockIdx.x, kv head = blockIdx.z), x fastest. */
#ifndef TANDEM_LAB_IMPORT_ARRAYS_H
#define TANDEM_LAB_IMPORT_ARRAYS_H

#include "sched/plan.h"

#include <stdbool.h>

struct import_arrays {
    int32_t cta_tile_q;
    int32_t kv_chunk_size;
    bool split_kv;
    int32_t n_works;
    int32_t *request_indices, *qo_tile_indices, *kv_tile_indices;
    int32_t *block_valid_mask;        /* or NULL */
    int32_t *o_indptr, *merge_indptr; /* or NULL */
    int32_t n_o_indptr, n_merge_indptr;
};

/* Reads the file ("-": stdin). STATUS_BAD_INPUT names the member and what was expected. */
enum status import_arrays_read(const char *path, struct import_arrays *out, struct why *why);
void import_arrays_free(struct import_arrays *a);

/* Makes the plan: one FIXED grid in the arrays' order and, if split, a merge grid. Indices outside the batch
 * are STATUS_BAD_INPUT, and so are o_indptr and merge_indptr that contradict the works. Nothing is repaired:
 * works that are missing or there twice give a plan that plan_check refuses. Partial rows are numbered work
 * by work and KV head by KV head (FlashInfer interleaves the chunks of a token), which changes where they
 * lie, not what is merged. */
enum status import_arrays_plan(const struct import_arrays *a, const struct batch *b, struct plan *out,
                               struct why *why);

#endif
