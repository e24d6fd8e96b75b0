/* unified: every row through one prefill-shaped kernel.
 *
 * Source: SGLang extend mode (a MIXED batch is one extend call) and FlashInfer BatchPrefillWithPagedKVCache,
 * FA2 plan. Rule: tile of 128, 64 or 16 packed rows by the AVERAGE packed length over all requests; one
 * global KV chunk by binary search under a budget of 2 x SMs / kv heads works; request-major order; decodes
 * are padded to the tile. Once anything splits, every work writes partials and one merge kernel follows. */
#include "sched/fi_split.h"

#include <stddef.h>

static enum status plan_all(const struct policy_input *in, const struct role_set *all, struct works *works,
                            struct plan *out)
{
    const struct batch *b = in->batch;
    const int32_t tile_q = fi_prefill_tile(b, all);
    const struct fi_split split = fi_prefill_split(b, in->gpu, all, tile_q, 0);
    const struct works_emit emit = {
        .works = works, .kernel = fi_tile_kernel(tile_q), .all_partial = split.split, .list_per_item = true};
    TRY(fi_cut(b, all, &split, works));
    TRY(plan_begin_grid(out, emit.kernel, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit(&emit, b, out));
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_unified(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    struct role_set all;
    struct works works = {0};
    TRY(role_set_all(in->batch, &all));
    const enum status status = all.n ? plan_all(in, &all, &works, out) : STATUS_OK;
    works_free(&works);
    role_set_free(&all);
    return status;
}

const struct policy policy_unified = {
    .name = "unified",
    .brief = "every row through one prefill kernel; tile by average packed length, one global KV chunk",
    .source = "SGLang extend; FlashInfer batched prefill (FA2 plan)",
    .plan = plan_unified,
};
