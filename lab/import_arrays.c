#include "lab/import_arrays.h"

#include "sched/fi_split.h"

#include <stdlib.h>
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

void import_arrays_free(struct import_arrays *a)
{
    free(a->request_indices.data);
    free(a->qo_tile_indices.data);
    free(a->kv_tile_indices.data);
    free(a->block_valid_mask.data);
    free(a->o_indptr.data);
    free(a->merge_indptr.data);
    memset(a, 0, sizeof *a);
}

/* ---- the rule
 * -------------------------------------------------------------------------------------------------------- */

static int64_t tiles_of(const struct import_arrays *a, const struct batch *b, int32_t request)
{
    return ceil_div(packed_rows(b, request), a->cta_tile_q);
}

static int64_t chunks_of(const struct import_arrays *a, const struct batch *b, int32_t request)
{
    int64_t keys = b->kv_len[request] > 0 ? b->kv_len[request] : 1;
    const int64_t reach = (int64_t)b->mask.window_left + a->cta_tile_q;
    if (b->mask.window_left >= 0 && reach < keys) keys = reach;
    return a->split_kv ? ceil_div(keys, a->kv_chunk_size) : 1;
}

static struct range tile_keys(const struct batch *b, int32_t request, int32_t row_begin, int32_t row_end)
{
    if (b->mask.window_left < 0) return (struct range){0, b->kv_len[request]};
    struct range keys = works_tile_keys(b, request, row_begin, row_end);
    keys.begin -= keys.begin % b->kv.page_size;
    return keys;
}

/* Keys of chunk k of n. */
static struct range chunk_keys(const struct import_arrays *a, struct range keys, int64_t k, int64_t n)
{
    if (n == 1) return keys;
    const int64_t begin = keys.begin + k * a->kv_chunk_size, end = begin + a->kv_chunk_size;
    return (struct range){clamp_i32(begin, keys.begin, keys.end),
                          k == n - 1 ? keys.end : clamp_i32(end, keys.begin, keys.end)};
}

/* ---- checks
 * ----------------------------------------------------------------------------------------------------------
 */

static enum status check_form(const struct import_arrays *a, struct why *why)
{
    const int32_t n = a->request_indices.n;
    if (a->cta_tile_q != 16 && a->cta_tile_q != 64 && a->cta_tile_q != 128)
        return status_fail(why, STATUS_BAD_INPUT, "cta_tile_q %d: expected 16, 64 or 128", a->cta_tile_q);
    if (a->split_kv && a->kv_chunk_size < 1)
        return status_fail(why, STATUS_BAD_INPUT, "kv_chunk_size %d: expected at least 1 with split_kv",
                           a->kv_chunk_size);
    if (a->qo_tile_indices.n != n || a->kv_tile_indices.n != n)
        return status_fail(why, STATUS_BAD_INPUT,
                           "request_indices, qo_tile_indices, kv_tile_indices have %d, %d, %d entries: "
                           "expected one length",
                           n, a->qo_tile_indices.n, a->kv_tile_indices.n);
    if (a->block_valid_mask.data && a->block_valid_mask.n != n)
        return status_fail(why, STATUS_BAD_INPUT, "block_valid_mask has %d entries: expected %d, one a work",
                           a->block_valid_mask.n, n);
    return STATUS_OK;
}

static bool is_padding(const struct import_arrays *a, int32_t w)
{
    return a->block_valid_mask.data && !a->block_valid_mask.data[w];
}

static enum status check_work(const struct import_arrays *a, const struct batch *b, int32_t w,
                              struct why *why)
{
    const int32_t request = a->request_indices.data[w];
    const int32_t tile = a->qo_tile_indices.data[w], chunk = a->kv_tile_indices.data[w];
    if (request < 0 || request >= b->n_requests)
        return status_fail(why, STATUS_BAD_INPUT, "request_indices[%d] is %d: the batch has %d requests", w,
                           request, b->n_requests);
    if (tile < 0 || tile >= tiles_of(a, b, request))
        return status_fail(why, STATUS_BAD_INPUT, "qo_tile_indices[%d] is %d: request %d has %lld tiles", w,
                           tile, request, (long long)tiles_of(a, b, request));
    if (chunk < 0 || chunk >= chunks_of(a, b, request))
        return status_fail(why, STATUS_BAD_INPUT, "kv_tile_indices[%d] is %d: request %d has %lld chunks", w,
                           chunk, request, (long long)chunks_of(a, b, request));
    return STATUS_OK;
}

/* Where works stand in FlashInfer's own order: request, then tile, then chunk. Filled in steps, so that
 * memory is asked for only after the arrays have shown as many works as it is for. */
struct ranking {
    int64_t *first; /* [n_requests + 1] rank of a request's first work */
    int64_t *count; /* [n_requests] works the arrays have for it */
    int32_t *by;    /* [first[n_requests]] which work of the arrays has a rank, -1 none yet */
    int32_t *order; /* [first[n_requests]] rank of the i-th valid work */
};

static void ranking_free(struct ranking *r)
{
    free(r->first);
    free(r->count);
    free(r->by);
    free(r->order);
}

/* A request has all its works or this fails, unless one is there twice. */
static enum status count_works(const struct import_arrays *a, const struct batch *b, struct ranking *r,
                               struct why *why)
{
    const size_t n = (size_t)b->n_requests;
    r->first = calloc(n + 1, sizeof *r->first);
    r->count = calloc(n + 1, sizeof *r->count);
    if (!r->first || !r->count) return STATUS_NO_MEMORY;
    for (int32_t w = 0; w < a->request_indices.n; w++) {
        if (is_padding(a, w)) continue;
        TRY(check_work(a, b, w, why));
        r->count[a->request_indices.data[w]]++;
    }
    for (int32_t i = 0; i < b->n_requests; i++) {
        const int64_t tiles = tiles_of(a, b, i), chunks = chunks_of(a, b, i);
        if (r->count[i] != tiles * chunks)
            return status_fail(why, STATUS_BAD_INPUT,
                               "request %d has %lld works: expected %lld tiles x %lld chunks", i,
                               (long long)r->count[i], (long long)tiles, (long long)chunks);
        r->first[i + 1] = r->first[i] + tiles * chunks;
    }
    return STATUS_OK;
}

static enum status rank_works(const struct import_arrays *a, const struct batch *b, struct ranking *r,
                              struct why *why)
{
    const size_t n = (size_t)r->first[b->n_requests];
    r->by = malloc((n + 1) * sizeof *r->by);
    r->order = malloc((n + 1) * sizeof *r->order);
    if (!r->by || !r->order) return STATUS_NO_MEMORY;
    memset(r->by, -1, n * sizeof *r->by);
    for (int32_t w = 0, i = 0; w < a->request_indices.n; w++) {
        if (is_padding(a, w)) continue;
        const int32_t request = a->request_indices.data[w];
        const int32_t tile = a->qo_tile_indices.data[w], chunk = a->kv_tile_indices.data[w];
        const int64_t rank = r->first[request] + tile * chunks_of(a, b, request) + chunk;
        if (r->by[rank] >= 0)
            return status_fail(why, STATUS_BAD_INPUT, "work %d repeats work %d: request %d tile %d chunk %d",
                               w, r->by[rank], request, tile, chunk);
        r->by[rank] = w;
        r->order[i++] = (int32_t)rank;
    }
    return STATUS_OK;
}

static enum status check_indptr_length(const char *name, const struct import_ints *x, int64_t n,
                                       struct why *why)
{
    if (x->n == n) return STATUS_OK;
    return status_fail(why, STATUS_BAD_INPUT, "%s has %d entries: expected %lld", name, x->n, (long long)n);
}

static enum status check_entry(const char *name, const struct import_ints *x, int64_t i, int64_t want,
                               struct why *why)
{
    if (x->data[i] == want) return STATUS_OK;
    return status_fail(why, STATUS_BAD_INPUT, "%s[%lld] is %d: the works make it %lld", name, (long long)i,
                       x->data[i], (long long)want);
}

static enum status check_o_indptr(const struct import_arrays *a, const struct batch *b, struct why *why)
{
    int64_t want = 0;
    if (!a->o_indptr.data) return STATUS_OK;
    TRY(check_indptr_length("o_indptr", &a->o_indptr, (int64_t)b->n_requests + 1, why));
    for (int32_t r = 0; r <= b->n_requests; r++) {
        TRY(check_entry("o_indptr", &a->o_indptr, r, want, why));
        if (r < b->n_requests) want += batch_qo_len(b, r) * chunks_of(a, b, r);
    }
    return STATUS_OK;
}

static enum status check_merge_indptr(const struct import_arrays *a, const struct batch *b, struct why *why)
{
    int64_t want = 0;
    if (!a->merge_indptr.data) return STATUS_OK;
    TRY(check_indptr_length("merge_indptr", &a->merge_indptr, (int64_t)b->qo_indptr[b->n_requests] + 1, why));
    TRY(check_entry("merge_indptr", &a->merge_indptr, 0, 0, why));
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t token = b->qo_indptr[r]; token < b->qo_indptr[r + 1]; token++) {
            want += chunks_of(a, b, r);
            TRY(check_entry("merge_indptr", &a->merge_indptr, (int64_t)token + 1, want, why));
        }
    return STATUS_OK;
}

/* ---- the plan
 * -------------------------------------------------------------------------------------------------------- */

/* The works of the rule, by rank. */
static enum status make_works(const struct import_arrays *a, const struct batch *b, int64_t n,
                              struct works *out)
{
    out->data = malloc(((size_t)n + 1) * sizeof *out->data);
    if (!out->data) return STATUS_NO_MEMORY;
    out->cap = (int32_t)n;
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int64_t rows = packed_rows(b, r), chunks = chunks_of(a, b, r);
        for (int64_t row = 0; row < rows; row += a->cta_tile_q) {
            const int32_t end = rows - row < a->cta_tile_q ? (int32_t)rows : (int32_t)row + a->cta_tile_q;
            const struct range keys = tile_keys(b, r, (int32_t)row, end);
            for (int64_t k = 0; k < chunks; k++) {
                const struct range c = chunk_keys(a, keys, k, chunks);
                out->data[out->n++] = (struct work){.request = r,
                                                    .row_begin = (int32_t)row,
                                                    .row_end = end,
                                                    .kv_begin = c.begin,
                                                    .kv_end = c.end,
                                                    .chunk = (int32_t)k,
                                                    .n_chunks = (int32_t)chunks,
                                                    .kv_head = WORK_ALL_HEADS};
            }
        }
    }
    return STATUS_OK;
}

static enum status emit(const struct import_arrays *a, const struct batch *b, const struct works *works,
                        const int32_t *order, struct plan *out)
{
    const struct works_emit emit = {
        .works = works, .kernel = fi_tile_kernel(a->cta_tile_q), .all_partial = a->split_kv, .order = order};
    return works_emit_grids(&emit, 0, b, out);
}

enum status import_arrays_plan(const struct import_arrays *a, const struct batch *b, struct plan *out,
                               struct why *why)
{
    struct ranking r = {0};
    struct works works = {0};
    TRY(check_form(a, why));
    plan_begin(out, b);
    enum status status = count_works(a, b, &r, why);
    if (status == STATUS_OK) status = rank_works(a, b, &r, why);
    if (status == STATUS_OK) status = check_o_indptr(a, b, why);
    if (status == STATUS_OK) status = check_merge_indptr(a, b, why);
    if (status == STATUS_OK) status = make_works(a, b, r.first[b->n_requests], &works);
    if (status == STATUS_OK) status = emit(a, b, &works, r.order, out);
    if (status == STATUS_OK) plan_finish(out, b);
    works_free(&works);
    ranking_free(&r);
    return status;
}
