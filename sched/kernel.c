#include "sched/kernel.h"

#include <assert.h>
#include <string.h>

/* Rows are in enum order (asserted by kernel_row). Public numbers are for head_dim 128, 16-bit;
 * kernel_smem_bytes scales them. "255 registers" of the FA2 rows is what their launch bounds allow, the value
 * POD-Attention's occupancy (2 CTAs an SM) implies. */
static const struct kernel rows[KERNEL_COUNT] = {
    {.id = KERNEL_FA3_PREFILL_128,
     .name = "fa3_prefill_128",
     .brief = "FA3-class prefill: wgmma, warp-specialised, one q head a tile, 1 CTA an SM",
     .source = "FlashAttention-3 hopper/ hd128 causal: 128x128, 2 stages, 3 warpgroups, 384 x 168 registers",
     .role = ROLE_PREFILL,
     .row_order = ROWS_HEAD_MAJOR,
     .math = MATH_WGMMA,
     .tile_q = 128,
     .tile_kv = 128,
     .stages = 2,
     .threads = 384,
     .registers = 168,
     .smem_fixed_bytes = 4096,
     .min_cc = 90},
    {.id = KERNEL_FA2_PREFILL_128,
     .name = "fa2_prefill_128",
     .brief = "FA2-class prefill: mma.sync, 128 packed rows",
     .source = "FlashInfer FA2 prefill, CTA_TILE_Q 128: 32 KB Q + 64-row K and V",
     .role = ROLE_PREFILL,
     .row_order = ROWS_TOKEN_MAJOR,
     .math = MATH_MMA_SYNC,
     .tile_q = 128,
     .tile_kv = 64,
     .stages = 1,
     .threads = 128,
     .registers = 255,
     .min_cc = 80},
    {.id = KERNEL_FA2_PREFILL_64,
     .name = "fa2_prefill_64",
     .brief = "FA2-class prefill: mma.sync, 64 packed rows",
     .source = "FlashInfer FA2 prefill, CTA_TILE_Q 64: 16 KB Q + 128-row K and V",
     .role = ROLE_PREFILL,
     .row_order = ROWS_TOKEN_MAJOR,
     .math = MATH_MMA_SYNC,
     .tile_q = 64,
     .tile_kv = 128,
     .stages = 1,
     .threads = 128,
     .registers = 255,
     .min_cc = 80},
    {.id = KERNEL_FA2_DECODE_16,
     .name = "fa2_decode_16",
     .brief = "FA2-class tensor-core decode: mma.sync, 16 packed rows, 4 KV warps",
     .source = "FlashInfer FA2 prefill, CTA_TILE_Q 16: 4 KB Q + 128-row K and V, 1x4 warps",
     .role = ROLE_DECODE,
     .row_order = ROWS_TOKEN_MAJOR,
     .math = MATH_MMA_SYNC,
     .tile_q = 16,
     .tile_kv = 128,
     .stages = 1,
     .threads = 128,
     .registers = 255,
     .min_cc = 80},
    {.id = KERNEL_FI_DECODE_CC,
     .name = "fi_decode_cc",
     .brief = "CUDA-core decode: no tensor pipe, one GQA group a CTA",
     .source = "FlashInfer decode: 2 stages of 32 keys at group 4; occupancy 5 from 96 registers x 128 "
               "threads (assumed)",
     .role = ROLE_DECODE,
     .row_order = ROWS_TOKEN_MAJOR,
     .math = MATH_FMA,
     .tile_q = 8,
     .tile_kv = 32,
     .stages = 2,
     .threads = 128,
     .registers = 96,
     .min_cc = 80,
     .max_group = 8},
    {.id = KERNEL_FUSED_128_16,
     .name = "fused_128_16",
     .brief = "one launch whose CTAs become fa2_prefill_128 or fa2_decode_16",
     .source = "FlashInfer (batch) POD: shared memory, threads and registers are the maximum of both",
     .role = ROLE_FUSED,
     .threads = 128,
     .registers = 255,
     .min_cc = 80,
     .fused_prefill = KERNEL_FA2_PREFILL_128,
     .fused_decode = KERNEL_FA2_DECODE_16},
    {.id = KERNEL_FUSED_64_16,
     .name = "fused_64_16",
     .brief = "one launch whose CTAs become fa2_prefill_64 or fa2_decode_16",
     .source = "FlashInfer (batch) POD: shared memory, threads and registers are the maximum of both",
     .role = ROLE_FUSED,
     .threads = 128,
     .registers = 255,
     .min_cc = 80,
     .fused_prefill = KERNEL_FA2_PREFILL_64,
     .fused_decode = KERNEL_FA2_DECODE_16},
    {.id = KERNEL_MERGE,
     .name = "merge",
     .brief = "LSE-weighted merge of partial rows into output rows",
     .source = "FlashInfer cascade merge: memory bound, no shared memory to speak of",
     .role = ROLE_MERGE,
     .math = MATH_NONE,
     .tile_q = 16,
     .threads = 128,
     .registers = 64,
     .min_cc = 80},
};

const struct kernel *kernel_row(enum kernel_id id)
{
    assert((unsigned)id < KERNEL_COUNT && rows[id].id == id);
    return &rows[id];
}

const struct kernel *kernel_find(const char *name)
{
    for (int i = 0; i < KERNEL_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

int64_t kernel_smem_bytes(const struct kernel *k, const struct shape *shape, int32_t tile_kv)
{
    if (k->role == ROLE_FUSED) {
        const struct kernel *p = kernel_row(k->fused_prefill), *d = kernel_row(k->fused_decode);
        /* Each half has its own tile; a tile_kv below the row's own (a GPU with little memory) caps both. */
        const int64_t a = kernel_smem_bytes(p, shape, p->tile_kv < tile_kv ? p->tile_kv : tile_kv);
        const int64_t b = kernel_smem_bytes(d, shape, d->tile_kv < tile_kv ? d->tile_kv : tile_kv);
        return a > b ? a : b;
    }
    const int64_t q = (int64_t)k->tile_q * shape->head_dim_qk * dtype_bytes(shape->q_dtype);
    const int64_t kv =
        (int64_t)tile_kv * (shape->head_dim_qk + shape->head_dim_vo) * dtype_bytes(shape->kv_dtype);
    if (k->role == ROLE_MERGE) return 0;
    return k->smem_fixed_bytes + q + k->stages * kv;
}
