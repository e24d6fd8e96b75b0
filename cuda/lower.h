/* lower: what kernels are given beside the plan's own arrays, worked out on the host: who merges, where members begin,
 * how grids draw. Plain C, for exec.cu and for the tests that run kernel logic on the CPU. */
#ifndef TANDEM_CUDA_LOWER_H
#define TANDEM_CUDA_LOWER_H

#include "cuda/view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays of struct view of the same names; NULL where the plan has none. */
struct lowered {
    int32_t *item_merge_indptr, *item_merges, *merge_needs; /* [n_items + 1], [n_item_merges], [n_merges] */
    int32_t n_item_merges;
    int32_t *member_first; /* [n_members] */
};

/* Of a plan that passed plan_check. STATUS_NO_MEMORY. */
enum status lower_plan(const struct plan *p, struct lowered *out, struct why *why);
void lowered_free(struct lowered *l);

/* Grid `index` of a plan on a GPU of sm_count SMs; counters are left NULL. */
struct view_grid lower_grid(const struct plan *p, int32_t index, int32_t sm_count);

/* Threads of each half of a row's CTAs, lanes apart; no shared memory: what attn_1 needs to know. */
struct worker_halves lower_halves(const struct kernel *k);

/* ALiBi slope of q head h of n (Press et al. 2022): a power of two heads, or the one below and every second of the
 * next. */
float lower_alibi_slope(int32_t h, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
