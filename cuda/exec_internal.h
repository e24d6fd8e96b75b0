/* exec_internal: what exec.cu, exec_plan.cu and exec_time.cu share. */
#ifndef TANDEM_CUDA_EXEC_INTERNAL_H
#define TANDEM_CUDA_EXEC_INTERNAL_H

#include "cuda/exec.h"
#include "cuda/kernels.h"
#include "cuda/view.h"

#include <cuda_runtime.h>

/* Check and forward: out of memory and lack of a GPU are the caller's outside causes, the rest is internal. */
#define CUDA_TRY(call)                                                   \
    do {                                                                 \
        const cudaError_t error_ = (call);                               \
        if (error_ != cudaSuccess) return exec_fail(why, error_, #call); \
    } while (0)

enum status exec_fail(struct why *why, cudaError_t error, const char *call);

/* Device memory that goes back together. */
struct exec_pool {
    void **blocks;
    int32_t n, cap;
    int64_t bytes;
};

/* bytes of device memory in *out (one at least), copied from `from` unless NULL. */
enum status exec_take(struct exec_pool *pool, const void *from, size_t bytes, const char *what, void **out,
                      struct why *why);
void exec_release(struct exec_pool *pool);

/* One launch of a prepared plan. */
struct exec_launch {
    struct view_launch l;
    struct worker_halves h;
    const void *function;
    int32_t n_ctas, threads, smem_bytes, stream;
    int32_t after_begin, after_end; /* of plan.after */
};

struct exec_prepared {
    struct exec_pool pool;
    struct exec_launch *launches;
    int32_t n_launches;
    int32_t *after;
    struct item *items;                         /* host copies, for spans */
    struct view_span *item_spans, *merge_spans; /* device */
    int32_t n_items, n_merges;
    size_t partial_rows;
    int32_t *counters;
    int32_t n_counters;
    cudaGraphExec_t graph;
    cudaStream_t *streams;
    int32_t n_streams;
    struct cuda_prepared what;
    bool ready;
};

struct cuda_device {
    int device;
    struct cudaDeviceProp properties;
    cudaStream_t stream;
    void *flush; /* written between timed runs */
    size_t flush_bytes;
    struct exec_pool own, loaded;
    struct batch b; /* host pointers, of the caller */
    struct cuda_tensors t;
    struct view x; /* device pointers */
    bool has_batch;
    struct exec_prepared p;
};

void exec_prepared_free(struct exec_prepared *p);

/* The kernel of a row for a batch: attn_2 where built and wanted, else attn_1. *mma says which. */
struct exec_choice {
    const void *function;
    struct worker_halves h;
    int32_t threads, smem_bytes;
    bool mma;
};
enum status exec_choose(const struct cuda_device *d, enum kernel_id row, const struct shape *shape,
                        bool plain, bool aligned, enum cuda_ladder ladder, int32_t ctas_per_sm,
                        struct exec_choice *out, struct why *why);

#endif
