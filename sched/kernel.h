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
    KERNEL_FA3_PREFILL_128, /* FA3-class warp-specialised prefill */
    KERNEL_FA2_PREFILL_128, /* FA2-class, 128 packed rows */
    KERNEL_FA2_PREFILL_64,  /* FA2-class, 64 packed rows */
    KERNEL_FA2_DECODE_16,   /* FA2-class, 16 packed rows: tensor-core decode */
    KERNEL_FI_DECODE_CC,    /* CUDA-core decode */
    KERNEL_FUSED_128_16,    /* FA2 128 + FA2 16 in one launch */
    KERNEL_FUSED_64_16,     /* FA2 64 + FA2 16 in one launch */
    KERNEL_MERGE,           /* LSE merge of partial rows */
    KERNEL_COUNT
};

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
    /* ROLE_FUSED only: the two rows a CTA may become; resources are the maximum of both */
    enum kernel_id fused_prefill, fused_decode;
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

/* Dynamic shared memory of a CTA of row k with K/V tiles of tile_kv keys, bytes. Fused rows: maximum of both.
 */
int64_t kernel_smem_bytes(const struct kernel *k, const struct shape *shape, int32_t tile_kv);

#endif
