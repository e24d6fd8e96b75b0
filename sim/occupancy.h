/* occupancy: how many CTAs of a kernel fit on an SM. The CUDA occupancy rules restated (registers by warp and
 * sub-partition, shared memory by granule and carve-out, threads, slots, named barriers). */
#ifndef TANDEM_SIM_OCCUPANCY_H
#define TANDEM_SIM_OCCUPANCY_H

#include "sched/gpu.h"
#include "sched/kernel.h"

/* What one CTA asks for. */
struct cta_shape {
    int32_t threads;
    int32_t registers; /* a thread */
    int32_t static_smem_bytes;
    int32_t dynamic_smem_bytes;
    int32_t max_dynamic_smem_bytes; /* the attribute; normally = dynamic_smem_bytes */
    int32_t carveout;               /* -1 = driver's choice, else percent of the SM's shared memory */
    int32_t barriers;               /* named barriers, at least 1 */
};

/* Each limit on its own (INT32_MAX = does not limit) and their minimum. */
struct occupancy {
    int32_t by_warps, by_registers, by_smem, by_slots, by_barriers;
    int32_t ctas_per_sm;
};

/* Formula and worked examples: sim/occupancy.c. */
struct occupancy occupancy_of(const struct gpu *gpu, const struct cta_shape *cta);

/* The CTA a kernel row launches, for a head shape with K/V tiles of tile_kv keys. */
struct cta_shape occupancy_cta(const struct kernel *k, const struct shape *shape, int32_t tile_kv);

/* Makes every kernel row concrete for (gpu, shape): tile_kv that fits, shared memory, occupancy, rates. Rows
 * that cannot launch on this GPU have ctas_per_sm = 0 (and otherwise valid numbers). */
void kernels_resolve(const struct gpu *gpu, const struct shape *shape, struct kernels *out);

#endif
