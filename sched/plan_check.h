/* plan_check: proves a plan complete and sound for a batch without executing it. Knows nothing of policies.
 */
#ifndef TANDEM_SCHED_PLAN_CHECK_H
#define TANDEM_SCHED_PLAN_CHECK_H

#include "sched/plan.h"

/* STATUS_OK, or STATUS_INVALID_PLAN with the first fault found (which item / merge / grid, what, what was
 * expected). The batch must have passed batch_check; the plan may be arbitrary bytes in well formed arrays
 * (hostile files).
 *
 * Proves:
 *  - structure: every index, range, flag, kernel id, CSR and count is in bounds; `after` points to earlier
 *    grids only; items and merges belong to exactly one list; FIXED remaps are bijections onto the lists;
 *    QUEUE homes and steal orders name real queues and every queue is reached by some CTA; SM_TICKET lists
 *    match the ticket's counts; fused grids hold items of their two rows only and other grids items of
 *    their own row
 *  - coverage: every visible (query row, key, q head) is computed exactly once
 *  - writers: every partial row is written once and read once; every output row has exactly one writer (a
 *    direct item or a merge), rows without keys included; a direct item alone covers all visible keys of
 *    its rows
 *  - order: every merge runs after all the items that write its sources (by stream order or `after`), or
 *    all its sources carry ITEM_LAST_MERGES and it is in no merge grid
 *  - groups: all members of a row group hold the same physical pages over every key range that is computed
 *    for it
 *  - workspace_bytes is exactly what partial_rows needs */
enum status plan_check(const struct plan *p, const struct batch *b, struct why *why);

#endif
