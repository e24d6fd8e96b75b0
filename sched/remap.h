/* remap: which entry a CTA works on. Pure functions from (blockIdx, ticket) to (role, entry).
 *
 * Compiles as C11 and as CUDA C++: the kernel, the CPU executor and the simulator call these same functions.
 * No state and no memory access here; atomics that draw tickets belong to the callers. */
#ifndef TANDEM_SCHED_REMAP_H
#define TANDEM_SCHED_REMAP_H

#include "sched/inline.h"

#include <stdint.h>

enum work_role { WORK_PREFILL = 0, WORK_DECODE = 1 };

/* FIXED grids. The plan lays prefill entries first in one unified index space, [0, n_prefill), then decode
 * entries at n_prefill + decode index; the remap only changes which CTA (and so: when) takes which. All kinds
 * are bijections of [0, n_prefill + n_decode).
 *   PREFILL_FIRST     bid -> bid (the identity; what `linear_bid` of the batch-POD proposal does)
 *   DECODE_FIRST      decode entries get the first blockIdx values
 *   INTERLEAVED       both roles spread evenly over blockIdx (rational, exact ratio n_prefill : n_decode)
 *   PREFILL_REVERSED  prefill first, last entry first (longest causal tile first) */
enum remap_kind {
    REMAP_PREFILL_FIRST,
    REMAP_DECODE_FIRST,
    REMAP_INTERLEAVED,
    REMAP_PREFILL_REVERSED,
    REMAP_KIND_COUNT
};

struct remap {
    int32_t kind;
    int32_t n_prefill;
    int32_t n_decode;
};

struct remap_entry {
    int32_t role;
    int32_t entry; /* in the unified index space */
};

/* Number of prefill CTAs among the first `count` of n_prefill + n_decode spread evenly: floor(count * P / (P
 * + D)). */
TANDEM_INLINE int32_t remap_even_share(int32_t count, int32_t n_prefill, int32_t n_decode)
{
    return (int32_t)((int64_t)count * n_prefill / ((int64_t)n_prefill + n_decode));
}

/* Role and entry of CTA bid, 0 <= bid < n_prefill + n_decode. */
TANDEM_INLINE struct remap_entry remap_linear_bid(struct remap r, int32_t bid)
{
    struct remap_entry e;
    int32_t before;
    switch (r.kind) {
    case REMAP_DECODE_FIRST:
        e.role = bid < r.n_decode ? WORK_DECODE : WORK_PREFILL;
        e.entry = bid < r.n_decode ? r.n_prefill + bid : bid - r.n_decode;
        return e;
    case REMAP_INTERLEAVED:
        before = remap_even_share(bid, r.n_prefill, r.n_decode);
        e.role = remap_even_share(bid + 1, r.n_prefill, r.n_decode) > before ? WORK_PREFILL : WORK_DECODE;
        e.entry = e.role == WORK_PREFILL ? before : r.n_prefill + (bid - before);
        return e;
    case REMAP_PREFILL_REVERSED:
        e.role = bid < r.n_prefill ? WORK_PREFILL : WORK_DECODE;
        e.entry = bid < r.n_prefill ? r.n_prefill - 1 - bid : bid;
        return e;
    default:
        e.role = bid < r.n_prefill ? WORK_PREFILL : WORK_DECODE;
        e.entry = bid;
        return e;
    }
}

/* SM_TICKET grids (POD-Attention). A CTA asks which SM it is on and draws that SM's next ticket 0, 1, 2, ...;
 * the ticket says which role it should take. It then draws the role's global ticket; if that role has run out
 * it takes the other's, which must have one left because the grid has exactly n_prefill + n_decode CTAs.
 *   PROPORTIONAL  FlashInfer pod.cuh / POD: integer ratio. P <= D: cycle of floor(D/P)+1, first is prefill;
 *                 P > D: cycle of floor(P/D)+1, last is decode
 *   HALF          POD 50:50: even tickets prefill
 *   EXACT         rational: prefill spread evenly, no truncation */
enum ticket_kind { TICKET_PROPORTIONAL, TICKET_HALF, TICKET_EXACT, TICKET_KIND_COUNT };

struct ticket {
    int32_t kind;
    int32_t n_prefill;
    int32_t n_decode;
};

/* Role wanted by the CTA that drew `sm_ticket` >= 0 on its SM. With one side empty it is the other side (the
 * public rule divides by zero there). */
TANDEM_INLINE int32_t ticket_role(struct ticket t, int32_t sm_ticket)
{
    const int32_t p = t.n_prefill, d = t.n_decode;
    int32_t cycle;
    if (p == 0) return WORK_DECODE;
    if (d == 0) return WORK_PREFILL;
    switch (t.kind) {
    case TICKET_HALF:
        return sm_ticket % 2 == 0 ? WORK_PREFILL : WORK_DECODE;
    case TICKET_EXACT:
        /* ticket k is a prefill when ceil(k P / (P + D)) steps up: the first one is, as in the published rule
         */
        cycle = p + d;
        sm_ticket %= cycle;
        return ((int64_t)(sm_ticket + 1) * p + cycle - 1) / cycle >
                       ((int64_t)sm_ticket * p + cycle - 1) / cycle
                   ? WORK_PREFILL
                   : WORK_DECODE;
    default:
        if (p <= d) return sm_ticket % (d / p + 1) == 0 ? WORK_PREFILL : WORK_DECODE;
        cycle = p / d + 1;
        return sm_ticket % cycle == cycle - 1 ? WORK_DECODE : WORK_PREFILL;
    }
}

#endif
