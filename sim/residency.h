/* residency: what still fits on an SM that holds CTAs of different kernels. For equal CTAs it agrees with
 * occupancy_of.
 *
 * Registers are the one resource that does not simply add: they are dealt to warps in four sub-partitions. A
 * kernel with R = 4 floor(16384 / registers of a warp) warps to an SM spends w / R of the register file on a
 * CTA of w warps; CTAs fit while these shares sum to at most 1, which for equal CTAs is the quotient rule
 * floor(R / w). */
#ifndef TANDEM_SIM_RESIDENCY_H
#define TANDEM_SIM_RESIDENCY_H

#include "sched/gpu.h"
#include "sched/kernel.h"

/* What one CTA takes. */
struct footprint {
    int32_t warps;
    int32_t smem_bytes; /* with the driver's reserve, rounded */
    double register_frac;
};

/* What the CTAs on an SM take together. */
struct sm_use {
    int32_t warps, smem_bytes, ctas;
    double register_frac;
};

struct footprint residency_footprint(const struct gpu *gpu, const struct kernel *k,
                                     const struct kernel_fit *fit);

/* How many more CTAs of this footprint fit. */
int32_t residency_room(const struct gpu *gpu, const struct sm_use *use, const struct footprint *f);

static inline void residency_add(struct sm_use *use, const struct footprint *f)
{
    use->warps += f->warps;
    use->smem_bytes += f->smem_bytes;
    use->register_frac += f->register_frac;
    use->ctas++;
}

static inline void residency_remove(struct sm_use *use, const struct footprint *f)
{
    use->warps -= f->warps;
    use->smem_bytes -= f->smem_bytes;
    use->ctas--;
    /* an empty SM is exactly empty, whatever the sums rounded to */
    use->register_frac = use->ctas == 0 ? 0 : use->register_frac - f->register_frac;
}

#endif
