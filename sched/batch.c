#include "sched/batch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int32_t bytes;
} dtypes[] = {
#define X(code, name, bytes) {name, bytes},
    DTYPE_LIST(X)
#undef X
};

int32_t dtype_bytes(enum dtype t)
{
    assert(t >= 0 && t < DTYPE_COUNT);
    return dtypes[t].bytes;
}

const char *dtype_name(enum dtype t)
{
    assert(t >= 0 && t < DTYPE_COUNT);
    return dtypes[t].name;
}

enum dtype dtype_from_name(const char *name)
{
    int t = 0;
    while (t < DTYPE_COUNT && strcmp(dtypes[t].name, name) != 0)
        t++;
    return (enum dtype)t;
}

double batch_sm_scale(const struct batch *b)
{
    return b->mask.sm_scale != 0 ? (double)b->mask.sm_scale : 1.0 / sqrt((double)b->shape.head_dim_qk);
}

static enum status check_shape(const struct shape *s, struct why *why)
{
    const struct {
        const char *name;
        int32_t value, high;
    } dims[] = {
        {"num_qo_heads", s->num_qo_heads, BATCH_MAX_HEADS},
        {"num_kv_heads", s->num_kv_heads, BATCH_MAX_HEADS},
        {"head_dim_qk", s->head_dim_qk, BATCH_MAX_HEAD_DIM},
        {"head_dim_vo", s->head_dim_vo, BATCH_MAX_HEAD_DIM},
    };
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        if (dims[i].value < 1 || dims[i].value > dims[i].high)
            return status_fail(why, STATUS_BAD_INPUT, "%s %d: expected 1..%d", dims[i].name, dims[i].value,
                               dims[i].high);
    if (s->num_qo_heads % s->num_kv_heads)
        return status_fail(why, STATUS_BAD_INPUT, "num_qo_heads %d: expected a multiple of num_kv_heads %d",
                           s->num_qo_heads, s->num_kv_heads);
    if ((unsigned)s->q_dtype >= DTYPE_COUNT || dtype_is_fp8(s->q_dtype))
        return status_fail(why, STATUS_BAD_INPUT, "dtype: expected fp32, fp16 or bf16");
    if ((unsigned)s->kv_dtype >= DTYPE_COUNT)
        return status_fail(why, STATUS_BAD_INPUT,
                           "kv_dtype: expected fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2");
    if (s->kv_latent && s->head_dim_vo > s->head_dim_qk)
        return status_fail(why, STATUS_BAD_INPUT,
                           "head_dim_vo %d: expected at most head_dim %d where K and V share a latent",
                           s->head_dim_vo, s->head_dim_qk);
    return STATUS_OK;
}

static enum status check_scales(const struct batch *b, struct why *why)
{
    const struct {
        const char *name;
        const float *scale;
    } all[] = {{"k_scale", b->k_scale}, {"v_scale", b->v_scale}};
    for (int i = 0; i < 2; i++)
        for (int32_t h = 0; all[i].scale && h < b->shape.num_kv_heads; h++)
            if (!(all[i].scale[h] > 0) || !isfinite(all[i].scale[h]))
                return status_fail(why, STATUS_BAD_INPUT, "%s[%d]: expected a positive number", all[i].name,
                                   h);
    return STATUS_OK;
}

static enum status check_rope(const struct batch *b, struct why *why)
{
    const struct rope *r = &b->rope;
    const int32_t dim = batch_rope_dim(b);
    if (r->kind == ROPE_NONE) return STATUS_OK;
    if ((unsigned)r->kind > ROPE_INTERLEAVED || dim < 2 || dim > b->shape.head_dim_qk || dim % 2)
        return status_fail(why, STATUS_BAD_INPUT, "rope dim %d: expected an even number in 2..%d", dim,
                           b->shape.head_dim_qk);
    if (!(r->theta >= 0) || !isfinite(r->theta) || !(r->scale >= 0) || !isfinite(r->scale))
        return status_fail(why, STATUS_BAD_INPUT, "rope theta, scale: expected positive numbers");
    return STATUS_OK;
}

static enum status check_mask(const struct batch *b, struct why *why)
{
    const struct mask *m = &b->mask;
    if (m->window_left < -1)
        return status_fail(why, STATUS_BAD_INPUT, "window_left %d: expected -1 (none) or more",
                           m->window_left);
    if (!(m->logits_soft_cap >= 0) || !isfinite(m->logits_soft_cap))
        return status_fail(why, STATUS_BAD_INPUT, "logits_soft_cap: expected 0 (none) or a positive number");
    if (!(m->sm_scale >= 0) || !isfinite(m->sm_scale))
        return status_fail(why, STATUS_BAD_INPUT,
                           "sm_scale: expected 0 (1/sqrt(head_dim)) or a positive number");
    for (int32_t h = 0; m->sink && h < b->shape.num_qo_heads; h++)
        if (!isfinite(m->sink[h]))
            return status_fail(why, STATUS_BAD_INPUT, "sink[%d]: expected a finite number", h);
    return STATUS_OK;
}

static enum status check_request(const struct batch *b, int32_t r, struct why *why)
{
    const int32_t *kv_indptr = b->kv.kv_indptr;
    const int64_t qo_len = (int64_t)b->qo_indptr[r + 1] - b->qo_indptr[r];
    const int64_t pages = (int64_t)kv_indptr[r + 1] - kv_indptr[r];
    if (qo_len < 0)
        return status_fail(why, STATUS_BAD_INPUT, "request %d: qo_len %lld: expected >= 0", r,
                           (long long)qo_len);
    if (b->kv_len[r] < 0)
        return status_fail(why, STATUS_BAD_INPUT, "request %d: kv_len %d: expected >= 0", r, b->kv_len[r]);
    const int64_t want = ((int64_t)b->kv_len[r] + b->kv.page_size - 1) / b->kv.page_size;
    if (pages != want)
        return status_fail(why, STATUS_BAD_INPUT,
                           "request %d: %lld pages: expected %lld for kv_len %d at page_size %d", r,
                           (long long)pages, (long long)want, b->kv_len[r], b->kv.page_size);
    for (int32_t p = kv_indptr[r]; p < kv_indptr[r + 1]; p++)
        if (b->kv.kv_indices[p] < 0 || b->kv.kv_indices[p] >= b->kv.num_pages)
            return status_fail(why, STATUS_BAD_INPUT,
                               "request %d: kv_indices[%d] = %d: expected a page id in [0, %d)", r, p,
                               b->kv.kv_indices[p], b->kv.num_pages);
    const int64_t mask_bytes = b->mask.custom ? b->mask.custom_indptr[r + 1] - b->mask.custom_indptr[r] : 0;
    if (b->mask.custom && mask_bytes != (qo_len * b->kv_len[r] + 7) / 8)
        return status_fail(why, STATUS_BAD_INPUT,
                           "request %d: %lld bytes of custom mask: expected %lld for %lld x %d bits", r,
                           (long long)mask_bytes, (long long)((qo_len * b->kv_len[r] + 7) / 8),
                           (long long)qo_len, b->kv_len[r]);
    return STATUS_OK;
}

enum status batch_check(const struct batch *b, struct why *why)
{
    TRY(check_shape(&b->shape, why));
    TRY(check_mask(b, why));
    TRY(check_scales(b, why));
    TRY(check_rope(b, why));
    if (b->n_requests < 0)
        return status_fail(why, STATUS_BAD_INPUT, "n_requests %d: expected >= 0", b->n_requests);
    if (b->kv.page_size < 1 || b->kv.page_size > BATCH_MAX_PAGE_SIZE)
        return status_fail(why, STATUS_BAD_INPUT, "page_size %d: expected 1..%d", b->kv.page_size,
                           BATCH_MAX_PAGE_SIZE);
    if (b->kv.num_pages < 0)
        return status_fail(why, STATUS_BAD_INPUT, "num_pages %d: expected >= 0", b->kv.num_pages);
    if (b->qo_indptr[0] != 0 || b->kv.kv_indptr[0] != 0)
        return status_fail(why, STATUS_BAD_INPUT, "qo_indptr[0], kv_indptr[0]: expected 0");
    if (b->mask.custom && b->mask.custom_indptr[0] != 0)
        return status_fail(why, STATUS_BAD_INPUT, "custom_indptr[0]: expected 0");
    for (int32_t r = 0; r < b->n_requests; r++)
        TRY(check_request(b, r, why));
    const int64_t rows = (int64_t)b->qo_indptr[b->n_requests] * b->shape.num_qo_heads;
    if (rows > INT32_MAX)
        return status_fail(why, STATUS_TOO_LARGE, "%lld query rows x heads: expected at most %d",
                           (long long)rows, INT32_MAX);
    return STATUS_OK;
}
