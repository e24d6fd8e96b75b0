#include "ref/tensor.h"

#include "ref/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Normals come from a table of 2^16 Box-Muller points, (256 radii x 256 angles), rounded to the dtype once;
 * 16 bits of a hash pick one. So a value costs a lookup, and pools of gigabytes fill at memory speed. Largest
 * magnitude 3.53. */
enum { TABLE_SIZE = 1 << 16 };

enum { GUARD_WORDS = 64 };
static const uint32_t guard_bits = 0x7fa5a5a5u; /* a NaN nobody computes */

static uint64_t hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u; /* SplitMix64's finaliser over a counter */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static float table_value(struct fill fill, int32_t i)
{
    const double radius = sqrt(-2 * log(((i >> 8) + 0.5) / 256)),
                 angle = 2 * 3.14159265358979323846 * ((i & 255) + 0.5) / 256;
    return (float)(fill.kind == FILL_CONSTANT ? fill.value : fill.value * radius * cos(angle));
}

/* Four elements a hash: element e takes bits 16 (e % 4) of hash(key + e / 4). */
#define DEFINE_FILL(name, type)                                                                           \
    static void name(type *dst, size_t n, const type *table, uint64_t key)                                \
    {                                                                                                     \
        _Pragma("omp parallel for schedule(static)") for (size_t block = 0; block < (n + 3) / 4; block++) \
        {                                                                                                 \
            const uint64_t h = hash(key + block);                                                         \
            for (size_t i = 0; i < 4 && 4 * block + i < n; i++)                                           \
                dst[4 * block + i] = table[(h >> (16 * i)) & 0xffff];                                     \
        }                                                                                                 \
    }
DEFINE_FILL(fill_8, uint8_t)
DEFINE_FILL(fill_16, uint16_t)
DEFINE_FILL(fill_32, float)

static enum status fill_tensor(void *dst, size_t n, enum dtype type, struct fill fill, uint64_t key)
{
    void *table = malloc(TABLE_SIZE * sizeof(float));
    if (!table) return STATUS_NO_MEMORY;
    for (int32_t i = 0; i < TABLE_SIZE; i++)
        convert_store(type, table_value(fill, i), table, (size_t)i);
    if (dtype_bytes(type) == 1)
        fill_8(dst, n, table, key);
    else if (dtype_bytes(type) == 2)
        fill_16(dst, n, table, key);
    else
        fill_32(dst, n, table, key);
    free(table);
    return STATUS_OK;
}

/* n * size bytes, or a reason. */
static enum status allocate(size_t n, size_t size, const char *what, void **out, struct why *why)
{
    if (n > SIZE_MAX / 2 / size)
        return status_fail(why, STATUS_TOO_LARGE, "%s: %zu elements do not fit in memory", what, n);
    *out = malloc(n * size + 64);
    if (!*out)
        return status_fail(why, STATUS_NO_MEMORY, "%s: out of memory (%zu MiB)", what, (n * size) >> 20);
    return STATUS_OK;
}

/* Positions of each page that some request owns: the most keys any holder has in it. */
static enum status used_positions(const struct batch *b, int32_t **out)
{
    int32_t *used = calloc((size_t)b->kv.num_pages + 1, sizeof *used);
    if (!used) return STATUS_NO_MEMORY;
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t p = b->kv.kv_indptr[r]; p < b->kv.kv_indptr[r + 1]; p++) {
            const int64_t before = (int64_t)(p - b->kv.kv_indptr[r]) * b->kv.page_size;
            const int32_t keys = clamp_i32(b->kv_len[r] - before, 0, b->kv.page_size);
            int32_t *page = &used[b->kv.kv_indices[p]];
            if (keys > *page) *page = keys;
        }
    *out = used;
    return STATUS_OK;
}

/* NaN in what nobody may read: tails of pages and pages without an owner. */
static void poison_pool(const struct batch *b, enum layout layout, int32_t head_dim, const int32_t *used,
                        void *pool)
{
    const enum dtype type = b->shape.kv_dtype;
#pragma omp parallel for schedule(static)
    for (int32_t page = 0; page < b->kv.num_pages; page++)
        for (int32_t pos = used[page]; pos < b->kv.page_size; pos++)
            for (int32_t head = 0; head < b->shape.num_kv_heads; head++) {
                const size_t at = tensor_kv_offset(b, layout, head_dim, page, pos, head);
                for (int32_t d = 0; d < head_dim; d++)
                    convert_store(type, NAN, pool, at + (size_t)d);
            }
}

static size_t pool_elements(const struct batch *b, int32_t head_dim)
{
    return (size_t)b->kv.num_pages * (size_t)b->kv.page_size * (size_t)b->shape.num_kv_heads *
           (size_t)head_dim;
}

/* Seeds of the three tensors lie far apart: no two elements share a hash. */
static uint64_t tensor_key(uint64_t seed, int tensor)
{
    return hash(seed * 3 + (uint64_t)tensor);
}

static enum status fill_all(const struct batch *b, uint64_t seed, struct tensors *t)
{
    const struct shape *s = &b->shape;
    int32_t *used;
    TRY(used_positions(b, &used));
    enum status status = fill_tensor(t->q, t->q_bytes / (size_t)dtype_bytes(s->q_dtype), s->q_dtype,
                                     t->fill[0], tensor_key(seed, 0));
    if (status == STATUS_OK)
        status = fill_tensor(t->k, t->k_bytes / (size_t)dtype_bytes(s->kv_dtype), s->kv_dtype, t->fill[1],
                             tensor_key(seed, 1));
    if (status == STATUS_OK)
        status = fill_tensor(t->v, t->v_bytes / (size_t)dtype_bytes(s->kv_dtype), s->kv_dtype, t->fill[2],
                             tensor_key(seed, 2));
    if (status == STATUS_OK) {
        poison_pool(b, t->layout, s->head_dim_qk, used, t->k);
        poison_pool(b, t->layout, s->head_dim_vo, used, t->v);
    }
    free(used);
    return status;
}

/* A pool's size in elements is page product of four 32-bit numbers: at most 2^31 x 2^20 x 2^12 x 2^10,
 * checked here. */
static enum status check_pool(const struct batch *b, struct why *why)
{
    const int32_t dim =
        b->shape.head_dim_qk > b->shape.head_dim_vo ? b->shape.head_dim_qk : b->shape.head_dim_vo;
    const double bytes = (double)b->kv.num_pages * b->kv.page_size * b->shape.num_kv_heads * dim * 4;
    if (bytes > 0x1p46)
        return status_fail(why, STATUS_TOO_LARGE,
                           "a KV pool of %d pages of %d keys: %.0f GiB do not fit in memory", b->kv.num_pages,
                           b->kv.page_size, bytes / 0x1p30);
    return STATUS_OK;
}

enum status tensors_create(const struct batch *b, enum layout layout, const struct fill fill[3],
                           uint64_t seed, struct tensors *out, struct why *why)
{
    const struct shape *s = &b->shape;
    const size_t rows = (size_t)b->qo_indptr[b->n_requests] * (size_t)s->num_qo_heads;
    memset(out, 0, sizeof *out);
    out->layout = layout;
    memcpy(out->fill, fill, sizeof out->fill);
    TRY(check_pool(b, why));
    out->q_bytes = rows * (size_t)s->head_dim_qk * (size_t)dtype_bytes(s->q_dtype);
    out->k_bytes = pool_elements(b, s->head_dim_qk) * (size_t)dtype_bytes(s->kv_dtype);
    out->v_bytes = pool_elements(b, s->head_dim_vo) * (size_t)dtype_bytes(s->kv_dtype);
    enum status status = allocate(out->q_bytes, 1, "q", &out->q, why);
    if (status == STATUS_OK) status = allocate(out->k_bytes, 1, "k pool", &out->k, why);
    if (status == STATUS_OK) status = allocate(out->v_bytes, 1, "v pool", &out->v, why);
    if (status == STATUS_OK) {
        status = fill_all(b, seed, out);
        if (status != STATUS_OK) status_fail(why, status, "tensors: out of memory");
    }
    if (status != STATUS_OK) tensors_free(out);
    return status;
}

void tensors_free(struct tensors *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    memset(t, 0, sizeof *t);
}

void result_poison(struct result *r)
{
    const size_t o = r->n_rows * (size_t)r->head_dim_vo;
    for (size_t i = 0; i < o; i++)
        r->o[i] = NAN;
    for (size_t i = 0; i < r->n_rows; i++)
        r->lse[i] = NAN;
    for (size_t i = 0; i < GUARD_WORDS; i++) {
        memcpy(r->o + o + i, &guard_bits, sizeof guard_bits);
        memcpy(r->lse + r->n_rows + i, &guard_bits, sizeof guard_bits);
    }
}

static bool guards_intact(const float *at)
{
    for (size_t i = 0; i < GUARD_WORDS; i++)
        if (memcmp(at + i, &guard_bits, sizeof guard_bits) != 0) return false;
    return true;
}

bool result_guard_ok(const struct result *r)
{
    return guards_intact(r->o + r->n_rows * (size_t)r->head_dim_vo) && guards_intact(r->lse + r->n_rows);
}

enum status result_create(const struct batch *b, struct result *out, struct why *why)
{
    memset(out, 0, sizeof *out);
    out->n_rows = (size_t)b->qo_indptr[b->n_requests] * (size_t)b->shape.num_qo_heads;
    out->head_dim_vo = b->shape.head_dim_vo;
    enum status status = allocate(out->n_rows * (size_t)out->head_dim_vo + GUARD_WORDS, sizeof(float), "o",
                                  (void **)&out->o, why);
    if (status == STATUS_OK)
        status = allocate(out->n_rows + GUARD_WORDS, sizeof(float), "lse", (void **)&out->lse, why);
    if (status == STATUS_OK)
        result_poison(out);
    else
        result_free(out);
    return status;
}

void result_free(struct result *r)
{
    free(r->o);
    free(r->lse);
    memset(r, 0, sizeof *r);
}

enum status oracle_result_create(const struct batch *b, struct oracle_result *out, struct why *why)
{
    memset(out, 0, sizeof *out);
    out->n_rows = (size_t)b->qo_indptr[b->n_requests] * (size_t)b->shape.num_qo_heads;
    out->head_dim_vo = b->shape.head_dim_vo;
    enum status status =
        allocate(out->n_rows * (size_t)out->head_dim_vo, sizeof(double), "oracle's o", (void **)&out->o, why);
    if (status == STATUS_OK)
        status = allocate(out->n_rows, sizeof(double), "oracle's lse", (void **)&out->lse, why);
    if (status != STATUS_OK) oracle_result_free(out);
    return status;
}

void oracle_result_free(struct oracle_result *r)
{
    free(r->o);
    free(r->lse);
    memset(r, 0, sizeof *r);
}
