/* colocate_body: the kernels of the co-location micro-benchmark. `shape` and `barrier` are constants where
 * colocate_cta is called, so that each kernel is its own code. In the common subset of C11 and CUDA C++.
 *
 * In every shape a thread does one element after the other, loads to store, so that shapes differ in
 * nothing but in who does which element when. */
#ifndef TANDEM_CUDA_COLOCATE_BODY_CUH
#define TANDEM_CUDA_COLOCATE_BODY_CUH

#include "cuda/colocate_map.h"

struct colocate_work {
    const float *a, *b;
    float *c, *d;
    int64_t n_memory, n_compute; /* elements of each op */
    float factor;                /* 2, as a number that the compiler does not know */
    int32_t ctas;
    struct view_launch tickets; /* COLOCATE_TICKETS */
};

static __device__ __forceinline__ uint32_t colocate_sm(void)
{
#if defined(__CUDACC__)
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
#else
    return shim_sm();
#endif
}

static __device__ __forceinline__ void colocate_element(const struct colocate_work *w, int32_t op, int64_t j)
{
    if (op == COLOCATE_MEMORY) {
        w->c[j] += w->a[j] + w->b[j];
        return;
    }
    float x = w->d[j];
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (int32_t i = 0; i < COLOCATE_ITERS; i++)
        x *= w->factor;
    w->d[j] = x;
}

/* The threads of a team wait for each other. Barrier numbers are constants: an SM has 64 barriers for all
 * its CTAs. */
static __device__ __forceinline__ void colocate_meet(struct colocate_team t, bool whole)
{
    if (whole) {
        __syncthreads();
        return;
    }
#if defined(__CUDACC__)
    if (t.op == COLOCATE_MEMORY)
        asm volatile("bar.sync 1, %0;" ::"r"(t.threads) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"r"(t.threads) : "memory");
#else
    shim_sync_named(1 + t.op, t.threads);
#endif
}

/* All elements of the team's op that are this thread's. The number of steps is the team's, so that
 * barriers match. whole: the team is the CTA. */
static __device__ __forceinline__ void colocate_walk(const struct colocate_work *w, struct colocate_team t,
                                                     bool whole, bool barrier)
{
    const int64_t n = t.op == COLOCATE_MEMORY ? w->n_memory : w->n_compute, stride = colocate_stride(t);
#if defined(__CUDACC__)
#pragma unroll 1
#endif
    for (int64_t base = colocate_first(t); base < n; base += stride) {
        if (base + t.thread < n) colocate_element(w, t.op, base + t.thread);
        if (barrier) colocate_meet(t, whole);
    }
}

/* Either op, as two loops of their own. */
static __device__ __forceinline__ void colocate_walk_one(const struct colocate_work *w,
                                                         struct colocate_team t, bool whole, bool barrier)
{
    if (t.op == COLOCATE_MEMORY) {
        t.op = COLOCATE_MEMORY;
        colocate_walk(w, t, whole, barrier);
    } else {
        t.op = COLOCATE_COMPUTE;
        colocate_walk(w, t, whole, barrier);
    }
}

/* Both ops, an element of each in turn until the shorter ends. */
static __device__ __forceinline__ void colocate_walk_both(const struct colocate_work *w,
                                                          struct colocate_place p, bool barrier)
{
    const struct colocate_team m = colocate_whole(p, COLOCATE_MEMORY),
                               c = colocate_whole(p, COLOCATE_COMPUTE);
    const int64_t both = w->n_memory < w->n_compute ? w->n_memory : w->n_compute, stride = colocate_stride(m);
    int64_t base = colocate_first(m);
#if defined(__CUDACC__)
#pragma unroll 1
#endif
    for (; base < both; base += stride) {
        if (base + m.thread < w->n_memory) colocate_element(w, COLOCATE_MEMORY, base + m.thread);
        if (barrier) colocate_meet(m, true);
        if (base + m.thread < w->n_compute) colocate_element(w, COLOCATE_COMPUTE, base + m.thread);
        if (barrier) colocate_meet(c, true);
    }
    /* of these two loops one has no steps left */
#if defined(__CUDACC__)
#pragma unroll 1
#endif
    for (int64_t at = base; at < w->n_memory; at += stride) {
        if (at + m.thread < w->n_memory) colocate_element(w, COLOCATE_MEMORY, at + m.thread);
        if (barrier) colocate_meet(m, true);
    }
#if defined(__CUDACC__)
#pragma unroll 1
#endif
    for (int64_t at = base; at < w->n_compute; at += stride) {
        if (at + m.thread < w->n_compute) colocate_element(w, COLOCATE_COMPUTE, at + m.thread);
        if (barrier) colocate_meet(c, true);
    }
}

/* The entry of a CTA that asks its SM. word: shared memory. */
static __device__ __forceinline__ int32_t colocate_ask(const struct colocate_work *w, struct colocate_place p,
                                                       int32_t *word)
{
    if (p.thread == 0) *word = colocate_draw(&w->tickets, colocate_sm());
    __syncthreads();
    return *word;
}

static __device__ __forceinline__ void colocate_cta(const struct colocate_work *w, int32_t shape,
                                                    bool barrier, int32_t *word)
{
    struct colocate_place p;
    int32_t entry;
    p.cta = (int32_t)blockIdx.x;
    p.ctas = w->ctas;
    p.thread = (int32_t)threadIdx.x;
    p.threads = (int32_t)blockDim.x;
    switch (shape) {
    case COLOCATE_ONE_MEMORY:
        colocate_walk(w, colocate_whole(p, COLOCATE_MEMORY), true, barrier);
        return;
    case COLOCATE_ONE_COMPUTE:
        colocate_walk(w, colocate_whole(p, COLOCATE_COMPUTE), true, barrier);
        return;
    case COLOCATE_HALVES:
        colocate_walk_one(w, colocate_halves(p), true, barrier);
        return;
    case COLOCATE_EVEN_ODD:
        colocate_walk_one(w, colocate_even_odd(p), true, barrier);
        return;
    case COLOCATE_TICKETS:
        entry = colocate_ask(w, p, word);
        if (entry >= 0) /* else its elements are missed, which the check says */
            colocate_walk_one(w, colocate_entry(p, entry, w->tickets.g.ticket.n_prefill), true, barrier);
        return;
    case COLOCATE_WARPS:
        colocate_walk_one(w, colocate_warps(p), false, barrier);
        return;
    case COLOCATE_IN_TURN:
        colocate_walk(w, colocate_whole(p, COLOCATE_MEMORY), true, barrier);
        colocate_walk(w, colocate_whole(p, COLOCATE_COMPUTE), true, barrier);
        return;
    default:
        colocate_walk_both(w, p, barrier);
    }
}

#endif
