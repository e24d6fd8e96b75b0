/* exact_exec: obeys a plan in double precision, item by item, as plainly as can be: what is left of an error is
 * the plan's. */
#ifndef TANDEM_REF_EXACT_EXEC_H
#define TANDEM_REF_EXACT_EXEC_H

#include "ref/tensor.h"
#include "sched/plan.h"

/* As ref_exec with NUMERICS_EXACT. Memory beyond inputs and outputs: twice the plan's workspace and O(threads x
 * tile). */
enum status exact_exec(const struct batch *b, const struct tensors *t, const struct plan *p,
                       struct result *out, struct why *why);

#endif
