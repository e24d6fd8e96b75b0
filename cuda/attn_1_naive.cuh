/* attn_1_naive: step 1 of the ladder: one warp a row, one key at a time, every feature of the reference. Obviously
 * right rather than fast: it runs what no faster kernel takes, and judges those on batches too large for the oracle.
 *
 * In the common subset of C11 and CUDA C++: the whole kernel runs on the CPU too, a fiber a thread (tests/).
 *
 *   item rows   0 1 2 3 4 5 6 ...     CTA of 4 warps: warp w takes rows w, w + 4, ... */
#ifndef TANDEM_CUDA_ATTN_1_NAIVE_CUH
#define TANDEM_CUDA_ATTN_1_NAIVE_CUH

#include "cuda/draw.h"
#include "cuda/merge_math.h"
#include "cuda/walk.h"
#include "cuda/worker.cuh"

/* Sum over the warp; all lanes get it. */
static __device__ __forceinline__ float attn_1_sum(float x)
{
    for (int32_t m = 16; m > 0; m >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

/* Element d of a row of Q or K as the dot product takes it: rotated by RoPE where the batch says so. Angles in double:
 * positions times frequencies lose too much in fp32. */
static __device__ __forceinline__ float attn_1_element(const struct view *x, int type, const void *base, int64_t at,
                                                       int32_t d, int32_t position)
{
    const int32_t dim = batch_rope_dim(&x->b);
    if (d >= dim) return number_load(type, base, at + d);
    const bool interleaved = x->b.rope.kind == ROPE_INTERLEAVED;
    const int32_t pair = interleaved ? d / 2 : d % (dim / 2);
    const int32_t first = interleaved ? 2 * pair : pair, second = interleaved ? first + 1 : pair + dim / 2;
    const double theta = x->b.rope.theta > 0 ? x->b.rope.theta : 10000.0;
    const double scale = x->b.rope.scale > 0 ? x->b.rope.scale : 1.0;
    const double angle = position / scale * pow(theta, -2.0 * pair / dim);
    const double a = number_load(type, base, at + first), b = number_load(type, base, at + second);
    return (float)(d == first ? a * cos(angle) - b * sin(angle) : a * sin(angle) + b * cos(angle));
}

#define ATTN_1_ROW  attn_1_row_128
#define ATTN_1_ITEM attn_1_item_128
#define ATTN_1_REGS 4
#include "cuda/attn_1_row.h"
#undef ATTN_1_ROW
#undef ATTN_1_ITEM
#undef ATTN_1_REGS
#define ATTN_1_ROW  attn_1_row_1024
#define ATTN_1_ITEM attn_1_item_1024
#define ATTN_1_REGS 32
#include "cuda/attn_1_row.h"
#undef ATTN_1_ROW
#undef ATTN_1_ITEM
#undef ATTN_1_REGS

/* As worker_attn: heads up to 128, up to 1024. */
static __device__ void attn_1_128(const struct view_launch *l, const struct item *item, int32_t role,
                                  const struct team *t)
{
    attn_1_item_128(&l->x, item, l->g.row_order[role], t->thread / 32, t->threads / 32, t->thread % 32);
}

static __device__ void attn_1_1024(const struct view_launch *l, const struct item *item, int32_t role,
                                   const struct team *t)
{
    attn_1_item_1024(&l->x, item, l->g.row_order[role], t->thread / 32, t->threads / 32, t->thread % 32);
}

#endif
