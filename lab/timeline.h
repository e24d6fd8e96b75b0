/* timeline: spans as CSV and as a trace that Perfetto opens. The same two files whoever made the spans. */
#ifndef TANDEM_LAB_TIMELINE_H
#define TANDEM_LAB_TIMELINE_H

#include "sched/plan.h"
#include "sim/sim.h"

#include <stdio.h>

/* grid,cta,item,role,sm,slot,begin_ns,end_ns,row_group,kv_head,row_begin,row_end,kv_begin,kv_end; for merges
 * row_group is the request and the key columns are empty. */
void timeline_write_csv(FILE *out, const struct plan *p, const struct span *spans, int64_t n);

/* Chrome trace-event JSON: pid = SM, tid = resident-CTA slot, X events prefill / decode / merge, counters for
 * the chip. */
void timeline_write_trace(FILE *out, const struct plan *p, const struct sim_result *r);

/* "prefill", "decode" or "merge". */
const char *timeline_role(const struct plan *p, const struct span *s);

#endif
