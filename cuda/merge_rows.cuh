/* merge_rows: partial rows into output rows, one warp a row, sources in list order, so the bits are the same whoever
 * merges: the merge grid or the last item to arrive. In the common subset of C11 and CUDA C++. */
#ifndef TANDEM_CUDA_MERGE_ROWS_CUH
#define TANDEM_CUDA_MERGE_ROWS_CUH

#include "cuda/draw.h"
#include "cuda/merge_math.h"
#include "cuda/walk.h"

/* Reads what other CTAs wrote in the same launch: past the SM's own cache. */
static __device__ __forceinline__ float merge_read(const float *p)
{
#if defined(__CUDACC__)
    return __ldcg(p);
#else
    return *p;
#endif
}

static __device__ __forceinline__ float merge_warp_max(float x)
{
    for (int32_t k = 16; k > 0; k >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, x, k);
        if (other > x) x = other;
    }
    return x;
}

static __device__ __forceinline__ float merge_warp_sum(float x)
{
    for (int32_t k = 16; k > 0; k >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

/* Largest LSE of row i's sources, and the sum of their weights: lane l looks at sources l, l + 32, ... */
static __device__ __forceinline__ float merge_max_sum(const struct view *x, const int32_t *src, int32_t n, int32_t i,
                                                      int32_t lane, float *sum)
{
    float max = -INFINITY, part = 0;
    for (int32_t k = lane; k < n; k += 32) {
        const float lse = merge_read(&x->partial_lse[src[k] + i]);
        if (lse > max) max = lse;
    }
    max = merge_warp_max(max);
    for (int32_t k = lane; k < n; k += 32)
        part += merge_weight(merge_read(&x->partial_lse[src[k] + i]), max);
    *sum = merge_warp_sum(part);
    return max;
}

/* Elements d0 + lane + 32 j of row i: 32 sources' weights at a time, one a lane. */
static __device__ __forceinline__ void merge_block(const struct view *x, const int32_t *src, int32_t n, int32_t i,
                                                   int32_t lane, float max, int32_t d0, float acc[4])
{
    const int32_t dv = x->b.shape.head_dim_vo;
    acc[0] = acc[1] = acc[2] = acc[3] = 0;
    for (int32_t k0 = 0; k0 < n; k0 += 32) {
        const int32_t mine = k0 + lane < n ? src[k0 + lane] + i : 0, left = n - k0 < 32 ? n - k0 : 32;
        const float weight = k0 + lane < n ? merge_weight(merge_read(&x->partial_lse[mine]), max) : 0.0f;
        for (int32_t k = 0; k < left; k++) {
            const float w = __shfl_sync(0xffffffffu, weight, k);
            const float *row = x->partial_o + (int64_t)__shfl_sync(0xffffffffu, mine, k) * dv;
            for (int32_t j = 0; j < 4; j++) {
                const int32_t d = d0 + lane + 32 * j;
                if (d < dv) acc[j] += w * merge_read(&row[d]);
            }
        }
    }
}

static __device__ void merge_row(const struct view *x, int32_t m, int32_t i, int32_t lane)
{
    const struct merge *merge = &x->merges[m];
    const struct shape *s = &x->b.shape;
    const int32_t *src = x->merge_src + x->merge_indptr[m], n = x->merge_indptr[m + 1] - x->merge_indptr[m];
    struct item rows; /* a merge's rows are packed like an item's */
    rows.group = merge->request;
    rows.kv_head = merge->kv_head;
    rows.kv_begin = rows.kv_end = 0;
    const struct walk_row r = walk_item_row(x, &rows, merge->row_order, merge->row_begin + i);
    float sum, factor, acc[4];
    const float max = merge_max_sum(x, src, n, i, lane, &sum);
    const float lse = merge_finish(max, sum, x->b.mask.sink ? x->b.mask.sink + r.head : NULL, &factor);
    const int64_t at = walk_row_offset(x->o_rows, r.token, r.head);
    for (int32_t d0 = 0; d0 < s->head_dim_vo; d0 += 128) {
        merge_block(x, src, n, i, lane, max, d0, acc);
        for (int32_t j = 0; j < 4; j++)
            if (d0 + lane + 32 * j < s->head_dim_vo)
                number_store(s->q_dtype, x->o, at + d0 + lane + 32 * j, acc[j] * factor);
    }
    if (lane == 0) x->lse[(int64_t)r.token * s->num_qo_heads + r.head] = lse;
}

/* All rows of a merge, dealt to `warps` warps. */
static __device__ void merge_rows(const struct view *x, int32_t m, int32_t warp, int32_t warps, int32_t lane)
{
    const struct merge *merge = &x->merges[m];
    for (int32_t i = warp; i < merge->row_end - merge->row_begin; i += warps)
        merge_row(x, m, i, lane);
}

#endif
