/* span: one item (or merge) on one SM, from begin to end. The same form comes from the simulator and from the
 * device. */
#ifndef TANDEM_SCHED_SPAN_H
#define TANDEM_SCHED_SPAN_H

#include <stdint.h>

struct span {
    int32_t sm;
    int32_t slot; /* resident-CTA slot on that SM, times the most lanes of any grid of the plan, plus the
                     lane: spans of one (sm, slot) never overlap */
    int32_t grid;
    int32_t cta;             /* index within the grid */
    int32_t item;            /* plan item, or merge index where is_merge */
    int32_t is_merge;        /* by a merge grid, or by the last item to arrive */
    double begin_ns, end_ns; /* from the start of the first grid */
};

#endif
