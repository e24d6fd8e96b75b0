/* ref_exec: obeys a plan on the CPU. Runs its items as cut, keeps partial rows with LSE, merges as listed; so
 * a plan that is wrong gives wrong numbers. fp32 arithmetic, OpenMP over items, OpenBLAS for prefill tiles.
 */
#ifndef TANDEM_REF_REF_EXEC_H
#define TANDEM_REF_REF_EXEC_H

#include "ref/tensor.h"
#include "sched/plan.h"

/* Executes p (which must have passed plan_check for b) into out (from result_create, poisoned). The same bits
 * on any thread count. Memory beyond inputs and outputs: the plan's workspace and O(threads x tile). */
enum status ref_exec(const struct batch *b, const struct tensors *t, const struct plan *p, struct result *out,
                     struct why *why);

#endif
