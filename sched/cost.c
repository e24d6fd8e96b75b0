#include "sched/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Bytes of K and V of one token, for one kv head. */
static double kv_token_bytes(const struct shape *s)
{
    return (double)shape_key_bytes(s);
}

/* Bytes of Q read and of O (or of an fp32 partial and its LSE) written for one row. */
static double row_bytes(const struct shape *s, bool partial)
{
    const double q = (double)s->head_dim_qk * dtype_bytes(s->q_dtype);
    const double o = partial ? 4.0 * (s->head_dim_vo + 1) : (double)s->head_dim_vo * dtype_bytes(s->q_dtype);
    return q + o;
}

/* max(pipe time, memory time); a rate of 0 (no such pipe) bounds nothing. */
static double alone_ns(const struct kernel_fit *fit, double flops, double bytes)
{
    const double pipe = fit->cta_flops_per_ns > 0 ? flops / fit->cta_flops_per_ns : 0;
    const double memory = fit->cta_bytes_per_ns > 0 ? bytes / fit->cta_bytes_per_ns : 0;
    return pipe > memory ? pipe : memory;
}

struct cost cost_rect(const struct shape *shape, const struct kernels *kernels, enum kernel_id k,
                      int64_t n_rows, int64_t n_keys, bool partial)
{
    const struct kernel *row = kernel_row(k);
    const struct kernel_fit *fit = &kernels->fit[k];
    const int64_t row_tiles = ceil_div(n_rows, row->tile_q);
    const int64_t kv_tiles = ceil_div(n_keys, fit->tile_kv);
    /* A tensor-core tile does its padding rows too; CUDA-core code works on real rows only. */
    const int64_t rows_done = row->math == MATH_FMA ? n_rows : row_tiles * row->tile_q;
    struct cost c = {0};
    c.issued_flops = 2.0 * (shape->head_dim_qk + shape->head_dim_vo) * (double)rows_done *
                     (double)(kv_tiles * fit->tile_kv);
    c.kv_bytes = kv_token_bytes(shape) * (double)n_keys * (double)row_tiles;
    c.row_bytes = row_bytes(shape, partial) * (double)n_rows;
    c.ns = alone_ns(fit, c.issued_flops, c.kv_bytes + c.row_bytes);
    return c;
}

struct cost cost_item(const struct plan *p, const struct batch *b, const struct kernels *kernels,
                      const struct item *item)
{
    const enum kernel_id k = (enum kernel_id)item->kernel;
    const int32_t tile_q = kernel_row(k)->tile_q;
    const bool partial = item->partial >= 0;
    if (item->row_end - item->row_begin <= tile_q) {
        const struct range keys = plan_item_keys(p, b, item);
        return cost_rect(&b->shape, kernels, k, item->row_end - item->row_begin, keys.end - keys.begin,
                         partial);
    }
    /* Taller than the kernel's tile: the CTA walks row tiles one after another, each against its own keys. */
    struct cost sum = {0};
    struct item tile = *item;
    for (int32_t row = item->row_begin; row < item->row_end; row = tile.row_end) {
        tile.row_begin = row;
        tile.row_end = item->row_end - row < tile_q ? item->row_end : row + tile_q;
        const struct cost c = cost_item(p, b, kernels, &tile);
        sum.ns += c.ns;
        sum.issued_flops += c.issued_flops;
        sum.kv_bytes += c.kv_bytes;
        sum.row_bytes += c.row_bytes;
    }
    return sum;
}

struct cost cost_merge(const struct plan *p, const struct batch *b, const struct kernels *kernels, int32_t m)
{
    const struct merge *merge = &p->merges[m];
    const double rows = merge->row_end - merge->row_begin;
    const double sources = p->merge_indptr[m + 1] - p->merge_indptr[m];
    struct cost c = {0};
    c.row_bytes = rows * (sources * 4.0 * (b->shape.head_dim_vo + 1) +
                          (double)b->shape.head_dim_vo * dtype_bytes(b->shape.q_dtype));
    c.ns = alone_ns(&kernels->fit[KERNEL_MERGE], 0, c.row_bytes);
    return c;
}

/* Visible (row, key) pairs of one request, in closed form where the mask allows it.
 * Without a window, token i sees clamp(kv_len - qo_len + i + 1, 0, kv_len) keys: an arithmetic series that
 * starts at token max(0, qo_len - kv_len). Example: qo_len 3, kv_len 5 causal -> 3 + 4 + 5 = 12. */
static double visible_pairs(const struct batch *b, int32_t r)
{
    const int64_t qo_len = batch_qo_len(b, r), kv_len = b->kv_len[r];
    if (b->mask.window_left >= 0) {
        double pairs = 0;
        for (int32_t i = 0; i < qo_len; i++) {
            const struct range v = batch_visible(b, r, i);
            pairs += v.end - v.begin;
        }
        return pairs;
    }
    if (!b->mask.causal) return (double)qo_len * (double)kv_len;
    const int64_t rows = qo_len < kv_len ? qo_len : kv_len; /* rows that see anything */
    const int64_t first = kv_len - rows + 1;
    return (double)rows * (double)(first + kv_len) / 2;
}

double cost_batch_flops(const struct batch *b)
{
    double pairs = 0;
    for (int32_t r = 0; r < b->n_requests; r++)
        pairs += visible_pairs(b, r);
    return pairs * 2.0 * (b->shape.head_dim_qk + b->shape.head_dim_vo) * b->shape.num_qo_heads;
}

/* Tokens of distinct physical pages that some row of the batch sees. A page that several requests hold counts
 * with the longest of their stretches (a lower bound of the union, as a floor must be). */
static double unique_kv_tokens(const struct batch *b)
{
    int32_t *used = calloc((size_t)b->kv.num_pages + 1, sizeof *used);
    double tokens = 0;
    if (!used) return NAN;
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int32_t qo_len = batch_qo_len(b, r);
        if (qo_len == 0) continue;
        const int32_t begin = batch_visible(b, r, 0).begin, end = batch_visible(b, r, qo_len - 1).end;
        for (int32_t key = begin; key < end;) {
            const int32_t index = key / b->kv.page_size;
            const int64_t next = ((int64_t)index + 1) * b->kv.page_size;
            const int32_t stop = next < end ? (int32_t)next : end;
            int32_t *page = &used[b->kv.kv_indices[b->kv.kv_indptr[r] + index]];
            if (stop - key > *page) {
                tokens += stop - key - *page;
                *page = stop - key;
            }
            key = stop;
        }
    }
    free(used);
    return tokens;
}

double cost_batch_unique_bytes(const struct batch *b)
{
    const double rows = (double)b->qo_indptr[b->n_requests] * b->shape.num_qo_heads;
    return unique_kv_tokens(b) * b->shape.num_kv_heads * kv_token_bytes(&b->shape) +
           rows * row_bytes(&b->shape, false);
}

double cost_limit_ns(const struct batch *b, const struct gpu *gpu)
{
    const double compute = cost_batch_flops(b) / (gpu->peak_flops_per_ns * gpu_dtype_rate(b->shape.q_dtype));
    const double memory = cost_batch_unique_bytes(b) / gpu->peak_hbm_bytes_per_ns;
    if (isnan(memory)) return memory;
    return compute > memory ? compute : memory;
}
