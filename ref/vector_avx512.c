/* vector_avx512: the inner loops for AVX-512. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define W          16
#define TILE_ROWS  4  /* 16 accumulators, 4 keys, 4 rows of q: 24 of 32 registers */
#define PANEL_ROWS 12 /* 24 accumulators, 2 columns, 1 row: 27 of 32 registers */
#define USE_BLAS   0
#define OPS        vector_avx512
#define NAME       "avx512"
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
#define splat(x)      _mm512_set1_ps(x)
#define vfma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vmax(a, b)    _mm512_max_ps(a, b)

static inline vf fp16_to_vf(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Within each 128-bit quarter, adds pairs across the four vectors until it holds a part of all four sums. */
static inline void store_sums_4(float *p, const vf a[4])
{
    const vf x = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1])),
             y = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3])),
             z = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(z), _mm512_extractf32x8_ps(z, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

static inline void transpose_4(vf a[4])
{
    const vf x = _mm512_unpacklo_ps(a[0], a[1]), y = _mm512_unpackhi_ps(a[0], a[1]),
             z = _mm512_unpacklo_ps(a[2], a[3]), w = _mm512_unpackhi_ps(a[2], a[3]);
    a[0] = _mm512_shuffle_ps(x, z, 0x44);
    a[1] = _mm512_shuffle_ps(x, z, 0xee);
    a[2] = _mm512_shuffle_ps(y, w, 0x44);
    a[3] = _mm512_shuffle_ps(y, w, 0xee);
}

#include "ref/vector_body.h"
#else
typedef int vector_avx512_is_for_x86;
#endif
