/* two_grids: a prefill grid and a decode grid, as engines that call two attention wrappers launch them.
 * Shared by the policies `serial` (one stream) and `streams` (two). */
#ifndef TANDEM_SCHED_TWO_GRIDS_H
#define TANDEM_SCHED_TWO_GRIDS_H

#include "sched/policy.h"

/* The options both policies have, as entries of their option lists. */
#define TWO_GRIDS_OPTIONS                                                                                  \
    {"prefill", "auto|fa3|fa2", "auto",                                                                    \
     "prefill kernel: FA3 or FA2 plan, the one with the shorter estimate"},                                \
    {                                                                                                      \
        "decode", "auto|cuda_core|tensor_core", "auto", "decode kernel: the one with the shorter estimate" \
    }

/* Group sizes FlashInfer's CUDA-core decode is instantiated for: 1, 2, 3, 4, 6 and 8. */
static inline bool two_grids_cuda_core_takes(int32_t group_size)
{
    return (group_size >= 1 && group_size <= 4) || group_size == 6 || group_size == 8;
}

/* How the two grids are launched. */
struct two_grids_launch {
    const char *prefill, *decode; /* a word of the option of that name */
    int32_t decode_stream;        /* prefill and its merge are on stream 0 */
    bool decode_first;            /* issue order, which is the order the leftover rule serves */
};

/* Plans both grids, each with its own merge grid behind it on its stream if it split. */
enum status two_grids_plan(const struct policy_input *in, struct two_grids_launch launch, struct plan *out,
                           struct why *why);

#endif
