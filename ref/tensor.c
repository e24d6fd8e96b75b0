#include "ref/tensor.h"

#include "ref/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

enum { HUGE_BYTES = 2 << 20 };

/* Large pools on huge pages, where the system has them: a walk over scattered pages of a KV cache otherwise pays
 * for a TLB miss a page. */
static void *allocate_bytes(size_t bytes)
{
    if (bytes < 4 * (size_t)HUGE_BYTES) return malloc(bytes);
    void *p = aligned_alloc(HUGE_BYTES, (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
#ifdef MADV_HUGEPAGE
    if (p) madvise(p, bytes, MADV_HUGEPAGE); /* a hint: whether it is taken changes nothing but speed */
#endif
    return p;
}

/* n * size bytes, or a reason. */
static enum status allocate(size_t n, size_t size, const char *what, void **out, struct why *why)
{
    if (n > SIZE_MAX / 2 / size)
        return status_fail(why, STATUS_TOO_LARGE, "%s: %zu elements do not fit in memory", what, n);
    *out = allocate_bytes(n * size + 64);
    if (!*out)
        return status_fail(why, STATUS_NO_MEMORY, "%s: out of memory (%zu MiB)", what, (n * size) >> 20);
    return STATUS_OK;
}

/* Ragged stores have no pages: each token is a place of its own. */
static int32_t place_size(const struct batch *b, enum kv_store store)
{
    return store == KV_RAGGED ? 1 : b->kv.page_size;
}

/* Positions of each page that some request owns: the most keys any holder has in it. */
static enum status used_positions(const struct batch *b, enum kv_store store, int32_t **out)
{
    int32_t *used = calloc((size_t)b->kv.num_pages + 1, sizeof *used);
    if (!used) return STATUS_NO_MEMORY;
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t p = b->kv.kv_indptr[r]; p < b->kv.kv_indptr[r + 1]; p++) {
            const int64_t before = (int64_t)(p - b->kv.kv_indptr[r]) * b->kv.page_size;
            const int32_t keys = clamp_i32(b->kv_len[r] - before, 0, b->kv.page_size);
            int32_t *page = &used[b->kv.kv_indices[p]];
            if (store == KV_RAGGED)
                for (int32_t t = 0; t < keys; t++)
                    page[t] = 1;
            else if (keys > *page)
                *page = keys;
        }
    *out = used;
    return STATUS_OK;
}

/* NaN in what nobody may read: tails of pages and pages without an owner. */
static void poison_pool(const struct batch *b, int32_t page_size, struct kv_stride stride, int32_t head_dim,
                        const int32_t *used, void *pool)
{
    const enum dtype type = b->shape.kv_dtype;
#pragma omp parallel for schedule(static)
    for (int32_t page = 0; page < b->kv.num_pages; page++)
        for (int32_t pos = used[page]; pos < page_size; pos++)
            for (int32_t head = 0; head < b->shape.num_kv_heads; head++) {
                const size_t at = tensor_kv_at(stride, page, pos, head);
                for (int32_t d = 0; d < head_dim; d++)
                    convert_store(type, NAN, pool, at + (size_t)d);
            }
}

static enum status poison_pools(const struct batch *b, enum kv_store store, struct tensors *t)
{
    const struct shape *s = &b->shape;
    int32_t *used;
    TRY(used_positions(b, store, &used));
    poison_pool(b, place_size(b, store), t->k_stride, s->head_dim_qk, used, t->k);
    if (!s->kv_latent) poison_pool(b, place_size(b, store), t->v_stride, s->head_dim_vo, used, t->v);
    free(used);
    return STATUS_OK;
}

/* Seeds of the three tensors lie far apart: no two elements share a hash. */
static uint64_t tensor_key(uint64_t seed, int tensor)
{
    return hash(seed * 3 + (uint64_t)tensor);
}

struct row_stride tensor_row_stride(struct row_stride given, int32_t num_qo_heads, int32_t head_dim)
{
    const struct row_stride packed = {(int64_t)num_qo_heads * head_dim, head_dim};
    return given.token == 0 && given.head == 0 ? packed : given;
}

/* Elements from the first to behind the last of tokens x heads rows. */
static size_t row_extent(struct row_stride s, int32_t tokens, int32_t heads, int32_t dim)
{
    return tokens == 0 ? 0 : (size_t)((tokens - 1) * s.token + (heads - 1) * s.head + dim);
}

/* Q is filled row by row from a packed copy, so that its values do not depend on its strides. */
static enum status fill_queries(const struct batch *b, struct fill fill, uint64_t key, struct tensors *t)
{
    const size_t rows = (size_t)b->qo_indptr[b->n_requests] * (size_t)b->shape.num_qo_heads,
                 dim = (size_t)b->shape.head_dim_qk, bytes = (size_t)dtype_bytes(b->shape.q_dtype);
    char *packed = malloc(rows * dim * bytes + 1);
    enum status status =
        packed ? fill_tensor(packed, rows * dim, b->shape.q_dtype, fill, key) : STATUS_NO_MEMORY;
    for (size_t i = 0; status == STATUS_OK && i < t->q_bytes / bytes; i++)
        convert_store(b->shape.q_dtype, NAN, t->q, i);
    for (size_t row = 0; status == STATUS_OK && row < rows; row++)
        memcpy((char *)t->q + tensor_row_at(t->q_stride, b->shape.num_qo_heads, row) * bytes,
               packed + row * dim * bytes, dim * bytes);
    free(packed);
    return status;
}

static enum status fill_all(const struct batch *b, const struct tensor_layout *layout,
                            const struct fill fill[3], uint64_t seed, struct tensors *t)
{
    const enum dtype type = b->shape.kv_dtype;
    const size_t bytes = (size_t)dtype_bytes(type), n_k = t->k_bytes / bytes, n_v = t->v_bytes / bytes;
    TRY(fill_queries(b, fill[0], tensor_key(seed, 0), t));
    TRY(fill_tensor(t->k, n_k, type, fill[1], tensor_key(seed, 1)));
    if (n_v) TRY(fill_tensor(t->v, n_v, type, fill[2], tensor_key(seed, 2)));
    if (layout->store == KV_INTERLEAVED && !b->shape.kv_latent) {
        const size_t v_page =
            (size_t)(b->kv.page_size * b->shape.num_kv_heads) * (size_t)b->shape.head_dim_vo;
        for (int32_t page = 0; page < b->kv.num_pages; page++)
            TRY(fill_tensor((char *)t->v + (size_t)(page * t->v_stride.page) * bytes, v_page, type, fill[2],
                            tensor_key(seed, 2) + (uint64_t)page * ((v_page + 3) / 4)));
    }
    return poison_pools(b, layout->store, t);
}

void tensor_kv_strides(const struct batch *b, const struct tensor_layout *layout, struct kv_stride *k,
                       struct kv_stride *v, size_t elements[2], size_t *v_offset)
{
    const struct shape *s = &b->shape;
    const int64_t places = layout->store == KV_RAGGED ? b->kv.num_pages : b->kv.page_size;
    const int64_t dims[2] = {s->head_dim_qk, s->head_dim_vo};
    struct kv_stride *const out[2] = {k, v};
    int64_t page[2];
    for (int i = 0; i < 2; i++) {
        const int64_t dim = dims[i];
        page[i] = places * s->num_kv_heads * dim;
        *out[i] = layout->order == LAYOUT_NHD ? (struct kv_stride){page[i], s->num_kv_heads * dim, dim}
                                              : (struct kv_stride){page[i], dim, places * dim};
        if (layout->store == KV_RAGGED) out[i]->page = out[i]->pos;
        elements[i] = (size_t)(layout->store == KV_RAGGED ? page[i] : b->kv.num_pages * page[i]);
    }
    *v_offset = 0;
    if (s->kv_latent) {
        *v = *k;
        elements[1] = 0;
    } else if (layout->store == KV_INTERLEAVED) {
        k->page = v->page = page[0] + page[1];
        *v_offset = (size_t)page[0];
        elements[0] += elements[1];
        elements[1] = 0;
    }
}

/* A pool's size in elements is page product of four 32-bit numbers: at most 2^31 x 2^20 x 2^12 x 2^10,
 * checked here. */
static enum status check_pool(const struct batch *b, enum kv_store store, struct why *why)
{
    const int32_t dim =
        b->shape.head_dim_qk > b->shape.head_dim_vo ? b->shape.head_dim_qk : b->shape.head_dim_vo;
    const double bytes = (double)b->kv.num_pages * place_size(b, store) * b->shape.num_kv_heads * dim * 4;
    if (bytes > 0x1p46)
        return status_fail(why, STATUS_TOO_LARGE,
                           "a KV pool of %d pages of %d keys: %.0f GiB do not fit in memory", b->kv.num_pages,
                           b->kv.page_size, bytes / 0x1p30);
    return STATUS_OK;
}

/* Rows must not overlap: heads within a token's stride, or tokens within a head's. */
static enum status check_stride(const char *name, struct row_stride s, int32_t tokens, int32_t heads,
                                int32_t dim, struct why *why)
{
    const int64_t limit = (int64_t)1 << 40; /* times 2^31 tokens it still fits 64 bits by far */
    if (s.token < 0 || s.head < 0 || s.token > limit || s.head > limit)
        return status_fail(why, STATUS_BAD_INPUT,
                           "%s [%lld, %lld]: expected strides of token and head in 0..2^40", name,
                           (long long)s.token, (long long)s.head);
    const bool heads_inside = s.head >= dim && s.token >= (heads - 1) * s.head + dim;
    const bool tokens_inside = s.token >= dim && s.head >= (int64_t)(tokens - 1) * s.token + dim;
    if (!(heads_inside || tokens_inside))
        return status_fail(why, STATUS_BAD_INPUT,
                           "%s [%lld, %lld]: expected strides of token and head between which %d elements of "
                           "%d heads do not overlap",
                           name, (long long)s.token, (long long)s.head, dim, heads);
    if ((double)row_extent(s, tokens, heads, dim) > 0x1p40)
        return status_fail(why, STATUS_TOO_LARGE, "%s: the tensor does not fit in memory", name);
    return STATUS_OK;
}

enum status tensors_check_layout(const struct batch *b, const struct tensor_layout *layout, struct why *why)
{
    const struct shape *s = &b->shape;
    const int32_t tokens = b->qo_indptr[b->n_requests], heads = s->num_qo_heads;
    TRY(check_stride("q_stride", tensor_row_stride(layout->q, heads, s->head_dim_qk), tokens, heads,
                     s->head_dim_qk, why));
    TRY(check_stride("o_stride", tensor_row_stride(layout->o, heads, s->head_dim_vo), tokens, heads,
                     s->head_dim_vo, why));
    for (int32_t r = 0; layout->store == KV_RAGGED && r < b->n_requests; r++) {
        const int32_t *pages = b->kv.kv_indices + b->kv.kv_indptr[r];
        if (b->kv_len[r] > b->kv.page_size || (b->kv_len[r] > 0 && pages[0] > b->kv.num_pages - b->kv_len[r]))
            return status_fail(why, STATUS_BAD_INPUT,
                               "request %d: expected its %d keys in a row within %d tokens of ragged K and V",
                               r, b->kv_len[r], b->kv.num_pages);
    }
    return check_pool(b, layout->store, why);
}

static enum status allocate_all(const struct batch *b, size_t elements[2], size_t v_offset, struct tensors *t,
                                struct why *why)
{
    const size_t bytes = (size_t)dtype_bytes(b->shape.kv_dtype);
    t->q_bytes =
        row_extent(t->q_stride, b->qo_indptr[b->n_requests], b->shape.num_qo_heads, b->shape.head_dim_qk) *
        (size_t)dtype_bytes(b->shape.q_dtype);
    t->k_bytes = elements[0] * bytes;
    t->v_bytes = elements[1] * bytes;
    TRY(allocate(t->q_bytes, 1, "q", &t->q, why));
    TRY(allocate(t->k_bytes, 1, "k pool", &t->k, why));
    if (t->v_bytes) return allocate(t->v_bytes, 1, "v pool", &t->v, why);
    t->v = (char *)t->k + v_offset * bytes;
    return STATUS_OK;
}

enum status tensors_create(const struct batch *b, const struct tensor_layout *layout,
                           const struct fill fill[3], uint64_t seed, struct tensors *out, struct why *why)
{
    size_t elements[2], v_offset;
    memset(out, 0, sizeof *out);
    TRY(tensors_check_layout(b, layout, why));
    out->q_stride = tensor_row_stride(layout->q, b->shape.num_qo_heads, b->shape.head_dim_qk);
    tensor_kv_strides(b, layout, &out->k_stride, &out->v_stride, elements, &v_offset);
    out->same_dots = fill[0].kind == FILL_CONSTANT && fill[1].kind == FILL_CONSTANT;
    out->same_terms = out->same_dots && fill[2].kind == FILL_CONSTANT;
    enum status status = allocate_all(b, elements, v_offset, out, why);
    if (status == STATUS_OK) {
        status = fill_all(b, layout, fill, seed, out);
        if (status != STATUS_OK) status_fail(why, status, "tensors: out of memory");
    }
    if (status != STATUS_OK) tensors_free(out);
    return status;
}

void tensors_free(struct tensors *t)
{
    free(t->q);
    free(t->k);
    if (t->v_bytes) free(t->v);
    memset(t, 0, sizeof *t);
}

static void set_guard(float *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(at + i, &guard_bits, sizeof guard_bits);
}

static bool guards_intact(const float *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(at + i, &guard_bits, sizeof guard_bits) != 0) return false;
    return true;
}

void result_poison(struct result *r)
{
    set_guard(r->o, r->o_elements + GUARD_WORDS);
    for (size_t row = 0; row < r->n_rows; row++)
        for (size_t d = 0; d < (size_t)r->head_dim_vo; d++)
            r->o[tensor_row_at(r->o_stride, r->num_qo_heads, row) + d] = NAN;
    for (size_t i = 0; i < r->n_rows; i++)
        r->lse[i] = NAN;
    set_guard(r->lse + r->n_rows, GUARD_WORDS);
}

/* The gaps of strided outputs: what lies between one row and the next in memory. */
static bool gaps_intact(const struct result *r)
{
    const struct row_stride s = r->o_stride;
    const int64_t dim = r->head_dim_vo, heads = r->num_qo_heads, tokens = (int64_t)r->n_rows / heads;
    const bool heads_inside = s.head <= s.token;
    const int64_t inner = heads_inside ? s.head : s.token, outer = heads_inside ? s.token : s.head,
                  n_inner = heads_inside ? heads : tokens, n_outer = heads_inside ? tokens : heads;
    for (int64_t i = 0; i < n_outer; i++)
        for (int64_t j = 0; j < n_inner; j++) {
            const int64_t end = i * outer + j * inner + dim;
            const int64_t next = j + 1 < n_inner ? i * outer + (j + 1) * inner : (i + 1) * outer;
            const int64_t stop = next < (int64_t)r->o_elements ? next : (int64_t)r->o_elements;
            if (end < stop && !guards_intact(r->o + end, (size_t)(stop - end))) return false;
        }
    return true;
}

bool result_guard_ok(const struct result *r)
{
    return gaps_intact(r) && guards_intact(r->o + r->o_elements, GUARD_WORDS) &&
           guards_intact(r->lse + r->n_rows, GUARD_WORDS);
}

enum status result_create(const struct batch *b, struct row_stride o_stride, struct result *out,
                          struct why *why)
{
    const int32_t tokens = b->qo_indptr[b->n_requests], heads = b->shape.num_qo_heads;
    memset(out, 0, sizeof *out);
    out->n_rows = (size_t)tokens * (size_t)heads;
    out->num_qo_heads = heads;
    out->head_dim_vo = b->shape.head_dim_vo;
    out->o_stride = tensor_row_stride(o_stride, heads, out->head_dim_vo);
    out->o_elements = row_extent(out->o_stride, tokens, heads, out->head_dim_vo);
    enum status status = allocate(out->o_elements + GUARD_WORDS, sizeof(float), "o", (void **)&out->o, why);
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
    const size_t n = (size_t)b->qo_indptr[b->n_requests] * (size_t)b->shape.num_qo_heads;
    return oracle_result_create_rows(b, n, out, why);
}

enum status oracle_result_create_rows(const struct batch *b, size_t n, struct oracle_result *out,
                                      struct why *why)
{
    memset(out, 0, sizeof *out);
    out->n_rows = n;
    out->head_dim_vo = b->shape.head_dim_vo;
    enum status status =
        allocate(out->n_rows * (size_t)out->head_dim_vo, sizeof(double), "oracle's o", (void **)&out->o, why);
    if (status == STATUS_OK)
        status = allocate(out->n_rows, sizeof(double), "oracle's lse", (void **)&out->lse, why);
    if (status == STATUS_OK)
        status = allocate(out->n_rows, sizeof *out->sums, "oracle's sums", (void **)&out->sums, why);
    if (status != STATUS_OK) oracle_result_free(out);
    return status;
}

void oracle_result_free(struct oracle_result *r)
{
    free(r->o);
    free(r->lse);
    free(r->sums);
    memset(r, 0, sizeof *r);
}
