#include "ref/vector.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
/* Every CPU with AVX2 and FMA has F16C; not every compiler knows to ask. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const struct vector_ops *vector_find(const char *name)
{
    if (strcmp(name, "avx512") == 0) return has_avx512() ? &vector_avx512 : NULL;
    if (strcmp(name, "avx2") == 0) return has_avx2() ? &vector_avx2 : NULL;
    return strcmp(name, "base") == 0 ? &vector_base : NULL;
}

const struct vector_ops *vector_best(void)
{
    return has_avx512() ? &vector_avx512 : has_avx2() ? &vector_avx2 : &vector_base;
}
#else
const struct vector_ops *vector_find(const char *name)
{
    return strcmp(name, "base") == 0 ? &vector_base : NULL;
}

const struct vector_ops *vector_best(void)
{
    return &vector_base;
}
#endif

/* magic = the least normal's last place times 2^23, so that the sum's last place is it: fp16 has 2^-24 x 2^23.
 * The fp8 offset is FlashAttention-3's: weights up to 2^8 use e4m3's range of 448 (e5m2's is wider). */
struct rounding vector_rounding(enum dtype type)
{
    switch (type) {
    case DTYPE_FP16:
        return (struct rounding){13, 0x1p-14f, 0x1p-1f, 0};
    case DTYPE_BF16:
        return (struct rounding){16, 0, 0, 0};
    case DTYPE_FP8_E4M3:
        return (struct rounding){20, 0x1p-6f, 0x1p14f, 8};
    case DTYPE_FP8_E5M2:
        return (struct rounding){21, 0x1p-14f, 0x1p7f, 8};
    default:
        return (struct rounding){0, 0, 0, 0};
    }
}
