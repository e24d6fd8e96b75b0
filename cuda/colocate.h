/* colocate: POD-Attention's co-location micro-benchmark (arXiv 2410.18038, figure 7) on the GPU that is
 * here: a memory bound and a compute bound op, combined by every method. Not attention: it says what
 * co-location itself is worth.
 *
 * The ops, their sizes and who does what: cuda/colocate_map.h. The sweep: COLOCATE_POINTS shares of the
 * compute op, each without and with a __syncthreads after every element. Methods take turns, so that a
 * drift of clocks hits all alike. */
#ifndef TANDEM_CUDA_COLOCATE_H
#define TANDEM_CUDA_COLOCATE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/exec.h"

/* Name, and the mean gain over serial that POD publishes for it, per cent, with barriers; NAN: none. Which
 * is which follows their source: of the CTA-parallel kernels it runs only halves of the grid (even and odd
 * is commented out), its intra-thread kernel with barriers does one op after the other, and its serial and
 * streams have barriers too. Proportional tickets are not in it: CTAs in proportion to the times that the
 * ops take alone, drawn by POD's rule of whole ratios or exactly (sched/remap.h). */
#define COLOCATE_METHOD_LIST(X)                \
    X(SERIAL, "serial", NAN)                   \
    X(STREAMS, "streams", 7)                   \
    X(CTA_HALVES, "cta_halves", 3)             \
    X(CTA_EVEN_ODD, "cta_even_odd", NAN)       \
    X(SM_HALF, "sm_half", NAN)                 \
    X(SM_PROPORTIONAL, "sm_proportional", NAN) \
    X(SM_EXACT, "sm_exact", NAN)               \
    X(WARPS, "warps", NAN)                     \
    X(THREAD_IN_TURN, "thread_in_turn", 13)    \
    X(THREAD_INTERLEAVED, "thread_interleaved", NAN)

enum colocate_method {
#define X(id, name, published) COLOCATE_METHOD_##id,
    COLOCATE_METHOD_LIST(X)
#undef X
        COLOCATE_METHODS
};

enum { COLOCATE_MAX_ROWS = 10 * 2 * COLOCATE_METHODS };

/* Microseconds of `runs` runs. */
struct colocate_time {
    double median_us, p10_us, p90_us;
};

struct colocate_row {
    enum colocate_method method;
    bool barrier;
    int32_t compute_iters; /* 200 x the share of elements that the compute op does, as in the figure */
    struct colocate_time time;
    double memory_us, compute_us; /* each op alone, with a barrier where the row has one */
    double serial_us;             /* of the same share and barrier */
    int64_t wrong;                /* elements that were not right after a run, all runs together */
    int32_t sm_mhz;               /* soon after the runs; 0: not known */
};

struct colocate {
    struct cuda_card card;
    int64_t n; /* floats an array */
    int32_t runs, n_rows;
    struct colocate_row rows[COLOCATE_MAX_ROWS]; /* by share, barrier, method */
};

struct colocate_options {
    int32_t runs; /* timed, after one to warm up */
    /* floats an array: the largest power of two up to this whose four arrays fit half of the free memory */
    int64_t most_elements;
    void (*step)(int32_t compute_iters, bool barrier); /* NULL: none; told before each group of rows */
};

/* Measures everything. Whatever it returns, out->rows are those that are done. Wrong elements are not a
 * failure here: rows say so. STATUS_NO_MEMORY when 2^16 floats an array do not fit half of the free
 * memory. */
enum status colocate_run(struct cuda_device *d, const struct colocate_options *options, struct colocate *out,
                         struct why *why);

#ifdef __cplusplus
}
#endif

#endif
