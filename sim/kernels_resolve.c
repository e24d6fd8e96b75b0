/* kernels_resolve: the kernel table made concrete for a GPU and a head shape. Declared in occupancy.h. */
#include "sim/occupancy.h"

#include <string.h>

enum { MIN_TILE_KV = 8, FUSED_TILE_KV = 128 };

/* Most keys a step that still fits the opt-in limit; public kernels step down by powers of two as well. */
static int32_t fit_tile_kv(const struct gpu *gpu, const struct kernel *k, const struct shape *shape)
{
    int32_t tile = k->role == ROLE_FUSED ? FUSED_TILE_KV : k->tile_kv;
    while (tile / 2 >= MIN_TILE_KV && kernel_smem_bytes(k, shape, tile) > gpu->smem_optin_bytes)
        tile /= 2;
    return tile > 0 ? tile : 1;
}

/* Bytes a CTA keeps in flight: the K and V tiles it is waiting for. With one stage the K tile's buffer is
 * filled while V is used and the other way round, so one of the two is in flight on average; more stages add
 * whole pairs. */
static double bytes_in_flight(const struct kernel *k, const struct shape *shape, int32_t tile_kv)
{
    const double pair = (double)tile_kv * (double)shape_key_bytes(shape);
    if (k->role == ROLE_MERGE) return 16.0 * k->threads * 4; /* 4 vector loads a thread */
    return pair * (k->stages - 0.5);
}

static void resolve_rates(const struct gpu *gpu, const struct kernel *k, const struct shape *shape,
                          struct kernel_fit *fit)
{
    const double peak_sm = gpu->peak_flops_per_ns * gpu_dtype_rate(shape->q_dtype) / gpu->sm_count;
    /* cta_flops_frac is a CTA of 4 warps, one on each sub-partition's tensor pipe: fewer warps, fewer pipes
     */
    const double pipes = k->math == MATH_MMA_SYNC && k->threads < 128 ? k->threads / 128.0 : 1.0;
    fit->sm_flops_per_ns = gpu->flops_frac[k->math] * peak_sm;
    fit->cta_flops_per_ns = gpu->cta_flops_frac[k->math] * pipes * peak_sm;
    if (fit->cta_flops_per_ns > fit->sm_flops_per_ns) fit->cta_flops_per_ns = fit->sm_flops_per_ns;
    fit->cta_bytes_per_ns = bytes_in_flight(k, shape, fit->tile_kv) / gpu->memory_latency_ns;
    if (fit->cta_bytes_per_ns > gpu->sm_bytes_per_ns) fit->cta_bytes_per_ns = gpu->sm_bytes_per_ns;
}

void kernels_resolve(const struct gpu *gpu, const struct shape *shape, struct kernels *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < KERNEL_COUNT; i++) {
        const struct kernel *k = kernel_row((enum kernel_id)i);
        struct kernel_fit *fit = &out->fit[i];
        fit->tile_kv = fit_tile_kv(gpu, k, shape);
        const struct cta_shape cta = occupancy_cta(k, shape, fit->tile_kv);
        fit->smem_bytes = cta.dynamic_smem_bytes;
        if (10 * (int64_t)gpu->cc_major + gpu->cc_minor >= k->min_cc)
            fit->ctas_per_sm = occupancy_of(gpu, &cta).ctas_per_sm;
        if (k->role != ROLE_FUSED) resolve_rates(gpu, k, shape, fit);
    }
}
