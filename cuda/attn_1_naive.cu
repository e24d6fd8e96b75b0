/* The launchable forms of attn_1_naive and of the merge. */
#include "cuda/number.cuh"

#include "cuda/attn_1_naive.cuh"
#include "cuda/kernels.h"

/* Lanes and halves share no memory here; only their numbers of threads matter. */
__global__ void __launch_bounds__(384, 3) attn_1_naive_128(const __grid_constant__ struct view_launch l,
                                                           const __grid_constant__ struct worker_halves h)
{
    __shared__ int32_t word[WORKER_WORDS];
    worker_loop(&l, &h, NULL, word, attn_1_128);
}

__global__ void __launch_bounds__(384) attn_1_naive_1024(const __grid_constant__ struct view_launch l,
                                                         const __grid_constant__ struct worker_halves h)
{
    __shared__ int32_t word[WORKER_WORDS];
    worker_loop(&l, &h, NULL, word, attn_1_1024);
}

__global__ void __launch_bounds__(128) merge_partials(const __grid_constant__ struct view_launch l)
{
    worker_merges(&l);
}

const void *kernels_attn_1(int32_t head_dim)
{
    return head_dim <= 128 ? (const void *)attn_1_naive_128 : (const void *)attn_1_naive_1024;
}

const void *kernels_merge(void)
{
    return (const void *)merge_partials;
}
