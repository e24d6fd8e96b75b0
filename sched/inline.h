/* inline: how functions that run on the CPU and in kernels are declared. Headers that use it compile as C11 and as
 * CUDA C++. */
#ifndef TANDEM_SCHED_INLINE_H
#define TANDEM_SCHED_INLINE_H

#if defined(__CUDACC__)
#define TANDEM_INLINE static __host__ __device__ __forceinline__
#else
#define TANDEM_INLINE static inline
#endif

#endif
