#include "lab/import_arrays.h"

#include "lab/json_read.h"

#include <stdlib.h>
#include <string.h>

static const char *const array_keys[] = {
    "cta_tile_q",      "kv_chunk_size",    "split_kv", "request_indices", "qo_tile_indices",
    "kv_tile_indices", "block_valid_mask", "o_indptr", "merge_indptr",    NULL};

static enum status read_bool(const struct json_place *at, const json_t *object, const char *member, bool *out,
                             struct why *why)
{
    const json_t *value = json_object_get(object, member);
    if (!json_is_boolean(value)) return json_fail(at, member, "true or false", why);
    *out = json_is_true(value);
    return STATUS_OK;
}

/* Any int32: entries of padding works are whatever the buffer held. */
static enum status read_ints(const struct json_place *at, const json_t *object, const char *member,
                             bool required, struct import_ints *out, struct why *why)
{
    return json_read_ints(at, object, member, required, INT32_MIN, INT32_MAX, &out->data, &out->n, why);
}

/* Booleans, or the bytes behind them. */
static enum status read_mask(const struct json_place *at, const json_t *object, struct import_ints *out,
                             struct why *why)
{
    const json_t *array = json_object_get(object, "block_valid_mask");
    const size_t n = json_array_size(array);
    if (!array || json_is_null(array)) return STATUS_OK;
    if (!json_is_array(array) || n >= INT32_MAX) return json_fail(at, "block_valid_mask", "an array", why);
    out->data = malloc((n + 1) * sizeof *out->data);
    if (!out->data) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(array, i);
        char name[64];
        snprintf(name, sizeof name, "block_valid_mask[%zu]", i);
        out->data[i] = json_is_true(x) || (json_is_integer(x) && json_integer_value(x) == 1);
        if (!out->data[i] && !json_is_false(x) && !(json_is_integer(x) && json_integer_value(x) == 0))
            return json_fail(at, name, "true, false, 1 or 0", why);
    }
    out->n = (int32_t)n;
    return STATUS_OK;
}

static enum status from_json(const struct json_place *at, const json_t *root, struct import_arrays *out,
                             struct why *why)
{
    int64_t tile = 0, chunk = 0;
    TRY(json_check_members(at, root, array_keys, why));
    TRY(json_read_int(at, root, "cta_tile_q", true, INT32_MIN, INT32_MAX, &tile, why));
    TRY(json_read_int(at, root, "kv_chunk_size", true, INT32_MIN, INT32_MAX, &chunk, why));
    out->cta_tile_q = (int32_t)tile;
    out->kv_chunk_size = (int32_t)chunk;
    TRY(read_bool(at, root, "split_kv", &out->split_kv, why));
    TRY(read_ints(at, root, "request_indices", true, &out->request_indices, why));
    TRY(read_ints(at, root, "qo_tile_indices", true, &out->qo_tile_indices, why));
    TRY(read_ints(at, root, "kv_tile_indices", true, &out->kv_tile_indices, why));
    TRY(read_ints(at, root, "o_indptr", false, &out->o_indptr, why));
    TRY(read_ints(at, root, "merge_indptr", false, &out->merge_indptr, why));
    return read_mask(at, root, &out->block_valid_mask, why);
}

enum status import_arrays_read(const char *path, struct import_arrays *out, struct why *why)
{
    const struct json_place at = {path, 0};
    json_t *root;
    memset(out, 0, sizeof *out);
    TRY(json_read_file(path, &root, why));
    const enum status status = from_json(&at, root, out, why);
    json_decref(root);
    return status;
}
