/* number: stored types to fp32 and back, on the device. Tests supply the same two functions from ref/convert.h. */
#ifndef TANDEM_CUDA_NUMBER_CUH
#define TANDEM_CUDA_NUMBER_CUH

#include "cuda/view.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

static __device__ __forceinline__ float number_load(int type, const void *base, int64_t i)
{
    switch (type) {
    case DTYPE_FP32:
        return ((const float *)base)[i];
    case DTYPE_FP16:
        return __half2float(((const __half *)base)[i]);
    case DTYPE_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)base)[i]);
    default:
        return __half2float(__nv_cvt_fp8_to_halfraw(((const uint8_t *)base)[i],
                                                    type == DTYPE_FP8_E4M3 ? __NV_E4M3 : __NV_E5M2));
    }
}

static __device__ __forceinline__ void number_store(int type, void *base, int64_t i, float value)
{
    switch (type) {
    case DTYPE_FP32:
        ((float *)base)[i] = value;
        break;
    case DTYPE_FP16:
        ((__half *)base)[i] = __float2half_rn(value);
        break;
    default:
        ((__nv_bfloat16 *)base)[i] = __float2bfloat16_rn(value);
    }
}

#endif
