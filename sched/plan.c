#include "sched/plan.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for `more` entries in an array of (pointer, n, cap); doubles, so that building is linear. */
static enum status reserve(void **data, int32_t n, int32_t *cap, int32_t more, size_t size)
{
    if (more < 0 || (int64_t)n + more > INT32_MAX) return STATUS_TOO_LARGE;
    if (n + more <= *cap) return STATUS_OK;
    int64_t want = *cap < 8 ? 16 : (int64_t)*cap * 2;
    if (want < n + more) want = n + more;
    if (want > INT32_MAX) want = INT32_MAX;
    void *grown = realloc(*data, (size_t)want * size);
    if (!grown) return STATUS_NO_MEMORY;
    *data = grown;
    *cap = (int32_t)want;
    return STATUS_OK;
}

#define RESERVE(p, array, more) \
    reserve((void **)&(p)->array, (p)->n_##array, &(p)->cap_##array, (more), sizeof *(p)->array)

/* Appends `n` values (or n times `fill` when values is NULL) to an int32 array of the plan. */
#define APPEND_INTS(p, array, values, n)                                                   \
    do {                                                                                   \
        TRY(RESERVE(p, array, n));                                                         \
        if (n) memcpy((p)->array + (p)->n_##array, values, (size_t)(n) * sizeof(int32_t)); \
        (p)->n_##array += (n);                                                             \
    } while (0)

void plan_free(struct plan *p)
{
    free(p->grids);
    free(p->after);
    free(p->list_indptr);
    free(p->home);
    free(p->steal);
    free(p->items);
    free(p->group_indptr);
    free(p->members);
    free(p->merges);
    free(p->merge_indptr);
    free(p->merge_src);
    memset(p, 0, sizeof *p);
}

void plan_begin(struct plan *p, const struct batch *b)
{
    p->n_requests = b->n_requests;
    p->n_grids = p->n_after = p->n_list_indptr = p->n_home = p->n_steal = p->n_items = 0;
    p->n_group_indptr = p->n_members = p->n_merges = p->n_merge_indptr = p->n_merge_src = 0;
    p->partial_rows = 0;
    p->workspace_bytes = 0;
}

int64_t plan_workspace_bytes(const struct plan *p, const struct batch *b)
{
    return (int64_t)p->partial_rows * (b->shape.head_dim_vo + 1) * (int64_t)sizeof(float);
}

void plan_finish(struct plan *p, const struct batch *b)
{
    p->workspace_bytes = plan_workspace_bytes(p, b);
}

static struct grid *open_grid(struct plan *p)
{
    assert(p->n_grids > 0);
    return &p->grids[p->n_grids - 1];
}

static bool is_merge_grid(const struct grid *g)
{
    return kernel_row((enum kernel_id)g->kernel)->role == ROLE_MERGE;
}

enum status plan_begin_grid(struct plan *p, enum kernel_id kernel, enum dispatch dispatch, int32_t stream,
                            struct grid **out)
{
    TRY(RESERVE(p, grids, 1));
    TRY(RESERVE(p, list_indptr, 1));
    struct grid *g = &p->grids[p->n_grids++];
    *g = (struct grid){.kernel = kernel,
                       .stream = stream,
                       .dispatch = dispatch,
                       .after_begin = p->n_after,
                       .after_end = p->n_after,
                       .list_begin = p->n_list_indptr,
                       .home_begin = p->n_home,
                       .steal_begin = p->n_steal};
    p->list_indptr[p->n_list_indptr++] = is_merge_grid(g) ? p->n_merges : p->n_items;
    if (out) *out = g;
    return STATUS_OK;
}

enum status plan_add_after(struct plan *p, int32_t grid)
{
    struct grid *g = open_grid(p);
    APPEND_INTS(p, after, &grid, 1);
    g->after_end = p->n_after;
    return STATUS_OK;
}

enum status plan_add_item(struct plan *p, const struct item *item)
{
    TRY(RESERVE(p, items, 1));
    p->items[p->n_items++] = *item;
    return STATUS_OK;
}

enum status plan_add_items(struct plan *p, int32_t n, struct item **out)
{
    TRY(RESERVE(p, items, n));
    *out = p->items + p->n_items;
    p->n_items += n;
    return STATUS_OK;
}

enum status plan_end_list(struct plan *p)
{
    const int32_t end = is_merge_grid(open_grid(p)) ? p->n_merges : p->n_items;
    APPEND_INTS(p, list_indptr, &end, 1);
    open_grid(p)->n_lists++;
    return STATUS_OK;
}

/* Defaults of a QUEUE grid: everybody at home in queue 0; nobody steals. */
static enum status finish_queue_grid(struct plan *p, struct grid *g)
{
    if (p->n_home == g->home_begin) {
        TRY(RESERVE(p, home, g->n_ctas));
        memset(p->home + p->n_home, 0, (size_t)g->n_ctas * sizeof(int32_t));
        p->n_home += g->n_ctas;
    }
    if (p->n_steal > g->steal_begin) return STATUS_OK;
    const int64_t cells = (int64_t)g->n_lists * g->n_lists;
    if (cells > INT32_MAX) return STATUS_TOO_LARGE;
    TRY(RESERVE(p, steal, (int32_t)cells));
    for (int32_t q = 0; q < g->n_lists; q++)
        for (int32_t k = 0; k < g->n_lists; k++)
            p->steal[p->n_steal++] = k == 0 ? q : -1;
    return STATUS_OK;
}

enum status plan_end_grid(struct plan *p, int32_t n_ctas)
{
    struct grid *g = open_grid(p);
    const int32_t *indptr = p->list_indptr + g->list_begin;
    if (g->dispatch == DISPATCH_QUEUE) {
        g->n_ctas = n_ctas;
        return finish_queue_grid(p, g);
    }
    if (g->dispatch == DISPATCH_FIXED) {
        g->n_ctas = g->n_lists;
        /* a grid without a remap of its own runs list i on CTA i */
        if (g->remap.n_prefill + g->remap.n_decode == 0) g->remap.n_prefill = g->n_lists;
        return STATUS_OK;
    }
    assert(g->n_lists == 2);
    g->ticket.n_prefill = plan_ticket_ctas(g, WORK_PREFILL, indptr[1] - indptr[0]);
    g->ticket.n_decode = plan_ticket_ctas(g, WORK_DECODE, indptr[2] - indptr[1]);
    g->n_ctas = g->ticket.n_prefill + g->ticket.n_decode;
    return STATUS_OK;
}

enum status plan_set_home(struct plan *p, const int32_t *homes, int32_t n_ctas)
{
    APPEND_INTS(p, home, homes, n_ctas);
    return STATUS_OK;
}

enum status plan_set_steal(struct plan *p, const int32_t *order, int32_t n_lists)
{
    const int64_t cells = (int64_t)n_lists * n_lists;
    if (cells > INT32_MAX) return STATUS_TOO_LARGE;
    APPEND_INTS(p, steal, order, (int32_t)cells);
    return STATUS_OK;
}

enum status plan_take_partials(struct plan *p, int32_t n, int32_t *first)
{
    if (n < 0 || (int64_t)p->partial_rows + n > INT32_MAX) return STATUS_TOO_LARGE;
    *first = p->partial_rows;
    p->partial_rows += n;
    return STATUS_OK;
}

/* CSR arrays exist only once they have a row: then they start with 0. */
#define START_CSR(p, indptr)                                        \
    do {                                                            \
        static const int32_t zero = 0;                              \
        if ((p)->n_##indptr == 0) APPEND_INTS(p, indptr, &zero, 1); \
    } while (0)

enum status plan_add_group(struct plan *p, const struct member *members, int32_t n, int32_t *group)
{
    START_CSR(p, group_indptr);
    TRY(RESERVE(p, members, n));
    if (n) memcpy(p->members + p->n_members, members, (size_t)n * sizeof *members);
    p->n_members += n;
    *group = p->n_requests + plan_n_groups(p);
    APPEND_INTS(p, group_indptr, &p->n_members, 1);
    return STATUS_OK;
}

enum status plan_add_merge(struct plan *p, const struct merge *m, const int32_t *src, int32_t n_src)
{
    START_CSR(p, merge_indptr);
    APPEND_INTS(p, merge_src, src, n_src);
    TRY(RESERVE(p, merges, 1));
    APPEND_INTS(p, merge_indptr, &p->n_merge_src, 1);
    p->merges[p->n_merges++] = *m;
    return STATUS_OK;
}

/* Lists of merge grids index merges that exist already: lists are cut where a CTA has its fill of rows. */
enum status plan_add_merge_grid(struct plan *p, int32_t first_merge, int32_t end_merge, int32_t stream,
                                const int32_t *after, int32_t n_after)
{
    if (first_merge == end_merge) return STATUS_OK;
    TRY(plan_begin_grid(p, KERNEL_MERGE, DISPATCH_FIXED, stream, NULL));
    for (int32_t i = 0; i < n_after; i++)
        TRY(plan_add_after(p, after[i]));
    struct grid *g = open_grid(p);
    p->list_indptr[g->list_begin] = first_merge;
    int64_t rows = 0;
    for (int32_t m = first_merge; m < end_merge; m++) {
        const int32_t end = m + 1;
        rows += (int64_t)(p->merges[m].row_end - p->merges[m].row_begin) *
                (p->merge_indptr[end] - p->merge_indptr[m]);
        if (rows < PLAN_MERGE_ROWS && end < end_merge) continue;
        APPEND_INTS(p, list_indptr, &end, 1);
        g->n_lists++;
        rows = 0;
    }
    return plan_end_grid(p, 0);
}

/* Why merge grid g has to stay: NULL when its merges can be done by the items that feed them. */
static const char *why_keep(const struct plan *p, int32_t g)
{
    const struct grid *grid = &p->grids[g];
    const int32_t *list = p->list_indptr + grid->list_begin;
    for (int32_t m = list[0]; m < list[grid->n_lists]; m++)
        if (p->merge_indptr[m] == p->merge_indptr[m + 1])
            return "a merge has no sources, so nobody arrives last";
    for (int32_t a = 0; a < p->n_after; a++)
        if (p->after[a] == g) return "a grid waits for the merges";
    return NULL;
}

/* Takes [begin, begin + n) out of an int32 array. */
static void remove_ints(int32_t *array, int32_t *count, int32_t begin, int32_t n)
{
    if (n == 0) return;
    memmove(array + begin, array + begin + n, (size_t)(*count - begin - n) * sizeof *array);
    *count -= n;
}

/* Takes grid g, which nobody waits for, out of the plan. */
static void remove_grid(struct plan *p, int32_t g)
{
    const struct grid gone = p->grids[g];
    const int32_t lists = gone.n_lists + 1, waits = gone.after_end - gone.after_begin;
    remove_ints(p->list_indptr, &p->n_list_indptr, gone.list_begin, lists);
    remove_ints(p->after, &p->n_after, gone.after_begin, waits);
    memmove(p->grids + g, p->grids + g + 1, (size_t)(p->n_grids - g - 1) * sizeof *p->grids);
    p->n_grids--;
    for (int32_t i = g; i < p->n_grids; i++) {
        p->grids[i].list_begin -= lists;
        p->grids[i].after_begin -= waits;
        p->grids[i].after_end -= waits;
    }
    for (int32_t a = 0; a < p->n_after; a++)
        p->after[a] -= p->after[a] > g;
}

enum status plan_merge_last(struct plan *p, struct why *why)
{
    for (int32_t g = 0; g < p->n_grids; g++) {
        const char *reason = is_merge_grid(&p->grids[g]) ? why_keep(p, g) : NULL;
        if (reason) return status_fail(why, STATUS_UNSUPPORTED, "merge=last: %s", reason);
    }
    for (int32_t g = p->n_grids - 1; g >= 0; g--)
        if (is_merge_grid(&p->grids[g])) remove_grid(p, g);
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0) p->items[i].flags |= ITEM_LAST_MERGES;
    return STATUS_OK;
}

int32_t plan_group_tokens(const struct plan *p, const struct batch *b, int32_t group)
{
    if (group < p->n_requests) return batch_qo_len(b, group);
    const int32_t g = group - p->n_requests;
    int32_t tokens = 0;
    for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++)
        tokens += p->members[m].token_end - p->members[m].token_begin;
    return tokens;
}

/* Finds the request and token behind token `t` of a row group. */
static void resolve_token(const struct plan *p, int32_t group, int32_t t, int32_t *request, int32_t *token)
{
    *request = group;
    *token = t;
    if (group < p->n_requests) return;
    const int32_t g = group - p->n_requests;
    for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++) {
        const struct member *member = &p->members[m];
        const int32_t tokens = member->token_end - member->token_begin;
        *request = member->request;
        *token = member->token_begin + t;
        if (t < tokens) return;
        t -= tokens;
    }
    assert(!"packed row beyond its row group");
}

struct row_ref plan_row(const struct plan *p, const struct batch *b, int32_t group, int32_t kv_head,
                        enum row_order order, int32_t row)
{
    const int32_t group_size = batch_group_size(b);
    struct row_ref ref;
    int32_t t, head;
    if (order == ROWS_TOKEN_MAJOR) {
        t = row / group_size;
        head = row % group_size;
    } else {
        const int32_t tokens = plan_group_tokens(p, b, group);
        t = row % tokens;
        head = row / tokens;
    }
    resolve_token(p, group, t, &ref.request, &ref.token);
    ref.qo_head = kv_head * group_size + head;
    return ref;
}

/* First and last token of the item's rows. A head-major range that crosses from one head to the next holds
 * the last token of the one and the first of the other, so it spans all tokens. */
static struct range item_tokens(const struct plan *p, const struct batch *b, const struct item *item)
{
    const int32_t group_size = batch_group_size(b), last = item->row_end - 1;
    if (kernel_row((enum kernel_id)item->kernel)->row_order == ROWS_TOKEN_MAJOR)
        return (struct range){item->row_begin / group_size, last / group_size + 1};
    const int32_t tokens = plan_group_tokens(p, b, item->group);
    if (item->row_begin / tokens != last / tokens) return (struct range){0, tokens};
    return (struct range){item->row_begin % tokens, last % tokens + 1};
}

/* Union of the keys that tokens [begin, end) of a request see. Visible ranges move right with the token, so
 * the first and the last token bound them. */
static struct range visible_union(const struct batch *b, int32_t request, int32_t begin, int32_t end)
{
    const struct range first = batch_visible(b, request, begin), last = batch_visible(b, request, end - 1);
    return (struct range){first.begin, last.end};
}

struct range plan_item_keys(const struct plan *p, const struct batch *b, const struct item *item)
{
    struct range seen = {INT32_MAX, 0};
    if (item->row_begin >= item->row_end) return (struct range){item->kv_begin, item->kv_begin};
    const struct range tokens = item_tokens(p, b, item);
    if (item->group < p->n_requests) {
        seen = visible_union(b, item->group, tokens.begin, tokens.end);
    } else {
        const int32_t g = item->group - p->n_requests;
        int32_t before = 0; /* tokens of earlier members */
        for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++) {
            const struct member *member = &p->members[m];
            const int32_t n = member->token_end - member->token_begin;
            const int32_t begin = tokens.begin > before ? tokens.begin - before : 0;
            const int32_t end = tokens.end - before < n ? tokens.end - before : n;
            before += n;
            if (begin >= end) continue;
            const struct range keys =
                visible_union(b, member->request, member->token_begin + begin, member->token_begin + end);
            if (keys.begin < seen.begin) seen.begin = keys.begin;
            if (keys.end > seen.end) seen.end = keys.end;
        }
    }
    if (seen.begin < item->kv_begin) seen.begin = item->kv_begin;
    if (seen.end > item->kv_end) seen.end = item->kv_end;
    if (seen.end <= seen.begin) return (struct range){item->kv_begin, item->kv_begin};
    return seen;
}
