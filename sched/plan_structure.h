/* plan_structure: the part of plan_check that needs no coverage proof: bounds, lists, dispatch, order of
 * grids. */
#ifndef TANDEM_SCHED_PLAN_STRUCTURE_H
#define TANDEM_SCHED_PLAN_STRUCTURE_H

#include "sched/plan.h"

/* Every index, range, flag and count in bounds; every item and merge in exactly one list (merges done by last
 * arrivers in none); dispatch fields consistent; workspace exact. Safe on arbitrary contents of well formed
 * arrays. */
enum status plan_structure_check(const struct plan *p, const struct batch *b, struct why *why);

/* Every merge runs after the items that write its sources, or is done by them as last arrivers.
 * item_of_partial[row] is the item that writes a partial row. Needs plan_structure_check to have passed. */
enum status plan_order_check(const struct plan *p, const struct batch *b, const int32_t *item_of_partial,
                             struct why *why);

#endif
