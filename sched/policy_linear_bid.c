/* linear_bid: the batch-POD proposal: one index space, one remap of blockIdx.x, one merge.
 *
 * Source: FlashInfer PR #1231 (closed unmerged). Rule: the works of batch POD (fi_pod.h), but prefill and
 * decode entries in ONE set of arrays, decode entries beginning at n_prefill + decode index; CTA b does the
 * entry that a pure function of b names (remap.h), so no atomics and no per-SM counters; several prefills and
 * decodes at once; partial rows of both roles share one space and one merge launch. `order` picks the remap:
 * prefill_first is the proposal's. */
#include "sched/fi_pod.h"

#include <string.h>

static const struct policy_option options[] = {
    {"order", "prefill_first|decode_first|interleaved|prefill_reversed", "prefill_first",
     "which CTA takes which entry"},
    {0},
};

static enum remap_kind remap_kind(const char *order)
{
    if (strcmp(order, "decode_first") == 0) return REMAP_DECODE_FIRST;
    if (strcmp(order, "interleaved") == 0) return REMAP_INTERLEAVED;
    return strcmp(order, "prefill_reversed") == 0 ? REMAP_PREFILL_REVERSED : REMAP_PREFILL_FIRST;
}

static enum status add_grid(const struct policy_input *in, const struct fi_pod *pod, struct plan *out)
{
    struct grid *grid;
    TRY(plan_begin_grid(out, pod->grid_kernel, DISPATCH_FIXED, 0, &grid));
    TRY(fi_pod_emit(pod, WORK_PREFILL, true, in->batch, out));
    const int32_t n_prefill = grid->n_lists; /* one entry a list so far */
    TRY(fi_pod_emit(pod, WORK_DECODE, true, in->batch, out));
    grid->remap = (struct remap){.kind = remap_kind(policy_option_word(in, "order")),
                                 .n_prefill = n_prefill,
                                 .n_decode = grid->n_lists - n_prefill};
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_linear_bid(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    return fi_pod_plan(in, out, add_grid);
}

const struct policy policy_linear_bid = {
    .name = "linear_bid",
    .brief = "one fused grid, one index space, roles by remapping blockIdx.x, one merge",
    .source = "FlashInfer PR #1231",
    .options = options,
    .plan = plan_linear_bid,
};
