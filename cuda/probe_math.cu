/* Arithmetic: mma.sync, fp32 FMA, ex2, from registers alone. */
#include "cuda/mma.cuh"
#include "cuda/probe_internal.h"

enum { ROUNDS = 4096, CHAINS = 8, MMA_FLOPS = 2 * 16 * 8 * 16 };

/* CHAINS independent products a warp, each feeding itself. */
__global__ void probe_mma(uint32_t *out)
{
    float c[CHAINS][4];
    uint32_t a[4], b0 = 0x3c003c00u + threadIdx.x, b1 = 0x3c013c00u;
    for (int i = 0; i < 4; i++)
        a[i] = 0x38003800u + threadIdx.x * 4 + i;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        c[i][0] = c[i][1] = c[i][2] = c[i][3] = (float)i;
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            mma_product(__nv_bfloat16(), c[i], a, b0, b1);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == 0.123f) out[0] = 1;
}

__global__ void probe_fma(uint32_t *out, float x)
{
    float c[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        c[i] = (float)(threadIdx.x + i);
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            c[i] = fmaf(c[i], x, x);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += c[i];
    if (sum == 0.123f) out[0] = 1;
}

__global__ void probe_exp2(uint32_t *out)
{
    float c[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        c[i] = -(float)(threadIdx.x + i) / 64;
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            c[i] = mma_exp2(c[i]);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += c[i];
    if (sum == 0.123f) out[0] = 1;
}

struct arithmetic {
    int32_t kind, ctas, warps;
};
enum { KIND_MMA, KIND_FMA, KIND_EXP2 };

static enum status math_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const struct arithmetic *a = (const struct arithmetic *)args;
    const unsigned ctas = (unsigned)a->ctas, threads = 32u * (unsigned)a->warps;
    const double steps = (double)a->ctas * a->warps * ROUNDS * CHAINS;
    double ns;
    TRY(probe_begin(b, why));
    if (a->kind == KIND_MMA)
        probe_mma<<<ctas, threads, 0, b->stream>>>(b->sink);
    else if (a->kind == KIND_FMA)
        probe_fma<<<ctas, threads, 0, b->stream>>>(b->sink, 0.5f);
    else
        probe_exp2<<<ctas, threads, 0, b->stream>>>(b->sink);
    CUDA_TRY(cudaGetLastError());
    TRY(probe_end(b, &ns, why));
    *value = steps * (a->kind == KIND_MMA ? MMA_FLOPS : a->kind == KIND_FMA ? 64 : 32) / ns;
    return STATUS_OK;
}

enum status probe_math(struct probe_bench *b, struct probe *out, struct why *why)
{
    for (int32_t warps = 1; warps <= 32; warps *= 2) {
        const struct arithmetic a = {KIND_MMA, b->sms, warps};
        struct probe_curve *c = &out->mma_by_warps;
        c->x[c->n] = warps;
        TRY(probe_figure_of(b, math_once, &a, &c->y[c->n], why));
        c->n++;
    }
    const struct arithmetic one = {KIND_MMA, 1, 8}, fma = {KIND_FMA, 2 * b->sms, 32}, exp2 = {KIND_EXP2, 2 * b->sms, 32};
    TRY(probe_figure_of(b, math_once, &one, &out->mma_one_sm, why));
    TRY(probe_figure_of(b, math_once, &fma, &out->fma, why));
    return probe_figure_of(b, math_once, &exp2, &out->exp2, why);
}
