/* attn_2_rows: the rows of the kernel table that attn_2_mma runs, for one type and head size: which shape each row has.
 * Included once by each attn_2_TYPE_SIZE.cu with
 *   ROWS_T     __nv_bfloat16 or __half
 *   ROWS_D     64, 128 or 256: head sizes up to it run padded with zeros
 *   ROWS_FIND  name of the function that finds them
 * Threads, and CTAs an SM that registers must leave room for, are the row's own (sched/kernel.c). */
#include "cuda/attn_2_mma.cuh"
#include "cuda/kernels.h"

#if ROWS_D <= 128
/*                                          row warps, KV warps, tiles of 16 rows a warp, keys a step, stages */
template <bool PLAIN> using prefill_128 = attn_2<ROWS_T, ROWS_D, PLAIN, 4, 1, 2, 64, 1>;
template <bool PLAIN> using prefill_64 = attn_2<ROWS_T, ROWS_D, PLAIN, 4, 1, 1, 128, 1>;
template <bool PLAIN> using prefill_2_warps = attn_2<ROWS_T, ROWS_D, PLAIN, 2, 1, 2, 32, 1>;
template <bool PLAIN> using decode_16 = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 4, 1, 128, 1>;
template <bool PLAIN> using decode_warp = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 1, 1, 32, 1>;
template <bool PLAIN> using decode_ring = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 8, 1, 128, 2>;
template <bool PLAIN> using prefill_8_warps = attn_2<ROWS_T, ROWS_D, PLAIN, 8, 1, 1, 128, 2>;
#else
/* A warp cannot hold 32 rows of 256 fp32 outputs: tiles of 128 rows are done in two halves. */
template <bool PLAIN> using prefill_128 = attn_2<ROWS_T, ROWS_D, PLAIN, 4, 1, 1, 64, 1>;
template <bool PLAIN> using prefill_64 = attn_2<ROWS_T, ROWS_D, PLAIN, 4, 1, 1, 64, 1>;
template <bool PLAIN> using prefill_2_warps = attn_2<ROWS_T, ROWS_D, PLAIN, 2, 1, 1, 32, 1>;
template <bool PLAIN> using decode_16 = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 4, 1, 64, 1>;
template <bool PLAIN> using decode_warp = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 1, 1, 32, 1>;
template <bool PLAIN> using decode_ring = attn_2<ROWS_T, ROWS_D, PLAIN, 1, 4, 1, 64, 2>;
template <bool PLAIN> using prefill_8_warps = attn_2<ROWS_T, ROWS_D, PLAIN, 8, 1, 1, 32, 2>;
#endif

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

template <bool PLAIN> static bool find_one(enum kernel_id row, struct kernel_code *out)
{
    switch (row) {
    case KERNEL_FA3_PREFILL_128:
    case KERNEL_FA3_PACKED_128:
        return one<prefill_8_warps<PLAIN>, 384, 1>(out);
    case KERNEL_FA2_PREFILL_128:
    case KERNEL_FA2_FWD_128:
        return one<prefill_128<PLAIN>, 128, 2>(out);
    case KERNEL_FA2_PREFILL_64:
    case KERNEL_FA2_FWD_64_SPLIT:
    case KERNEL_FA2_SPLITKV_64:
        return one<prefill_64<PLAIN>, 128, 2>(out);
    case KERNEL_FA2_FWD_64:
        return one<prefill_2_warps<PLAIN>, 64, 4>(out);
    case KERNEL_FA2_DECODE_16:
        return one<decode_16<PLAIN>, 128, 2>(out);
    case KERNEL_WARP_DECODE_16:
        return one<decode_warp<PLAIN>, 32, 8>(out);
    case KERNEL_RING_DECODE_16:
        return one<decode_ring<PLAIN>, 384, 1>(out);
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
        return both<prefill_128<true>, decode_16<true>, 128, 2>(out);
    case KERNEL_FUSED_64_16:
        return both<prefill_64<true>, decode_16<true>, 128, 2>(out);
    case KERNEL_FUSED_FA3_16:
        return both<prefill_8_warps<true>, decode_ring<true>, 384, 1>(out);
    case KERNEL_POD_2:
        return both<prefill_128<true>, decode_warp<true>, 128, 2>(out);
    case KERNEL_POD_2_DECODE_SPLIT:
        return both<prefill_128<true>, prefill_64<true>, 128, 2>(out);
    case KERNEL_POD_2_PREFILL_SPLIT:
        return both<prefill_64<true>, decode_warp<true>, 128, 2>(out);
    case KERNEL_POD_2_BOTH_SPLIT:
        return both<prefill_64<true>, prefill_64<true>, 128, 2>(out);
    case KERNEL_POD_4:
        return both<prefill_2_warps<true>, decode_warp<true>, 64, 4>(out);
    case KERNEL_POD_4_DECODE_SPLIT:
        return both<prefill_2_warps<true>, prefill_64<true>, 128, 2>(out);
    case KERNEL_WARP_FUSED_128_64:
        return both<prefill_128<true>, prefill_64<true>, 256, 1>(out);
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
    if (plain && find_fused(row, out)) return true;
    return plain ? find_one<true>(row, out) : find_one<false>(row, out);
}
