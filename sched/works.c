#include "sched/works.h"

#include <stdlib.h>
#include <string.h>

void works_free(struct works *w)
{
    free(w->data);
    memset(w, 0, sizeof *w);
}

static enum status works_push(struct works *w, const struct work *work)
{
    if (w->n == w->cap) {
        if (w->cap > INT32_MAX / 2) return STATUS_TOO_LARGE;
        const int32_t cap = w->cap ? w->cap * 2 : 64;
        struct work *data = realloc(w->data, (size_t)cap * sizeof *data);
        if (!data) return STATUS_NO_MEMORY;
        w->data = data;
        w->cap = cap;
    }
    w->data[w->n++] = *work;
    return STATUS_OK;
}

enum status works_add_tile(struct works *w, int32_t request, int32_t row_begin, int32_t row_end,
                           struct range keys, int64_t chunk_keys)
{
    const int64_t n_keys = keys.end - keys.begin;
    const int64_t n_chunks = n_keys > 0 ? (n_keys + chunk_keys - 1) / chunk_keys : 1;
    struct work work = {request, row_begin, row_end, keys.begin, keys.end, 0, (int32_t)n_chunks};
    for (int64_t c = 0; c < n_chunks; c++) {
        const int64_t end = keys.begin + (c + 1) * chunk_keys;
        work.chunk = (int32_t)c;
        work.kv_end = end < keys.end ? (int32_t)end : keys.end;
        TRY(works_push(w, &work));
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

int32_t works_n_tiles(const struct batch *b, enum kernel_id k, int32_t request)
{
    const struct kernel *row = kernel_row(k);
    const int64_t tokens = batch_qo_len(b, request), group_size = batch_group_size(b);
    if (row->row_order == ROWS_HEAD_MAJOR)
        return (int32_t)((tokens + row->tile_q - 1) / row->tile_q * group_size);
    return (int32_t)((tokens * group_size + row->tile_q - 1) / row->tile_q);
}

struct tile works_tile(const struct batch *b, enum kernel_id k, int32_t request, int32_t i)
{
    const struct kernel *row = kernel_row(k);
    const int32_t tokens = batch_qo_len(b, request), tile_q = row->tile_q;
    if (row->row_order == ROWS_TOKEN_MAJOR) {
        const int32_t rows = tokens * batch_group_size(b), begin = i * tile_q;
        const int32_t end = rows - begin < tile_q ? rows : begin + tile_q;
        return (struct tile){begin, end, works_tile_keys(b, request, begin, end)};
    }
    const int32_t per_head = (tokens + tile_q - 1) / tile_q, head = i / per_head;
    const int32_t begin = i % per_head * tile_q, end = tokens - begin < tile_q ? tokens : begin + tile_q;
    const struct range first = batch_visible(b, request, begin), last = batch_visible(b, request, end - 1);
    struct tile t = {head * tokens + begin, head * tokens + end, {first.begin, last.end}};
    if (t.keys.end <= t.keys.begin) t.keys = (struct range){0, 0};
    return t;
}

/* Where each work's partial rows start among those of one kv head (-1: it writes directly), and how many
 * there are. */
static int64_t partial_offsets(const struct works_emit *e, int32_t *offset)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < e->works->n; i++) {
        const struct work *w = &e->works->data[i];
        const bool partial = e->all_partial || w->n_chunks > 1;
        if (rows > INT32_MAX) return rows;
        offset[i] = partial ? (int32_t)rows : -1;
        if (partial) rows += w->row_end - w->row_begin;
    }
    return rows;
}

static struct item work_item(const struct work *w, enum kernel_id kernel, int32_t kv_head, int32_t partial)
{
    return (struct item){.group = w->request,
                         .kv_head = kv_head,
                         .row_begin = w->row_begin,
                         .row_end = w->row_end,
                         .kv_begin = w->kv_begin,
                         .kv_end = w->kv_end,
                         .partial = partial,
                         .kernel = (uint16_t)kernel};
}

static enum status emit_items(const struct works_emit *e, const struct batch *b, struct plan *p,
                              const int32_t *offset, int32_t first, int32_t rows_per_head)
{
    const int32_t heads = b->shape.num_kv_heads, n = e->works->n;
    const int32_t outer_n = e->heads_inner ? n : heads, inner_n = e->heads_inner ? heads : n;
    for (int32_t outer = 0; outer < outer_n; outer++)
        for (int32_t inner = 0; inner < inner_n; inner++) {
            const int32_t position = e->heads_inner ? outer : inner, head = e->heads_inner ? inner : outer;
            const int32_t i = e->order ? e->order[position] : position;
            const int32_t partial = offset[i] < 0 ? -1 : first + head * rows_per_head + offset[i];
            const struct item item = work_item(&e->works->data[i], e->kernel, head, partial);
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

static enum status emit_merges(const struct works_emit *e, const struct batch *b, struct plan *p,
                               const int32_t *offset, int32_t first, int32_t rows_per_head)
{
    int32_t max_chunks = 0;
    for (int32_t i = 0; i < e->works->n; i++)
        if (offset[i] >= 0 && e->works->data[i].n_chunks > max_chunks)
            max_chunks = e->works->data[i].n_chunks;
    if (max_chunks == 0) return STATUS_OK;
    int32_t *bases = malloc((size_t)max_chunks * sizeof *bases);
    enum status status = bases ? STATUS_OK : STATUS_NO_MEMORY;
    for (int32_t head = 0; head < b->shape.num_kv_heads; head++)
        for (int32_t i = 0; status == STATUS_OK && i < e->works->n; i += e->works->data[i].n_chunks) {
            const struct work *w = &e->works->data[i];
            if (offset[i] < 0) continue;
            for (int32_t c = 0; c < w->n_chunks; c++)
                bases[c] = first + head * rows_per_head + offset[i + c];
            status = merge_tile(p, w, kernel_row(e->kernel)->row_order, head, bases);
        }
    free(bases);
    return status;
}

enum status works_emit(const struct works_emit *e, const struct batch *b, struct plan *p)
{
    const int32_t heads = b->shape.num_kv_heads;
    int32_t first = 0;
    int32_t *offset = malloc(((size_t)e->works->n + 1) * sizeof *offset);
    if (!offset) return STATUS_NO_MEMORY;
    const int64_t rows_per_head = partial_offsets(e, offset);
    enum status status = rows_per_head * heads > INT32_MAX
                             ? STATUS_TOO_LARGE
                             : plan_take_partials(p, (int32_t)rows_per_head * heads, &first);
    if (status == STATUS_OK) status = emit_items(e, b, p, offset, first, (int32_t)rows_per_head);
    if (status == STATUS_OK) status = emit_merges(e, b, p, offset, first, (int32_t)rows_per_head);
    free(offset);
    return status;
}

enum status role_sets(const struct batch *b, struct role_set *prefill, struct role_set *decode)
{
    *prefill = (struct role_set){malloc(((size_t)b->n_requests + 1) * sizeof(int32_t)), 0, 0};
    *decode = (struct role_set){malloc(((size_t)b->n_requests + 1) * sizeof(int32_t)), 0, 0};
    if (!prefill->requests || !decode->requests) {
        role_set_free(prefill);
        role_set_free(decode);
        return STATUS_NO_MEMORY;
    }
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int32_t qo_len = batch_qo_len(b, r);
        if (qo_len == 0) continue;
        struct role_set *set = qo_len == 1 ? decode : prefill;
        set->requests[set->n++] = r;
        set->rows += qo_len;
    }
    return STATUS_OK;
}

void role_set_free(struct role_set *s)
{
    free(s->requests);
    memset(s, 0, sizeof *s);
}
