/* balance: list scheduling of a plan's CTAs on the GPU's slots; the `imbalance` column. Declared in cost.h.
 *
 *   slot 0 |AAAAAAA|DDDD|            makespan ----------v
 *   slot 1 |BBBB|CCCCCC|EEEEE|       imbalance = makespan / (total work / slots)
 */
#include "sched/cost.h"
#include "sched/heap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct schedule {
    const struct plan *plan;
    const struct grid *grid;
    const double *item_ns; /* [n_items] */
    const struct gpu *gpu;
    struct heap_slot *heap;
    int32_t n_slots;
    double makespan_ns, total_ns;
};

/* Gives a CTA (or item) to the slot that is free first, among the first n_live. It holds the slot for ns, and
 * does work_ns of what the slot could have done in that time: less where a lane waits for another. */
static void place(struct schedule *s, int32_t n_live, double ns, double work_ns)
{
    s->heap[0].load += ns;
    s->total_ns += work_ns;
    if (s->heap[0].load > s->makespan_ns) s->makespan_ns = s->heap[0].load;
    heap_sift_root(s->heap, n_live);
}

static const struct kernel *grid_row(const struct schedule *s)
{
    return kernel_row((enum kernel_id)s->grid->kernel);
}

/* The halves of a BESIDE kernel run next to each other, everything else one after another. */
static void schedule_fixed(struct schedule *s)
{
    const struct kernel *k = grid_row(s);
    const bool beside = k->role == ROLE_FUSED && k->fused_how == FUSED_BESIDE;
    const int32_t *indptr = s->plan->list_indptr + s->grid->list_begin;
    for (int32_t cta = 0; cta < s->grid->n_ctas; cta++) {
        const int32_t list = remap_linear_bid(s->grid->remap, cta).entry;
        double ns[2] = {0, 0};
        for (int32_t i = indptr[list]; i < indptr[list + 1]; i++)
            ns[beside && s->plan->items[i].kernel == k->fused_decode] += s->item_ns[i];
        if (beside)
            place(s, s->n_slots, ns[0] > ns[1] ? ns[0] : ns[1], (ns[0] + ns[1]) / 2);
        else
            place(s, s->n_slots, ns[0], ns[0]);
    }
}

/* CTA c is taken to be on SM c mod sm_count with that SM's ticket c / sm_count, the order of a breadth-first
 * launch. */
static void schedule_sm_ticket(struct schedule *s)
{
    const int32_t *indptr = s->plan->list_indptr + s->grid->list_begin;
    int32_t next[2] = {indptr[0], indptr[1]};
    for (int32_t cta = 0; cta < s->grid->n_ctas; cta++) {
        int32_t role = ticket_role(s->grid->ticket, cta / s->gpu->sm_count);
        if (next[role] == indptr[role + 1]) role = !role;
        const int32_t lanes = kernel_role_lanes(grid_row(s), role == WORK_DECODE);
        double longest = 0, sum = 0;
        for (int32_t l = 0; l < lanes && next[role] < indptr[role + 1]; l++) {
            const double ns = s->item_ns[next[role]++];
            if (ns > longest) longest = ns;
            sum += ns;
        }
        place(s, s->n_slots, longest, sum / lanes);
    }
}

/* Workers in a heap; the one that is free first draws from its home queue, then along its steal order. A
 * worker that finds all its queues dry leaves (its slot is never free again). */
static enum status schedule_queue(struct schedule *s)
{
    const struct grid *g = s->grid;
    const int32_t *indptr = s->plan->list_indptr + g->list_begin;
    int32_t *next = malloc(((size_t)g->n_lists + 1) * sizeof *next);
    if (!next) return STATUS_NO_MEMORY;
    memcpy(next, indptr, (size_t)g->n_lists * sizeof *next);
    const int32_t n_workers = g->n_ctas < s->n_slots ? g->n_ctas : s->n_slots;
    for (int32_t live = n_workers; live > 0;) {
        const int32_t home = s->plan->home[g->home_begin + s->heap[0].index];
        const int32_t *order = s->plan->steal + g->steal_begin + (int64_t)home * g->n_lists;
        int32_t k = 0;
        while (k < g->n_lists && order[k] >= 0 && next[order[k]] == indptr[order[k] + 1])
            k++;
        if (k < g->n_lists && order[k] >= 0) {
            const double ns = s->item_ns[next[order[k]]++];
            place(s, live, ns, ns);
        } else {
            s->heap[0] = s->heap[--live];
            if (live > 0) heap_sift_root(s->heap, live);
        }
    }
    free(next);
    return STATUS_OK;
}

static enum status schedule_grid(struct schedule *s)
{
    heap_reset(s->heap, s->n_slots);
    s->makespan_ns = s->total_ns = 0;
    if (s->grid->dispatch == DISPATCH_QUEUE) return schedule_queue(s);
    if (s->grid->dispatch == DISPATCH_FIXED)
        schedule_fixed(s);
    else
        schedule_sm_ticket(s);
    return STATUS_OK;
}

enum status cost_imbalance(const struct plan *p, const struct batch *b, const struct gpu *gpu,
                           const struct kernels *kernels, double *imbalance)
{
    enum status status = STATUS_OK;
    int32_t max_slots = 1;
    double makespan_ns = 0, ideal_ns = 0;
    *imbalance = NAN;
    for (int32_t g = 0; g < p->n_grids; g++) {
        const int32_t slots = gpu->sm_count * kernels->fit[p->grids[g].kernel].ctas_per_sm;
        if (slots <= 0) return STATUS_OK; /* cannot launch: no number */
        if (slots > max_slots) max_slots = slots;
    }
    double *item_ns = malloc(((size_t)p->n_items + 1) * sizeof *item_ns);
    struct heap_slot *heap = malloc((size_t)max_slots * sizeof *heap);
    if (!item_ns || !heap) status = STATUS_NO_MEMORY;
    for (int32_t i = 0; status == STATUS_OK && i < p->n_items; i++)
        item_ns[i] = cost_item(p, b, kernels, &p->items[i]).ns;
    for (int32_t g = 0; status == STATUS_OK && g < p->n_grids; g++) {
        const struct grid *grid = &p->grids[g];
        if (kernel_row((enum kernel_id)grid->kernel)->role == ROLE_MERGE) continue;
        struct schedule s = {.plan = p, .grid = grid, .item_ns = item_ns, .gpu = gpu, .heap = heap};
        s.n_slots = gpu->sm_count * kernels->fit[grid->kernel].ctas_per_sm;
        status = schedule_grid(&s);
        makespan_ns += s.makespan_ns;
        ideal_ns += s.total_ns / s.n_slots;
    }
    if (status == STATUS_OK) *imbalance = ideal_ns > 0 ? makespan_ns / ideal_ns : 1.0;
    free(item_ns);
    free(heap);
    return status;
}
