/* streams: the same two kernels as `serial`, on two streams.
 *
 * Source: two CUDA streams as engines use them; POD-Attention's FA_Streams baseline. Rule: the prefill grid
 * is launched first, the decode grid gets whatever slots it leaves (the hardware's leftover placement);
 * nothing promises overlap, and a prefill CTA that owns its SM's registers allows it only in the tail. */
#include "sched/two_grids.h"

static enum status plan_streams(const struct policy_input *in, struct plan *out, struct why *why)
{
    return two_grids_plan(in, 1, out, why);
}

const struct policy policy_streams = {
    .name = "streams",
    .brief = "the two kernels of `serial` on two streams, leftover placement",
    .source = "two CUDA streams; POD-Attention's FA_Streams",
    .options = two_grids_options,
    .plan = plan_streams,
};
