#include "sim/occupancy.h"

#include <string.h>

/* The rules of NVIDIA's cuda_occupancy.h (CUDA 13.0), restated. Worked example, sm_90: 384 threads x 168
 * registers, 225 KB: warps     12 of 64                          -> 5 registers 32 x 168 = 5376 a warp; a
 * sub-partition of 16384 holds 3 warps, 4 of them 12 warps -> 1 memory    225 KB + 1 KB reserved of 228 KB ->
 * 1                                        => 1 CTA an SM */

enum {
    WARP = 32,
    MAX_THREADS_PER_CTA = 1024,
    SUB_PARTITIONS = 4,
    WARP_REGISTER_UNIT = 256,
    SMEM_UNIT_BYTES = 128,
    SMEM_RESERVED_BYTES = 1024,
    SMEM_DEFAULT_BYTES = 49152 /* without the opt-in attribute */
};

static int64_t round_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* Smallest carve-out that holds x, 0 when none does. */
static int64_t snap_smem(const struct gpu *gpu, int64_t x)
{
    for (int32_t i = 0; i < gpu->n_smem_sizes; i++)
        if (gpu->smem_sizes_bytes[i] >= x) return gpu->smem_sizes_bytes[i];
    return 0;
}

static int32_t by_registers(const struct gpu *gpu, const struct cta_shape *cta, int32_t warps)
{
    const int64_t per_warp = round_up((int64_t)WARP * cta->registers, WARP_REGISTER_UNIT);
    if (cta->registers > 256 || per_warp * round_up(warps, SUB_PARTITIONS) > gpu->registers_per_sm) return 0;
    if (per_warp == 0) return INT32_MAX;
    return (int32_t)(SUB_PARTITIONS * (gpu->registers_per_sm / SUB_PARTITIONS / per_warp) / warps);
}

static int32_t by_smem(const struct gpu *gpu, const struct cta_shape *cta)
{
    const int64_t used = round_up(
        (int64_t)cta->static_smem_bytes + cta->dynamic_smem_bytes + SMEM_RESERVED_BYTES, SMEM_UNIT_BYTES);
    const int64_t asked = (int64_t)cta->static_smem_bytes + SMEM_RESERVED_BYTES + cta->max_dynamic_smem_bytes;
    const int64_t limit = SMEM_RESERVED_BYTES +
                          (int64_t)(asked > SMEM_DEFAULT_BYTES ? gpu->smem_optin_bytes : SMEM_DEFAULT_BYTES);
    if (cta->dynamic_smem_bytes > cta->max_dynamic_smem_bytes || used > limit) return 0;
    const int64_t wanted = cta->carveout < 0
                               ? gpu->smem_per_sm_bytes
                               : snap_smem(gpu, (int64_t)cta->carveout * gpu->smem_per_sm_bytes / 100);
    return (int32_t)((wanted >= used ? wanted : snap_smem(gpu, used)) / used);
}

struct occupancy occupancy_of(const struct gpu *gpu, const struct cta_shape *cta)
{
    struct occupancy o = {0, 0, 0, 0, 0, 0};
    if (cta->threads < 1 || cta->threads > MAX_THREADS_PER_CTA) return o;
    const int32_t warps = (cta->threads + WARP - 1) / WARP;
    o.by_warps = gpu->max_threads_per_sm / WARP / warps;
    o.by_registers = by_registers(gpu, cta, warps);
    o.by_smem = by_smem(gpu, cta);
    o.by_slots = gpu->max_ctas_per_sm;
    o.by_barriers = INT32_MAX;
    if (gpu->cc_major >= 9 && cta->barriers > 0)
        o.by_barriers =
            clamp_i32((int64_t)gpu->barrier_factor * gpu->max_ctas_per_sm / cta->barriers, 0, INT32_MAX);
    const int32_t limits[] = {o.by_warps, o.by_registers, o.by_smem, o.by_slots, o.by_barriers};
    o.ctas_per_sm = INT32_MAX;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i] < o.ctas_per_sm) o.ctas_per_sm = limits[i];
    return o;
}

struct cta_shape occupancy_cta(const struct kernel *k, const struct shape *shape, int32_t tile_kv)
{
    const int64_t smem = kernel_smem_bytes(k, shape, tile_kv);
    const int32_t bytes =
        smem > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)smem; /* "does not fit" either way */
    return (struct cta_shape){.threads = k->threads,
                              .registers = k->registers,
                              .dynamic_smem_bytes = bytes,
                              .max_dynamic_smem_bytes = bytes,
                              .carveout = -1,
                              .barriers = 1};
}
