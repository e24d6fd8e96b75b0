/* attn_2_rows: the rows of the kernel table that attn_2_mma runs, for one type and head size: which shape each row has.
 * Included once by each attn_2_TYPE_SIZE.cu with
 *   ROWS_T     __nv_bfloat16 or __half
 *   ROWS_D     64, 128 or 256: head sizes up to it run padded with zeros
 *   ROWS_FIND  name of the function that finds them
 * Threads, and CTAs an SM that registers must leave room for, are the row's own (sched/kernel.c). */
#include "cuda/attn_2_mma.cuh"
#include "cuda/kernels.h"

/* T, D; plain; row warps, KV warps, tiles of 16 rows a warp, keys a step, stages; team */
#if ROWS_D <= 128
typedef attn_2<ROWS_T, ROWS_D, true, 4, 1, 2, 64, 1> prefill_128;
typedef attn_2<ROWS_T, ROWS_D, true, 4, 1, 1, 128, 1> prefill_64;
typedef attn_2<ROWS_T, ROWS_D, true, 2, 1, 2, 32, 1> prefill_2_warps;
typedef attn_2<ROWS_T, ROWS_D, true, 8, 1, 1, 64, 2> prefill_8_warps;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 4, 1, 128, 1> decode_16;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 1, 1, 32, 1> decode_warp;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 8, 1, 128, 2> decode_ring;
typedef attn_2<ROWS_T, ROWS_D, true, 2, 1, 2, 32, 1, -1> prefill_lane;    /* one of several side by side */
typedef attn_2<ROWS_T, ROWS_D, true, 4, 1, 1, 128, 1, 1> prefill_64_behind; /* the warps behind another team */
#else
/* A warp cannot hold 32 rows of 256 fp32 outputs: tiles of 128 rows are done in two halves. */
typedef attn_2<ROWS_T, ROWS_D, true, 4, 1, 1, 64, 1> prefill_128;
typedef attn_2<ROWS_T, ROWS_D, true, 4, 1, 1, 64, 1> prefill_64;
typedef attn_2<ROWS_T, ROWS_D, true, 2, 1, 1, 32, 1> prefill_2_warps;
typedef attn_2<ROWS_T, ROWS_D, true, 8, 1, 1, 32, 2> prefill_8_warps;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 4, 1, 64, 1> decode_16;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 1, 1, 32, 1> decode_warp;
typedef attn_2<ROWS_T, ROWS_D, true, 1, 4, 1, 64, 2> decode_ring;
#endif
/* FlashInfer's CUDA-core decode: its five CTAs an SM, its 64 keys a step; the products are on tensor cores here. */
typedef attn_2<ROWS_T, ROWS_D, true, 1, 4, 1, 64, 1> decode_64_keys;

/* Any mask, soft cap, ALiBi, 8-bit caches: fewer shapes, for these cost more to compute anyway. */
typedef attn_2<ROWS_T, ROWS_D, false, 4, 1, 1, 64, 1> general_prefill;
typedef attn_2<ROWS_T, ROWS_D, false, 2, 1, 1, 32, 1> general_prefill_2_warps;
typedef attn_2<ROWS_T, ROWS_D, false, 1, 4, 1, 64, 1> general_decode;
typedef attn_2<ROWS_T, ROWS_D, false, 1, 1, 1, 32, 1> general_decode_warp;

template <class A, int THREADS, int MIN_CTAS> static bool one(struct kernel_code *out)
{
    out->function = (const void *)attn_2_mma<A, THREADS, MIN_CTAS>;
    for (int role = 0; role < 2; role++) {
        out->half[role].threads = A::THREADS;
        out->half[role].smem_bytes = A::SMEM_BYTES;
    }
    return true;
}

template <class P, class Q, int THREADS, int MIN_CTAS> static bool both(struct kernel_code *out)
{
    out->function = (const void *)attn_2_fused<P, Q, THREADS, MIN_CTAS>;
    out->half[WORK_PREFILL].threads = P::THREADS;
    out->half[WORK_PREFILL].smem_bytes = P::SMEM_BYTES;
    out->half[WORK_DECODE].threads = Q::THREADS;
    out->half[WORK_DECODE].smem_bytes = Q::SMEM_BYTES;
    return true;
}

static bool find_plain(enum kernel_id row, struct kernel_code *out)
{
    switch (row) {
    case KERNEL_FA3_PREFILL_128:
    case KERNEL_FA3_PACKED_128:
        return one<prefill_8_warps, 384, 1>(out);
    case KERNEL_FA2_PREFILL_128:
    case KERNEL_FA2_FWD_128:
        return one<prefill_128, 128, 2>(out);
    case KERNEL_FA2_PREFILL_64:
    case KERNEL_FA2_FWD_64_SPLIT:
    case KERNEL_FA2_SPLITKV_64:
        return one<prefill_64, 128, 2>(out);
    case KERNEL_FA2_FWD_64:
        return one<prefill_2_warps, 64, 4>(out);
    case KERNEL_FA2_DECODE_16:
        return one<decode_16, 128, 2>(out);
    case KERNEL_FI_DECODE_CC:
        return one<decode_64_keys, 128, 5>(out);
    case KERNEL_WARP_DECODE_16:
        return one<decode_warp, 32, 8>(out);
    case KERNEL_RING_DECODE_16:
        return one<decode_ring, 384, 1>(out);
    default:
        return false;
    }
}

/* Rows of 384 threads have warps to spare, which wait. */
static bool find_general(enum kernel_id row, struct kernel_code *out)
{
    switch (row) {
    case KERNEL_FA3_PREFILL_128:
    case KERNEL_FA3_PACKED_128:
    case KERNEL_FA2_PREFILL_128:
    case KERNEL_FA2_FWD_128:
    case KERNEL_FA2_PREFILL_64:
    case KERNEL_FA2_FWD_64_SPLIT:
    case KERNEL_FA2_SPLITKV_64:
        return one<general_prefill, 384, 1>(out);
    case KERNEL_FA2_FWD_64:
        return one<general_prefill_2_warps, 64, 4>(out);
    case KERNEL_FA2_DECODE_16:
    case KERNEL_FI_DECODE_CC:
    case KERNEL_RING_DECODE_16:
        return one<general_decode, 384, 1>(out);
    case KERNEL_WARP_DECODE_16:
        return one<general_decode_warp, 32, 8>(out);
    default:
        return false;
    }
}

/* Fused rows: built for head size 128 and plain batches; the others run on attn_1_naive. */
static bool find_fused(enum kernel_id row, struct kernel_code *out)
{
#if ROWS_D == 128
    switch (row) {
    case KERNEL_FUSED_128_16:
        return both<prefill_128, decode_16, 128, 2>(out);
    case KERNEL_FUSED_64_16:
        return both<prefill_64, decode_16, 128, 2>(out);
    case KERNEL_FUSED_FA3_16:
        return both<prefill_8_warps, decode_ring, 384, 1>(out);
    case KERNEL_POD_2:
        return both<prefill_128, decode_warp, 128, 2>(out);
    case KERNEL_POD_2_DECODE_SPLIT:
        return both<prefill_128, prefill_64, 128, 2>(out);
    case KERNEL_POD_2_PREFILL_SPLIT:
        return both<prefill_64, decode_warp, 128, 2>(out);
    case KERNEL_POD_2_BOTH_SPLIT:
        return both<prefill_64, prefill_64, 128, 2>(out);
    case KERNEL_POD_4:
        return both<prefill_2_warps, decode_warp, 64, 4>(out);
    case KERNEL_POD_4_DECODE_SPLIT:
        return both<prefill_lane, prefill_64, 128, 2>(out);
    case KERNEL_WARP_FUSED_128_64:
        return both<prefill_128, prefill_64_behind, 256, 1>(out);
    default:
        return false;
    }
#else
    (void)row;
    (void)out;
    return false;
#endif
}

bool ROWS_FIND(enum kernel_id row, bool plain, struct kernel_code *out)
{
    if (!plain) return find_general(row, out);
    return find_fused(row, out) || find_plain(row, out);
}
