/* colocate_map: who does what in the co-location micro-benchmark: which CTA, warp or thread works on which
 * elements of which op, and what the elements hold before and after. Pure arithmetic, as C11 and CUDA C++;
 * colocate_body.cuh walks.
 *
 *   memory op    c[j] += a[j] + b[j]                  for j < n_memory
 *   compute op   d[j] *= 2, COLOCATE_ITERS times      for j < n_compute
 *
 * After POD-Attention's tests/micro_compute_mem.cu (arXiv 2410.18038, figure 7): 2048 CTAs of 256 threads,
 * grid-stride, one element a thread and step. */
#ifndef TANDEM_CUDA_COLOCATE_MAP_H
#define TANDEM_CUDA_COLOCATE_MAP_H

#include "cuda/draw.h"

#include <string.h>

enum colocate_op { COLOCATE_MEMORY, COLOCATE_COMPUTE };

enum { COLOCATE_ITERS = 200, COLOCATE_CTAS = 2048, COLOCATE_THREADS = 256, COLOCATE_POINTS = 10 };

/* Kernels. TICKETS serves every kind of ticket. */
enum colocate_shape {
    COLOCATE_ONE_MEMORY,  /* the memory op alone */
    COLOCATE_ONE_COMPUTE, /* the compute op alone */
    COLOCATE_HALVES,      /* the first half of the CTAs memory, the second compute */
    COLOCATE_EVEN_ODD,    /* even CTAs memory, odd ones compute */
    COLOCATE_TICKETS,     /* the SM's next ticket says */
    COLOCATE_WARPS,       /* the first half of a CTA's warps memory, the second compute */
    COLOCATE_IN_TURN,     /* a thread does all its memory elements, then its compute ones */
    COLOCATE_INTERLEAVED, /* a thread does a memory element, a compute element, and so on */
    COLOCATE_SHAPES
};

/* Elements of the compute op at point 1 .. COLOCATE_POINTS of the sweep: n * point / 10, rounded down. */
TANDEM_INLINE int64_t colocate_n_compute(int64_t n, int32_t point)
{
    return n * point / COLOCATE_POINTS;
}

/* ---- who ----------------------------------------------------------------------------------------------- */

struct colocate_place {
    int32_t cta, ctas, thread, threads;
};

/* Threads that share an op: `parts` equal teams; this thread's is number `part`, of `threads` threads.
 * Teams go through the elements in tiles of `threads`, tile part, part + parts, part + 2 parts, ...:
 *
 *   parts 3, threads 4:   elements 0..3 4..7 8..11 | 12..15 16..19 20..23 | 24 ..
 *                         part     0    1    2     |  0      1      2     |  0 */
struct colocate_team {
    int32_t op, part, parts, thread, threads;
};

/* First element of the team's first tile, and from a tile to its next. */
TANDEM_INLINE int64_t colocate_first(struct colocate_team t)
{
    return (int64_t)t.part * t.threads;
}

TANDEM_INLINE int64_t colocate_stride(struct colocate_team t)
{
    return (int64_t)t.parts * t.threads;
}

TANDEM_INLINE struct colocate_team colocate_team(int32_t op, int32_t part, int32_t parts, int32_t thread,
                                                 int32_t threads)
{
    struct colocate_team t;
    t.op = op;
    t.part = part;
    t.parts = parts;
    t.thread = thread;
    t.threads = threads;
    return t;
}

/* Every CTA works on the op. */
TANDEM_INLINE struct colocate_team colocate_whole(struct colocate_place p, int32_t op)
{
    return colocate_team(op, p.cta, p.ctas, p.thread, p.threads);
}

/* Entries [0, n_memory) are the memory op's CTAs, [n_memory, ctas) the compute op's. Both must be there:
 * ctas >= 2, 1 <= n_memory < ctas. */
TANDEM_INLINE struct colocate_team colocate_entry(struct colocate_place p, int32_t entry, int32_t n_memory)
{
    return entry < n_memory
               ? colocate_team(COLOCATE_MEMORY, entry, n_memory, p.thread, p.threads)
               : colocate_team(COLOCATE_COMPUTE, entry - n_memory, p.ctas - n_memory, p.thread, p.threads);
}

TANDEM_INLINE struct colocate_team colocate_halves(struct colocate_place p)
{
    return colocate_entry(p, p.cta, p.ctas / 2);
}

TANDEM_INLINE struct colocate_team colocate_even_odd(struct colocate_place p)
{
    const int32_t n_even = p.ctas - p.ctas / 2;
    return colocate_entry(p, p.cta % 2 == 0 ? p.cta / 2 : n_even + p.cta / 2, n_even);
}

/* At least two warps a CTA; of an odd number the compute op has one more. */
TANDEM_INLINE struct colocate_team colocate_warps(struct colocate_place p)
{
    const int32_t first = p.threads / 64 * 32;
    return p.thread < first
               ? colocate_team(COLOCATE_MEMORY, p.cta, p.ctas, p.thread, first)
               : colocate_team(COLOCATE_COMPUTE, p.cta, p.ctas, p.thread - first, p.threads - first);
}

/* ---- tickets ------------------------------------------------------------------------------------------- */

/* How many of the CTAs are the memory op's when the ops share them by the times that each takes alone. */
TANDEM_INLINE int32_t colocate_memory_ctas(int32_t ctas, double memory_us, double compute_us)
{
    const double share = ctas * memory_us / (memory_us + compute_us) + 0.5;
    if (!(share >= 1)) return 1;
    return share < ctas - 1 ? (int32_t)share : ctas - 1;
}

/* A grid of `ctas` CTAs that draw entries by SM tickets (cuda/draw.h), the memory op in the role of the
 * prefills. The caller points l->x.list_indptr to {0, n_memory, ctas} and l->g.counters to
 * view_counters(&l->g) zeros. */
TANDEM_INLINE void colocate_tickets(struct view_launch *l, int32_t kind, int32_t n_memory, int32_t ctas,
                                    int32_t n_sm_counters)
{
    memset(l, 0, sizeof *l);
    l->g.n_ctas = ctas;
    l->g.dispatch = DISPATCH_SM_TICKET;
    l->g.n_lists = 2;
    l->g.ticket.kind = kind;
    l->g.ticket.n_prefill = n_memory;
    l->g.ticket.n_decode = ctas - n_memory;
    l->g.lanes[0] = l->g.lanes[1] = 1;
    l->g.n_sm_counters = n_sm_counters;
}

/* The entry of a CTA on SM number sm. The grid has as many CTAs as entries, so there is one; -1 would be a
 * fault. */
TANDEM_INLINE int32_t colocate_draw(const struct view_launch *l, uint32_t sm)
{
    const struct range r = draw_ticket(&l->x, &l->g, sm);
    return r.begin < r.end ? r.begin : -1;
}

/* ---- what the elements hold ---------------------------------------------------------------------------- */

/* Everything is exact in fp32, and an element that was left out, done twice, or done with another's data
 * differs. a, b, c: whole numbers, a >= 1, sums below 2^14. */
TANDEM_INLINE float colocate_a(int64_t j)
{
    return (float)(1 + (j & 1023));
}

TANDEM_INLINE float colocate_b(int64_t j)
{
    return (float)((j >> 10) & 4095);
}

TANDEM_INLINE float colocate_c(int64_t j, bool done)
{
    const float before = (float)((j * 7) & 2047);
    return done ? before + (colocate_a(j) + colocate_b(j)) : before;
}

/* d: (1 + k / 2^16) 2^-100, k of 16 mixed bits of j, which COLOCATE_ITERS doublings take to (1 + k / 2^16)
 * 2^100; done twice it is infinite. (The published data, 1, is infinite after 128 doublings.) */
TANDEM_INLINE float colocate_d(int64_t j, bool done)
{
    const float k = (float)(65536 + (((uint64_t)j * 2654435761u) >> 16 & 65535));
    return done ? k * 0x1p84f : k * 0x1p-116f;
}

/* Is it? False for NaN. */
TANDEM_INLINE bool colocate_right(float got, float want)
{
    return got == want;
}

#endif
