/* gpu: one GPU as numbers. Filled from sim/gpus/NAME.ini by lab/, read by policies, cost and simulator.
 *
 * Every value in the files carries its source. A policy may read all of it; nothing here knows what a kernel
 * is (sched/kernel.h) or how contention works (sim/). Rates are per nanosecond: 1 GB/s = 1 byte/ns, 1 TFLOP/s
 * = 1000 FLOP/ns. */
#ifndef TANDEM_SCHED_GPU_H
#define TANDEM_SCHED_GPU_H

#include "sched/batch.h"

#include <stdint.h>

enum { GPU_NAME_MAX = 32, GPU_MAX_GPCS = 16, GPU_MAX_SMEM_SIZES = 12, GPU_MAX_SMS = 1024 };

/* How a kernel does its arithmetic: one of the SM's pipes, and how much of its peak such code reaches. */
enum math_class {
    MATH_NONE,     /* merges, copies */
    MATH_FMA,      /* CUDA cores */
    MATH_MMA_SYNC, /* tensor pipe, FA2-class code */
    MATH_WGMMA,    /* tensor pipe, Hopper warpgroup code (FA3-class) */
    MATH_COUNT
};

struct gpu {
    char name[GPU_NAME_MAX];
    int32_t cc_major, cc_minor;
    int32_t sm_count;
    int32_t n_gpcs;
    int32_t gpc_sms[GPU_MAX_GPCS]; /* SMs of each GPC, sums to sm_count; n_gpcs 0 = unknown */

    /* limits of one SM, for occupancy (sim/occupancy.h) */
    int32_t max_threads_per_sm;
    int32_t max_ctas_per_sm;
    int32_t registers_per_sm;
    int32_t smem_per_sm_bytes;
    int32_t smem_optin_bytes; /* most a CTA may ask for */
    int32_t n_smem_sizes;
    int32_t smem_sizes_bytes[GPU_MAX_SMEM_SIZES]; /* carve-outs, ascending */
    int32_t barrier_factor;                       /* named-barrier pool per SM, in units of max_ctas_per_sm */

    /* datasheet peaks: the floor that nothing may beat */
    double peak_flops_per_ns; /* dense 16-bit tensor rate, whole chip */
    double peak_hbm_bytes_per_ns;

    /* what code reaches, whole chip */
    double hbm_bytes_per_ns;  /* read bandwidth at saturation */
    double sm_bytes_per_ns;   /* most one SM can pull */
    double memory_latency_ns; /* loaded latency at which bytes in flight become bandwidth */
    double l2_bytes;
    double flops_frac[MATH_COUNT];     /* of peak_flops_per_ns, all slots of the SM busy with this class */
    double cta_flops_frac[MATH_COUNT]; /* of peak_flops_per_ns / sm_count: one CTA alone on its SM */

    /* overheads */
    double launch_ns;    /* gap before a grid that waits for another on its stream (or for the host) */
    double cta_start_ns; /* launch of a CTA to its first useful load, prologue included */
    double cta_end_ns;   /* last useful instruction to the slot being free */
    double item_ns; /* between two items of one CTA (persistent kernels, lists): decode of the item, Q load */
};

/* Peak dense tensor rate for a Q/O type: 16-bit = 1, fp32 (TF32) = 1/2 of peak_flops_per_ns. Source: the
 * datasheets' TF32 : BF16 ratio, 1 : 2 on every part since Ampere. */
static inline double gpu_dtype_rate(enum dtype t)
{
    return t == DTYPE_FP32 ? 0.5 : 1.0;
}

#endif
