#include "sched/works.h"

#include <stdlib.h>
#include <string.h>

void works_free(struct works *w)
{
    free(w->data);
    memset(w, 0, sizeof *w);
}

enum status works_reserve(struct works *w, int64_t n)
{
    if (n <= w->cap) return STATUS_OK;
    if (n > INT32_MAX) return STATUS_TOO_LARGE;
    struct work *data = realloc(w->data, (size_t)n * sizeof *data);
    if (!data) return STATUS_NO_MEMORY;
    w->data = data;
    w->cap = (int32_t)n;
    return STATUS_OK;
}

enum status works_add(struct works *w, const struct work *work)
{
    if (w->n == w->cap) TRY(works_reserve(w, w->cap ? 2 * (int64_t)w->cap : 64));
    w->data[w->n++] = *work;
    return STATUS_OK;
}

enum status works_add_tile(struct works *w, int32_t request, int32_t row_begin, int32_t row_end,
                           struct range keys, int64_t chunk_keys)
{
    const int64_t n_keys = keys.end - keys.begin;
    const int64_t n_chunks = n_keys > 0 ? (n_keys + chunk_keys - 1) / chunk_keys : 1;
    struct work work = {.request = request,
                        .row_begin = row_begin,
                        .row_end = row_end,
                        .kv_begin = keys.begin,
                        .kv_end = keys.end,
                        .n_chunks = (int32_t)n_chunks,
                        .kv_head = WORK_ALL_HEADS};
    for (int64_t c = 0; c < n_chunks; c++) {
        const int64_t end = keys.begin + (c + 1) * chunk_keys;
        work.chunk = (int32_t)c;
        work.kv_end = end < keys.end ? (int32_t)end : keys.end;
        TRY(works_add(w, &work));
        work.kv_begin = work.kv_end;
    }
    return STATUS_OK;
}

struct range works_tile_keys(const struct batch *b, int32_t request, int32_t row_begin, int32_t row_end)
{
    const int32_t group_size = batch_group_size(b);
    const struct range first = batch_visible(b, request, row_begin / group_size);
    const struct range last = batch_visible(b, request, (row_end - 1) / group_size);
    if (last.end <= first.begin) return (struct range){0, 0};
    return (struct range){first.begin, last.end};
}

int32_t tile_count(enum kernel_id k, int32_t tokens, int32_t group_size)
{
    const struct kernel *row = kernel_row(k);
    const int64_t tile_q = row->tile_q;
    if (row->row_order == ROWS_HEAD_MAJOR) return (int32_t)((tokens + tile_q - 1) / tile_q * group_size);
    return (int32_t)(((int64_t)tokens * group_size + tile_q - 1) / tile_q);
}

struct range tile_rows(enum kernel_id k, int32_t tokens, int32_t group_size, int32_t i)
{
    const struct kernel *row = kernel_row(k);
    const bool head_major = row->row_order == ROWS_HEAD_MAJOR;
    const int32_t rows = head_major ? tokens : tokens * group_size, tile_q = row->tile_q;
    const int32_t per_head = head_major ? (tokens + tile_q - 1) / tile_q : tile_count(k, tokens, group_size);
    const int32_t first = i / per_head * rows, begin = i % per_head * tile_q;
    return (struct range){first + begin, first + (rows - begin < tile_q ? rows : begin + tile_q)};
}

struct tile_place tile_locate(enum kernel_id k, int32_t tokens, int32_t group_size, int32_t token,
                              int32_t head)
{
    const struct kernel *row = kernel_row(k);
    const int32_t tile_q = row->tile_q;
    if (row->row_order == ROWS_HEAD_MAJOR)
        return (struct tile_place){head * ((tokens + tile_q - 1) / tile_q) + token / tile_q, token % tile_q};
    const int32_t packed = token * group_size + head;
    return (struct tile_place){packed / tile_q, packed % tile_q};
}

int32_t works_n_tiles(const struct batch *b, enum kernel_id k, int32_t request)
{
    return tile_count(k, batch_qo_len(b, request), batch_group_size(b));
}

struct tile works_tile(const struct batch *b, enum kernel_id k, int32_t request, int32_t i)
{
    const int32_t tokens = batch_qo_len(b, request), group_size = batch_group_size(b);
    const struct range rows = tile_rows(k, tokens, group_size, i);
    if (kernel_row(k)->row_order == ROWS_TOKEN_MAJOR)
        return (struct tile){rows.begin, rows.end, works_tile_keys(b, request, rows.begin, rows.end)};
    const struct range first = batch_visible(b, request, rows.begin % tokens);
    const struct range last = batch_visible(b, request, (rows.end - 1) % tokens);
    if (last.end <= first.begin) return (struct tile){rows.begin, rows.end, {0, 0}};
    return (struct tile){rows.begin, rows.end, {first.begin, last.end}};
}

struct by_keys {
    int32_t keys, index;
};

static int compare_by_keys(const void *x, const void *y)
{
    const struct by_keys *a = x, *b = y;
    if (a->keys != b->keys) return a->keys > b->keys ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

enum status works_longest_first(const struct works *works, int32_t *order)
{
    struct by_keys *keys = malloc(((size_t)works->n + 1) * sizeof *keys);
    if (!keys) return STATUS_NO_MEMORY;
    for (int32_t i = 0; i < works->n; i++)
        keys[i] = (struct by_keys){works->data[i].kv_end - works->data[i].kv_begin, i};
    qsort(keys, (size_t)works->n, sizeof *keys, compare_by_keys);
    for (int32_t i = 0; i < works->n; i++)
        order[i] = keys[i].index;
    free(keys);
    return STATUS_OK;
}

/* Items a work becomes. */
static int32_t n_heads(const struct work *w, const struct batch *b)
{
    return w->kv_head == WORK_ALL_HEADS ? b->shape.num_kv_heads : 1;
}

/* Takes the partial rows of a set: first[i] is where work i's begin (its heads one after another), -1 when it
 * writes directly. */
static enum status take_partials(const struct works_emit *e, const struct batch *b, struct plan *p,
                                 int32_t *first)
{
    for (int32_t i = 0; i < e->works->n; i++) {
        const struct work *w = &e->works->data[i];
        const int64_t rows = (int64_t)(w->row_end - w->row_begin) * n_heads(w, b);
        first[i] = -1;
        if (!e->all_partial && w->n_chunks == 1 && !w->deferred) continue;
        if (rows > INT32_MAX) return STATUS_TOO_LARGE;
        TRY(plan_take_partials(p, (int32_t)rows, &first[i]));
    }
    return STATUS_OK;
}

/* Item of a work for its nth head. */
static struct item work_item(const struct works_emit *e, const int32_t *first, int32_t i, int32_t nth)
{
    const struct work *w = &e->works->data[i];
    return (struct item){.group = w->request,
                         .kv_head = w->kv_head == WORK_ALL_HEADS ? nth : w->kv_head,
                         .row_begin = w->row_begin,
                         .row_end = w->row_end,
                         .kv_begin = w->kv_begin,
                         .kv_end = w->kv_end,
                         .partial = first[i] < 0 ? -1 : first[i] + nth * (w->row_end - w->row_begin),
                         .kernel = (uint16_t)e->kernel};
}

static enum status emit_items(const struct works_emit *e, const struct batch *b, struct plan *p,
                              const int32_t *first)
{
    const int32_t heads = b->shape.num_kv_heads, n = e->works->n;
    const int32_t outer_n = e->heads_inner ? n : heads, inner_n = e->heads_inner ? heads : n;
    for (int32_t outer = 0; outer < outer_n; outer++)
        for (int32_t inner = 0; inner < inner_n; inner++) {
            const int32_t position = e->heads_inner ? outer : inner, head = e->heads_inner ? inner : outer;
            const int32_t i = e->order ? e->order[position] : position;
            if (head >= n_heads(&e->works->data[i], b)) continue;
            const struct item item = work_item(e, first, i, head);
            TRY(plan_add_item(p, &item));
            if (e->list_per_item) TRY(plan_end_list(p));
        }
    return STATUS_OK;
}

/* Merges of one tile and head: its chunks in key order, cut into pieces that read at most PLAN_MERGE_ROWS
 * partial rows (at least one row each), so that tall and deep tiles are merged by several CTAs. `bases` are
 * the chunks' first rows. */
static enum status merge_tile(struct plan *p, const struct work *w, enum row_order order, int32_t head,
                              int32_t *bases)
{
    const int32_t piece = w->n_chunks < PLAN_MERGE_ROWS ? PLAN_MERGE_ROWS / w->n_chunks : 1;
    for (int32_t row = w->row_begin; row < w->row_end; row += piece) {
        const int32_t end = w->row_end - row < piece ? w->row_end : row + piece;
        const struct merge m = {w->request, head, row, end, (int32_t)order};
        TRY(plan_add_merge(p, &m, bases, w->n_chunks));
        for (int32_t c = 0; c < w->n_chunks; c++)
            bases[c] += end - row;
    }
    return STATUS_OK;
}

static int32_t most_chunks(const struct works *works)
{
    int32_t most = 1;
    for (int32_t i = 0; i < works->n; i++)
        if (works->data[i].n_chunks > most) most = works->data[i].n_chunks;
    return most;
}

static enum status emit_merges(const struct works_emit *e, const struct batch *b, struct plan *p,
                               const int32_t *first)
{
    const enum row_order order = kernel_row(e->kernel)->row_order;
    int32_t *bases = malloc((size_t)most_chunks(e->works) * sizeof *bases);
    enum status status = bases ? STATUS_OK : STATUS_NO_MEMORY;
    for (int32_t i = 0; status == STATUS_OK && i < e->works->n; i += e->works->data[i].n_chunks) {
        const struct work *w = &e->works->data[i];
        if (first[i] < 0 || w->deferred) continue;
        for (int32_t nth = 0; status == STATUS_OK && nth < n_heads(w, b); nth++) {
            for (int32_t c = 0; c < w->n_chunks; c++)
                bases[c] = first[i + c] + nth * (w->row_end - w->row_begin);
            status = merge_tile(p, w, order, w->kv_head == WORK_ALL_HEADS ? nth : w->kv_head, bases);
        }
    }
    free(bases);
    return status;
}

enum status works_emit(const struct works_emit *e, const struct batch *b, struct plan *p)
{
    int32_t *first = e->first ? e->first : malloc(((size_t)e->works->n + 1) * sizeof *first);
    enum status status = first ? take_partials(e, b, p, first) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) status = emit_items(e, b, p, first);
    if (status == STATUS_OK) status = emit_merges(e, b, p, first);
    if (first != e->first) free(first);
    return status;
}

enum status works_emit_grids(const struct works_emit *e, int32_t stream, const struct batch *b,
                             struct plan *p)
{
    struct works_emit emit = *e;
    const int32_t first_merge = p->n_merges;
    if (e->works->n == 0) return STATUS_OK;
    emit.list_per_item = true;
    TRY(plan_begin_grid(p, e->kernel, DISPATCH_FIXED, stream, NULL));
    TRY(works_emit(&emit, b, p));
    TRY(plan_end_grid(p, 0));
    return plan_add_merge_grid(p, first_merge, p->n_merges, stream, NULL, 0);
}

/* end[l + 1] += items of list l. */
static void count_lists(const struct works_emit *e, const struct batch *b, int64_t *end)
{
    for (int32_t i = 0; i < e->works->n; i++)
        end[e->works->data[i].list + 1] += n_heads(&e->works->data[i], b);
}

/* Puts the items of a set where their lists have come to; next[l] moves on. */
static void deal_items(const struct works_emit *e, const struct batch *b, const int32_t *first,
                       struct item *items, int64_t *next)
{
    for (int32_t position = 0; position < e->works->n; position++) {
        const int32_t i = e->order ? e->order[position] : position;
        const struct work *w = &e->works->data[i];
        for (int32_t nth = 0; nth < n_heads(w, b); nth++)
            items[next[w->list]++] = work_item(e, first, i, nth);
    }
}

/* A counting sort by list. While it lasts the plan's n_items is moved from list end to list end, because
 * plan_end_list takes "all items so far". */
static enum status emit_sorted(const struct works_emit *sets, int32_t n_sets, int32_t n_lists,
                               const struct batch *b, struct plan *p, int32_t *const *first)
{
    const int32_t base = p->n_items;
    struct item *items;
    int64_t *next = calloc((size_t)n_lists + 1, sizeof *next);
    if (!next) return STATUS_NO_MEMORY;
    for (int32_t s = 0; s < n_sets; s++)
        count_lists(&sets[s], b, next);
    for (int32_t l = 0; l < n_lists; l++)
        next[l + 1] += next[l];
    enum status status =
        next[n_lists] > INT32_MAX ? STATUS_TOO_LARGE : plan_add_items(p, (int32_t)next[n_lists], &items);
    if (status == STATUS_OK)
        for (int32_t s = 0; s < n_sets; s++)
            deal_items(&sets[s], b, first[s], items, next);
    /* next[l] is now the end of list l */
    for (int32_t l = 0; status == STATUS_OK && l < n_lists; l++) {
        p->n_items = base + (int32_t)next[l];
        status = plan_end_list(p);
    }
    free(next);
    return status;
}

enum { MAX_SETS = 4 };

enum status works_emit_lists(const struct works_emit *sets, int32_t n_sets, int32_t n_lists,
                             const struct batch *b, struct plan *p)
{
    int32_t *first[MAX_SETS] = {NULL};
    enum status status = STATUS_OK;
    assert(n_sets <= MAX_SETS);
    for (int32_t s = 0; s < n_sets && status == STATUS_OK; s++) {
        first[s] = sets[s].first ? sets[s].first : malloc(((size_t)sets[s].works->n + 1) * sizeof **first);
        status = first[s] ? take_partials(&sets[s], b, p, first[s]) : STATUS_NO_MEMORY;
    }
    if (status == STATUS_OK) status = emit_sorted(sets, n_sets, n_lists, b, p, first);
    for (int32_t s = 0; s < n_sets && status == STATUS_OK; s++)
        status = emit_merges(&sets[s], b, p, first[s]);
    for (int32_t s = 0; s < n_sets; s++)
        if (first[s] != sets[s].first) free(first[s]);
    return status;
}

static enum status role_set_create(const struct batch *b, struct role_set *s)
{
    *s = (struct role_set){malloc(((size_t)b->n_requests + 1) * sizeof(int32_t)), 0, 0};
    return s->requests ? STATUS_OK : STATUS_NO_MEMORY;
}

static void role_set_push(const struct batch *b, struct role_set *s, int32_t request)
{
    s->requests[s->n++] = request;
    s->rows += batch_qo_len(b, request);
}

enum status role_sets(const struct batch *b, struct role_set *prefill, struct role_set *decode)
{
    *decode = (struct role_set){0};
    TRY(role_set_create(b, prefill));
    if (role_set_create(b, decode) != STATUS_OK) {
        role_set_free(prefill);
        return STATUS_NO_MEMORY;
    }
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0) role_set_push(b, batch_qo_len(b, r) == 1 ? decode : prefill, r);
    return STATUS_OK;
}

enum status role_set_all(const struct batch *b, struct role_set *all)
{
    TRY(role_set_create(b, all));
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0) role_set_push(b, all, r);
    return STATUS_OK;
}

void role_set_free(struct role_set *s)
{
    free(s->requests);
    memset(s, 0, sizeof *s);
}
