/* kernels: which compiled kernel runs a row of the kernel table for a batch. Host side, for exec.cu only. */
#ifndef TANDEM_CUDA_KERNELS_H
#define TANDEM_CUDA_KERNELS_H

#include "cuda/view.h"

/* One compiled kernel: takes struct view_launch by value. */
struct kernel_code {
    const void *function;
    struct { /* of one lane of a half: threads that work, dynamic shared memory */
        int32_t threads, smem_bytes;
    } half[2];
};

/* attn_1_naive: any row, any batch (head_dim: the larger of its two). No dynamic shared memory. All kernels but the
 * merge take struct worker_halves as well. */
const void *kernels_attn_1(int32_t head_dim);

/* The merge grid's kernel, 128 threads. */
const void *kernels_merge(void);

/* attn_2_mma for a row, by type (bf16 or fp16) and padded head size (64, 128, 256); plain: view.plain. false: not
 * built. */
#define KERNELS_ATTN_2(X) X(bf16_64) X(bf16_128) X(bf16_256) X(fp16_64) X(fp16_128) X(fp16_256)
#define X(name)           bool kernels_attn_2_##name(enum kernel_id row, bool plain, struct kernel_code *out);
KERNELS_ATTN_2(X)
#undef X

#endif
