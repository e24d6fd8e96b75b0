/* fi_batch_pod: one fused grid; CTAs take a role by SM-aware tickets.
 *
 * Source: FlashInfer's batch POD (batch_pod.cuh at fb28d7242, PR #2079).
 * Rule: two plans (fi_pod.h), one launch of P + D CTAs. A CTA draws its SM's ticket: with P <= D every
 * (floor(D / P) + 1)-th is a prefill, else every (floor(P / D) + 1)-th a decode; it then draws that role's
 * next entry, or the other's when its own has run out. Entries in request order, no longest-first. A merge
 * launch for each role that split. ratio=exact replaces the truncated ratio by the rational one, ratio=half
 * is POD's 50:50. */
#include "sched/fi_pod.h"

#include <string.h>

static const struct policy_option options[] = {
    {"ratio", "published|exact|half", "published",
     "ticket rule: truncated integer ratio, exact rational, or 50:50"},
    {0},
};

static enum ticket_kind ticket_kind(const char *ratio)
{
    if (strcmp(ratio, "exact") == 0) return TICKET_EXACT;
    return strcmp(ratio, "half") == 0 ? TICKET_HALF : TICKET_PROPORTIONAL;
}

/* With one role absent there is nothing to interleave: a plain grid of that role. */
static enum status add_grid(const struct policy_input *in, const struct fi_pod *pod, struct plan *out)
{
    const bool fused = pod->prefill.n > 0 && pod->decode.n > 0;
    struct grid *grid;
    TRY(plan_begin_grid(out, pod->grid_kernel, fused ? DISPATCH_SM_TICKET : DISPATCH_FIXED, 0, &grid));
    if (fused) grid->ticket.kind = ticket_kind(policy_option_word(in, "ratio"));
    TRY(fi_pod_emit(pod, WORK_PREFILL, !fused, in->batch, out));
    const int32_t prefill_merges = out->n_merges;
    if (fused) TRY(plan_end_list(out));
    TRY(fi_pod_emit(pod, WORK_DECODE, !fused, in->batch, out));
    if (fused) TRY(plan_end_list(out));
    TRY(plan_end_grid(out, 0));
    TRY(plan_add_merge_grid(out, 0, prefill_merges, 0, NULL, 0));
    return plan_add_merge_grid(out, prefill_merges, out->n_merges, 0, NULL, 0);
}

static enum status plan_fi_batch_pod(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    return fi_pod_plan(in, out, add_grid);
}

const struct policy policy_fi_batch_pod = {
    .name = "fi_batch_pod",
    .brief = "two plans, one fused grid, roles by SM-aware tickets, up to two merges",
    .source = "FlashInfer batch_pod.cuh at fb28d7242",
    .options = options,
    .plan = plan_fi_batch_pod,
};
