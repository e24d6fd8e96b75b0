#include "lab/tensor_file.h"

#include "lab/batch_features.h"
#include "lab/npy.h"
#include "ref/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"q",
                                    "k",
                                    "v",
                                    "kv",
                                    "o",
                                    "lse",
                                    "lse_base",
                                    "layout",
                                    "dtype",
                                    "kv_dtype",
                                    "qo_indptr",
                                    "kv_indptr",
                                    "kv_indices",
                                    "last_page_len",
                                    "kv_len",
                                    "block_table",
                                    "causal",
                                    "window_left",
                                    "logits_soft_cap",
                                    "sm_scale",
                                    "alibi",
                                    "sink",
                                    "k_scale",
                                    "v_scale",
                                    "custom_mask",
                                    "mask_indptr",
                                    "rope_style",
                                    "rope_theta",
                                    "rope_scale",
                                    "rope_dim",
                                    "head_dim_vo",
                                    "o_dtype",
                                    "seed",
                                    NULL};

struct reading {
    const char *path;
    struct npy_file file;
    struct why *why;
};

static enum status fail(const struct reading *r, const char *member, const char *expected)
{
    return status_fail(r->why, STATUS_BAD_INPUT, "%.150s: %.40s: expected %s", r->path, member, expected);
}

/* Names the file in front of a reason that names the member. */
static enum status located(const struct reading *r, enum status s, const struct why *reason)
{
    return s == STATUS_OK ? s : status_fail(r->why, s, "%.150s: %.300s", r->path, reason->text);
}

static struct npy_array *find(const struct reading *r, const char *name)
{
    for (int32_t i = 0; i < r->file.n; i++)
        if (strcmp(r->file.arrays[i].name, name) == 0) return &r->file.arrays[i];
    return NULL;
}

/* Hands an array's memory over. */
static void *take(struct npy_array *a)
{
    void *data = a->data;
    a->data = NULL;
    return data;
}

/* ---- types ------------------------------------------------------------------------------------------------- */

/* bfloat16 arrives as raw two-byte values; 8-bit ones need a name beside them. */
static enum status dtype_of(const struct reading *r, const struct npy_array *a, const char *named,
                            enum dtype *out)
{
    const struct npy_array *name = find(r, named);
    char text[16];
    struct why reason = {""};
    *out = DTYPE_COUNT;
    if (name) {
        TRY(located(r, npy_get_text(name, text, sizeof text, &reason), &reason));
        *out = dtype_from_name(text);
        if (*out == DTYPE_COUNT) return fail(r, named, "bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2");
    } else if (a->kind == 'f' && a->item_bytes == 2) {
        *out = DTYPE_FP16;
    } else if (a->kind == 'f' && a->item_bytes == 4) {
        *out = DTYPE_FP32;
    } else if (a->kind != 'f' && a->item_bytes == 2) {
        *out = DTYPE_BF16;
    }
    if (*out == DTYPE_COUNT || dtype_bytes(*out) != a->item_bytes || (a->kind == 'f') != (*out <= DTYPE_FP16))
        return fail(r, a->name,
                    "float16, float32, or bfloat16 as uint16 (8-bit types as uint8 and kv_dtype)");
    return STATUS_OK;
}

/* ---- small members ----------------------------------------------------------------------------------------- */

static enum status get_int(const struct reading *r, const char *name, int64_t low, int64_t high, int32_t *out)
{
    const struct npy_array *a = find(r, name);
    struct why reason = {""};
    int64_t x = *out;
    if (!a) return STATUS_OK;
    if (a->n_dims != 0) return fail(r, name, "a scalar");
    TRY(located(r, npy_get_int(a, 0, low, high, &x, &reason), &reason));
    *out = (int32_t)x;
    return STATUS_OK;
}

static enum status get_float(const struct reading *r, const char *name, float *out)
{
    const struct npy_array *a = find(r, name);
    double x = 0;
    if (!a) return STATUS_OK;
    if (a->n_dims != 0 || npy_get_real(a, 0, 0, 3e38, &x, NULL) != STATUS_OK)
        return fail(r, name, "a scalar >= 0");
    *out = (float)x;
    return STATUS_OK;
}

static enum status get_bool(const struct reading *r, const char *name, bool *out)
{
    int32_t x = *out;
    TRY(get_int(r, name, 0, 1, &x));
    *out = x;
    return STATUS_OK;
}

static enum status get_ints(const struct reading *r, const char *name, int64_t high, int32_t **out,
                            int32_t *n)
{
    const struct npy_array *a = find(r, name);
    struct why reason = {""};
    *out = NULL;
    *n = -1;
    if (!a) return STATUS_OK;
    if (a->n_dims != 1 || a->n > INT32_MAX) return fail(r, name, "an array of one dimension");
    *out = malloc((a->n + 1) * sizeof **out);
    if (!*out) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < a->n; i++) {
        int64_t x = 0;
        TRY(located(r, npy_get_int(a, i, 0, high, &x, &reason), &reason));
        (*out)[i] = (int32_t)x;
    }
    *n = (int32_t)a->n;
    return STATUS_OK;
}

/* A number for all of n heads, or one each. */
static enum status get_floats(const struct reading *r, const char *name, int32_t n, float **out)
{
    const struct npy_array *a = find(r, name);
    if (!a) return STATUS_OK;
    if (a->n_dims > 1 || (a->n_dims == 1 && a->n != (size_t)n))
        return fail(r, name, "a scalar or one a head");
    *out = malloc((size_t)n * sizeof **out);
    if (!*out) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        double x = 0;
        if (npy_get_real(a, a->n_dims ? (size_t)i : 0, -3e38, 3e38, &x, NULL) != STATUS_OK)
            return fail(r, name, "finite numbers");
        (*out)[i] = (float)x;
    }
    return STATUS_OK;
}

static enum status get_rope(const struct reading *r, struct rope *out)
{
    const struct npy_array *a = find(r, "rope_style");
    char text[16];
    if (!a) return STATUS_OK;
    if (npy_get_text(a, text, sizeof text, NULL) != STATUS_OK || rope_kind_from_name(text) > ROPE_INTERLEAVED)
        return fail(r, "rope_style", "none, llama or interleaved");
    out->kind = (enum rope_kind)rope_kind_from_name(text);
    TRY(get_float(r, "rope_theta", &out->theta));
    TRY(get_float(r, "rope_scale", &out->scale));
    return get_int(r, "rope_dim", 2, BATCH_MAX_HEAD_DIM, &out->dim);
}

static enum status get_params(const struct reading *r, struct workload_params *p)
{
    const struct npy_array *layout = find(r, "layout");
    char text[8] = "NHD";
    int32_t seed = 1;
    if (layout && npy_get_text(layout, text, sizeof text, NULL) != STATUS_OK) text[0] = '\0';
    if (strcmp(text, "NHD") != 0 && strcmp(text, "HND") != 0) return fail(r, "layout", "NHD or HND");
    p->layout.order = text[0] == 'N' ? LAYOUT_NHD : LAYOUT_HND;
    TRY(get_bool(r, "causal", &p->mask.causal));
    TRY(get_bool(r, "alibi", &p->mask.alibi));
    TRY(get_int(r, "window_left", -1, INT32_MAX, &p->mask.window_left));
    TRY(get_float(r, "logits_soft_cap", &p->mask.logits_soft_cap));
    TRY(get_float(r, "sm_scale", &p->mask.sm_scale));
    TRY(get_int(r, "seed", 0, INT32_MAX, &seed));
    p->seed = (uint64_t)seed;
    return get_rope(r, &p->rope);
}

/* ---- shapes ------------------------------------------------------------------------------------------------ */

/* Sizes that the big arrays agree on. */
struct sizes {
    int64_t tokens, pages, page_size; /* ragged: pages = tokens of K, page_size unset */
};

static enum status check_dim(const struct reading *r, const struct npy_array *a, int32_t i, int64_t high)
{
    return a->dim[i] >= 1 && a->dim[i] <= high ? STATUS_OK : fail(r, a->name, "dimensions within limits");
}

static enum status get_query(const struct reading *r, struct workload_params *p, struct sizes *z)
{
    const struct npy_array *q = find(r, "q");
    if (!q || q->n_dims != 3) return fail(r, "q", "an array [tokens, num_qo_heads, head_dim]");
    if (q->dim[0] > INT32_MAX) return fail(r, "q", "fewer than 2^31 tokens");
    TRY(check_dim(r, q, 1, BATCH_MAX_HEADS));
    TRY(check_dim(r, q, 2, BATCH_MAX_HEAD_DIM));
    TRY(dtype_of(r, q, "dtype", &p->shape.q_dtype));
    if (dtype_is_fp8(p->shape.q_dtype)) return fail(r, "dtype", "bf16, fp16 or fp32");
    z->tokens = q->dim[0];
    p->shape.num_qo_heads = (int32_t)q->dim[1];
    p->shape.head_dim_qk = (int32_t)q->dim[2];
    /* the usual scale, however it was rounded, is the exact one */
    if (fabs(p->mask.sm_scale * sqrt((double)q->dim[2]) - 1) < 1e-6) p->mask.sm_scale = 0;
    return STATUS_OK;
}

/* Pages, positions, heads and head_dim of a pool, by layout: [pages, (2,) page_size, heads, dim] or heads first; of
 * a ragged one [tokens, heads, dim]. */
static void pool_dims(const struct npy_array *a, enum layout order, int64_t out[4])
{
    const int64_t *last = a->dim + a->n_dims - 3;
    const bool paged = a->n_dims > 3, heads_first = order == LAYOUT_HND;
    out[0] = paged ? a->dim[0] : last[heads_first ? 1 : 0];
    out[1] = paged ? last[heads_first ? 1 : 0] : 1;
    out[2] = last[heads_first ? 0 : 1];
    out[3] = last[2];
}

static enum status get_pools(const struct reading *r, struct workload_params *p, struct sizes *z)
{
    const struct npy_array *kv = find(r, "kv"), *k = kv ? kv : find(r, "k"), *v = kv ? NULL : find(r, "v");
    int64_t dk[4], dv[4];
    if (!k || (kv && (kv->n_dims != 5 || kv->dim[1] != 2)) || (!kv && k->n_dims != 3 && k->n_dims != 4))
        return fail(
            r, kv ? "kv" : "k",
            kv ? "an array [pages, 2, page_size, num_kv_heads, head_dim]"
               : "an array [pages, page_size, num_kv_heads, head_dim] or [tokens, num_kv_heads, head_dim]");
    if (v && v->n_dims != k->n_dims) return fail(r, "v", "as many dimensions as k");
    pool_dims(k, p->layout.order, dk);
    pool_dims(v ? v : k, p->layout.order, dv);
    if (dk[0] > INT32_MAX || dk[1] < 1 || dk[1] > BATCH_MAX_PAGE_SIZE || dk[2] < 1 || dk[2] > BATCH_MAX_HEADS)
        return fail(r, k->name, "dimensions within limits");
    if (dk[3] != p->shape.head_dim_qk) return fail(r, k->name, "the head_dim of q");
    if (dv[0] != dk[0] || dv[1] != dk[1] || dv[2] != dk[2] || dv[3] < 1 || dv[3] > BATCH_MAX_HEAD_DIM)
        return fail(r, "v", "the pages, page_size and heads of k");
    TRY(dtype_of(r, k, "kv_dtype", &p->shape.kv_dtype));
    if (v && (v->kind != k->kind || v->item_bytes != k->item_bytes)) return fail(r, "v", "the type of k");
    p->shape.num_kv_heads = (int32_t)dk[2];
    p->shape.head_dim_vo = (int32_t)dv[3];
    p->layout.store = kv ? KV_INTERLEAVED : k->n_dims == 3 ? KV_RAGGED : KV_SEPARATE;
    p->shape.kv_latent = !kv && !v;
    if (p->shape.kv_latent) {
        p->shape.head_dim_vo = 0;
        TRY(get_int(r, "head_dim_vo", 1, dk[3], &p->shape.head_dim_vo));
        if (!p->shape.head_dim_vo) return fail(r, "v", "an array, or head_dim_vo for V within K");
    }
    if (p->shape.num_qo_heads % p->shape.num_kv_heads) return fail(r, "q", "a multiple of k's heads");
    z->pages = dk[0];
    z->page_size = dk[1];
    return STATUS_OK;
}

/* ---- lengths and the page table ------------------------------------------------------------------------------ */

struct lengths {
    int32_t *qo_indptr, *kv_len, *kv_indptr, *kv_indices, *last_page_len;
    int32_t n_qo, n_kv, n_indptr, n_indices, n_last, n;
};

/* Rows of qo_indptr, or a decode each. */
static enum status set_queries(const struct reading *r, const struct sizes *z, struct lengths *l)
{
    if (l->qo_indptr) {
        l->n = l->n_qo - 1;
        if (l->n < 0 || l->qo_indptr[0] != 0 || l->qo_indptr[l->n] != z->tokens)
            return fail(r, "qo_indptr", "entries from 0 to the tokens of q");
        for (int32_t i = 0; i < l->n; i++)
            if (l->qo_indptr[i + 1] < l->qo_indptr[i]) return fail(r, "qo_indptr", "rising entries");
        return STATUS_OK;
    }
    l->n = (int32_t)z->tokens;
    l->qo_indptr = malloc(((size_t)l->n + 1) * sizeof *l->qo_indptr);
    if (!l->qo_indptr) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i <= l->n; i++)
        l->qo_indptr[i] = i;
    return STATUS_OK;
}

/* vLLM's and FlashAttention's table [n, most pages a request] into CSR, by the lengths. */
static enum status flatten_table(const struct reading *r, const struct npy_array *a, const struct sizes *z,
                                 struct lengths *l)
{
    struct why reason = {""};
    int64_t pages = 0;
    if (a->n_dims != 2 || a->dim[0] != l->n || !l->kv_len || l->n_kv != l->n)
        return fail(r, "block_table", "[requests, pages] and a kv_len beside it");
    l->kv_indptr = malloc(((size_t)l->n + 1) * sizeof *l->kv_indptr);
    l->kv_indices = malloc((a->n + 1) * sizeof *l->kv_indices);
    if (!l->kv_indptr || !l->kv_indices) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    l->kv_indptr[0] = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const int64_t need = ((int64_t)l->kv_len[i] + z->page_size - 1) / z->page_size;
        if (need > a->dim[1]) return fail(r, "block_table", "pages for every key");
        for (int64_t p = 0; p < need; p++) {
            int64_t id = 0;
            TRY(located(r, npy_get_int(a, (size_t)(i * a->dim[1] + p), 0, z->pages - 1, &id, &reason),
                        &reason));
            l->kv_indices[pages++] = (int32_t)id;
        }
        l->kv_indptr[i + 1] = (int32_t)pages;
    }
    l->n_indptr = l->n + 1;
    l->n_indices = (int32_t)pages;
    return STATUS_OK;
}

/* kv_len from pages and last_page_len; of ragged K from kv_indptr, which counts tokens. */
static enum status set_keys(const struct reading *r, bool ragged, const struct sizes *z, struct lengths *l)
{
    if (!l->kv_indptr || l->n_indptr != l->n + 1 || l->kv_indptr[0] != 0)
        return fail(r, "kv_indptr", "one entry a request and one more, from 0");
    for (int32_t i = 0; i < l->n; i++)
        if (l->kv_indptr[i + 1] < l->kv_indptr[i]) return fail(r, "kv_indptr", "rising entries");
    if (!ragged && (!l->kv_indices || l->kv_indptr[l->n] != l->n_indices))
        return fail(r, "kv_indices", "as many pages as kv_indptr ends with");
    if ((l->kv_len && l->n_kv != l->n) || (l->last_page_len && l->n_last != l->n))
        return fail(r, l->kv_len ? "kv_len" : "last_page_len", "one entry a request");
    if (l->kv_len) return STATUS_OK;
    if (!ragged && !l->last_page_len) return fail(r, "kv_len", "an array, or last_page_len");
    l->kv_len = malloc(((size_t)l->n + 1) * sizeof *l->kv_len);
    if (!l->kv_len) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < l->n; i++) {
        const int64_t pages = (int64_t)l->kv_indptr[i + 1] - l->kv_indptr[i];
        const int64_t keys = ragged      ? pages
                             : pages > 0 ? (pages - 1) * z->page_size + l->last_page_len[i]
                                         : 0;
        if (keys > INT32_MAX) return fail(r, "kv_indptr", "fewer than 2^31 keys a request");
        l->kv_len[i] = (int32_t)keys;
    }
    return STATUS_OK;
}

/* Ragged K as one page a request, whose id is its first token. */
static enum status page_ragged(const struct reading *r, struct workload_params *p, struct sizes *z,
                               struct lengths *l)
{
    int32_t pages = 0;
    if (l->kv_indptr[l->n] > z->pages) return fail(r, "kv_indptr", "at most the tokens of k");
    free(l->kv_indices);
    l->kv_indices = malloc(((size_t)l->n + 1) * sizeof *l->kv_indices);
    if (!l->kv_indices) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    p->page_size = 1;
    for (int32_t i = 0; i < l->n; i++) {
        const int32_t first = l->kv_indptr[i];
        if (l->kv_len[i] > l->kv_indptr[i + 1] - first) return fail(r, "kv_len", "at most the tokens given");
        if (l->kv_len[i] > p->page_size) p->page_size = l->kv_len[i];
        l->kv_indptr[i] = pages;
        if (l->kv_len[i] > 0) l->kv_indices[pages++] = first;
    }
    l->kv_indptr[l->n] = pages;
    return STATUS_OK;
}

static enum status read_lengths(const struct reading *r, struct workload_params *p, struct sizes *z,
                                struct lengths *l)
{
    const struct npy_array *table = find(r, "block_table");
    const bool ragged = p->layout.store == KV_RAGGED;
    TRY(get_ints(r, "qo_indptr", INT32_MAX, &l->qo_indptr, &l->n_qo));
    TRY(get_ints(r, "kv_len", INT32_MAX, &l->kv_len, &l->n_kv));
    TRY(get_ints(r, "kv_indptr", INT32_MAX, &l->kv_indptr, &l->n_indptr));
    TRY(get_ints(r, "kv_indices", INT32_MAX, &l->kv_indices, &l->n_indices));
    TRY(get_ints(r, "last_page_len", BATCH_MAX_PAGE_SIZE, &l->last_page_len, &l->n_last));
    TRY(set_queries(r, z, l));
    p->page_size = (int32_t)z->page_size;
    if (table && (l->kv_indptr || ragged))
        return fail(r, "block_table", "no kv_indptr and no ragged k beside it");
    if (table) TRY(flatten_table(r, table, z, l));
    TRY(set_keys(r, ragged, z, l));
    return ragged ? page_ragged(r, p, z, l) : STATUS_OK;
}

static void free_lengths(struct lengths *l)
{
    free(l->qo_indptr);
    free(l->kv_len);
    free(l->kv_indptr);
    free(l->kv_indices);
    free(l->last_page_len);
}

static enum status get_custom_mask(const struct reading *r, struct workload *w)
{
    struct npy_array *bits = find(r, "custom_mask"), *indptr = find(r, "mask_indptr");
    struct why reason = {""};
    const int32_t n = w->batch.n_requests;
    if (!bits) return STATUS_OK;
    if (bits->n_dims != 1 || bits->kind != 'u' || bits->item_bytes != 1 || !indptr || indptr->n_dims != 1 ||
        indptr->n != (size_t)n + 1)
        return fail(r, "custom_mask", "packed bits as uint8, and mask_indptr in bytes");
    w->custom_indptr = malloc(((size_t)n + 1) * sizeof *w->custom_indptr);
    if (!w->custom_indptr) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i <= n; i++)
        TRY(located(r, npy_get_int(indptr, (size_t)i, 0, (int64_t)bits->n, &w->custom_indptr[i], &reason),
                    &reason));
    w->custom = take(bits);
    return STATUS_OK;
}

static enum status build_workload(const struct reading *r, const struct workload_params *p,
                                  const struct sizes *z, struct lengths *l, struct workload *w)
{
    int32_t *qo_len = malloc(((size_t)l->n + 1) * sizeof *qo_len);
    const char *slash = strrchr(r->path, '/');
    struct why reason = {""};
    if (!qo_len) return status_fail(r->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < l->n; i++)
        qo_len[i] = l->qo_indptr[i + 1] - l->qo_indptr[i];
    enum status status = workload_from_lengths(qo_len, l->kv_len, l->n, p, w, &reason);
    free(qo_len);
    TRY(located(r, status, &reason));
    snprintf(w->name, sizeof w->name, "%.80s", slash ? slash + 1 : r->path);
    w->kv_indptr = l->kv_indptr;
    w->kv_indices = l->kv_indices;
    l->kv_indptr = l->kv_indices = NULL;
    w->batch.kv.num_pages = (int32_t)z->pages;
    TRY(get_floats(r, "sink", p->shape.num_qo_heads, &w->sink));
    TRY(get_floats(r, "k_scale", p->shape.num_kv_heads, &w->k_scale));
    TRY(get_floats(r, "v_scale", p->shape.num_kv_heads, &w->v_scale));
    TRY(get_custom_mask(r, w));
    workload_link(w);
    status = batch_check(&w->batch, &reason);
    if (status == STATUS_OK) status = tensors_check_layout(&w->batch, &w->layout, &reason);
    return located(r, status, &reason);
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

static bool is_finite(enum dtype type, const void *data, size_t at, int32_t n, float *line)
{
    convert_to_float(type, data, at, (size_t)n, line);
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(line[i])) return false;
    return true;
}

/* Finite wherever a key of a request is; also notes keys equal to their left neighbour, whose sums lean one way. */
static enum status check_keys(const struct reading *r, const struct workload *w, struct tensors *t)
{
    const struct batch *b = &w->batch;
    const struct shape *s = &b->shape;
    const size_t size = (size_t)dtype_bytes(s->kv_dtype);
    float line[BATCH_MAX_HEAD_DIM];
    for (int32_t i = 0; i < b->n_requests; i++) {
        const char *left = NULL;
        for (int32_t key = 0; key < b->kv_len[i]; key++) {
            const int32_t page = b->kv.kv_indices[b->kv.kv_indptr[i] + key / b->kv.page_size],
                          pos = key % b->kv.page_size;
            for (int32_t head = 0; head < s->num_kv_heads; head++)
                if (!is_finite(s->kv_dtype, t->k, tensor_kv_at(t->k_stride, page, pos, head), s->head_dim_qk,
                               line) ||
                    !is_finite(s->kv_dtype, t->v, tensor_kv_at(t->v_stride, page, pos, head), s->head_dim_vo,
                               line))
                    return fail(r, "k, v", "finite numbers wherever a request has keys");
            const char *k = (const char *)t->k + size * tensor_kv_at(t->k_stride, page, pos, 0);
            t->same_terms |= left && memcmp(left, k, size * (size_t)s->head_dim_qk) == 0;
            left = k;
        }
    }
    return STATUS_OK;
}

static enum status take_tensors(const struct reading *r, const struct workload *w, struct tensors *t)
{
    const struct shape *s = &w->batch.shape;
    struct npy_array *q = find(r, "q"), *kv = find(r, "kv"), *k = kv ? kv : find(r, "k"), *v = find(r, "v");
    float line[BATCH_MAX_HEAD_DIM];
    size_t elements[2], v_offset;
    tensor_kv_strides(&w->batch, &w->layout, &t->k_stride, &t->v_stride, elements, &v_offset);
    t->q_stride = tensor_row_stride(w->layout.q, s->num_qo_heads, s->head_dim_qk);
    t->same_dots = true; /* unknown numbers: no luck is assumed */
    t->q_bytes = q->bytes;
    t->k_bytes = k->bytes;
    t->q = take(q);
    t->k = take(k);
    if (elements[1]) {
        t->v_bytes = v->bytes;
        t->v = take(v);
    } else {
        t->v = (char *)t->k + v_offset * (size_t)dtype_bytes(s->kv_dtype);
    }
    for (size_t at = 0; at < q->n; at += (size_t)s->head_dim_qk)
        if (!is_finite(s->q_dtype, t->q, at, s->head_dim_qk, line)) return fail(r, "q", "finite numbers");
    return check_keys(r, w, t);
}

/* Element i of o or lse, whatever float it is: infinities and NaN are results to be judged, not bad input. */
static double element(const struct npy_array *a, enum dtype type, size_t i)
{
    float narrow;
    double wide;
    if (a->kind == 'f' && a->item_bytes == 8) {
        memcpy(&wide, (const char *)a->data + 8 * i, sizeof wide);
        return wide;
    }
    convert_to_float(a->kind != 'f'       ? type
                     : a->item_bytes == 2 ? DTYPE_FP16
                                          : DTYPE_FP32,
                     a->data, i, 1, &narrow);
    return narrow;
}

/* 2 or "2": base 2; absent, "e" or 2.718...: natural. */
static enum status get_lse_base(const struct reading *r, double *to_natural)
{
    const struct npy_array *a = find(r, "lse_base");
    char text[8] = "e";
    double base = 2.7182818284590452;
    *to_natural = 1;
    if (!a) return STATUS_OK;
    if (a->kind == 'U')
        TRY(npy_get_text(a, text, sizeof text, r->why));
    else if (a->n_dims != 0 || npy_get_real(a, 0, 2, 3, &base, NULL) != STATUS_OK)
        return fail(r, "lse_base", "2 or e");
    if (strcmp(text, "2") == 0 || base == 2)
        *to_natural = 0.6931471805599453;
    else if (strcmp(text, "e") != 0 || fabs(base - 2.7182818284590452) > 1e-3)
        return fail(r, "lse_base", "2 or e");
    return STATUS_OK;
}

static enum status take_results(const struct reading *r, const struct workload *w, struct tensor_file *f)
{
    const struct npy_array *o = find(r, "o"), *lse = find(r, "lse");
    const struct shape *s = &w->batch.shape;
    const int64_t want[] = {w->batch.qo_indptr[w->batch.n_requests], s->num_qo_heads, s->head_dim_vo};
    double to_natural;
    f->has_lse = lse != NULL;
    f->n_given = (o != NULL) + (lse != NULL);
    if (!o) return lse ? fail(r, "lse", "an o beside it") : STATUS_OK;
    if (o->n_dims != 3 || memcmp(o->dim, want, sizeof want) != 0)
        return fail(r, "o", "an array [tokens, num_qo_heads, head_dim_vo]");
    if (lse && (lse->n_dims != 2 || memcmp(lse->dim, want, 2 * sizeof *want) != 0 || lse->kind != 'f' ||
                lse->item_bytes < 2))
        return fail(r, "lse", "floats [tokens, num_qo_heads]");
    f->o_is_wide = o->kind == 'f' && o->item_bytes == 8;
    if (f->o_is_wide)
        f->o_dtype = DTYPE_FP32;
    else
        TRY(dtype_of(r, o, "o_dtype", &f->o_dtype));
    TRY(get_lse_base(r, &to_natural));
    TRY(result_create(&w->batch, (struct row_stride){0, 0}, &f->result, r->why));
    for (size_t i = 0; i < o->n; i++)
        f->result.o[i] = (float)element(o, f->o_dtype, i);
    for (size_t i = 0; lse && i < lse->n; i++)
        f->result.lse[i] = (float)(element(lse, DTYPE_FP32, i) * to_natural);
    return STATUS_OK;
}

static enum status check_members(const struct reading *r)
{
    for (int32_t i = 0; i < r->file.n; i++) {
        int k = 0;
        while (known[k] && strcmp(known[k], r->file.arrays[i].name) != 0)
            k++;
        if (!known[k])
            return status_fail(r->why, STATUS_BAD_INPUT, "%.150s: unknown member '%.40s'", r->path,
                               r->file.arrays[i].name);
    }
    return STATUS_OK;
}

static enum status read_all(struct reading *r, struct tensor_file *f)
{
    struct workload_params p = workload_default_params();
    struct sizes z = {0};
    struct lengths l = {0};
    TRY(check_members(r));
    enum status status = get_params(r, &p);
    if (status == STATUS_OK) status = get_query(r, &p, &z);
    if (status == STATUS_OK) status = get_pools(r, &p, &z);
    if (status == STATUS_OK) status = read_lengths(r, &p, &z, &l);
    if (status == STATUS_OK) status = build_workload(r, &p, &z, &l, &f->w);
    free_lengths(&l);
    if (status == STATUS_OK) status = take_tensors(r, &f->w, &f->t);
    return status == STATUS_OK ? take_results(r, &f->w, f) : status;
}

enum status tensor_file_read(const char *path, struct tensor_file *out, struct why *why)
{
    struct reading r = {.path = path, .why = why};
    memset(out, 0, sizeof *out);
    TRY(npz_read(path, &r.file, why));
    const enum status status = read_all(&r, out);
    npy_file_free(&r.file);
    if (status != STATUS_OK) tensor_file_free(out);
    return status;
}

void tensor_file_free(struct tensor_file *f)
{
    result_free(&f->result);
    tensors_free(&f->t);
    workload_free(&f->w);
    memset(f, 0, sizeof *f);
}

struct numerics tensor_file_numerics(const struct tensor_file *f)
{
    const enum dtype q = f->w.batch.shape.q_dtype;
    struct numerics n = numerics_of(NUMERICS_EXACT, &f->w.batch);
    if (f->o_is_wide) return n;
    n.kind = q == DTYPE_FP32 && f->o_dtype == DTYPE_FP32 ? NUMERICS_FP32 : NUMERICS_DEVICE;
    n.p_dtype = q;
    n.o_dtype = f->o_dtype;
    return n;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

struct writing {
    struct npy_array arrays[40];
    int32_t n;
    uint32_t text[6][16]; /* text scalars, UTF-32 */
    int32_t n_text;
    double number[16]; /* scalars */
    int32_t n_numbers;
};

static struct npy_array *add(struct writing *x, const char *name, char kind, int32_t item_bytes,
                             const void *data)
{
    struct npy_array *a = &x->arrays[x->n++];
    *a = (struct npy_array){.kind = kind, .item_bytes = item_bytes, .n = 1, .data = (void *)(uintptr_t)data};
    snprintf(a->name, sizeof a->name, "%s", name);
    a->bytes = (size_t)item_bytes;
    return a;
}

static void add_dim(struct npy_array *a, int64_t dim)
{
    a->dim[a->n_dims++] = dim;
    a->n *= (size_t)dim;
    a->bytes *= (size_t)dim;
}

static void add_ints(struct writing *x, const char *name, const int32_t *data, int64_t n)
{
    add_dim(add(x, name, 'i', 4, data), n);
}

static void add_floats(struct writing *x, const char *name, const float *data, int64_t n)
{
    if (data) add_dim(add(x, name, 'f', 4, data), n);
}

static void add_number(struct writing *x, const char *name, double value)
{
    x->number[x->n_numbers] = value;
    add(x, name, 'f', 8, &x->number[x->n_numbers++]);
}

static void add_text(struct writing *x, const char *name, const char *value)
{
    uint32_t *text = x->text[x->n_text++];
    for (size_t i = 0; value[i]; i++)
        text[i] = (uint32_t)value[i];
    add(x, name, 'U', (int32_t)(4 * strlen(value)), text);
}

/* bfloat16 and the 8-bit types as unsigned integers, with their name beside them. */
static struct npy_array *add_typed(struct writing *x, const char *name, enum dtype type, const void *data)
{
    return add(x, name, type <= DTYPE_FP16 ? 'f' : 'u', dtype_bytes(type), data);
}

/* A pool in the dimensions that pool_dims takes apart. */
static void add_pool(struct writing *x, const char *name, const struct workload *w, const void *data,
                     int32_t head_dim)
{
    const struct batch *b = &w->batch;
    const bool ragged = w->layout.store == KV_RAGGED, heads_first = w->layout.order == LAYOUT_HND;
    const int64_t positions = ragged ? b->kv.num_pages : b->kv.page_size;
    struct npy_array *a = add_typed(x, name, b->shape.kv_dtype, data);
    if (!ragged) add_dim(a, b->kv.num_pages);
    if (strcmp(name, "kv") == 0) add_dim(a, 2);
    add_dim(a, heads_first ? b->shape.num_kv_heads : positions);
    add_dim(a, heads_first ? positions : b->shape.num_kv_heads);
    add_dim(a, head_dim);
}

static void add_mask(struct writing *x, const struct workload *w)
{
    const struct batch *b = &w->batch;
    const struct mask *m = &b->mask;
    add_number(x, "causal", m->causal);
    if (m->window_left >= 0) add_number(x, "window_left", m->window_left);
    if (m->logits_soft_cap > 0) add_number(x, "logits_soft_cap", m->logits_soft_cap);
    if (m->sm_scale > 0) add_number(x, "sm_scale", m->sm_scale);
    if (m->alibi) add_number(x, "alibi", 1);
    add_floats(x, "sink", m->sink, b->shape.num_qo_heads);
    add_floats(x, "k_scale", b->k_scale, b->shape.num_kv_heads);
    add_floats(x, "v_scale", b->v_scale, b->shape.num_kv_heads);
    if (m->custom) {
        add_dim(add(x, "custom_mask", 'u', 1, m->custom), m->custom_indptr[b->n_requests]);
        add_dim(add(x, "mask_indptr", 'i', 8, m->custom_indptr), b->n_requests + 1);
    }
    if (b->rope.kind == ROPE_NONE) return;
    add_text(x, "rope_style", b->rope.kind == ROPE_LLAMA ? "llama" : "interleaved");
    if (b->rope.theta > 0) add_number(x, "rope_theta", b->rope.theta);
    if (b->rope.scale > 0) add_number(x, "rope_scale", b->rope.scale);
    if (b->rope.dim > 0) add_number(x, "rope_dim", b->rope.dim);
}

/* kv_indptr as the file has it: in tokens for ragged K. */
static void add_table(struct writing *x, const struct workload *w, int32_t *ragged)
{
    const struct batch *b = &w->batch;
    const int32_t n = b->n_requests;
    add_ints(x, "qo_indptr", b->qo_indptr, n + 1);
    add_ints(x, "kv_len", b->kv_len, n);
    if (w->layout.store != KV_RAGGED) {
        add_ints(x, "kv_indptr", b->kv.kv_indptr, n + 1);
        add_ints(x, "kv_indices", b->kv.kv_indices, b->kv.kv_indptr[n]);
        return;
    }
    for (int32_t r = 0; r < n; r++)
        ragged[r + 1] = ragged[r] + b->kv_len[r];
    add_ints(x, "kv_indptr", ragged, n + 1);
}

static void add_answer(struct writing *x, const struct workload *w, const struct oracle_result *answer)
{
    const int64_t tokens = w->batch.qo_indptr[w->batch.n_requests];
    struct npy_array *o = add(x, "o", 'f', 8, answer->o), *lse = add(x, "lse", 'f', 8, answer->lse);
    add_dim(o, tokens);
    add_dim(o, w->batch.shape.num_qo_heads);
    add_dim(o, w->batch.shape.head_dim_vo);
    add_dim(lse, tokens);
    add_dim(lse, w->batch.shape.num_qo_heads);
}

static enum status write_arrays(const char *path, const struct writing *x, struct why *why)
{
    struct npz_writer *writer;
    struct why ignored;
    enum status status = STATUS_OK;
    TRY(npz_writer_open(path, &writer, why));
    for (int32_t i = 0; i < x->n && status == STATUS_OK; i++)
        status = npz_writer_add(writer, &x->arrays[i], why);
    const enum status closed =
        npz_writer_close(writer, status == STATUS_OK, status == STATUS_OK ? why : &ignored);
    return status == STATUS_OK ? closed : status;
}

/* Ragged tokens must lie one request after another, as kv_indptr says; strided Q is packed first. */
static enum status check_writable(const struct workload *w, struct why *why)
{
    const struct batch *b = &w->batch;
    int64_t tokens = 0;
    if (w->layout.q.token || w->layout.q.head)
        return status_fail(why, STATUS_BAD_INPUT, "tensors: expected a packed Q (no q_stride)");
    if (w->layout.store == KV_INTERLEAVED && b->shape.head_dim_qk != b->shape.head_dim_vo)
        return status_fail(why, STATUS_BAD_INPUT, "tensors: expected one head_dim for interleaved K and V");
    for (int32_t r = 0; w->layout.store == KV_RAGGED && r < b->n_requests; r++) {
        if (b->kv_len[r] > 0 && b->kv.kv_indices[b->kv.kv_indptr[r]] != tokens)
            return status_fail(why, STATUS_BAD_INPUT, "tensors: expected ragged requests in order");
        tokens += b->kv_len[r];
    }
    return STATUS_OK;
}

enum status tensor_file_write(const char *path, const struct workload *w, const struct tensors *t,
                              const struct oracle_result *answer, struct why *why)
{
    const struct batch *b = &w->batch;
    const struct shape *s = &b->shape;
    const int64_t tokens = b->qo_indptr[b->n_requests];
    struct writing *x = calloc(1, sizeof *x);
    int32_t *ragged = calloc((size_t)b->n_requests + 1, sizeof *ragged);
    enum status status = check_writable(w, why);
    if (!x || !ragged) status = status_fail(why, STATUS_NO_MEMORY, "out of memory");
    if (status == STATUS_OK) {
        struct npy_array *q = add_typed(x, "q", s->q_dtype, t->q);
        add_dim(q, tokens);
        add_dim(q, s->num_qo_heads);
        add_dim(q, s->head_dim_qk);
        add_text(x, "dtype", dtype_name(s->q_dtype));
        add_text(x, "kv_dtype", dtype_name(s->kv_dtype));
        add_text(x, "layout", w->layout.order == LAYOUT_NHD ? "NHD" : "HND");
        const bool one_pool = w->layout.store == KV_INTERLEAVED && !s->kv_latent;
        add_pool(x, one_pool ? "kv" : "k", w, t->k, s->head_dim_qk);
        if (!one_pool && !s->kv_latent) add_pool(x, "v", w, t->v, s->head_dim_vo);
        if (s->kv_latent) add_number(x, "head_dim_vo", s->head_dim_vo);
        add_table(x, w, ragged);
        add_mask(x, w);
        if (answer) add_answer(x, w, answer);
        status = write_arrays(path, x, why);
    }
    free(ragged);
    free(x);
    return status;
}
