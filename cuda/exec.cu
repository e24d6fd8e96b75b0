/* exec: device, memory, batch, one execution. Plans are in exec_plan.cu, timing in exec_time.cu. */
#include "cuda/number.cuh"

#include "cuda/exec_internal.h"
#include "cuda/lower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every byte of poison is 0xff: a NaN in fp32, fp16 and bf16. */
enum { POISON = 0xff, FLUSH_L2_TIMES = 4 };

enum status exec_fail(struct why *why, cudaError_t error, const char *call)
{
    cudaGetLastError(); /* sticky or not, it is reported now */
    const enum status status = error == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY
                               : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                                       error == cudaErrorNoKernelImageForDevice
                                   ? STATUS_UNSUPPORTED
                                   : STATUS_INTERNAL;
    return status_fail(why, status, "CUDA: %s (%.80s)", cudaGetErrorString(error), call);
}

enum status exec_take(struct exec_pool *pool, const void *from, size_t bytes, const char *what, void **out,
                      struct why *why)
{
    void *block = NULL;
    *out = NULL;
    if (pool->n == pool->cap) {
        const int32_t cap = pool->cap ? pool->cap * 2 : 32;
        void **blocks = (void **)realloc(pool->blocks, (size_t)cap * sizeof *blocks);
        if (!blocks) return status_fail(why, STATUS_NO_MEMORY, "%s: out of memory", what);
        pool->blocks = blocks;
        pool->cap = cap;
    }
    if (cudaMalloc(&block, bytes ? bytes : 1) != cudaSuccess) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        return status_fail(why, STATUS_NO_MEMORY, "%s: %.1f MB do not fit the device: %.1f MB of %.1f MB are free",
                           what, (double)bytes / 1e6, (double)free_bytes / 1e6, (double)total / 1e6);
    }
    pool->blocks[pool->n++] = block;
    pool->bytes += (int64_t)bytes;
    if (from && bytes) CUDA_TRY(cudaMemcpy(block, from, bytes, cudaMemcpyHostToDevice));
    *out = block;
    return STATUS_OK;
}

void exec_release(struct exec_pool *pool)
{
    for (int32_t i = 0; i < pool->n; i++)
        cudaFree(pool->blocks[i]);
    free(pool->blocks);
    memset(pool, 0, sizeof *pool);
}

extern "C" enum status cuda_available(struct why *why)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0) {
        cudaGetLastError();
        return status_fail(why, STATUS_UNSUPPORTED, "no usable GPU here: %s",
                           error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
    }
    return STATUS_OK;
}

extern "C" enum status cuda_open(struct cuda_device **out, struct why *why)
{
    *out = NULL;
    TRY(cuda_available(why));
    struct cuda_device *d = (struct cuda_device *)calloc(1, sizeof *d);
    if (!d) return status_fail(why, STATUS_NO_MEMORY, "cuda_open: out of memory");
    *out = d;
    CUDA_TRY(cudaSetDevice(d->device));
    CUDA_TRY(cudaGetDeviceProperties(&d->properties, d->device));
    CUDA_TRY(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    d->flush_bytes = (size_t)FLUSH_L2_TIMES * (size_t)d->properties.l2CacheSize;
    return exec_take(&d->own, NULL, d->flush_bytes, "L2 flush buffer", &d->flush, why);
}

extern "C" void cuda_close(struct cuda_device *d)
{
    if (!d) return;
    exec_prepared_free(&d->p);
    exec_release(&d->loaded);
    exec_release(&d->own);
    if (d->stream) cudaStreamDestroy(d->stream);
    free(d);
}

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

/* Last element that strides reach, plus one: 0 for nothing. */
static int64_t reach_of(int64_t n0, int64_t s0, int64_t n1, int64_t s1, int64_t n2, int64_t s2, int64_t dim)
{
    if (n0 <= 0 || n1 <= 0 || n2 <= 0) return 0;
    return (n0 - 1) * s0 + (n1 - 1) * s1 + (n2 - 1) * s2 + dim;
}

/* Ragged stores have one page a request: the keys of a page are as many as its request has. */
static enum status check_extent(const struct batch *b, const struct cuda_tensors *t, struct why *why)
{
    const struct shape *s = &b->shape;
    const int64_t tokens = b->qo_indptr[b->n_requests], kv_bytes = dtype_bytes(s->kv_dtype);
    int64_t k_last = 0, v_last = 0;
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t p = b->kv.kv_indptr[r]; p < b->kv.kv_indptr[r + 1]; p++) {
            const int64_t page = b->kv.kv_indices[p], first = (int64_t)(p - b->kv.kv_indptr[r]) * b->kv.page_size,
                          left = b->kv_len[r] - first, keys = left < b->kv.page_size ? left : b->kv.page_size;
            const int64_t k = page * t->k_stride.page + reach_of(1, 0, keys, t->k_stride.pos, s->num_kv_heads,
                                                                 t->k_stride.head, s->head_dim_qk);
            const int64_t v = page * t->v_stride.page + reach_of(1, 0, keys, t->v_stride.pos, s->num_kv_heads,
                                                                 t->v_stride.head, s->head_dim_vo);
            if (page < 0 || page >= b->kv.num_pages)
                return status_fail(why, STATUS_BAD_INPUT, "cuda_load: request %d: page %lld: expected 0..%d", r,
                                   (long long)page, b->kv.num_pages - 1);
            if (keys > 0 && k > k_last) k_last = k;
            if (keys > 0 && v > v_last) v_last = v;
        }
    const int64_t q_last = reach_of(1, 0, tokens, t->q_stride.token, s->num_qo_heads, t->q_stride.head, s->head_dim_qk);
    const int64_t o_last = reach_of(1, 0, tokens, t->o_stride.token, s->num_qo_heads, t->o_stride.head, s->head_dim_vo);
    const int64_t v_bytes = t->v ? (int64_t)t->v_bytes : (int64_t)t->k_bytes - t->v_offset * kv_bytes;
    if (q_last * dtype_bytes(s->q_dtype) > (int64_t)t->q_bytes || k_last * kv_bytes > (int64_t)t->k_bytes ||
        v_last * kv_bytes > v_bytes || o_last > (int64_t)t->o_elements)
        return status_fail(why, STATUS_BAD_INPUT, "cuda_load: the batch reaches past its tensors");
    return STATUS_OK;
}

static bool scales_positive(const struct batch *b)
{
    for (int32_t h = 0; b->k_scale && h < b->shape.num_kv_heads; h++)
        if (!(b->k_scale[h] > 0)) return false;
    return batch_sm_scale(b) > 0;
}

/* Device copies of what a batch points to, into d->x.b. */
static enum status put_batch(struct cuda_device *d, const struct batch *b, struct why *why)
{
    struct batch *x = &d->x.b;
    const size_t n = (size_t)b->n_requests, heads = (size_t)b->shape.num_qo_heads,
                 kv_heads = (size_t)b->shape.num_kv_heads;
    *x = *b;
#define PUT(field, count)                                                                                             \
    if (b->field)                                                                                                     \
    TRY(exec_take(&d->loaded, b->field, (size_t)(count) * sizeof *b->field, "batch", (void **)&x->field, why))
    PUT(qo_indptr, n + 1);
    PUT(kv_len, n);
    PUT(kv.kv_indptr, n + 1);
    PUT(kv.kv_indices, b->kv.kv_indptr[n]);
    PUT(mask.sink, heads);
    PUT(mask.custom, b->mask.custom_indptr[n]);
    if (b->mask.custom) PUT(mask.custom_indptr, n + 1);
    PUT(k_scale, kv_heads);
    PUT(v_scale, kv_heads);
#undef PUT
    d->x.alibi = NULL;
    if (!b->mask.alibi) return STATUS_OK;
    float *slopes = (float *)malloc(heads * sizeof *slopes);
    if (!slopes) return status_fail(why, STATUS_NO_MEMORY, "cuda_load: out of memory");
    for (size_t h = 0; h < heads; h++)
        slopes[h] = lower_alibi_slope((int32_t)h, b->shape.num_qo_heads);
    const enum status status =
        exec_take(&d->loaded, slopes, heads * sizeof *slopes, "batch", (void **)&d->x.alibi, why);
    free(slopes);
    return status;
}

static enum status put_tensors(struct cuda_device *d, const struct batch *b, const struct cuda_tensors *t,
                               struct why *why)
{
    struct view *x = &d->x;
    const int32_t kv_bytes = dtype_bytes(b->shape.kv_dtype);
    const size_t rows = (size_t)b->qo_indptr[b->n_requests] * (size_t)b->shape.num_qo_heads;
    TRY(exec_take(&d->loaded, t->q, t->q_bytes, "Q", (void **)&x->q, why));
    TRY(exec_take(&d->loaded, t->k, t->k_bytes, "K", (void **)&x->k, why));
    if (t->v)
        TRY(exec_take(&d->loaded, t->v, t->v_bytes, "V", (void **)&x->v, why));
    else
        x->v = (const char *)x->k + t->v_offset * kv_bytes;
    TRY(exec_take(&d->loaded, NULL, t->o_elements * (size_t)dtype_bytes(b->shape.q_dtype), "O", &x->o, why));
    TRY(exec_take(&d->loaded, NULL, rows * sizeof(float), "LSE", (void **)&x->lse, why));
    x->q_rows = {t->q_stride.token, t->q_stride.head};
    x->o_rows = {t->o_stride.token, t->o_stride.head};
    x->k_keys = {t->k_stride.page, t->k_stride.pos, t->k_stride.head};
    x->v_keys = {t->v_stride.page, t->v_stride.pos, t->v_stride.head};
    return STATUS_OK;
}

extern "C" enum status cuda_load(struct cuda_device *d, const struct batch *b, const struct cuda_tensors *t,
                                 struct why *why)
{
    exec_prepared_free(&d->p);
    exec_release(&d->loaded);
    d->has_batch = false;
    memset(&d->x, 0, sizeof d->x);
    TRY(check_extent(b, t, why));
    TRY(put_batch(d, b, why));
    TRY(put_tensors(d, b, t, why));
    d->x.sm_scale = (float)batch_sm_scale(b);
    d->x.plain = !b->mask.alibi && !b->mask.custom && !(b->mask.logits_soft_cap > 0) && scales_positive(b);
    d->b = *b;
    d->t = *t;
    d->has_batch = true;
    return STATUS_OK;
}

/* ---- one execution ----------------------------------------------------------------------------------------------- */

/* fp32 from the stored type of Q, on the host. */
static float widen(enum dtype type, const void *o, size_t i)
{
    if (type == DTYPE_FP32) return ((const float *)o)[i];
    return type == DTYPE_FP16 ? __half2float(((const __half *)o)[i]) : __bfloat162float(((const __nv_bfloat16 *)o)[i]);
}

/* Rows into the caller's memory; poison that is gone from between rows is a kernel that wrote there. */
static enum status take_rows(const struct cuda_device *d, unsigned char *raw, float *o, struct why *why)
{
    const struct shape *s = &d->b.shape;
    const size_t bytes = (size_t)dtype_bytes(s->q_dtype), tokens = (size_t)d->b.qo_indptr[d->b.n_requests];
    for (size_t token = 0; token < tokens; token++)
        for (size_t head = 0; head < (size_t)s->num_qo_heads; head++) {
            const size_t at = token * (size_t)d->t.o_stride.token + head * (size_t)d->t.o_stride.head;
            for (size_t i = at; i < at + (size_t)s->head_dim_vo; i++)
                o[i] = widen(s->q_dtype, raw, i);
            memset(raw + at * bytes, POISON, (size_t)s->head_dim_vo * bytes);
        }
    for (size_t i = 0; i < d->t.o_elements * bytes; i++)
        if (raw[i] != POISON)
            return status_fail(why, STATUS_MISMATCH, "kernels wrote outside the rows of O, at element %zu", i / bytes);
    return STATUS_OK;
}

extern "C" enum status cuda_execute(struct cuda_device *d, float *o, float *lse, struct why *why)
{
    const struct shape *s = &d->b.shape;
    const size_t o_bytes = d->t.o_elements * (size_t)dtype_bytes(s->q_dtype),
                 rows = (size_t)d->b.qo_indptr[d->b.n_requests] * (size_t)s->num_qo_heads;
    if (!d->p.ready) return status_fail(why, STATUS_INTERNAL, "cuda_execute: no plan prepared");
    CUDA_TRY(cudaMemsetAsync(d->x.o, POISON, o_bytes, d->stream));
    CUDA_TRY(cudaMemsetAsync(d->x.lse, POISON, rows * sizeof(float), d->stream));
    if (d->p.partial_rows) {
        const struct view *x = &d->p.launches[0].l.x;
        CUDA_TRY(cudaMemsetAsync(x->partial_o, POISON, d->p.partial_rows * (size_t)s->head_dim_vo * sizeof(float),
                                 d->stream));
        CUDA_TRY(cudaMemsetAsync(x->partial_lse, POISON, d->p.partial_rows * sizeof(float), d->stream));
    }
    if (d->p.item_spans) { /* end 0: did not run */
        CUDA_TRY(cudaMemsetAsync(d->p.item_spans, 0, (size_t)d->p.n_items * sizeof(struct view_span), d->stream));
        CUDA_TRY(cudaMemsetAsync(d->p.merge_spans, 0, (size_t)d->p.n_merges * sizeof(struct view_span), d->stream));
    }
    if (d->p.graph) CUDA_TRY(cudaGraphLaunch(d->p.graph, d->stream));
    CUDA_TRY(cudaStreamSynchronize(d->stream));
    unsigned char *raw = (unsigned char *)malloc(o_bytes + 1);
    if (!raw) return status_fail(why, STATUS_NO_MEMORY, "cuda_execute: out of memory");
    cudaError_t error = cudaMemcpy(raw, d->x.o, o_bytes, cudaMemcpyDeviceToHost);
    if (error == cudaSuccess) error = cudaMemcpy(lse, d->x.lse, rows * sizeof(float), cudaMemcpyDeviceToHost);
    const enum status status =
        error == cudaSuccess ? take_rows(d, raw, o, why) : exec_fail(why, error, "download of the results");
    free(raw);
    return status;
}
