/* serial: a prefill kernel, then a decode kernel, on one stream.
 *
 * Source: the two-kernel proposals for SGLang's mixed chunk, vLLM with FlashInfer, Sarathi-Serve: two
 * wrappers planned apart and run one after the other. Rule: the fastest wrappers of FlashInfer: prefill by
 * its SM90 (FA3) plan where the GPU has it, else the FA2 plan; decode by the CUDA-core plan or the
 * tensor-core (FA2) plan, whichever estimates shorter. Each splits by itself, in ignorance of the other, and
 * merges by itself. */
#include "sched/two_grids.h"

static const struct policy_option options[] = {TWO_GRIDS_OPTIONS, {0}};

static enum status plan_serial(const struct policy_input *in, struct plan *out, struct why *why)
{
    return two_grids_plan(in,
                          (struct two_grids_launch){.prefill = policy_option_word(in, "prefill"),
                                                    .decode = policy_option_word(in, "decode")},
                          out, why);
}

const struct policy policy_serial = {
    .name = "serial",
    .brief = "a prefill kernel, then a decode kernel, on one stream",
    .source =
        "SGLang two-kernel proposal, vLLM + FlashInfer, Sarathi-Serve; FlashInfer SM90, FA2 and decode plans",
    .options = options,
    .plan = plan_serial,
};
