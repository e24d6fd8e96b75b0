/* fi_pod: FlashInfer's batch POD plans: two FA2 plans, decode first, meant for one fused launch. Shared by
 * the policies `fi_batch_pod` (tickets) and `linear_bid` (remap). Source: flashinfer batch_pod.cuh, PR #2079.
 */
#ifndef TANDEM_SCHED_FI_POD_H
#define TANDEM_SCHED_FI_POD_H

#include "sched/fi_split.h"

struct fi_pod {
    struct works prefill, decode;
    struct fi_split prefill_split, decode_split;
    enum kernel_id prefill_kernel;
    enum kernel_id grid_kernel; /* fused row, or the one role's own row when the other is absent */
};

/* Cuts both roles. Decode with tile 16 and the full budget of 2 x SMs; prefill with 2 x SMs less the decode
 * works (not times kv heads, as published), less nothing above 1536 prefill rows: small prefills are kept
 * from splitting, which would fight the decodes for bandwidth. A decode group of more than 16 rows takes
 * several tiles (the public kernel would leave rows past the first 16 unwritten). */
enum status fi_pod_cut(const struct policy_input *in, struct fi_pod *out);
void fi_pod_free(struct fi_pod *p);

/* Cuts and, where there is anything to do, has add_grids lay it out. */
enum status fi_pod_plan(const struct policy_input *in, struct plan *out,
                        enum status (*add_grids)(const struct policy_input *in, const struct fi_pod *pod,
                                                 struct plan *out));

/* Emits one role's works into the open grid, heads outermost: a list an item, or all in the current list. */
enum status fi_pod_emit(const struct fi_pod *pod, enum work_role role, bool list_per_item,
                        const struct batch *b, struct plan *out);

#endif
