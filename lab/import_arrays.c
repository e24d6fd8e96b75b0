#include "lab/import_arrays.h"

#include "lab/json_read.h"
#include "sched/fi_split.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading */

static const char *const known_members[] = {
    "cta_tile_q",      "kv_chunk_size",    "split_kv", "request_indices", "qo_tile_indices",
    "kv_tile_indices", "block_valid_mask", "o_indptr", "merge_indptr",    NULL};

/* An array of indices that must have as many entries as request_indices. */
static enum status read_works(const struct json_place *at, const json_t *object, const char *member,
                              bool required, const struct import_arrays *a, int32_t **out, struct why *why)
{
    int32_t n;
    TRY(json_read_ints(at, object, member, required, 0, INT32_MAX, out, &n, why));
    if (*out && n != a->n_works) return json_fail(at, member, "as many entries as request_indices", why);
    return STATUS_OK;
}

static enum status read_members(const struct json_place *at, const json_t *object, struct import_arrays *a,
                                struct why *why)
{
    int64_t tile = 0, chunk = 0;
    const json_t *split = json_object_get(object, "split_kv");
    TRY(json_check_members(at, object, known_members, why));
    TRY(json_read_int(at, object, "cta_tile_q", true, 16, 128, &tile, why));
    if (tile != 16 && tile != 64 && tile != 128) return json_fail(at, "cta_tile_q", "16, 64 or 128", why);
    TRY(json_read_int(at, object, "kv_chunk_size", true, 1, INT32_MAX, &chunk, why));
    if (!json_is_boolean(split)) return json_fail(at, "split_kv", "true or false", why);
    a->cta_tile_q = (int32_t)tile;
    a->kv_chunk_size = (int32_t)chunk;
    a->split_kv = json_is_true(split);
    TRY(json_read_ints(at, object, "request_indices", true, 0, INT32_MAX, &a->request_indices, &a->n_works,
                       why));
    TRY(read_works(at, object, "qo_tile_indices", true, a, &a->qo_tile_indices, why));
    TRY(read_works(at, object, "kv_tile_indices", true, a, &a->kv_tile_indices, why));
    TRY(read_works(at, object, "block_valid_mask", false, a, &a->block_valid_mask, why));
    TRY(json_read_ints(at, object, "o_indptr", false, 0, INT32_MAX, &a->o_indptr, &a->n_o_indptr, why));
    return json_read_ints(at, object, "merge_indptr", false, 0, INT32_MAX, &a->merge_indptr,
                          &a->n_merge_indptr, why);
}

enum status import_arrays_read(const char *path, struct import_arrays *out, struct why *why)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    const struct json_place at = {path, 0};
    json_error_t error;
    memset(out, 0, sizeof *out);
    FILE *file = is_stdin ? stdin : fopen(path, "r");
    if (!file) return status_fail(why, STATUS_IO, "%.120s: %s", path, strerror(errno));
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    const bool broken = ferror(file);
    if (!is_stdin) fclose(file);
    if (broken) {
        json_decref(root);
        return status_fail(why, STATUS_IO, "%.120s: read error", path);
    }
    if (!root) return status_fail(why, STATUS_BAD_INPUT, "%.120s:%d: %.100s", path, error.line, error.text);
    const enum status status = read_members(&at, root, out, why);
    json_decref(root);
    if (status != STATUS_OK) import_arrays_free(out);
    return status;
}

void import_arrays_free(struct import_arrays *a)
{
    free(a->request_indices);
    free(a->qo_tile_indices);
    free(a->kv_tile_indices);
    free(a->block_valid_mask);
    free(a->o_indptr);
    free(a->merge_indptr);
    memset(a, 0, sizeof *a);
}

/* ---- conversion */

/* A valid work, with the CTA it came from. */
struct entry {
    int32_t request, tile, chunk, position;
};

static int compare_entries(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    if (a->request != b->request) return a->request < b->request ? -1 : 1;
    if (a->tile != b->tile) return a->tile < b->tile ? -1 : 1;
    if (a->chunk != b->chunk) return a->chunk < b->chunk ? -1 : 1;
    return a->position < b->position ? -1 : a->position > b->position;
}

/* Keys that the chunks of a tile are cut from: all of the request's, or, under a window, what the tile sees
 * from a page border on. */
static struct range chunked_keys(const struct batch *b, enum kernel_id k, int32_t request, int32_t tile)
{
    struct range keys = {0, b->kv_len[request]};
    if (b->mask.window_left < 0) return keys;
    keys = works_tile(b, k, request, tile).keys;
    keys.begin -= keys.begin % b->kv.page_size;
    return keys;
}

static enum status check_entry(const struct import_arrays *a, const struct batch *b, int32_t i,
                               struct why *why)
{
    const enum kernel_id k = fi_tile_kernel(a->cta_tile_q);
    const int32_t request = a->request_indices[i], tile = a->qo_tile_indices[i],
                  chunk = a->kv_tile_indices[i];
    if (request >= b->n_requests)
        return status_fail(why, STATUS_BAD_INPUT, "request_indices[%d] = %d: expected 0..%d", i, request,
                           b->n_requests - 1);
    const int32_t tiles = works_n_tiles(b, k, request);
    if (tile >= tiles)
        return status_fail(why, STATUS_BAD_INPUT,
                           "qo_tile_indices[%d] = %d: expected below %d, the tiles of request %d", i, tile,
                           tiles, request);
    const struct range keys = chunked_keys(b, k, request, tile);
    const bool there =
        a->split_kv ? (int64_t)chunk * a->kv_chunk_size < keys.end - keys.begin || chunk == 0 : chunk == 0;
    if (!there)
        return status_fail(why, STATUS_BAD_INPUT,
                           "kv_tile_indices[%d] = %d: expected a chunk with keys of request %d", i, chunk,
                           request);
    return STATUS_OK;
}

/* Valid works by request, tile and chunk. */
static enum status sort_entries(const struct import_arrays *a, const struct batch *b, struct entry *entries,
                                int32_t *n, struct why *why)
{
    *n = 0;
    for (int32_t i = 0; i < a->n_works; i++) {
        if (a->block_valid_mask && a->block_valid_mask[i] == 0) continue;
        TRY(check_entry(a, b, i, why));
        entries[*n] = (struct entry){a->request_indices[i], a->qo_tile_indices[i], a->kv_tile_indices[i], *n};
        (*n)++;
    }
    qsort(entries, (size_t)*n, sizeof *entries, compare_entries);
    return STATUS_OK;
}

static enum status add_work(const struct import_arrays *a, const struct batch *b, const struct entry *e,
                            struct works *works)
{
    const enum kernel_id k = fi_tile_kernel(a->cta_tile_q);
    const struct range keys = chunked_keys(b, k, e->request, e->tile);
    const struct tile tile = works_tile(b, k, e->request, e->tile);
    const int64_t begin = a->split_kv ? keys.begin + (int64_t)e->chunk * a->kv_chunk_size : keys.begin;
    const int64_t end =
        a->split_kv && begin + a->kv_chunk_size < keys.end ? begin + a->kv_chunk_size : keys.end;
    const struct work w = {.request = e->request,
                           .row_begin = tile.row_begin,
                           .row_end = tile.row_end,
                           .kv_begin = (int32_t)begin,
                           .kv_end = (int32_t)end,
                           .kv_head = WORK_ALL_HEADS};
    return works_add(works, &w);
}

/* Works in key order with the number of chunks each tile really has, and the arrays' order as a permutation.
 */
static enum status make_works(const struct import_arrays *a, const struct batch *b,
                              const struct entry *entries, int32_t n, struct works *works, int32_t *order)
{
    for (int32_t i = 0, end; i < n; i = end) {
        for (end = i;
             end < n && entries[end].request == entries[i].request && entries[end].tile == entries[i].tile;
             end++) {
            TRY(add_work(a, b, &entries[end], works));
            works->data[end].chunk = end - i;
            order[entries[end].position] = end;
        }
        for (int32_t k = i; k < end; k++)
            works->data[k].n_chunks = end - i;
    }
    return STATUS_OK;
}

/* Chunks that a request's partial rows have in FlashInfer's layout: entries from *i on are by request; *i
 * moves behind those of this one. */
static int64_t chunks_of(const struct entry *entries, int32_t n, int32_t request, int32_t *i)
{
    int64_t chunks = 1;
    for (; *i < n && entries[*i].request == request; (*i)++)
        if (entries[*i].chunk + 1 > chunks) chunks = entries[*i].chunk + 1;
    return chunks;
}

/* o_indptr and merge_indptr say again what the works say; a contradiction is somebody's mistake. */
static enum status check_indptrs(const struct import_arrays *a, const struct batch *b,
                                 const struct entry *entries, int32_t n, struct why *why)
{
    const int32_t tokens = b->qo_indptr[b->n_requests];
    int32_t next = 0;
    if (a->o_indptr && a->n_o_indptr != b->n_requests + 1)
        return status_fail(why, STATUS_BAD_INPUT, "o_indptr has %d entries: expected %d", a->n_o_indptr,
                           b->n_requests + 1);
    if (a->merge_indptr && a->n_merge_indptr != tokens + 1)
        return status_fail(why, STATUS_BAD_INPUT, "merge_indptr has %d entries: expected %d",
                           a->n_merge_indptr, tokens + 1);
    if (!a->split_kv) return STATUS_OK;
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int64_t chunks = chunks_of(entries, n, r, &next), qo_len = batch_qo_len(b, r);
        if (a->o_indptr && (int64_t)a->o_indptr[r + 1] - a->o_indptr[r] != qo_len * chunks)
            return status_fail(why, STATUS_BAD_INPUT,
                               "o_indptr[%d..%d] holds %lld rows: expected %lld, %lld tokens x %lld chunks",
                               r, r + 1, (long long)a->o_indptr[r + 1] - a->o_indptr[r],
                               (long long)(qo_len * chunks), (long long)qo_len, (long long)chunks);
        for (int32_t t = b->qo_indptr[r]; a->merge_indptr && t < b->qo_indptr[r + 1]; t++)
            if ((int64_t)a->merge_indptr[t + 1] - a->merge_indptr[t] != chunks)
                return status_fail(
                    why, STATUS_BAD_INPUT,
                    "merge_indptr[%d..%d] holds %lld rows: expected the %lld chunks of request %d", t, t + 1,
                    (long long)a->merge_indptr[t + 1] - a->merge_indptr[t], (long long)chunks, r);
    }
    return STATUS_OK;
}

static enum status emit(const struct import_arrays *a, const struct batch *b, const struct works *works,
                        const int32_t *order, struct plan *out)
{
    const struct works_emit e = {.works = works,
                                 .kernel = fi_tile_kernel(a->cta_tile_q),
                                 .all_partial = a->split_kv,
                                 .list_per_item = true,
                                 .order = order};
    if (works->n == 0) return STATUS_OK;
    TRY(plan_begin_grid(out, e.kernel, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit(&e, b, out));
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

enum status import_arrays_plan(const struct import_arrays *a, const struct batch *b, struct plan *out,
                               struct why *why)
{
    struct works works = {0};
    int32_t n = 0;
    plan_begin(out, b);
    struct entry *entries = malloc(((size_t)a->n_works + 1) * sizeof *entries);
    int32_t *order = malloc(((size_t)a->n_works + 1) * sizeof *order);
    enum status status =
        entries && order ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "import: out of memory");
    if (status == STATUS_OK) status = sort_entries(a, b, entries, &n, why);
    if (status == STATUS_OK) status = check_indptrs(a, b, entries, n, why);
    if (status == STATUS_OK) status = make_works(a, b, entries, n, &works, order);
    if (status == STATUS_OK) status = emit(a, b, &works, order, out);
    if (status == STATUS_OK) plan_finish(out, b);
    if (status == STATUS_TOO_LARGE) status_fail(why, status, "import: too many items");
    works_free(&works);
    free(entries);
    free(order);
    return status;
}
