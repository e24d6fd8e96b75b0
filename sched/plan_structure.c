#include "sched/plan_structure.h"

#include <stdlib.h>
#include <string.h>

#define FAULT(...) status_fail(why, STATUS_INVALID_PLAN, __VA_ARGS__)

static bool is_merge_grid(const struct grid *g)
{
    return kernel_row((enum kernel_id)g->kernel)->role == ROLE_MERGE;
}

/* n >= 0 entries from `begin` lie within an array of `total`. */
static bool within(int64_t begin, int64_t n, int64_t total)
{
    return begin >= 0 && n >= 0 && begin + n <= total;
}

static enum status check_csr(const char *name, const int32_t *indptr, int32_t n_indptr, int32_t total,
                             struct why *why)
{
    if (n_indptr == 0)
        return total == 0 ? STATUS_OK : FAULT("%s is empty: expected to end at %d", name, total);
    if (indptr[0] != 0 || indptr[n_indptr - 1] != total)
        return FAULT("%s runs %d..%d: expected 0..%d", name, indptr[0], indptr[n_indptr - 1], total);
    for (int32_t i = 1; i < n_indptr; i++)
        if (indptr[i] < indptr[i - 1])
            return FAULT("%s[%d] = %d falls below its predecessor", name, i, indptr[i]);
    return STATUS_OK;
}

/* ---- items, groups, merges
 * ------------------------------------------------------------------------------------------ */

static enum status check_groups(const struct plan *p, const struct batch *b, struct why *why)
{
    TRY(check_csr("group_indptr", p->group_indptr, p->n_group_indptr, p->n_members, why));
    for (int32_t m = 0; m < p->n_members; m++) {
        const struct member *x = &p->members[m];
        if (x->request < 0 || x->request >= b->n_requests)
            return FAULT("member %d: request %d: expected 0..%d", m, x->request, b->n_requests - 1);
        if (x->token_begin < 0 || x->token_end <= x->token_begin ||
            x->token_end > batch_qo_len(b, x->request))
            return FAULT("member %d: tokens %d..%d: expected a range within 0..%d", m, x->token_begin,
                         x->token_end, batch_qo_len(b, x->request));
    }
    for (int32_t g = 0; g < plan_n_groups(p); g++) {
        int64_t tokens = 0;
        for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++)
            tokens += p->members[m].token_end - p->members[m].token_begin;
        if (tokens == 0) return FAULT("row group %d has no members", p->n_requests + g);
        if (tokens * batch_group_size(b) > INT32_MAX)
            return FAULT("row group %d has too many rows", p->n_requests + g);
    }
    return STATUS_OK;
}

/* Keys that every member of a row group holds. */
static int32_t group_kv_len(const struct plan *p, const struct batch *b, int32_t group)
{
    if (group < p->n_requests) return b->kv_len[group];
    const int32_t g = group - p->n_requests;
    int32_t shortest = INT32_MAX;
    for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++)
        if (b->kv_len[p->members[m].request] < shortest) shortest = b->kv_len[p->members[m].request];
    return shortest;
}

static enum status check_item(const struct plan *p, const struct batch *b, int32_t i, struct why *why)
{
    const struct item *x = &p->items[i];
    if (x->group < 0 || x->group >= p->n_requests + plan_n_groups(p))
        return FAULT("item %d: row group %d: expected 0..%d", i, x->group,
                     p->n_requests + plan_n_groups(p) - 1);
    if (x->kv_head < 0 || x->kv_head >= b->shape.num_kv_heads)
        return FAULT("item %d: kv_head %d: expected 0..%d", i, x->kv_head, b->shape.num_kv_heads - 1);
    if (x->kernel >= KERNEL_COUNT)
        return FAULT("item %d: kernel %d: expected 0..%d", i, x->kernel, KERNEL_COUNT - 1);
    const struct kernel *k = kernel_row((enum kernel_id)x->kernel);
    if (k->role != ROLE_PREFILL && k->role != ROLE_DECODE)
        return FAULT("item %d: kernel %s does not compute items", i, k->name);
    if (k->max_group && batch_group_size(b) > k->max_group)
        return FAULT("item %d: kernel %s takes GQA groups up to %d: the batch has %d", i, k->name,
                     k->max_group, batch_group_size(b));
    const int64_t rows = (int64_t)plan_group_tokens(p, b, x->group) * batch_group_size(b);
    if (x->row_begin < 0 || x->row_end <= x->row_begin || x->row_end > rows)
        return FAULT("item %d: rows %d..%d: expected a range within 0..%lld", i, x->row_begin, x->row_end,
                     (long long)rows);
    const int32_t kv_len = group_kv_len(p, b, x->group);
    if (x->kv_begin < 0 || x->kv_end < x->kv_begin || x->kv_end > kv_len)
        return FAULT("item %d: keys %d..%d: expected a range within 0..%d", i, x->kv_begin, x->kv_end,
                     kv_len);
    if (x->partial < -1) return FAULT("item %d: partial %d: expected -1 or a partial row", i, x->partial);
    if (x->flags & ~ITEM_FLAGS_ALL)
        return FAULT("item %d: flags %d: expected within %d", i, x->flags, ITEM_FLAGS_ALL);
    if ((x->flags & ITEM_LAST_MERGES) && x->partial < 0)
        return FAULT("item %d: last-arriver merging without partial rows", i);
    return STATUS_OK;
}

static enum status check_merge(const struct plan *p, const struct batch *b, int32_t m, struct why *why)
{
    const struct merge *x = &p->merges[m];
    if (x->request < 0 || x->request >= b->n_requests)
        return FAULT("merge %d: request %d: expected 0..%d", m, x->request, b->n_requests - 1);
    if (x->kv_head < 0 || x->kv_head >= b->shape.num_kv_heads)
        return FAULT("merge %d: kv_head %d: expected 0..%d", m, x->kv_head, b->shape.num_kv_heads - 1);
    if (x->row_order != ROWS_TOKEN_MAJOR && x->row_order != ROWS_HEAD_MAJOR)
        return FAULT("merge %d: row_order %d: expected 0 or 1", m, x->row_order);
    const int64_t rows = (int64_t)batch_qo_len(b, x->request) * batch_group_size(b);
    if (x->row_begin < 0 || x->row_end <= x->row_begin || x->row_end > rows)
        return FAULT("merge %d: rows %d..%d: expected a range within 0..%lld", m, x->row_begin, x->row_end,
                     (long long)rows);
    return STATUS_OK;
}

/* ---- grids
 * ----------------------------------------------------------------------------------------------------------
 */

static enum status check_fixed(const struct grid *g, int32_t i, struct why *why)
{
    if (g->n_lists != g->n_ctas)
        return FAULT("grid %d: %d lists for %d CTAs: expected one each", i, g->n_lists, g->n_ctas);
    if (g->remap.kind < 0 || g->remap.kind >= REMAP_KIND_COUNT)
        return FAULT("grid %d: remap kind %d: expected 0..%d", i, g->remap.kind, REMAP_KIND_COUNT - 1);
    if (g->remap.n_prefill < 0 || g->remap.n_decode < 0 ||
        (int64_t)g->remap.n_prefill + g->remap.n_decode != g->n_ctas)
        return FAULT("grid %d: remap of %d prefill and %d decode entries: expected %d in all", i,
                     g->remap.n_prefill, g->remap.n_decode, g->n_ctas);
    return STATUS_OK;
}

/* A home's steal order: itself, then other queues once each, then -1. */
static enum status check_steal_row(const int32_t *order, int32_t n, int32_t home, int32_t i, bool *seen,
                                   struct why *why)
{
    bool ended = false;
    memset(seen, 0, (size_t)n * sizeof *seen);
    if (order[0] != home)
        return FAULT("grid %d: steal order of queue %d starts with %d: expected itself", i, home, order[0]);
    for (int32_t k = 0; k < n; k++) {
        if (order[k] == -1) {
            ended = true;
            continue;
        }
        if (ended || order[k] < 0 || order[k] >= n || seen[order[k]])
            return FAULT(
                "grid %d: steal order of queue %d: entry %d is %d: expected distinct queues, then -1", i,
                home, k, order[k]);
        seen[order[k]] = true;
    }
    return STATUS_OK;
}

static enum status check_queues(const struct plan *p, int32_t i, bool *seen, bool *reached, struct why *why)
{
    const struct grid *g = &p->grids[i];
    const int32_t *indptr = p->list_indptr + g->list_begin, *steal = p->steal + g->steal_begin;
    for (int32_t q = 0; q < g->n_lists; q++)
        TRY(check_steal_row(steal + (int64_t)q * g->n_lists, g->n_lists, q, i, seen, why));
    memset(reached, 0, (size_t)g->n_lists * sizeof *reached);
    for (int32_t c = 0; c < g->n_ctas; c++) {
        const int32_t home = p->home[g->home_begin + c];
        if (home < 0 || home >= g->n_lists)
            return FAULT("grid %d: CTA %d: home queue %d: expected 0..%d", i, c, home, g->n_lists - 1);
        if (reached[home]) continue;
        for (int32_t k = 0; k < g->n_lists && steal[(int64_t)home * g->n_lists + k] >= 0; k++)
            reached[steal[(int64_t)home * g->n_lists + k]] = true;
        reached[home] = true;
    }
    for (int32_t q = 0; q < g->n_lists; q++)
        if (!reached[q] && indptr[q] < indptr[q + 1])
            return FAULT("grid %d: no CTA ever takes from queue %d", i, q);
    return STATUS_OK;
}

static enum status check_queue_grid(const struct plan *p, int32_t i, struct why *why)
{
    const struct grid *g = &p->grids[i];
    if (g->n_lists < 1) return FAULT("grid %d: a QUEUE grid without queues", i);
    if (!within(g->home_begin, g->n_ctas, p->n_home) ||
        !within(g->steal_begin, (int64_t)g->n_lists * g->n_lists, p->n_steal))
        return FAULT("grid %d: home or steal entries lie outside their arrays", i);
    bool *marks = malloc(2 * (size_t)g->n_lists * sizeof *marks);
    if (!marks) return status_fail(why, STATUS_NO_MEMORY, "plan_check: out of memory");
    const enum status status = check_queues(p, i, marks, marks + g->n_lists, why);
    free(marks);
    return status;
}

static enum status check_ticket_grid(const struct plan *p, int32_t i, struct why *why)
{
    const struct grid *g = &p->grids[i];
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    if (k->role != ROLE_FUSED || k->fused_how != FUSED_EITHER)
        return FAULT("grid %d: SM_TICKET on kernel %s: expected one whose CTAs take either role", i, k->name);
    if (g->n_lists != 2)
        return FAULT("grid %d: SM_TICKET with %d lists: expected prefill and decode", i, g->n_lists);
    if (g->ticket.kind < 0 || g->ticket.kind >= TICKET_KIND_COUNT)
        return FAULT("grid %d: ticket kind %d: expected 0..%d", i, g->ticket.kind, TICKET_KIND_COUNT - 1);
    const int32_t *indptr = p->list_indptr + g->list_begin;
    const int32_t n_prefill = plan_ticket_ctas(g, WORK_PREFILL, indptr[1] - indptr[0]);
    const int32_t n_decode = plan_ticket_ctas(g, WORK_DECODE, indptr[2] - indptr[1]);
    if (g->ticket.n_prefill != n_prefill || g->ticket.n_decode != n_decode ||
        g->n_ctas != n_prefill + n_decode)
        return FAULT("grid %d: tickets for %d + %d CTAs and %d CTAs: expected %d + %d", i,
                     g->ticket.n_prefill, g->ticket.n_decode, g->n_ctas, n_prefill, n_decode);
    for (int32_t role = 0; role < 2; role++)
        for (int32_t j = indptr[role]; j < indptr[role + 1]; j++)
            if (p->items[j].kernel != (role == WORK_PREFILL ? k->fused_prefill : k->fused_decode))
                return FAULT("grid %d: item %d: kernel %s in the %s list", i, j,
                             kernel_row((enum kernel_id)p->items[j].kernel)->name,
                             role == WORK_PREFILL ? "prefill" : "decode");
    return STATUS_OK;
}

static enum status check_lists(const struct plan *p, int32_t i, struct why *why)
{
    const struct grid *g = &p->grids[i];
    const bool merges = is_merge_grid(g);
    const int32_t total = merges ? p->n_merges : p->n_items;
    if (!within(g->list_begin, (int64_t)g->n_lists + 1, p->n_list_indptr))
        return FAULT("grid %d: lists %d..%lld lie outside list_indptr", i, g->list_begin,
                     (long long)g->list_begin + g->n_lists);
    const int32_t *indptr = p->list_indptr + g->list_begin;
    for (int32_t l = 0; l < g->n_lists; l++)
        if (indptr[l] < 0 || indptr[l + 1] < indptr[l] || indptr[l + 1] > total)
            return FAULT("grid %d: list %d runs %d..%d: expected within 0..%d", i, l, indptr[l],
                         indptr[l + 1], total);
    if (merges) return STATUS_OK;
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    for (int32_t j = indptr[0]; j < indptr[g->n_lists]; j++) {
        const int32_t kernel = p->items[j].kernel;
        const bool ok = k->role == ROLE_FUSED
                            ? kernel == (int32_t)k->fused_prefill || kernel == (int32_t)k->fused_decode
                            : kernel == g->kernel;
        if (!ok)
            return FAULT("grid %d: item %d: kernel %s in a grid of %s", i, j,
                         kernel_row((enum kernel_id)kernel)->name, k->name);
    }
    return STATUS_OK;
}

/* A BESIDE kernel's list holds its prefill half first; kernels with several lanes are dealt entries by
 * tickets. */
static enum status check_lanes(const struct plan *p, int32_t i, struct why *why)
{
    const struct grid *g = &p->grids[i];
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    if (k->role != ROLE_FUSED || kernel_lanes(k) == 1) return STATUS_OK;
    if (k->fused_how == FUSED_EITHER)
        return g->dispatch == DISPATCH_SM_TICKET
                   ? STATUS_OK
                   : FAULT("grid %d: kernel %s has lanes: expected SM_TICKET", i, k->name);
    if (g->dispatch != DISPATCH_FIXED) return FAULT("grid %d: kernel %s: expected FIXED", i, k->name);
    const int32_t *indptr = p->list_indptr + g->list_begin;
    for (int32_t l = 0; l < g->n_lists; l++)
        for (int32_t j = indptr[l] + 1; j < indptr[l + 1]; j++)
            if (p->items[j].kernel == k->fused_prefill && p->items[j - 1].kernel == k->fused_decode)
                return FAULT("grid %d: item %d: a prefill behind a decode in a list of kernel %s", i, j,
                             k->name);
    return STATUS_OK;
}

static enum status check_grid(const struct plan *p, int32_t i, struct why *why)
{
    const struct grid *g = &p->grids[i];
    if (g->kernel < 0 || g->kernel >= KERNEL_COUNT)
        return FAULT("grid %d: kernel %d: expected 0..%d", i, g->kernel, KERNEL_COUNT - 1);
    if (g->n_ctas < 1) return FAULT("grid %d: %d CTAs: expected at least 1", i, g->n_ctas);
    if (g->n_lists < 1) return FAULT("grid %d: %d lists: expected at least 1", i, g->n_lists);
    if (g->stream < 0 || g->stream >= PLAN_MAX_GRIDS)
        return FAULT("grid %d: stream %d: expected 0..%d", i, g->stream, PLAN_MAX_GRIDS - 1);
    if (!within(g->after_begin, (int64_t)g->after_end - g->after_begin, p->n_after))
        return FAULT("grid %d: after %d..%d lies outside its array", i, g->after_begin, g->after_end);
    for (int32_t a = g->after_begin; a < g->after_end; a++)
        if (p->after[a] < 0 || p->after[a] >= i)
            return FAULT("grid %d: waits for grid %d: expected an earlier one", i, p->after[a]);
    TRY(check_lists(p, i, why));
    TRY(check_lanes(p, i, why));
    switch (g->dispatch) {
    case DISPATCH_FIXED:
        return check_fixed(g, i, why);
    case DISPATCH_QUEUE:
        if (is_merge_grid(g)) return FAULT("grid %d: a merge grid must be FIXED", i);
        return check_queue_grid(p, i, why);
    case DISPATCH_SM_TICKET:
        return check_ticket_grid(p, i, why);
    default:
        return FAULT("grid %d: dispatch %d: expected 0..%d", i, g->dispatch, DISPATCH_COUNT - 1);
    }
}

/* Which grid holds each item and each merge (-1: none); in two lists is a fault. */
struct homes {
    int32_t *item, *merge;
};

static enum status find_homes(const struct plan *p, struct homes *h, struct why *why)
{
    h->item = malloc(((size_t)p->n_items + 1) * sizeof(int32_t));
    h->merge = malloc(((size_t)p->n_merges + 1) * sizeof(int32_t));
    if (!h->item || !h->merge) return status_fail(why, STATUS_NO_MEMORY, "plan_check: out of memory");
    memset(h->item, -1, (size_t)p->n_items * sizeof(int32_t));
    memset(h->merge, -1, (size_t)p->n_merges * sizeof(int32_t));
    for (int32_t g = 0; g < p->n_grids; g++) {
        const struct grid *grid = &p->grids[g];
        const int32_t *indptr = p->list_indptr + grid->list_begin;
        const bool merges = is_merge_grid(grid);
        int32_t *home = merges ? h->merge : h->item;
        for (int32_t i = indptr[0]; i < indptr[grid->n_lists]; i++) {
            if (home[i] >= 0)
                return FAULT("%s %d: in grids %d and %d", merges ? "merge" : "item", i, home[i], g);
            home[i] = g;
        }
    }
    for (int32_t i = 0; i < p->n_items; i++)
        if (h->item[i] < 0) return FAULT("item %d: in no list of any grid", i);
    return STATUS_OK;
}

static void homes_free(struct homes *h)
{
    free(h->item);
    free(h->merge);
}

enum status plan_structure_check(const struct plan *p, const struct batch *b, struct why *why)
{
    struct homes homes = {0};
    if (p->n_requests != b->n_requests)
        return FAULT("the plan is for %d requests: the batch has %d", p->n_requests, b->n_requests);
    if (p->n_grids > PLAN_MAX_GRIDS)
        return FAULT("%d grids: expected at most %d", p->n_grids, PLAN_MAX_GRIDS);
    if (p->partial_rows < 0) return FAULT("partial_rows %d: expected >= 0", p->partial_rows);
    if (p->workspace_bytes != plan_workspace_bytes(p, b))
        return FAULT("workspace_bytes %lld: expected %lld for %d partial rows", (long long)p->workspace_bytes,
                     (long long)plan_workspace_bytes(p, b), p->partial_rows);
    TRY(check_groups(p, b, why));
    for (int32_t i = 0; i < p->n_items; i++)
        TRY(check_item(p, b, i, why));
    if (p->n_merge_indptr != (p->n_merges ? p->n_merges + 1 : 0) &&
        !(p->n_merges == 0 && p->n_merge_indptr == 1))
        return FAULT("merge_indptr has %d entries: expected %d", p->n_merge_indptr, p->n_merges + 1);
    TRY(check_csr("merge_indptr", p->merge_indptr, p->n_merge_indptr, p->n_merge_src, why));
    for (int32_t m = 0; m < p->n_merges; m++)
        TRY(check_merge(p, b, m, why));
    for (int32_t g = 0; g < p->n_grids; g++)
        TRY(check_grid(p, g, why));
    const enum status status = find_homes(p, &homes, why);
    homes_free(&homes);
    return status;
}

/* ---- order
 * ----------------------------------------------------------------------------------------------------------
 */

/* reach[later * n + earlier]: the later grid starts only after the earlier one ended. Filled in plan order,
 * so that the earlier rows are complete when a later one takes them over. */
static void fill_reach(const struct plan *p, bool *reach)
{
    const int32_t n = p->n_grids;
    for (int32_t g = 0; g < n; g++) {
        const struct grid *grid = &p->grids[g];
        for (int32_t e = 0; e < g; e++) {
            bool waits = p->grids[e].stream == grid->stream;
            for (int32_t a = grid->after_begin; a < grid->after_end && !waits; a++)
                waits = p->after[a] == e;
            if (!waits) continue;
            reach[g * n + e] = true;
            for (int32_t x = 0; x < e; x++)
                reach[g * n + x] |= reach[e * n + x];
        }
    }
}

static enum status check_merge_order(const struct plan *p, const struct homes *h, const bool *reach,
                                     const int32_t *item_of_partial, int32_t m, struct why *why)
{
    const int32_t rows = p->merges[m].row_end - p->merges[m].row_begin, grid = h->merge[m];
    if (grid < 0 && p->merge_indptr[m] == p->merge_indptr[m + 1])
        return FAULT("merge %d: in no list of any grid, and nobody arrives last", m);
    for (int32_t s = p->merge_indptr[m]; s < p->merge_indptr[m + 1]; s++)
        for (int32_t row = p->merge_src[s]; row < p->merge_src[s] + rows; row++) {
            const int32_t i = item_of_partial[row];
            const bool last = p->items[i].flags & ITEM_LAST_MERGES;
            if (grid < 0 && !last)
                return FAULT("merge %d: in no list of any grid, and item %d does not merge as last arriver",
                             m, i);
            if (grid >= 0 && last)
                return FAULT("merge %d: in grid %d, and item %d merges it as last arriver too", m, grid, i);
            if (grid >= 0 && !reach[grid * p->n_grids + h->item[i]])
                return FAULT("merge %d: grid %d does not wait for grid %d, which writes partial row %d", m,
                             grid, h->item[i], row);
        }
    return STATUS_OK;
}

enum status plan_order_check(const struct plan *p, const struct batch *b, const int32_t *item_of_partial,
                             struct why *why)
{
    struct homes homes = {0};
    (void)b;
    bool *reach = calloc((size_t)p->n_grids * (size_t)p->n_grids + 1, sizeof *reach);
    enum status status =
        reach ? find_homes(p, &homes, why) : status_fail(why, STATUS_NO_MEMORY, "plan_check: out of memory");
    if (status == STATUS_OK) {
        fill_reach(p, reach);
        for (int32_t m = 0; status == STATUS_OK && m < p->n_merges; m++)
            status = check_merge_order(p, &homes, reach, item_of_partial, m, why);
    }
    homes_free(&homes);
    free(reach);
    return status;
}
