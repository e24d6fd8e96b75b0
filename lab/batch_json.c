/* batch_json: batch.json and JSONL files of batches into workloads, and back. Declared in workload.h. */
#include "lab/batch_features.h"
#include "lab/json_read.h"
#include "lab/spec.h"
#include "lab/workload.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const batch_keys[] = {
    "num_qo_heads",  "num_kv_heads", "head_dim",         "page_size",   "dtype",           "kv_dtype",
    "causal",        "qo_len",       "kv_len",           "window_left", "logits_soft_cap", "sm_scale",
    "alibi",         "sink",         "layout",           "fill",        "kv_indptr",       "kv_indices",
    "last_page_len", "seed",         BATCH_FEATURE_KEYS, NULL};

struct reading {
    struct json_place at;
    const json_t *object;
    struct why *why;
};

static enum status get_int(const struct reading *r, const char *member, bool required, int64_t low,
                           int64_t high, int32_t *out)
{
    int64_t x = *out;
    TRY(json_read_int(&r->at, r->object, member, required, low, high, &x, r->why));
    *out = (int32_t)x;
    return STATUS_OK;
}

static enum status get_number(const struct reading *r, const char *member, float *out)
{
    const json_t *value = json_object_get(r->object, member);
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_number(value) || !(json_number_value(value) >= 0) || json_number_value(value) > 3e38)
        return json_fail(&r->at, member, "a number >= 0", r->why);
    *out = (float)json_number_value(value);
    return STATUS_OK;
}

static enum status get_bool(const struct reading *r, const char *member, bool *out)
{
    const json_t *value = json_object_get(r->object, member);
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_boolean(value)) return json_fail(&r->at, member, "true or false", r->why);
    *out = json_is_true(value);
    return STATUS_OK;
}

static enum status get_dtype(const struct reading *r, const char *member, enum dtype *out)
{
    const json_t *value = json_object_get(r->object, member);
    const bool is_kv = strcmp(member, "kv_dtype") == 0;
    const char *expected = is_kv ? "bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2" : "bf16, fp16 or fp32";
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_string(value)) return json_fail(&r->at, member, expected, r->why);
    *out = dtype_from_name(json_string_value(value));
    return *out < DTYPE_COUNT && (is_kv || !dtype_is_fp8(*out)) ? STATUS_OK
                                                                : json_fail(&r->at, member, expected, r->why);
}

static enum status get_layout(const struct reading *r, enum layout *out)
{
    const json_t *value = json_object_get(r->object, "layout");
    if (!value || json_is_null(value)) return STATUS_OK;
    const char *name = json_is_string(value) ? json_string_value(value) : "";
    if (strcmp(name, "NHD") != 0 && strcmp(name, "HND") != 0)
        return json_fail(&r->at, "layout", "NHD or HND", r->why);
    *out = name[0] == 'N' ? LAYOUT_NHD : LAYOUT_HND;
    return STATUS_OK;
}

/* "normal", {"normal": scale} or a number for every element. */
static enum status get_fill(const struct reading *r, struct fill fill[3])
{
    static const char *const names[] = {"q", "k", "v", NULL};
    static const char *const scale_key[] = {"normal", NULL};
    const json_t *object = json_object_get(r->object, "fill");
    if (!object || json_is_null(object)) return STATUS_OK;
    TRY(json_check_members(&r->at, object, names, r->why));
    for (int i = 0; i < 3; i++) {
        const json_t *value = json_object_get(object, names[i]);
        const char *expected = "\"normal\", a number, or {\"normal\": scale}";
        if (!value) continue;
        fill[i] = (struct fill){FILL_NORMAL, 1.0};
        if (json_is_number(value)) {
            fill[i] = (struct fill){FILL_CONSTANT, json_number_value(value)};
        } else if (json_is_object(value)) {
            TRY(json_check_members(&r->at, value, scale_key, r->why));
            if (!json_is_number(json_object_get(value, "normal")))
                return json_fail(&r->at, names[i], expected, r->why);
            fill[i].value = json_number_value(json_object_get(value, "normal"));
        } else if (!json_is_string(value) || strcmp(json_string_value(value), "normal") != 0) {
            return json_fail(&r->at, names[i], expected, r->why);
        }
        if (!isfinite(fill[i].value) || fabs(fill[i].value) > 1e4)
            return json_fail(&r->at, names[i], "a magnitude of at most 10000", r->why);
    }
    return STATUS_OK;
}

static enum status get_params(const struct reading *r, struct workload_params *p)
{
    int64_t seed = 1;
    TRY(json_check_members(&r->at, r->object, batch_keys, r->why));
    TRY(get_int(r, "num_qo_heads", true, 1, BATCH_MAX_HEADS, &p->shape.num_qo_heads));
    TRY(get_int(r, "num_kv_heads", true, 1, BATCH_MAX_HEADS, &p->shape.num_kv_heads));
    TRY(get_int(r, "head_dim", true, 1, BATCH_MAX_HEAD_DIM, &p->shape.head_dim_qk));
    TRY(features_read_params(&r->at, r->object, p, r->why));
    TRY(get_int(r, "page_size", false, 1, BATCH_MAX_PAGE_SIZE, &p->page_size));
    TRY(get_dtype(r, "dtype", &p->shape.q_dtype));
    p->shape.kv_dtype = p->shape.q_dtype;
    TRY(get_dtype(r, "kv_dtype", &p->shape.kv_dtype));
    TRY(get_bool(r, "causal", &p->mask.causal));
    TRY(get_bool(r, "alibi", &p->mask.alibi));
    TRY(get_int(r, "window_left", false, -1, INT32_MAX, &p->mask.window_left));
    TRY(get_number(r, "logits_soft_cap", &p->mask.logits_soft_cap));
    TRY(get_number(r, "sm_scale", &p->mask.sm_scale));
    TRY(get_layout(r, &p->layout.order));
    TRY(json_read_int(&r->at, r->object, "seed", false, 0, INT64_MAX, &seed, r->why));
    p->seed = (uint64_t)seed;
    return STATUS_OK;
}

/* A page table as given. kv_len, where left out, is (pages - 1) * page_size + last_page_len; a request
 * without pages has no keys, whatever its last_page_len (vLLM pads with 1). */
struct given_table {
    int32_t *kv_indptr, *kv_indices, *last_page_len;
    int32_t n_indptr, n_indices, n_last;
};

static enum status derive_kv_len(const struct reading *r, const struct given_table *t, int32_t page_size,
                                 int32_t n, int32_t **kv_len)
{
    int32_t *out = malloc(((size_t)n + 1) * sizeof *out);
    if (!out) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        const int64_t pages = (int64_t)t->kv_indptr[i + 1] - t->kv_indptr[i];
        const int64_t keys = pages > 0 ? (pages - 1) * page_size + t->last_page_len[i] : 0;
        if (pages < 0 || keys > INT32_MAX) {
            free(out);
            return json_fail(&r->at, "kv_indptr", "rising entries with fewer than 2^31 keys a request",
                             r->why);
        }
        out[i] = (int32_t)keys;
    }
    *kv_len = out;
    return STATUS_OK;
}

static enum status read_table(const struct reading *r, int32_t page_size, int32_t n, struct given_table *t)
{
    TRY(json_read_ints(&r->at, r->object, "kv_indptr", false, 0, INT32_MAX, &t->kv_indptr, &t->n_indptr,
                       r->why));
    TRY(json_read_ints(&r->at, r->object, "kv_indices", false, 0, WORKLOAD_MAX_PAGES - 1, &t->kv_indices,
                       &t->n_indices, r->why));
    TRY(json_read_ints(&r->at, r->object, "last_page_len", false, 0, page_size, &t->last_page_len, &t->n_last,
                       r->why));
    if (!t->kv_indptr != !t->kv_indices)
        return json_fail(&r->at, "kv_indptr, kv_indices", "both or neither", r->why);
    if (!t->kv_indptr)
        return t->last_page_len ? json_fail(&r->at, "last_page_len", "a kv_indptr beside it", r->why)
                                : STATUS_OK;
    if (t->n_indptr != n + 1 || t->kv_indptr[0] != 0 || t->kv_indptr[n] != t->n_indices)
        return json_fail(&r->at, "kv_indptr", "n + 1 entries from 0 to the length of kv_indices", r->why);
    if (t->last_page_len && t->n_last != n)
        return json_fail(&r->at, "last_page_len", "one entry a request", r->why);
    for (int32_t i = 0; t->last_page_len && i < n; i++)
        if (t->last_page_len[i] < 1 && t->kv_indptr[i] != t->kv_indptr[i + 1])
            return json_fail(&r->at, "last_page_len", "1..page_size for a request with pages", r->why);
    return STATUS_OK;
}

static void take_table(struct given_table *t, struct workload *w)
{
    w->kv_indptr = t->kv_indptr;
    w->kv_indices = t->kv_indices;
    t->kv_indptr = t->kv_indices = NULL;
    for (int32_t i = 0; i < t->n_indices; i++)
        if (w->kv_indices[i] >= w->batch.kv.num_pages) w->batch.kv.num_pages = w->kv_indices[i] + 1;
    for (int32_t r = 0; w->layout.store == KV_RAGGED && r < w->batch.n_requests; r++) {
        /* an id is a first token: the store ends behind the last request's last key */
        const bool holds = w->kv_indptr[r + 1] > w->kv_indptr[r] && w->kv_len[r] > 0;
        const int64_t end = holds ? (int64_t)w->kv_indices[w->kv_indptr[r]] + w->kv_len[r] : 0;
        if (end > w->batch.kv.num_pages) w->batch.kv.num_pages = end < INT32_MAX ? (int32_t)end : INT32_MAX;
    }
    workload_link(w);
}

/* kv_len and last_page_len must agree where both are given. */
static enum status check_last_pages(const struct reading *r, const struct given_table *t, int32_t page_size,
                                    int32_t n, const int32_t *kv_len)
{
    for (int32_t i = 0; t->last_page_len && i < n; i++) {
        const int64_t pages = (int64_t)t->kv_indptr[i + 1] - t->kv_indptr[i];
        if (pages > 0 && (pages - 1) * page_size + t->last_page_len[i] != kv_len[i])
            return json_fail(&r->at, "kv_len", "(pages - 1) * page_size + last_page_len", r->why);
    }
    return STATUS_OK;
}

static enum status build(const struct reading *r, const struct workload_params *p, struct given_table *t,
                         const int32_t *qo_len, int32_t n, int32_t **kv_len, int32_t n_kv, struct workload *w)
{
    TRY(read_table(r, p->page_size, n, t));
    if (!*kv_len && !(t->kv_indptr && t->last_page_len))
        return json_fail(&r->at, "kv_len", "an array, or kv_indptr and last_page_len", r->why);
    if (!*kv_len)
        TRY(derive_kv_len(r, t, p->page_size, n, kv_len));
    else if (n_kv != n)
        return json_fail(&r->at, "kv_len", "as many entries as qo_len", r->why);
    TRY(check_last_pages(r, t, p->page_size, n, *kv_len));
    TRY(workload_from_lengths(qo_len, *kv_len, n, p, w, r->why));
    if (t->kv_indptr) take_table(t, w);
    enum status status = get_fill(r, w->fill);
    if (status == STATUS_OK)
        status =
            features_read_floats(&r->at, r->object, "sink", w->batch.shape.num_qo_heads, &w->sink, r->why);
    if (status == STATUS_OK) status = features_read_arrays(&r->at, r->object, w, r->why);
    if (status != STATUS_OK) {
        workload_free(w);
        return status;
    }
    workload_link(w);
    if (spec_format(qo_len, *kv_len, n, w->spec, sizeof w->spec) != 0 || t->n_indices > 0) w->spec[0] = '\0';
    return workload_finish(w, r->why);
}

static enum status from_json(const struct json_place *at, const json_t *object, struct workload *w,
                             struct why *why)
{
    const struct reading r = {*at, object, why};
    struct workload_params p = workload_default_params();
    struct given_table table = {0};
    int32_t *qo_len = NULL, *kv_len = NULL, n = 0, n_kv = 0;
    enum status status = get_params(&r, &p);
    if (status == STATUS_OK)
        status = json_read_ints(at, object, "qo_len", true, 0, INT32_MAX, &qo_len, &n, why);
    if (status == STATUS_OK)
        status = json_read_ints(at, object, "kv_len", false, 0, INT32_MAX, &kv_len, &n_kv, why);
    if (status == STATUS_OK) status = build(&r, &p, &table, qo_len, n, &kv_len, n_kv, w);
    free(qo_len);
    free(kv_len);
    free(table.kv_indptr);
    free(table.kv_indices);
    free(table.last_page_len);
    return status;
}

/* ---- files
 * ----------------------------------------------------------------------------------------------------------
 */

struct workload_reader {
    FILE *file;
    char *path, *line;
    size_t capacity;
    int line_number;
    bool jsonl, done;
    bool any; /* a batch was read */
};

enum status workload_reader_open(const char *path, bool jsonl, struct workload_reader **out, struct why *why)
{
    struct workload_reader *r = calloc(1, sizeof *r);
    if (!r) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    r->file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    r->path = strdup(path);
    r->jsonl = jsonl;
    if (!r->file || !r->path) {
        const int cause = errno;
        workload_reader_close(r);
        return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(cause));
    }
    *out = r;
    return STATUS_OK;
}

void workload_reader_close(struct workload_reader *r)
{
    if (!r) return;
    if (r->file && r->file != stdin) fclose(r->file);
    free(r->path);
    free(r->line);
    free(r);
}

static enum status parse_fail(const struct workload_reader *r, const json_error_t *e, struct why *why)
{
    if (ferror(r->file)) return status_fail(why, STATUS_IO, "%.150s: %s", r->path, strerror(errno));
    return status_fail(why, STATUS_BAD_INPUT, "%.100s:%d: %.120s", r->path,
                       r->jsonl ? r->line_number : e->line, e->text);
}

/* Turns a parsed value into a workload; wrappers carry the batch as their "batch" member and may name it by
 * "id". */
static enum status convert(const struct workload_reader *r, const json_t *root, struct workload *out,
                           struct why *why)
{
    const struct json_place at = {r->path, r->jsonl ? r->line_number : 0};
    const json_t *inner = json_is_object(root) ? json_object_get(root, "batch") : NULL;
    const json_t *id = json_is_object(root) ? json_object_get(root, "id") : NULL;
    const char *slash = strrchr(r->path, '/');
    TRY(from_json(&at, inner ? inner : root, out, why));
    if (inner && json_is_string(id))
        snprintf(out->name, sizeof out->name, "%.80s", json_string_value(id));
    else if (r->jsonl)
        snprintf(out->name, sizeof out->name, "%.60s:%d", slash ? slash + 1 : r->path, r->line_number);
    else
        snprintf(out->name, sizeof out->name, "%.60s", slash ? slash + 1 : r->path);
    return STATUS_OK;
}

static enum status next_line(struct workload_reader *r, json_t **root, json_error_t *error, struct why *why)
{
    ssize_t n;
    errno = 0;
    do {
        n = getline(&r->line, &r->capacity, r->file);
        r->line_number++;
    } while (n > 0 && strspn(r->line, " \t\r\n") == (size_t)n);
    if (n <= 0) {
        r->done = true;
        return ferror(r->file) || errno ? status_fail(why, STATUS_IO, "%.180s: %s", r->path, strerror(errno))
                                        : STATUS_OK;
    }
    *root = json_loadb(r->line, (size_t)n, JSON_REJECT_DUPLICATES, error);
    return STATUS_OK;
}

enum status workload_reader_next(struct workload_reader *r, struct workload *out, bool *done, struct why *why)
{
    json_error_t error;
    json_t *root = NULL;
    if (!r->done && r->jsonl)
        TRY(next_line(r, &root, &error, why));
    else if (!r->done)
        root = json_loadf(r->file, JSON_REJECT_DUPLICATES, &error);
    *done = r->done;
    if (r->done && !r->any) return status_fail(why, STATUS_BAD_INPUT, "%.180s: no batches", r->path);
    if (r->done) return STATUS_OK;
    r->any = true;
    r->done = !r->jsonl; /* a single batch: the next call ends */
    if (!root) return parse_fail(r, &error, why);
    const enum status status = convert(r, root, out, why);
    json_decref(root);
    return status;
}

static void write_ints(FILE *file, const char *name, const int32_t *values, int32_t n)
{
    fprintf(file, ", \"%s\": [", name);
    for (int32_t i = 0; i < n; i++)
        fprintf(file, "%s%d", i ? "," : "", values[i]);
    fputc(']', file);
}

static void write_fill(const struct fill fill[3], FILE *file)
{
    static const char *const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++)
        if (fill[i].kind == FILL_CONSTANT)
            fprintf(file, "%s\"%s\": %.9g", i ? ", " : ", \"fill\": {", names[i], fill[i].value);
        else
            fprintf(file, "%s\"%s\": {\"normal\": %.9g}", i ? ", " : ", \"fill\": {", names[i],
                    fill[i].value);
    fputc('}', file);
}

enum status workload_write_json(const struct workload *w, FILE *file, struct why *why)
{
    const struct batch *b = &w->batch;
    fprintf(file,
            "{\"num_qo_heads\": %d, \"num_kv_heads\": %d, \"head_dim\": %d, \"page_size\": %d, \"dtype\": "
            "\"%s\", "
            "\"kv_dtype\": \"%s\", \"causal\": %s, \"window_left\": %d, \"seed\": %llu, \"qo_len\": [",
            b->shape.num_qo_heads, b->shape.num_kv_heads, b->shape.head_dim_qk, b->kv.page_size,
            dtype_name(b->shape.q_dtype), dtype_name(b->shape.kv_dtype), b->mask.causal ? "true" : "false",
            b->mask.window_left, (unsigned long long)w->seed);
    for (int32_t r = 0; r < b->n_requests; r++)
        fprintf(file, "%s%d", r ? "," : "", batch_qo_len(b, r));
    fputc(']', file);
    write_ints(file, "kv_len", b->kv_len, b->n_requests);
    write_ints(file, "kv_indptr", b->kv.kv_indptr, b->n_requests + 1);
    write_ints(file, "kv_indices", b->kv.kv_indices, b->kv.kv_indptr[b->n_requests]);
    if (w->layout.order == LAYOUT_HND) fputs(", \"layout\": \"HND\"", file);
    if (b->mask.logits_soft_cap > 0) fprintf(file, ", \"logits_soft_cap\": %.9g", b->mask.logits_soft_cap);
    if (b->mask.sm_scale > 0) fprintf(file, ", \"sm_scale\": %.9g", b->mask.sm_scale);
    if (b->mask.alibi) fputs(", \"alibi\": true", file);
    for (int i = 0; i < 3; i++)
        if (w->fill[i].kind != FILL_NORMAL || w->fill[i].value != 1) {
            write_fill(w->fill, file);
            break;
        }
    features_write(w, file);
    fputs("}\n", file);
    return ferror(file) ? status_fail(why, STATUS_IO, "write error") : STATUS_OK;
}
