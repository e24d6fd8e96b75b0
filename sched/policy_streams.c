/* streams: the same two kernels as `serial`, on two streams.
 *
 * Source: two CUDA streams as engines use them; POD-Attention's FA_Streams baseline. Rule: the prefill grid
 * is launched first, the decode grid gets whatever slots it leaves (the hardware's leftover placement);
 * nothing promises overlap, and a prefill CTA that owns its SM's registers allows it only in the tail. */
#include "sched/two_grids.h"

#include <string.h>

static const struct policy_option options[] = {
    TWO_GRIDS_OPTIONS,
    {"first", "decode|prefill", "decode", "which grid is issued first and so placed first"},
    {0},
};

static enum status plan_streams(const struct policy_input *in, struct plan *out, struct why *why)
{
    const bool decode_first = strcmp(policy_option_word(in, "first"), "decode") == 0;
    return two_grids_plan(in,
                          (struct two_grids_launch){policy_option_word(in, "prefill"),
                                                    policy_option_word(in, "decode"), 1, decode_first},
                          out, why);
}

const struct policy policy_streams = {
    .name = "streams",
    .brief = "the two kernels of `serial` on two streams, leftover placement",
    .source = "two CUDA streams; POD-Attention's FA_Streams",
    .options = options,
    .plan = plan_streams,
};
