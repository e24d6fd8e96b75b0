/* draw: how a CTA comes by its work: lists through the remap, tickets of queues, SM tickets.
 *
 * The arithmetic is here, as plain code that tests run on the CPU under any order of CTAs; kernels add threads and
 * barriers around it. Counters are plain on the CPU, atomic on the device. */
#ifndef TANDEM_CUDA_DRAW_H
#define TANDEM_CUDA_DRAW_H

#include "cuda/view.h"

TANDEM_INLINE int32_t draw_add(int32_t *counter, int32_t n)
{
#if defined(__CUDA_ARCH__)
    return atomicAdd(counter, n);
#else
    const int32_t before = *counter;
    *counter = before + n;
    return before;
#endif
}

TANDEM_INLINE struct range draw_range(int32_t begin, int32_t end)
{
    struct range r;
    r.begin = begin;
    r.end = end;
    return r;
}

/* FIXED: items (or merges) of CTA cta, in order. */
TANDEM_INLINE struct range draw_list(const struct view *x, const struct view_grid *g, int32_t cta)
{
    const int32_t *list = x->list_indptr + g->list_begin + remap_linear_bid(g->remap, cta).entry;
    return draw_range(list[0], list[1]);
}

/* Where the decode half of a BESIDE list begins. */
TANDEM_INLINE int32_t draw_first_decode(const struct view *x, const struct view_grid *g, struct range list)
{
    while (list.begin < list.end && x->items[list.begin].kernel == g->prefill_kernel)
        list.begin++;
    return list.begin;
}

/* QUEUE: the next item of the home queue, else of the queues in its steal order; -1 once all are dry. `tried`
 * (start with 0) is how far along the order this CTA is: queues never fill again, so dry ones are not asked
 * twice. */
TANDEM_INLINE int32_t draw_queue(const struct view *x, const struct view_grid *g, int32_t cta, int32_t *tried)
{
    const int32_t home = x->home[g->home_begin + cta];
    const int32_t *order = x->steal + g->steal_begin + (int64_t)home * g->n_lists;
    for (; *tried < g->n_lists && order[*tried] >= 0; ++*tried) {
        const int32_t q = order[*tried], *list = x->list_indptr + g->list_begin + q;
        const int32_t at = draw_add(&g->counters[q], 1);
        if (at < list[1] - list[0]) return list[0] + at;
    }
    return -1;
}

/* SM_TICKET: the ticket of the SM names a role; the role's ticket its next entries, as many as a CTA of that role
 * has lanes. A dry role hands over to the other, which has work left because the grid has just enough CTAs.
 * %smid may be larger than the number of SMs: such SMs share a counter. */
TANDEM_INLINE struct range draw_ticket(const struct view *x, const struct view_grid *g, uint32_t sm)
{
    const int32_t *list = x->list_indptr + g->list_begin;
    int32_t role = ticket_role(g->ticket, draw_add(&g->counters[2 + sm % (uint32_t)g->n_sm_counters], 1));
    for (int32_t k = 0; k < 2; k++, role = !role) {
        const int32_t n = list[role + 1] - list[role], lanes = g->lanes[role];
        const int32_t at = draw_add(&g->counters[role], lanes);
        if (at < n) return draw_range(list[role] + at, list[role] + (n - at < lanes ? n : at + lanes));
    }
    return draw_range(0, 0);
}

/* A CTA is done: the last one of the grid puts all counters back to 0 for the next run. */
TANDEM_INLINE void draw_done(const struct view_grid *g)
{
    const int32_t n = view_counters(g);
    if (n == 0 || draw_add(&g->counters[n - 1], 1) != g->n_ctas - 1) return;
    for (int32_t i = 0; i < n; i++)
        g->counters[i] = 0;
}

/* An item's partial rows are written (and visible to all): true when merge m has all its sources now, for exactly
 * one of the items that feed it. */
TANDEM_INLINE bool draw_arrive(const struct view *x, int32_t m)
{
    if (draw_add(&x->merge_arrived[m], 1) != x->merge_needs[m] - 1) return false;
    x->merge_arrived[m] = 0;
    return true;
}

#endif
