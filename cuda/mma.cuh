/* mma: the PTX that attn_2 is made of: asynchronous copies, matrix loads, tensor-core products. sm_80 and later.
 *
 * Fragments of mma.m16n8k16 (lane l, g = l / 4, c = l % 4), from the PTX manual:
 *   A 16x16, 4 registers of 2: (g, 2c) (g+8, 2c) (g, 2c+8) (g+8, 2c+8), each with its right neighbour
 *   B 16x8,  2 registers of 2: (2c, g) (2c+8, g), each with the element below
 *   C 16x8,  4 floats: (g, 2c) (g, 2c+1) (g+8, 2c) (g+8, 2c+1) */
#ifndef TANDEM_CUDA_MMA_CUH
#define TANDEM_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t mma_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes global to shared, zeros where !valid (then src is not read). Copies and matrix loads are ordered by the waits
 * and barriers between them, which alone tell the compiler about memory: loads of the next address may pass a copy. */
static __device__ __forceinline__ void mma_copy16(uint32_t dst, const void *src, bool valid)
{
    const int32_t bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}

static __device__ __forceinline__ void mma_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of the committed groups are under way. */
template <int N> static __device__ __forceinline__ void mma_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void mma_load4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void mma_load4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* C += A B in fp32. */
static __device__ __forceinline__ void mma_product(__nv_bfloat16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                   uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_product(__half, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                   uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats to one register of T, nearest even; the first in the lower half. */
static __device__ __forceinline__ uint32_t mma_pack(__nv_bfloat16, float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ uint32_t mma_pack(__half, float low, float high)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* 2^x, relative error 2^-22; 0 for -inf. */
static __device__ __forceinline__ float mma_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
