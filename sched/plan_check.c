#include "sched/plan_check.h"

#include "sched/plan_structure.h"

#include <stdlib.h>
#include <string.h>

/* The proof works on pieces: a piece is a run of query tokens of one request and ONE q head, and the keys
 * that some item computes for them. An item's packed rows become pieces (token-major rows: one a head of the
 * group; head-major: one a head it touches). Pieces carry where their rows go: directly to the output, or to
 * a partial row, which a merge then sends to an output row. Sorted by (q head of request, token), a sweep
 * over elementary token bands sees, for each band, all pieces of it, and checks
 *
 *   - their key ranges, clipped to what the band's tokens see, are disjoint and cover it
 *   - one writer: a single direct piece, or one merge that reads exactly these pieces
 *
 * What a token sees moves right by at most one key a token and always holds the token's own position, so
 * every key of the band's union of visible ranges is seen by some token of the band: checking the union once
 * is exact. */
struct piece {
    int64_t head; /* request * num_qo_heads + q head */
    int32_t token_begin, token_end;
    int32_t kv_begin, kv_end;
    int32_t item;
    int32_t merge; /* merge that its rows go to, -1: written by the item */
};

struct pieces {
    struct piece *data;
    int32_t n, cap;
};

static enum status push(struct pieces *p, const struct piece *piece)
{
    if (p->n == p->cap) {
        if (p->cap > INT32_MAX / 2) return STATUS_TOO_LARGE;
        const int32_t cap = p->cap ? p->cap * 2 : 1024;
        struct piece *data = realloc(p->data, (size_t)cap * sizeof *data);
        if (!data) return STATUS_NO_MEMORY;
        p->data = data;
        p->cap = cap;
    }
    p->data[p->n++] = *piece;
    return STATUS_OK;
}

/* ---- partial rows: written once, read once, and by which merge
 * ------------------------------------------------------ */

/* What happens to each partial row: the item that writes it, the merge that reads it and the output row it
 * goes to. */
struct partials {
    int32_t *item; /* -1: nobody */
    int32_t *merge;
    int32_t *merge_row; /* packed row of the merge's request */
};

static enum status partials_create(const struct plan *p, struct partials *x, struct why *why)
{
    const size_t n = (size_t)p->partial_rows;
    /* rows nobody could write are refused before memory is asked for them */
    int64_t writable = 0;
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0) writable += p->items[i].row_end - p->items[i].row_begin;
    if (writable != p->partial_rows)
        return status_fail(why, STATUS_INVALID_PLAN,
                           "items write %lld partial rows: expected each of %d once", (long long)writable,
                           p->partial_rows);
    x->item = malloc((n + 1) * sizeof(int32_t));
    x->merge = malloc((n + 1) * sizeof(int32_t));
    x->merge_row = malloc((n + 1) * sizeof(int32_t));
    if (!x->item || !x->merge || !x->merge_row)
        return status_fail(why, STATUS_NO_MEMORY, "plan_check: out of memory");
    memset(x->item, -1, n * sizeof(int32_t));
    memset(x->merge, -1, n * sizeof(int32_t));
    return STATUS_OK;
}

static void partials_free(struct partials *x)
{
    free(x->item);
    free(x->merge);
    free(x->merge_row);
}

static enum status note_writers(const struct plan *p, struct partials *x, struct why *why)
{
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        const int64_t rows = item->row_end - item->row_begin;
        if (item->partial < 0) continue;
        if (item->partial + rows > p->partial_rows)
            return status_fail(why, STATUS_INVALID_PLAN, "item %d: partial rows %d..%lld: expected below %d",
                               i, item->partial, (long long)(item->partial + rows), p->partial_rows);
        for (int64_t row = item->partial; row < item->partial + rows; row++) {
            if (x->item[row] >= 0)
                return status_fail(why, STATUS_INVALID_PLAN, "partial row %lld: written by items %d and %d",
                                   (long long)row, x->item[row], i);
            x->item[row] = i;
        }
    }
    return STATUS_OK;
}

static enum status note_readers(const struct plan *p, struct partials *x, struct why *why)
{
    for (int32_t m = 0; m < p->n_merges; m++) {
        const struct merge *merge = &p->merges[m];
        const int64_t rows = merge->row_end - merge->row_begin;
        for (int32_t s = p->merge_indptr[m]; s < p->merge_indptr[m + 1]; s++) {
            const int64_t base = p->merge_src[s];
            if (base < 0 || base + rows > p->partial_rows)
                return status_fail(why, STATUS_INVALID_PLAN,
                                   "merge %d: source rows %lld..%lld: expected within 0..%d", m,
                                   (long long)base, (long long)(base + rows), p->partial_rows);
            for (int64_t i = 0; i < rows; i++) {
                if (x->merge[base + i] >= 0)
                    return status_fail(why, STATUS_INVALID_PLAN, "partial row %lld: read by merges %d and %d",
                                       (long long)(base + i), x->merge[base + i], m);
                x->merge[base + i] = m;
                x->merge_row[base + i] = merge->row_begin + (int32_t)i;
            }
        }
    }
    for (int32_t row = 0; row < p->partial_rows; row++)
        if (x->merge[row] < 0)
            return status_fail(why, STATUS_INVALID_PLAN,
                               "partial row %d: written by item %d, merged by nobody", row, x->item[row]);
    return STATUS_OK;
}

/* ---- items into pieces
 * ---------------------------------------------------------------------------------------------- */

struct checker {
    const struct plan *p;
    const struct batch *b;
    struct partials partials;
    struct pieces pieces;
    struct why *why;
};

/* The merge that partial row `at` goes to must send it to the very output row the item computes there. */
static enum status check_destination(const struct checker *c, int32_t i, int32_t at, struct row_ref ref)
{
    const struct plan *p = c->p;
    const int32_t m = c->partials.merge[at];
    const struct merge *merge = &p->merges[m];
    const struct row_ref to = plan_row(p, c->b, merge->request, merge->kv_head,
                                       (enum row_order)merge->row_order, c->partials.merge_row[at]);
    if (to.request == ref.request && to.token == ref.token && to.qo_head == ref.qo_head) return STATUS_OK;
    return status_fail(
        c->why, STATUS_INVALID_PLAN,
        "item %d: partial row %d is request %d token %d head %d, but merge %d takes it for request %d token "
        "%d head %d",
        i, at, ref.request, ref.token, ref.qo_head, m, to.request, to.token, to.qo_head);
}

/* Appends a row to the piece being built for its head, or starts a new one. */
static enum status add_row(struct checker *c, int32_t i, struct row_ref ref, int32_t merge)
{
    const struct item *item = &c->p->items[i];
    const int64_t head = (int64_t)ref.request * c->b->shape.num_qo_heads + ref.qo_head;
    /* rows of one token come head by head, so the open piece of a head is at most group_size back */
    const int32_t group_size = batch_group_size(c->b);
    for (int32_t k = c->pieces.n - 1; k >= 0 && k >= c->pieces.n - group_size; k--) {
        struct piece *open = &c->pieces.data[k];
        if (open->item != i) break;
        if (open->head != head || open->merge != merge || open->token_end != ref.token) continue;
        open->token_end++;
        return STATUS_OK;
    }
    const struct piece piece = {head, ref.token, ref.token + 1, item->kv_begin, item->kv_end, i, merge};
    return push(&c->pieces, &piece);
}

static enum status add_item_by_rows(struct checker *c, int32_t i)
{
    const struct item *item = &c->p->items[i];
    const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
    for (int32_t row = item->row_begin; row < item->row_end; row++) {
        const struct row_ref ref = plan_row(c->p, c->b, item->group, item->kv_head, order, row);
        const int32_t at = item->partial < 0 ? -1 : item->partial + (row - item->row_begin);
        if (at >= 0) TRY(check_destination(c, i, at, ref));
        TRY(add_row(c, i, ref, at < 0 ? -1 : c->partials.merge[at]));
    }
    return STATUS_OK;
}

/* Direct items of one request: pieces in closed form. Token-major rows [a, b) hold head h of tokens
 * ceil((a - h) / G) .. ceil((b - h) / G); head-major rows of head h are tokens a - h T .. b - h T, clipped to
 * [0, T). */
static enum status add_direct_item(struct checker *c, int32_t i)
{
    const struct item *item = &c->p->items[i];
    const int32_t group_size = batch_group_size(c->b), tokens = batch_qo_len(c->b, item->group);
    const bool token_major = kernel_row((enum kernel_id)item->kernel)->row_order == ROWS_TOKEN_MAJOR;
    for (int32_t h = 0; h < group_size; h++) {
        struct piece piece = {(int64_t)item->group * c->b->shape.num_qo_heads + item->kv_head * group_size +
                                  h,
                              0,
                              0,
                              item->kv_begin,
                              item->kv_end,
                              i,
                              -1};
        if (token_major) {
            piece.token_begin = item->row_begin <= h ? 0 : (item->row_begin - h - 1) / group_size + 1;
            piece.token_end = item->row_end <= h ? 0 : (item->row_end - h - 1) / group_size + 1;
        } else {
            const int64_t first = (int64_t)h * tokens;
            piece.token_begin = clamp_i32(item->row_begin - first, 0, tokens);
            piece.token_end = clamp_i32(item->row_end - first, 0, tokens);
        }
        if (piece.token_begin < piece.token_end) TRY(push(&c->pieces, &piece));
    }
    return STATUS_OK;
}

/* Merges without sources write rows that nobody computes: a piece without keys and without an item. */
static enum status add_empty_merges(struct checker *c)
{
    const struct plan *p = c->p;
    for (int32_t m = 0; m < p->n_merges; m++) {
        const struct merge *merge = &p->merges[m];
        if (p->merge_indptr[m] != p->merge_indptr[m + 1]) continue;
        for (int32_t row = merge->row_begin; row < merge->row_end; row++) {
            const struct row_ref ref =
                plan_row(p, c->b, merge->request, merge->kv_head, (enum row_order)merge->row_order, row);
            const struct piece piece = {(int64_t)ref.request * c->b->shape.num_qo_heads + ref.qo_head,
                                        ref.token,
                                        ref.token + 1,
                                        0,
                                        0,
                                        -1,
                                        m};
            TRY(push(&c->pieces, &piece));
        }
    }
    return STATUS_OK;
}

static enum status collect_pieces(struct checker *c)
{
    for (int32_t i = 0; i < c->p->n_items; i++) {
        const struct item *item = &c->p->items[i];
        if (item->partial < 0 && item->group < c->p->n_requests)
            TRY(add_direct_item(c, i));
        else
            TRY(add_item_by_rows(c, i));
    }
    return add_empty_merges(c);
}

/* ---- the sweep
 * ------------------------------------------------------------------------------------------------------ */

static int compare_pieces(const void *x, const void *y)
{
    const struct piece *a = x, *b = y;
    if (a->head != b->head) return a->head < b->head ? -1 : 1;
    if (a->token_begin != b->token_begin) return a->token_begin < b->token_begin ? -1 : 1;
    if (a->kv_begin != b->kv_begin) return a->kv_begin < b->kv_begin ? -1 : 1;
    if (a->item != b->item) return a->item < b->item ? -1 : 1;
    return a->token_end < b->token_end ? -1 : a->token_end > b->token_end;
}

/* Pieces that cover the current band, in key order. */
struct band {
    int32_t request, qo_head;
    int32_t token_begin, token_end;
    const struct piece **active;
    int32_t n;
};

static enum status fault(const struct checker *c, const struct band *band, const char *what)
{
    return status_fail(c->why, STATUS_INVALID_PLAN, "request %d head %d tokens %d..%d: %s", band->request,
                       band->qo_head, band->token_begin, band->token_end, what);
}

/* Exactly one writer: one direct piece alone, or pieces that all go to one merge. */
static enum status check_writer(const struct checker *c, const struct band *band)
{
    if (band->n == 0) return fault(c, band, "no item or merge writes these rows");
    if (band->active[0]->merge < 0)
        return band->n == 1 ? STATUS_OK
                            : fault(c, band, "a direct item and another item or merge both write these rows");
    for (int32_t i = 1; i < band->n; i++)
        if (band->active[i]->merge != band->active[0]->merge)
            return fault(c, band,
                         band->active[i]->merge < 0
                             ? "a direct item and another item or merge both write these rows"
                             : "two merges write these rows");
    return STATUS_OK;
}

/* Key ranges within what the band sees: disjoint and complete. `active` is sorted by kv_begin. */
static enum status check_keys(const struct checker *c, const struct band *band, struct range sees)
{
    int32_t covered = sees.begin;
    for (int32_t i = 0; i < band->n; i++) {
        const struct piece *piece = band->active[i];
        const int32_t begin = piece->kv_begin > sees.begin ? piece->kv_begin : sees.begin;
        const int32_t end = piece->kv_end < sees.end ? piece->kv_end : sees.end;
        if (begin >= end) continue;
        if (begin < covered) return fault(c, band, "keys are computed twice");
        if (begin > covered) return fault(c, band, "keys are missing");
        covered = end;
    }
    return covered >= sees.end ? STATUS_OK : fault(c, band, "keys are missing");
}

static enum status check_band(const struct checker *c, const struct band *band)
{
    const struct range first = batch_visible(c->b, band->request, band->token_begin);
    const struct range last = batch_visible(c->b, band->request, band->token_end - 1);
    TRY(check_writer(c, band));
    if (last.end <= first.begin)
        return STATUS_OK; /* nothing to see: the rows are written, keys do not matter */
    return check_keys(c, band, (struct range){first.begin, last.end});
}

static void insert_by_key(struct band *band, const struct piece *piece)
{
    int32_t i = band->n++;
    for (; i > 0 && band->active[i - 1]->kv_begin > piece->kv_begin; i--)
        band->active[i] = band->active[i - 1];
    band->active[i] = piece;
}

static void drop_ended(struct band *band, int32_t token)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < band->n; i++)
        if (band->active[i]->token_end > token) band->active[kept++] = band->active[i];
    band->n = kept;
}

/* Sweeps one head's pieces [begin, end) over its tokens. */
static enum status check_head(const struct checker *c, struct band *band, int32_t begin, int32_t end)
{
    const struct piece *pieces = c->pieces.data;
    const int32_t tokens = batch_qo_len(c->b, band->request);
    int32_t next = begin;
    band->n = 0;
    for (int32_t token = 0; token < tokens; token = band->token_end) {
        drop_ended(band, token);
        while (next < end && pieces[next].token_begin == token)
            insert_by_key(band, &pieces[next++]);
        band->token_begin = token;
        band->token_end = next < end ? pieces[next].token_begin : tokens;
        for (int32_t i = 0; i < band->n; i++)
            if (band->active[i]->token_end < band->token_end) band->token_end = band->active[i]->token_end;
        TRY(check_band(c, band));
    }
    return STATUS_OK;
}

static enum status check_coverage(struct checker *c)
{
    const struct batch *b = c->b;
    const int32_t heads = b->shape.num_qo_heads;
    struct band band = {.active = malloc(((size_t)c->pieces.n + 1) * sizeof *band.active)};
    enum status status = STATUS_OK;
    int32_t begin = 0;
    if (!band.active) return status_fail(c->why, STATUS_NO_MEMORY, "plan_check: out of memory");
    if (c->pieces.n) qsort(c->pieces.data, (size_t)c->pieces.n, sizeof *c->pieces.data, compare_pieces);
    for (int32_t r = 0; status == STATUS_OK && r < b->n_requests; r++)
        for (int32_t h = 0; status == STATUS_OK && h < heads; h++) {
            const int64_t head = (int64_t)r * heads + h;
            int32_t end = begin;
            while (end < c->pieces.n && c->pieces.data[end].head == head)
                end++;
            band.request = r;
            band.qo_head = h;
            status = check_head(c, &band, begin, end);
            begin = end;
        }
    free(band.active);
    return status;
}

/* ---- row groups
 * ----------------------------------------------------------------------------------------------------- */

/* Members of a row group must hold the same physical pages over the item's keys. */
static enum status check_group_pages(const struct plan *p, const struct batch *b, int32_t i, struct why *why)
{
    const struct item *item = &p->items[i];
    const int32_t g = item->group - p->n_requests;
    if (item->kv_begin == item->kv_end) return STATUS_OK;
    const int32_t first = item->kv_begin / b->kv.page_size, last = (item->kv_end - 1) / b->kv.page_size;
    const int32_t *pages = b->kv.kv_indices + b->kv.kv_indptr[p->members[p->group_indptr[g]].request];
    for (int32_t m = p->group_indptr[g] + 1; m < p->group_indptr[g + 1]; m++) {
        const int32_t *other = b->kv.kv_indices + b->kv.kv_indptr[p->members[m].request];
        for (int32_t page = first; page <= last; page++)
            if (pages[page] != other[page])
                return status_fail(
                    why, STATUS_INVALID_PLAN,
                    "item %d: row group %d: page %d of requests %d and %d differs: expected a shared prefix",
                    i, item->group, page, p->members[p->group_indptr[g]].request, p->members[m].request);
    }
    return STATUS_OK;
}

enum status plan_check(const struct plan *p, const struct batch *b, struct why *why)
{
    struct checker c = {.p = p, .b = b, .why = why};
    TRY(plan_structure_check(p, b, why));
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].group >= p->n_requests) TRY(check_group_pages(p, b, i, why));
    enum status status = partials_create(p, &c.partials, why);
    if (status == STATUS_OK) status = note_writers(p, &c.partials, why);
    if (status == STATUS_OK) status = note_readers(p, &c.partials, why);
    if (status == STATUS_OK) status = plan_order_check(p, b, c.partials.item, why);
    if (status == STATUS_OK) status = collect_pieces(&c);
    if (status == STATUS_OK) status = check_coverage(&c);
    partials_free(&c.partials);
    free(c.pieces.data);
    return status;
}
