/* kernel: the kernel table. One row says what a kernel asks of an SM and how it walks rows and keys.
 *
 * The same row prices the plan (cost.h), the simulator (sim/) and launches CUDA (cuda/). Machine numbers are
 * not here: they are in the GPU profile. Rows are numbers a plan may quote; names are what files quote. */
#ifndef TANDEM_SCHED_KERNEL_H
#define TANDEM_SCHED_KERNEL_H

#include "sched/gpu.h"

#include <stdbool.h>
#include <stdint.h>

enum kernel_role { ROLE_PREFILL, ROLE_DECODE, ROLE_FUSED, ROLE_MERGE };

/* How an item's packed rows map to (query token, q head of the kv head's group):
 *   token-major: row = token * group_size + head   (packed GQA: a tile holds all heads of a token)
 *   head-major:  row = head * tokens + token       (one q head a tile; no GQA packing) */
enum row_order { ROWS_TOKEN_MAJOR, ROWS_HEAD_MAJOR };

enum kernel_id {
    KERNEL_FA3_PREFILL_128,     /* FA3-class warp-specialised prefill, one q head a tile */
    KERNEL_FA3_PACKED_128,      /* the same with PackGQA: any rows, decodes too */
    KERNEL_FA2_PREFILL_128,     /* FA2-class, 128 packed rows */
    KERNEL_FA2_PREFILL_64,      /* FA2-class, 64 packed rows */
    KERNEL_FA2_FWD_128,         /* FlashAttention-2, 128 tokens of one q head */
    KERNEL_FA2_FWD_64,          /* FlashAttention-2, 64 tokens of one q head, 2 warps */
    KERNEL_FA2_FWD_64_SPLIT,    /* FlashAttention-2 split-KV, 64 tokens of one q head, 4 warps */
    KERNEL_FA2_DECODE_16,       /* FA2-class, 16 packed rows: tensor-core decode */
    KERNEL_FA2_SPLITKV_64,      /* FlashAttention-2 split-KV, 64 packed rows: decode */
    KERNEL_WARP_DECODE_16,      /* one warp, 16 packed rows: POD-Attention's virtual decode CTA */
    KERNEL_RING_DECODE_16,      /* decode with the shared memory of a whole SM as its ring */
    KERNEL_FI_DECODE_CC,        /* CUDA-core decode */
    KERNEL_FUSED_128_16,        /* FA2 128 or FA2 16 in one launch */
    KERNEL_FUSED_64_16,         /* FA2 64 or FA2 16 in one launch */
    KERNEL_FUSED_FA3_16,        /* FA3 128 or ring decode 16, one CTA an SM */
    KERNEL_POD_2,               /* POD-Attention, 2 CTAs an SM: 128 tokens or 4 virtual decodes */
    KERNEL_POD_2_DECODE_SPLIT,  /* ... decodes split: 128 tokens or 64 packed rows */
    KERNEL_POD_2_PREFILL_SPLIT, /* ... prefills split: 64 tokens or 4 virtual decodes */
    KERNEL_POD_2_BOTH_SPLIT,    /* ... both split: 64 tokens or 64 packed rows */
    KERNEL_POD_4,               /* POD-Attention, 4 CTAs an SM: 64 tokens or 2 virtual decodes */
    KERNEL_POD_4_DECODE_SPLIT,  /* ... decodes split: 2 x 64 tokens or 64 packed rows, 2 CTAs an SM */
    KERNEL_WARP_FUSED_128_64,   /* prefill warps beside decode warps in every CTA (HFuse) */
    KERNEL_MERGE,               /* LSE merge of partial rows */
    KERNEL_COUNT
};

/* How the two rows of a fused one share a CTA. EITHER: a CTA becomes one of them; threads, registers and
 * shared memory are the maximum of both. BESIDE: both run side by side on warps of their own; threads and
 * shared memory are the sum, and the CTA holds its slot until the slower half ends. */
enum fused_how { FUSED_EITHER, FUSED_BESIDE };

enum { KERNEL_MAX_LANES = 4 };

struct kernel {
    enum kernel_id id;
    const char *name;
    const char *brief;  /* what it is and which public kernel it mirrors */
    const char *source; /* where its numbers come from */
    enum kernel_role role;
    enum row_order row_order;
    enum math_class math;
    int32_t tile_q;  /* packed rows a CTA works on at once */
    int32_t tile_kv; /* keys a step */
    int32_t stages;  /* K/V tiles in shared memory at once (K and V each) */
    int32_t threads;
    int32_t registers;        /* a thread, at launch */
    int32_t smem_fixed_bytes; /* beside Q and K/V tiles */
    int32_t min_cc;           /* 10 * major + minor */
    int32_t max_group;        /* largest GQA group it takes; 0 = any */
    /* ROLE_FUSED only: the two rows, how they share a CTA, and how many items of each a CTA works on at once
     * (lanes: POD-Attention's virtual CTAs; 0 means 1) */
    enum kernel_id fused_prefill, fused_decode;
    enum fused_how fused_how;
    int32_t prefill_lanes, decode_lanes;
};

/* The static table, indexed by kernel_id. kernel_find returns NULL for an unknown name. */
const struct kernel *kernel_row(enum kernel_id id);
const struct kernel *kernel_find(const char *name);

/* One row made concrete for a GPU and a head shape. */
struct kernel_fit {
    int32_t tile_kv;         /* row's tile_kv, halved until its tiles fit the GPU's shared memory */
    int32_t smem_bytes;      /* dynamic shared memory of a CTA: Q tile + stages x (K + V tile) + fixed */
    int32_t ctas_per_sm;     /* occupancy; 0 = cannot launch here */
    double sm_flops_per_ns;  /* issued FLOPs an SM completes with all its slots busy on this kernel */
    double cta_flops_per_ns; /* one CTA alone on its SM */
    double cta_bytes_per_ns; /* one CTA alone: bytes in flight / latency, capped by the SM */
};

/* The kernel table as policies, cost and simulator receive it: rows made concrete for (gpu, shape). Filled by
 * sim/occupancy.h's kernels_resolve. */
struct kernels {
    struct kernel_fit fit[KERNEL_COUNT];
};

/* Items of a role that a CTA of row k works on at once: its lanes. 1 for all but fused rows with virtual
 * CTAs. */
static inline int32_t kernel_role_lanes(const struct kernel *k, bool decode)
{
    const int32_t lanes = decode ? k->decode_lanes : k->prefill_lanes;
    return lanes > 1 ? lanes : 1;
}

/* Lanes of a CTA: what its items spread over. A BESIDE row has one for each half. */
static inline int32_t kernel_lanes(const struct kernel *k)
{
    const int32_t p = kernel_role_lanes(k, false), d = kernel_role_lanes(k, true);
    return k->fused_how == FUSED_BESIDE ? p + d : p > d ? p : d;
}

/* Dynamic shared memory of a CTA of row k with K/V tiles of tile_kv keys, bytes. Fused rows: the maximum of
 * both halves, each with its lanes, or their sum for BESIDE. */
int64_t kernel_smem_bytes(const struct kernel *k, const struct shape *shape, int32_t tile_kv);

#endif
