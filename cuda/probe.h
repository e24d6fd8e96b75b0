/* probe: measures the GPU that is here: the figures a profile (sim/gpus) is made of, and the curves behind them.
 *
 * Every figure is the median of `repeats` runs of its experiment after one to warm up; spread is (largest - least) /
 * median. Rates are per nanosecond: 1 byte/ns = 1 GB/s, 1000 FLOP/ns = 1 TFLOP/s. Clocks are as found. */
#ifndef TANDEM_CUDA_PROBE_H
#define TANDEM_CUDA_PROBE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/exec.h"

enum { PROBE_POINTS = 16, PROBE_SMS = 256, PROBE_GPCS = 32 };

struct probe_figure {
    double value, spread;
};

/* n points of a curve; x in the unit that the curve names. */
struct probe_curve {
    int32_t n;
    double x[PROBE_POINTS];
    struct probe_figure y[PROBE_POINTS];
};

struct probe {
    struct cuda_card card;
    int32_t max_threads_per_sm, max_ctas_per_sm, registers_per_sm;
    int32_t smem_per_sm_bytes, smem_optin_bytes;
    int64_t l2_bytes;

    int32_t n_gpcs,
        gpc_sms[PROBE_GPCS]; /* by clusters: SMs that shared one are of one GPC; 0: no clusters here */
    int32_t n_first, first_wave[PROBE_SMS]; /* SM of CTA 0, 1, ... of a grid of one CTA an SM */
    struct probe_figure first_wave_ns;      /* from the first CTA's start to the last one's */

    struct probe_figure
        turnaround_ns[3]; /* a CTA's end to the start of the next in its place: 0, 16, 200 KB of shared
                                             memory */
    struct probe_figure launch_gap_ns, graph_gap_ns; /* kernel to dependent kernel, in a stream, in a graph */
    struct probe_figure overlap; /* two kernels of half the SMs, two streams: time over that of one */

    struct probe_figure hbm_latency_ns, l2_latency_ns; /* of dependent loads */
    struct probe_curve hbm_by_bytes;                   /* bytes/ns; x: bytes in flight an SM, all SMs */
    struct probe_curve hbm_by_sms;         /* bytes/ns; x: SMs that read, one CTA of 1024 threads each */
    struct probe_curve l2_by_bytes;        /* bytes/ns; x: bytes read over and over by all SMs */
    struct probe_figure stream_latency_ns; /* bytes in flight over rate, one SM, 16 KB */
    double hbm_most, hbm_power;            /* B = most x / (1 + x^p)^(1/p), x = in flight / (latency most) */

    struct probe_curve mma_by_warps; /* FLOP/ns of mma.sync bf16; x: warps an SM, all SMs */
    struct probe_figure mma_one_sm;  /* the same of one SM of 8 warps */
    struct probe_figure fma, exp2;   /* fp32 FLOP/ns, ex2/ns of all SMs */
};

/* Runs every experiment, about half a minute; `step` (NULL: none) is told each one's name first. STATUS_NO_MEMORY when
 * less than 64 MB are free. */
enum status probe_run(struct cuda_device *d, int32_t repeats, void (*step)(const char *name),
                      struct probe *out, struct why *why);

#ifdef __cplusplus
}
#endif

#endif
