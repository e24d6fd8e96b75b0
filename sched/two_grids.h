/* two_grids: a prefill grid and a decode grid, as engines that call two attention wrappers launch them.
 * Shared by the policies `serial` (one stream) and `streams` (two). */
#ifndef TANDEM_SCHED_TWO_GRIDS_H
#define TANDEM_SCHED_TWO_GRIDS_H

#include "sched/policy.h"

/* Options both policies have: prefill=auto|fa3|fa2, decode=auto|cuda_core|tensor_core. */
extern const struct policy_option two_grids_options[];

/* Plans both grids, the prefill one (and its merge) on stream 0, the decode one (and its merge) on
 * `decode_stream`. */
enum status two_grids_plan(const struct policy_input *in, int32_t decode_stream, struct plan *out,
                           struct why *why);

#endif
