/* fi_sm90: FlashInfer's SM90 (FA3) prefill plan over all rows, decodes included.
 *
 * Source: flashinfer scheduler.cuh at fb28d7242, PrefillSM90Plan. Rule (fi_sm90.h): requests by kv_len
 * descending; for each q head, q tiles of 128 tokens last to first, each to the least loaded of S persistent
 * CTAs, where a tile costs 2 * 128 + its keys; no KV split and no GQA packing. A decode takes a whole tile of
 * 128 rows for each q head: what a mixed batch costs when it goes through this backend as it is. */
#include "sched/fi_sm90.h"

static enum status plan_fi_sm90(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct role_set all;
    if (in->kernels->fit[KERNEL_FA3_PREFILL_128].ctas_per_sm < 1)
        return status_fail(why, STATUS_UNSUPPORTED,
                           "policy fi_sm90: kernel fa3_prefill_128 cannot launch on %s", in->gpu->name);
    TRY(role_set_all(in->batch, &all));
    const enum status status = all.n ? fi_sm90_grid(in, &all, 0, out) : STATUS_OK;
    role_set_free(&all);
    return status;
}

const struct policy policy_fi_sm90 = {
    .name = "fi_sm90",
    .brief = "FlashInfer's FA3 plan over all rows: persistent CTAs, sorted, least loaded first, no KV split",
    .source = "FlashInfer scheduler.cuh at fb28d7242, SM90 plan",
    .plan = plan_fi_sm90,
};
