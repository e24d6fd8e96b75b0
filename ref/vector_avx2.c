/* vector_avx2: the inner loops for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define W          8
#define TILE_ROWS  2 /* 8 accumulators, 4 keys, 2 rows of q: 14 of 16 registers */
#define PANEL_ROWS 6 /* 12 accumulators, 2 columns, 1 row: 15 of 16 registers */
#define USE_BLAS   0
#define OPS        vector_avx2
#define NAME       "avx2"
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
#define splat(x)      _mm256_set1_ps(x)
#define vfma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vmax(a, b)    _mm256_max_ps(a, b)

static inline vf fp16_to_vf(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Adds pairs across the four vectors until each 128-bit half holds a part of all four sums. */
static inline void store_sums_4(float *p, const vf a[4])
{
    const vf sums = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

static inline void transpose_4(vf a[4])
{
    const vf x = _mm256_unpacklo_ps(a[0], a[1]), y = _mm256_unpackhi_ps(a[0], a[1]),
             z = _mm256_unpacklo_ps(a[2], a[3]), w = _mm256_unpackhi_ps(a[2], a[3]);
    a[0] = _mm256_shuffle_ps(x, z, 0x44);
    a[1] = _mm256_shuffle_ps(x, z, 0xee);
    a[2] = _mm256_shuffle_ps(y, w, 0x44);
    a[3] = _mm256_shuffle_ps(y, w, 0xee);
}

#include "ref/vector_body.h"
#else
typedef int vector_avx2_is_for_x86;
#endif
