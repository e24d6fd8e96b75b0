/* one_cta_per_request: the whole example of README, "Add a policy". A decode-shaped CTA for every request and
 * kv head, whatever its length; nothing is split, so nothing is merged. */
#include "sched/works.h"

static enum status plan_example(const struct policy_input *in, struct plan *out, struct why *why)
{
    const struct batch *b = in->batch;
    struct works works = {0};
    enum status status = STATUS_OK;
    (void)why; /* for policies that refuse a batch: return status_fail(why, STATUS_UNSUPPORTED, "...") */
    for (int32_t r = 0; r < b->n_requests && status == STATUS_OK; r++)
        /* rows without keys need a writer too; requests without rows need nothing */
        if (batch_qo_len(b, r) > 0)
            status = works_add_tile(&works, r, 0, (int32_t)packed_rows(b, r), (struct range){0, b->kv_len[r]},
                                    INT32_MAX);
    const struct works_emit emit = {.works = &works, .kernel = KERNEL_FA2_DECODE_16};
    if (status == STATUS_OK) status = works_emit_grids(&emit, 0, b, out); /* one launch, an item a CTA */
    works_free(&works);
    return status;
}

extern const struct policy policy_example;
const struct policy policy_example = {
    .name = "one_cta_per_request",
    .brief = "a CTA for every request and kv head",
    .source = "the README",
    .plan = plan_example,
};
