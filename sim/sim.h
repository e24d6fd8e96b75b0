/* sim: how long a plan would take on a GPU, SM by SM. An event-driven fluid model of resident CTAs: dispatch
 * as the hardware does it, tensor and FMA pipes shared per SM, HBM shared by max-min with per-CTA and per-SM
 * caps.
 *
 * Deterministic; no I/O, no clock, no randomness. It prices items with sched/cost.h. */
#ifndef TANDEM_SIM_SIM_H
#define TANDEM_SIM_SIM_H

#include "sched/plan.h"
#include "sched/span.h"

struct sim_options {
    bool spans;     /* record a span for every item and merge */
    double stop_ns; /* give up once simulated time is past this; 0: never */
};

/* A change of resource use: from this time on, until the next sample. For timelines' counter tracks. */
struct sim_sample {
    double ns;
    double tensor_frac; /* of the chip's tensor pipes in use */
    double hbm_bytes_per_ns;
    int32_t resident_ctas;
};

struct sim_result {
    double makespan_ns; /* launch gap of the first grid excluded, merges included */
    double prefill_end_ns, decode_end_ns,
        merge_end_ns;    /* last end of each role; NaN when the plan has none */
    double flops;        /* useful: cost_batch_flops */
    double hbm_bytes;    /* moved from and to HBM, after L2 reuse */
    double tensor_util;  /* useful FLOPs / (makespan x peak) */
    double hbm_util;     /* hbm_bytes / (makespan x peak) */
    double sm_busy_frac; /* mean over SMs of the time with at least one resident CTA / makespan */
    int64_t ctas;        /* CTAs run */
    int64_t items_done;  /* items and merges simulated */
    bool stopped;        /* given up at stop_ns: makespan_ns is where it stood, the rest is not filled in */
    struct span *spans;  /* n_spans, by begin time then sm then slot */
    int64_t n_spans;
    struct sim_sample *samples;
    int64_t n_samples;
};

/* Simulates plan p, which must have passed plan_check for b. STATUS_UNSUPPORTED when a kernel cannot launch
 * on the gpu (with the reason), STATUS_NO_MEMORY. *r is overwritten; free it with sim_result_free (safe on a
 * zeroed one). */
enum status sim_run(const struct batch *b, const struct gpu *gpu, const struct kernels *kernels,
                    const struct plan *p, const struct sim_options *options, struct sim_result *r,
                    struct why *why);
void sim_result_free(struct sim_result *r);

#endif
