/* view: what a kernel is given: one batch, its tensors, one plan, as plain structs whose pointers are the device's.
 *
 * Compiles as C11 and as CUDA C++; tests fill the same structs with pointers of the CPU and run kernel logic there.
 * The host fills them in exec.cu; nothing is allocated here. */
#ifndef TANDEM_CUDA_VIEW_H
#define TANDEM_CUDA_VIEW_H

#ifdef __cplusplus
extern "C" {
#endif
#include "sched/plan.h"
#ifdef __cplusplus
}
#endif

/* Elements from a token (head) of Q or O to the next; from a page, a position, a kv head of K or V to the next. */
struct view_rows {
    int64_t token, head;
};
struct view_keys {
    int64_t page, pos, head;
};

/* When an item (or merge) began and ended: nanoseconds of %globaltimer; where. */
struct view_span {
    uint64_t begin_ns, end_ns;
    int32_t sm, cta, lane, grid;
};

struct view {
    struct batch b; /* all its pointers are the device's */
    const void *q, *k, *v;
    struct view_rows q_rows, o_rows;
    struct view_keys k_keys, v_keys;
    void *o; /* of b.shape.q_dtype */
    float *lse;
    float sm_scale;
    const float *alibi; /* [num_qo_heads] slopes, NULL without */
    int32_t plain;      /* no soft cap, ALiBi or bit mask, positive scales: a logit is dot x positive scale */

    const struct item *items;
    const int32_t *list_indptr, *home, *steal;
    const int32_t *group_indptr; /* [n_groups + 1] into members */
    const struct member *members;
    const int32_t *member_first; /* tokens of the members before it in its group */
    const struct merge *merges;
    const int32_t *merge_indptr, *merge_src;
    float *partial_o, *partial_lse; /* [partial_rows, head_dim_vo], [partial_rows] */

    /* last-arriver merging: which merges read an item's partial rows, CSR by item (item_merge_indptr NULL: no item
     * merges); how many items each merge waits for, and how many came (0 between runs) */
    const int32_t *item_merge_indptr, *item_merges, *merge_needs;
    int32_t *merge_arrived;

    struct view_span *item_spans, *merge_spans; /* NULL: not recorded */
};

/* One launch. counters (all 0 between runs): QUEUE: next item of each list; SM_TICKET: next entry of each role,
 * then a ticket an SM; both: CTAs that are done, last. */
struct view_grid {
    int32_t index, n_ctas, dispatch, list_begin, n_lists;
    struct remap remap;
    struct ticket ticket;
    int32_t home_begin, steal_begin;
    int32_t is_merge, is_beside;
    int32_t lanes[2];       /* entries a CTA draws at once, by role */
    int32_t prefill_kernel; /* of a fused grid: items of this kernel row are the prefill half's */
    int32_t row_order[2];   /* of the rows that prefill, decode items run on; both the same where not fused */
    int32_t n_sm_counters;
    int32_t *counters;
};

struct view_launch {
    struct view x;
    struct view_grid g;
};

/* Threads and shared memory of each half of a kernel, by role; of one lane. */
struct worker_halves {
    int32_t threads[2];
    int32_t smem_bytes[2];
};

/* Counters a grid needs. */
TANDEM_INLINE int32_t view_counters(const struct view_grid *g)
{
    if (g->dispatch == DISPATCH_QUEUE) return g->n_lists + 1;
    return g->dispatch == DISPATCH_SM_TICKET ? 2 + g->n_sm_counters + 1 : 0;
}

#endif
