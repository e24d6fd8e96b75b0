/* fi_split: FlashInfer's planners as rules that cut requests into works. Source: flashinfer scheduler.cuh
 * (fb28d7242), PrefillSplitQOKVIndptr (FA2) and PartitionPagedKVCacheBinarySearchMinNumPagePerBatch
 * (CUDA-core decode). */
#ifndef TANDEM_SCHED_FI_SPLIT_H
#define TANDEM_SCHED_FI_SPLIT_H

#include "sched/works.h"

/* What a plan decided. One global chunk size for all requests. */
struct fi_split {
    int32_t tile_q;      /* packed rows a work */
    int32_t chunk_pages; /* pages a chunk */
    bool split;          /* some request has more than one chunk: then every work writes partials */
    int64_t n_works;     /* a kv head, before padding */
};

/* FA2 prefill's tile: by the AVERAGE packed length over the requests of the call; above 64 -> 128 (head_dim <
 * 256), above 16 -> 64, else 16. 16 for no rows. */
int32_t fi_prefill_tile(const struct batch *b, const struct role_set *set);

/* Kernel row of an FA2 tile size. */
enum kernel_id fi_tile_kernel(int32_t tile_q);

/* FA2 prefill plan, also tensor-core decode: the smallest chunk (pages, at least max(128 / page_size, 1))
 * with sum over requests of ceil(packed_rows / tile_q) * ceil(max(pages, 1) / chunk) <= budget where budget =
 * max(0, 2 * sm_count - colocated) / num_kv_heads; the longest request's pages if none does (no split). With
 * a window, a request counts min(ceil((window + tile) / page), pages) pages. Not causal-aware. */
struct fi_split fi_prefill_split(const struct batch *b, const struct gpu *gpu, const struct role_set *set,
                                 int32_t tile_q, int64_t colocated);

/* CUDA-core decode plan: max_grid = ctas_per_sm * sm_count. No split when requests * num_kv_heads >=
 * max_grid, whatever their lengths; else the smallest chunk with sum ceil(pages / chunk) * num_kv_heads <=
 * max_grid. Requests without keys count one work (the public planner counts 0 in its search and 1 when it
 * emits). */
struct fi_split fi_decode_split(const struct batch *b, const struct gpu *gpu, const struct role_set *set,
                                int32_t ctas_per_sm);

/* The plan of a chunk given in pages (INT32_MAX: never split). */
struct fi_split fi_fixed_split(const struct batch *b, const struct role_set *set, int32_t tile_q,
                               int32_t chunk_pages);

/* Cuts the requests of the set, in order, as decided. */
enum status fi_cut(const struct batch *b, const struct role_set *set, const struct fi_split *split,
                   struct works *out);

/* Adds the FA2 grid of a decided split over the set (a CTA a work and kv head, work fastest), and its merge
 * grid if it split. */
enum status fi_prefill_grids(const struct batch *b, const struct role_set *set, const struct fi_split *split,
                             struct plan *out);

#endif
