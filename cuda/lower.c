#include "cuda/lower.h"

#include "sched/kernel.h"

#include <math.h>
#include <stdlib.h>

static bool merges_in_items(const struct plan *p)
{
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].flags & ITEM_LAST_MERGES) return true;
    return false;
}

/* The merge that reads each partial row. */
static void find_readers(const struct plan *p, int32_t *merge_of)
{
    for (int32_t m = 0; m < p->n_merges; m++)
        for (int32_t s = p->merge_indptr[m]; s < p->merge_indptr[m + 1]; s++)
            for (int32_t i = 0; i < p->merges[m].row_end - p->merges[m].row_begin; i++)
                merge_of[p->merge_src[s] + i] = m;
}

/* Appends the merges that read an item's partial rows, each once. */
static void list_merges(const struct item *item, const int32_t *merge_of, struct lowered *out)
{
    const int32_t first = out->n_item_merges, rows = item->row_end - item->row_begin;
    if (!(item->flags & ITEM_LAST_MERGES) || item->partial < 0) return;
    for (int32_t row = 0; row < rows; row++) {
        const int32_t m = merge_of[item->partial + row];
        bool known = false;
        for (int32_t k = out->n_item_merges - 1; k >= first && !known; k--)
            known = out->item_merges[k] == m;
        if (known) continue;
        out->item_merges[out->n_item_merges++] = m;
        out->merge_needs[m]++;
    }
}

/* Both sides are intervals of partial rows; a table of rows keeps it simple. */
static enum status lower_arrivals(const struct plan *p, struct lowered *out)
{
    if (!merges_in_items(p)) return STATUS_OK;
    const size_t rows = (size_t)p->partial_rows + 1;
    int32_t *merge_of = malloc(rows * sizeof *merge_of);
    out->item_merge_indptr = calloc((size_t)p->n_items + 1, sizeof *out->item_merge_indptr);
    out->item_merges = malloc(rows * sizeof *out->item_merges);
    out->merge_needs = calloc((size_t)p->n_merges + 1, sizeof *out->merge_needs);
    const bool ok = merge_of && out->item_merge_indptr && out->item_merges && out->merge_needs;
    if (ok) find_readers(p, merge_of);
    for (int32_t i = 0; ok && i < p->n_items; i++) {
        list_merges(&p->items[i], merge_of, out);
        out->item_merge_indptr[i + 1] = out->n_item_merges;
    }
    free(merge_of);
    return ok ? STATUS_OK : STATUS_NO_MEMORY;
}

/* Tokens of the members before each within its group. */
static enum status lower_groups(const struct plan *p, struct lowered *out)
{
    if (plan_n_groups(p) == 0) return STATUS_OK;
    out->member_first = malloc(((size_t)p->n_members + 1) * sizeof *out->member_first);
    if (!out->member_first) return STATUS_NO_MEMORY;
    for (int32_t g = 0; g < plan_n_groups(p); g++) {
        int32_t tokens = 0;
        for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++) {
            out->member_first[m] = tokens;
            tokens += p->members[m].token_end - p->members[m].token_begin;
        }
    }
    return STATUS_OK;
}

enum status lower_plan(const struct plan *p, struct lowered *out, struct why *why)
{
    *out = (struct lowered){0};
    enum status status = lower_arrivals(p, out);
    if (status == STATUS_OK) status = lower_groups(p, out);
    if (status == STATUS_OK) return STATUS_OK;
    lowered_free(out);
    return status_fail(why, status, "plan for the device: out of memory");
}

void lowered_free(struct lowered *l)
{
    free(l->item_merge_indptr);
    free(l->item_merges);
    free(l->merge_needs);
    free(l->member_first);
    *l = (struct lowered){0};
}

struct view_grid lower_grid(const struct plan *p, int32_t index, int32_t sm_count)
{
    const struct grid *g = &p->grids[index];
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    const bool fused = k->role == ROLE_FUSED;
    return (struct view_grid){
        .index = index,
        .n_ctas = g->n_ctas,
        .dispatch = g->dispatch,
        .list_begin = g->list_begin,
        .n_lists = g->n_lists,
        .remap = g->remap,
        .ticket = g->ticket,
        .home_begin = g->home_begin,
        .steal_begin = g->steal_begin,
        .is_merge = k->role == ROLE_MERGE,
        .is_beside = fused && k->fused_how == FUSED_BESIDE,
        .lanes = {[WORK_PREFILL] = kernel_role_lanes(k, false), [WORK_DECODE] = kernel_role_lanes(k, true)},
        .prefill_kernel = fused ? (int32_t)k->fused_prefill : -1,
        .row_order = {[WORK_PREFILL] =
                          fused ? (int32_t)kernel_row(k->fused_prefill)->row_order : (int32_t)k->row_order,
                      [WORK_DECODE] =
                          fused ? (int32_t)kernel_row(k->fused_decode)->row_order : (int32_t)k->row_order},
        .n_sm_counters = sm_count,
    };
}

struct worker_halves lower_halves(const struct kernel *k)
{
    struct worker_halves h = {{k->threads, k->threads}, {0, 0}};
    if (k->role != ROLE_FUSED) return h;
    h.threads[WORK_PREFILL] = k->threads / kernel_role_lanes(k, false);
    h.threads[WORK_DECODE] = k->threads / kernel_role_lanes(k, true);
    if (k->fused_how == FUSED_BESIDE) {
        h.threads[WORK_PREFILL] = kernel_row(k->fused_prefill)->threads;
        h.threads[WORK_DECODE] = kernel_row(k->fused_decode)->threads;
    }
    return h;
}

float lower_alibi_slope(int32_t h, int32_t n)
{
    int32_t p = 1;
    while (p * 2 <= n)
        p *= 2;
    return (float)(h < p ? exp2(-8.0 * (h + 1) / p) : exp2(-4.0 * (2 * (h - p) + 1) / p));
}
