/* unified: every row through one prefill-shaped kernel.
 *
 * Source: SGLang extend mode (a MIXED batch is one extend call) and FlashInfer BatchPrefillWithPagedKVCache,
 * FA2 plan. Rule: fi_prefill's, as engines call it: tile of 128, 64 or 16 packed rows by the AVERAGE packed
 * length over all requests, so decodes are padded to the prefills' tile; one global KV chunk under a budget
 * of 2 x SMs / kv heads works; request-major order. */
#include "sched/fi_split.h"

static enum status plan_unified(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    struct role_set all;
    TRY(role_set_all(in->batch, &all));
    const int32_t tile_q = fi_prefill_tile(in->batch, &all);
    const struct fi_split split = fi_prefill_split(in->batch, in->gpu, &all, tile_q, 0);
    const enum status status = all.n ? fi_prefill_grids(in->batch, &all, &split, out) : STATUS_OK;
    role_set_free(&all);
    return status;
}

const struct policy policy_unified = {
    .name = "unified",
    .brief = "every row through one prefill kernel; tile by average packed length, one global KV chunk",
    .source = "SGLang extend; FlashInfer batched prefill (FA2 plan)",
    .plan = plan_unified,
};
