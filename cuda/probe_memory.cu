/* Memory: latencies by dependent loads, bandwidth by bytes in flight, by SMs, by footprint. */
#include "cuda/probe_internal.h"

#include <math.h>

/* ---- latency ----------------------------------------------------------------------------------------------------- */

enum { LINE = 128, HOPS = 4096 };

/* Line i names line (i + step) mod n: an odd step near 0.618 n visits all, far apart. */
__global__ void probe_link(char *memory, uint32_t n, uint32_t step)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        *(uint32_t *)(memory + (size_t)i * LINE) = (i + step) & (n - 1);
}

__global__ void probe_chase(const char *memory, uint32_t *out, int32_t warm)
{
    uint32_t at = 0;
    for (int32_t i = 0; i < warm; i++)
        at = __ldcg((const uint32_t *)(memory + (size_t)at * LINE));
    const long long start = clock64();
    uint64_t begin, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
    for (int32_t i = 0; i < HOPS; i++)
        at = __ldcg((const uint32_t *)(memory + (size_t)at * LINE));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
    out[0] = at;
    out[1] = (uint32_t)(end - begin);
    out[2] = (uint32_t)(clock64() - start);
}

/* args: lines of the footprint, a power of two. */
static enum status latency_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const uint32_t n = *(const uint32_t *)args, step = (uint32_t)(0.618 * n) | 1;
    const bool cached = (size_t)n * LINE <= (size_t)b->d->properties.l2CacheSize / 4;
    uint32_t got[3];
    probe_link<<<1024, 256, 0, b->stream>>>(b->memory, n, step);
    if (!cached) CUDA_TRY(cudaMemsetAsync(b->d->flush, 1, b->d->flush_bytes, b->stream));
    probe_chase<<<1, 1, 0, b->stream>>>(b->memory, b->sink, cached ? (int32_t)n : 0);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaStreamSynchronize(b->stream));
    CUDA_TRY(cudaMemcpy(got, b->sink, sizeof got, cudaMemcpyDeviceToHost));
    *value = (double)got[1] / HOPS;
    return STATUS_OK;
}

/* ---- bandwidth --------------------------------------------------------------------------------------------------- */

/* Reads `bytes` once in all, `rounds` times over: each thread U loads of 16 bytes in flight. */
template <int U> __global__ void probe_read(const uint4 *memory, size_t n, int32_t rounds, uint32_t *out)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    uint32_t x = 0;
    for (int32_t round = 0; round < rounds; round++)
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i + (U - 1) * stride < n; i += U * stride) {
            uint4 v[U];
#pragma unroll
            for (int u = 0; u < U; u++)
                asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v[u].x), "=r"(v[u].y), "=r"(v[u].z), "=r"(v[u].w)
                             : "l"(memory + i + u * stride));
#pragma unroll
            for (int u = 0; u < U; u++)
                x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
    if (x == 0x12345678) out[0] = x;
}

struct reading {
    int32_t sms, threads, loads, rounds;
    size_t bytes;
};

static enum status read_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const struct reading *r = (const struct reading *)args;
    /* one CTA an SM: 120 KB of shared memory each */
    const size_t smem = 120 << 10, n = r->bytes / 16;
    const void *kernel = r->loads == 8   ? (const void *)probe_read<8>
                         : r->loads == 4 ? (const void *)probe_read<4>
                                         : (const void *)probe_read<1>;
    const uint4 *memory = (const uint4 *)b->memory;
    int32_t rounds = r->rounds;
    uint32_t *out = b->sink;
    void *params[] = {(void *)&memory, (void *)&n, (void *)&rounds, (void *)&out};
    double ns;
    const bool fits = smem <= b->d->properties.sharedMemPerBlockOptin;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fits ? (int)smem : 0));
    CUDA_TRY(cudaMemsetAsync(b->d->flush, 1, b->d->flush_bytes, b->stream));
    TRY(probe_begin(b, why));
    CUDA_TRY(cudaLaunchKernel(kernel, dim3((unsigned)r->sms), dim3((unsigned)r->threads), params, fits ? smem : 0,
                              b->stream));
    TRY(probe_end(b, &ns, why));
    *value = (double)r->bytes * r->rounds / ns;
    return STATUS_OK;
}

static enum status add_point(struct probe_bench *b, const struct reading *r, double x, struct probe_curve *c,
                             struct why *why)
{
    if (c->n == PROBE_POINTS) return STATUS_OK;
    c->x[c->n] = x;
    TRY(probe_figure_of(b, read_once, r, &c->y[c->n], why));
    c->n++;
    return STATUS_OK;
}

static enum status bandwidths(struct probe_bench *b, struct probe *out, struct why *why)
{
    static const int32_t shapes[][2] = {{32, 1},  {32, 4},  {64, 4},  {128, 4},
                                        {256, 4}, {512, 4}, {1024, 4}, {1024, 8}};
    static const int32_t sms[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128};
    static const int32_t mb[] = {1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 256};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct reading r = {b->sms, shapes[i][0], shapes[i][1], 1, b->bytes / (i < 3 ? 8 : 1)};
        TRY(add_point(b, &r, 16.0 * shapes[i][0] * shapes[i][1], &out->hbm_by_bytes, why));
    }
    for (size_t i = 0; i < sizeof sms / sizeof sms[0]; i++) {
        const struct reading r = {sms[i], 1024, 8, 1, b->bytes / (sms[i] < 16 ? 16 : 1)};
        if (sms[i] < b->sms) TRY(add_point(b, &r, sms[i], &out->hbm_by_sms, why));
    }
    const struct reading all = {b->sms, 1024, 8, 1, b->bytes};
    TRY(add_point(b, &all, b->sms, &out->hbm_by_sms, why));
    for (size_t i = 0; i < sizeof mb / sizeof mb[0]; i++) {
        const struct reading r = {b->sms, 1024, mb[i] < 24 ? 1 : 4, 2048 / mb[i] + 1, (size_t)mb[i] << 20};
        if (r.bytes <= b->bytes) TRY(add_point(b, &r, (double)r.bytes, &out->l2_by_bytes, why));
    }
    return STATUS_OK;
}

/* B = most x / (1 + x^p)^(1/p): least squares over p, `most` the best point (hardware model of the simulator). */
static void fit(struct probe *out)
{
    const struct probe_curve *c = &out->hbm_by_bytes;
    double best = INFINITY;
    for (int32_t i = 0; i < out->hbm_by_sms.n; i++)
        if (out->hbm_by_sms.y[i].value > out->hbm_most) out->hbm_most = out->hbm_by_sms.y[i].value;
    for (int32_t i = 0; i < c->n; i++)
        if (c->y[i].value > out->hbm_most) out->hbm_most = c->y[i].value;
    for (double p = 1; p <= 12; p += 0.05) {
        double error = 0;
        for (int32_t i = 0; i < c->n; i++) {
            const double x = c->x[i] * out->card.sm_count / (out->hbm_latency_ns.value * out->hbm_most);
            const double y = out->hbm_most * x / pow(1 + pow(x, p), 1 / p) / c->y[i].value - 1;
            error += y * y;
        }
        if (error >= best) continue;
        best = error;
        out->hbm_power = p;
    }
}

enum status probe_memory(struct probe_bench *b, struct probe *out, struct why *why)
{
    const uint32_t far = (uint32_t)(b->bytes / 4 / LINE), near = (2u << 20) / LINE;
    const struct reading one = {1, 256, 4, 1, b->bytes / 64};
    struct probe_figure rate;
    TRY(probe_figure_of(b, latency_once, &far, &out->hbm_latency_ns, why));
    TRY(probe_figure_of(b, latency_once, &near, &out->l2_latency_ns, why));
    TRY(probe_figure_of(b, read_once, &one, &rate, why));
    out->stream_latency_ns.value = 16.0 * one.threads * one.loads / rate.value;
    out->stream_latency_ns.spread = rate.spread;
    TRY(bandwidths(b, out, why));
    out->card.sm_count = b->sms;
    fit(out);
    return STATUS_OK;
}
