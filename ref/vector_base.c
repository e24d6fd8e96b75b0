/* vector_base: the inner loops in GNU C vectors of four floats, for any CPU. */
#include <stdint.h>
#include <string.h>

#define W          4
#define TILE_ROWS  2
#define PANEL_ROWS 6
#define USE_BLAS   1 /* BLAS knows CPUs that this file does not */
#define OPS        vector_base
#define NAME       "base"
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf splat(float x)
{
    return (vf){x, x, x, x};
}

static inline vf vfma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf vmax(vf a, vf b)
{
    const vi larger = (vi)(a > b);
    return (vf)((larger & (vi)a) | (~larger & (vi)b));
}

/* As convert_fp16_to_float, four at a time. */
static inline vf fp16_to_vf(const char *p)
{
    typedef uint16_t halves __attribute__((vector_size(8)));
    typedef uint32_t words __attribute__((vector_size(16)));
    halves half;
    memcpy(&half, p, sizeof half);
    const words all = __builtin_convertvector(half, words), sign = (all & 0x8000) << 16,
                magnitude = (all & 0x7fff) << 13, finite = (words)((vf)magnitude * 0x1p112f);
    const words is_special = (words)((vi)magnitude >= 0x0f800000);
    return (vf)(sign | (is_special & (magnitude | 0x7f800000u)) | (~is_special & finite));
}

static inline void store_sums_4(float *p, const vf a[4])
{
    for (int i = 0; i < 4; i++)
        p[i] = (a[i][0] + a[i][2]) + (a[i][1] + a[i][3]);
}

static inline void transpose_4(vf a[4])
{
    const vf x = a[0], y = a[1], z = a[2], w = a[3];
    for (int i = 0; i < 4; i++)
        a[i] = (vf){x[i], y[i], z[i], w[i]};
}

#include "ref/vector_body.h"
