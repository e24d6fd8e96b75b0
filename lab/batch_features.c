#include "lab/batch_features.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const store_names[] = {"separate", "interleaved",   "ragged",
                                          "latent",   "latent_ragged", NULL};
static const char *const rope_names[] = {"none", "llama", "interleaved", NULL};

static int find(const char *const *names, const char *name)
{
    int i = 0;
    while (names[i] && strcmp(names[i], name) != 0)
        i++;
    return i;
}

enum status kv_store_from_name(const char *name, struct workload_params *p, struct why *why)
{
    const int i = find(store_names, name);
    if (!store_names[i])
        return status_fail(why, STATUS_BAD_INPUT,
                           "kv_store %.60s: expected separate, interleaved, ragged, latent or latent_ragged",
                           name);
    p->shape.kv_latent = i >= 3;
    p->layout.store = i < 3 ? (enum kv_store)i : i == 4 ? KV_RAGGED : KV_SEPARATE;
    return STATUS_OK;
}

const char *kv_store_name(const struct workload *w)
{
    if (w->batch.shape.kv_latent) return store_names[w->layout.store == KV_RAGGED ? 4 : 3];
    return store_names[w->layout.store];
}

int rope_kind_from_name(const char *name)
{
    return find(rope_names, name);
}

static enum status get_float(const struct json_place *at, const json_t *object, const char *member,
                             float *out, struct why *why)
{
    const json_t *value = json_object_get(object, member);
    if (!value) return STATUS_OK;
    if (!json_is_number(value) || !(json_number_value(value) > 0) || json_number_value(value) > 3e38)
        return json_fail(at, member, "a positive number", why);
    *out = (float)json_number_value(value);
    return STATUS_OK;
}

/* {"style": "llama", "theta": 10000, "scale": 1, "dim": 128} */
static enum status get_rope(const struct json_place *at, const json_t *object, struct rope *out,
                            struct why *why)
{
    static const char *const known[] = {"style", "theta", "scale", "dim", NULL};
    const json_t *rope = json_object_get(object, "rope");
    int64_t dim = 0;
    if (!rope || json_is_null(rope)) return STATUS_OK;
    TRY(json_check_members(at, rope, known, why));
    const json_t *style = json_object_get(rope, "style");
    const int kind = json_is_string(style) ? rope_kind_from_name(json_string_value(style)) : 3;
    if (kind > ROPE_INTERLEAVED) return json_fail(at, "style", "none, llama or interleaved", why);
    *out = (struct rope){.kind = (enum rope_kind)kind};
    TRY(get_float(at, rope, "theta", &out->theta, why));
    TRY(get_float(at, rope, "scale", &out->scale, why));
    TRY(json_read_int(at, rope, "dim", false, 2, BATCH_MAX_HEAD_DIM, &dim, why));
    out->dim = (int32_t)dim;
    return STATUS_OK;
}

/* [token, head], in elements. */
static enum status get_stride(const struct json_place *at, const json_t *object, const char *member,
                              struct row_stride *out, struct why *why)
{
    const json_t *value = json_object_get(object, member);
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(json_array_get(value, 0)) ||
        !json_is_integer(json_array_get(value, 1)))
        return json_fail(at, member, "[elements a token, elements a head]", why);
    out->token = json_integer_value(json_array_get(value, 0));
    out->head = json_integer_value(json_array_get(value, 1));
    return out->token > 0 && out->head > 0 ? STATUS_OK
                                           : json_fail(at, member, "two positive whole numbers", why);
}

enum status features_read_params(const struct json_place *at, const json_t *object, struct workload_params *p,
                                 struct why *why)
{
    int64_t dim = p->shape.head_dim_qk;
    const json_t *store = json_object_get(object, "kv_store");
    TRY(json_read_int(at, object, "head_dim_vo", false, 1, BATCH_MAX_HEAD_DIM, &dim, why));
    p->shape.head_dim_vo = (int32_t)dim;
    if (store && !json_is_null(store)) {
        struct why ignored;
        if (!json_is_string(store) || kv_store_from_name(json_string_value(store), p, &ignored) != STATUS_OK)
            return json_fail(at, "kv_store", "separate, interleaved, ragged, latent or latent_ragged", why);
    }
    TRY(get_rope(at, object, &p->rope, why));
    TRY(get_stride(at, object, "q_stride", &p->layout.q, why));
    return get_stride(at, object, "o_stride", &p->layout.o, why);
}

enum status features_read_floats(const struct json_place *at, const json_t *object, const char *member,
                                 int32_t n, float **out, struct why *why)
{
    const json_t *value = json_object_get(object, member);
    char expected[48];
    snprintf(expected, sizeof expected, "a number, or one for each of %d heads", n);
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_number(value) && !(json_is_array(value) && json_array_size(value) == (size_t)n))
        return json_fail(at, member, expected, why);
    free(*out);
    *out = malloc((size_t)n * sizeof **out);
    if (!*out) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        const json_t *x = json_is_number(value) ? value : json_array_get(value, (size_t)i);
        if (!json_is_number(x) || fabs(json_number_value(x)) > 3e38)
            return json_fail(at, member, expected, why);
        (*out)[i] = (float)json_number_value(x);
    }
    return STATUS_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Bytes in hexadecimal, two digits each; NULL: all ones. */
static bool get_bytes(const json_t *value, int64_t n, uint8_t *out)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    if (json_is_null(value)) {
        memset(out, 0xff, (size_t)n);
        return true;
    }
    if ((int64_t)strlen(text) != 2 * n) return false;
    for (int64_t i = 0; i < n; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(16 * high + low);
    }
    return true;
}

/* One entry a request: null or the bits of qo_len x kv_len, row by row, packed little-endian. */
static enum status get_custom_mask(const struct json_place *at, const json_t *object, struct workload *w,
                                   struct why *why)
{
    const json_t *value = json_object_get(object, "custom_mask");
    const int32_t n = w->batch.n_requests;
    if (!value || json_is_null(value)) return STATUS_OK;
    if (!json_is_array(value) || json_array_size(value) != (size_t)n)
        return json_fail(at, "custom_mask", "an array with one entry a request", why);
    w->custom_indptr = malloc(((size_t)n + 1) * sizeof *w->custom_indptr);
    if (!w->custom_indptr) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    w->custom_indptr[0] = 0;
    for (int32_t r = 0; r < n; r++)
        w->custom_indptr[r + 1] =
            w->custom_indptr[r] + ((int64_t)batch_qo_len(&w->batch, r) * w->kv_len[r] + 7) / 8;
    w->custom = malloc((size_t)w->custom_indptr[n] + 1);
    if (!w->custom) return status_fail(why, STATUS_NO_MEMORY, "custom_mask: out of memory");
    for (int32_t r = 0; r < n; r++) {
        char expected[96];
        const int64_t from = w->custom_indptr[r], bytes = w->custom_indptr[r + 1] - from;
        snprintf(expected, sizeof expected, "null or %lld lower-case hexadecimal digits for request %d",
                 (long long)(2 * bytes), r);
        if (!get_bytes(json_array_get(value, (size_t)r), bytes, w->custom + from))
            return json_fail(at, "custom_mask", expected, why);
    }
    return STATUS_OK;
}

enum status features_read_arrays(const struct json_place *at, const json_t *object, struct workload *w,
                                 struct why *why)
{
    TRY(features_read_floats(at, object, "k_scale", w->batch.shape.num_kv_heads, &w->k_scale, why));
    TRY(features_read_floats(at, object, "v_scale", w->batch.shape.num_kv_heads, &w->v_scale, why));
    return get_custom_mask(at, object, w, why);
}

static void write_floats(const char *member, const float *x, int32_t n, FILE *file)
{
    if (!x) return;
    fprintf(file, ", \"%s\": [", member);
    for (int32_t i = 0; i < n; i++)
        fprintf(file, "%s%.9g", i ? "," : "", x[i]);
    fputc(']', file);
}

static void write_stride(const char *member, struct row_stride s, FILE *file)
{
    if (s.token || s.head)
        fprintf(file, ", \"%s\": [%lld,%lld]", member, (long long)s.token, (long long)s.head);
}

static void write_custom_mask(const struct workload *w, FILE *file)
{
    if (!w->custom) return;
    fputs(", \"custom_mask\": [", file);
    for (int32_t r = 0; r < w->batch.n_requests; r++) {
        fputs(r ? ",\"" : "\"", file);
        for (int64_t i = w->custom_indptr[r]; i < w->custom_indptr[r + 1]; i++)
            fprintf(file, "%02x", w->custom[i]);
        fputc('"', file);
    }
    fputc(']', file);
}

void features_write(const struct workload *w, FILE *file)
{
    const struct batch *b = &w->batch;
    if (b->shape.head_dim_vo != b->shape.head_dim_qk)
        fprintf(file, ", \"head_dim_vo\": %d", b->shape.head_dim_vo);
    if (b->shape.kv_latent || w->layout.store != KV_SEPARATE)
        fprintf(file, ", \"kv_store\": \"%s\"", kv_store_name(w));
    if (b->rope.kind != ROPE_NONE) {
        fprintf(file, ", \"rope\": {\"style\": \"%s\"", rope_names[b->rope.kind]);
        if (b->rope.theta > 0) fprintf(file, ", \"theta\": %.9g", b->rope.theta);
        if (b->rope.scale > 0) fprintf(file, ", \"scale\": %.9g", b->rope.scale);
        if (b->rope.dim > 0) fprintf(file, ", \"dim\": %d", b->rope.dim);
        fputc('}', file);
    }
    write_stride("q_stride", w->layout.q, file);
    write_stride("o_stride", w->layout.o, file);
    write_floats("sink", b->mask.sink, b->shape.num_qo_heads, file);
    write_floats("k_scale", b->k_scale, b->shape.num_kv_heads, file);
    write_floats("v_scale", b->v_scale, b->shape.num_kv_heads, file);
    write_custom_mask(w, file);
}
