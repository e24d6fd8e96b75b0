#include "sim/residency.h"

enum {
    WARP = 32,
    SUB_PARTITIONS = 4,
    WARP_REGISTER_UNIT = 256,
    SMEM_UNIT_BYTES = 128,
    SMEM_RESERVED_BYTES = 1024
};

static const double slack = 1e-9; /* shares like 3 x 1/3 must not exceed 1 by rounding */

struct footprint residency_footprint(const struct gpu *gpu, const struct kernel *k,
                                     const struct kernel_fit *fit)
{
    const int32_t warps = (k->threads + WARP - 1) / WARP;
    const int32_t per_warp =
        (WARP * k->registers + WARP_REGISTER_UNIT - 1) / WARP_REGISTER_UNIT * WARP_REGISTER_UNIT;
    const int32_t file_warps = SUB_PARTITIONS * (gpu->registers_per_sm / SUB_PARTITIONS / per_warp);
    struct footprint f = {.warps = warps};
    f.register_frac = file_warps > 0 ? (double)warps / file_warps : 2.0;
    f.smem_bytes =
        (fit->smem_bytes + SMEM_RESERVED_BYTES + SMEM_UNIT_BYTES - 1) / SMEM_UNIT_BYTES * SMEM_UNIT_BYTES;
    return f;
}

int32_t residency_room(const struct gpu *gpu, const struct sm_use *use, const struct footprint *f)
{
    const int32_t limits[] = {
        (gpu->max_threads_per_sm / WARP - use->warps) / f->warps,
        (gpu->smem_per_sm_bytes - use->smem_bytes) / f->smem_bytes,
        gpu->max_ctas_per_sm - use->ctas,
        (int32_t)((1.0 - use->register_frac + slack) / f->register_frac),
    };
    int32_t room = limits[0];
    for (int i = 1; i < 4; i++)
        if (limits[i] < room) room = limits[i];
    return room > 0 ? room : 0;
}
