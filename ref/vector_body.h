/* vector_body: included by vector_base.c, vector_avx2.c and vector_avx512.c, which define
 *
 *   W, TILE_ROWS        floats a vector; rows of q that a register tile holds beside 4 keys
 *   vf, vi              vectors of W floats, W int32_t (GNU C vector types or intrinsics' own)
 *   splat(x)            x in every element
 *   vfma(a, b, c)       a * b + c
 *   vmax(a, b)          the larger, b where either is NaN
 *   fp16_to_vf(p)       W fp16 at p as floats
 *   store_sums_4(p, a)  p[0..4) = the sums of the elements of a[0], ..., a[3]
 *   transpose_4(a)      a[0..4) become: element 4 l + i of a[j] moves to element 4 l + j of a[i]
 *   PANEL_ROWS          rows of a matrix product that fit the registers beside a panel's columns
 *   USE_BLAS            1: no matrix products of our own
 *   OPS, NAME           the table's name in C and in results */
#include "ref/convert.h"
#include "ref/vector.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Loops over a register tile must vanish: only then do its vectors live in registers. */
#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL _Pragma("unroll 16")
#endif

typedef uint8_t bytes_w __attribute__((vector_size(W)));
typedef uint16_t halves_w __attribute__((vector_size(2 * W)));
typedef uint32_t words_w __attribute__((vector_size(4 * W)));

INLINE vf load_vf(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store_vf(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf select_vf(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

INLINE vi column_index(int32_t first)
{
    vi index;
    for (int32_t i = 0; i < W; i++)
        index[i] = first + i;
    return index;
}

/* W elements of a type at p as floats; the type is a constant wherever this is inlined. Formulas: convert.h. */
INLINE vf load_elements(enum dtype type, const char *p)
{
    halves_w half;
    bytes_w byte;
    words_w word, sign;
    vf finite;
    switch (type) {
    case DTYPE_FP16:
        return fp16_to_vf(p);
    case DTYPE_BF16:
        memcpy(&half, p, sizeof half);
        return (vf)(__builtin_convertvector(half, words_w) << 16);
    case DTYPE_FP8_E4M3:
        memcpy(&byte, p, sizeof byte);
        word = __builtin_convertvector(byte, words_w);
        sign = (word & 0x80) << 24;
        word &= 0x7f;
        finite = (vf)(word << 20) * 0x1p120f;
        return (vf)(sign | (words_w)select_vf((vi)(word == 0x7f), splat(NAN), finite));
    case DTYPE_FP8_E5M2:
        memcpy(&byte, p, sizeof byte);
        half = __builtin_convertvector(byte, halves_w) << 8;
        return fp16_to_vf((const char *)&half);
    default:
        return load_vf((const float *)(const void *)p);
    }
}

/* The first n < W elements, zeros behind. */
INLINE vf load_first(enum dtype type, const char *p, int32_t n)
{
    char padded[4 * W] = {0};
    memcpy(padded, p, (size_t)(n * dtype_bytes(type)));
    return load_elements(type, padded);
}

/* ---- dots ------------------------------------------------------------------------------------------------- */

/* Asks for dim elements' cache lines; which level they land in matters little, that they are on their way does. */
INLINE void prefetch_row(const char *p, ptrdiff_t bytes)
{
    for (ptrdiff_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(p + at, 0, 2);
}

/* `rows` rows against 4 keys: 4 rows x 4 keys of accumulators, each K vector loaded and converted once. */
INLINE void dots_tile(enum dtype type, int32_t rows, int32_t dim, int32_t size, const float *q,
                      const char *const k[4], float *p, int32_t stride)
{
    vf a[TILE_ROWS][4];
    int32_t x = 0;
    UNROLL
    for (int32_t i = 0; i < rows; i++)
        UNROLL
    for (int32_t j = 0; j < 4; j++)
        a[i][j] = (vf){0};
    for (; x + W <= dim; x += W)
        UNROLL
    for (int32_t j = 0; j < 4; j++) {
        const vf key = load_elements(type, k[j] + x * size);
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            a[i][j] = vfma(load_vf(q + i * dim + x), key, a[i][j]);
    }
    if (x < dim) UNROLL
    for (int32_t j = 0; j < 4; j++) {
        const vf key = load_first(type, k[j] + x * size, dim - x);
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            a[i][j] = vfma(load_first(DTYPE_FP32, (const char *)(q + i * dim + x), dim - x), key, a[i][j]);
    }
    UNROLL
    for (int32_t i = 0; i < rows; i++)
        store_sums_4(p + i * stride, a[i]);
}

INLINE void dots_rows(enum dtype type, int32_t rows, int32_t dim, int32_t size, const float *q,
                      const char *const k[4], float *p, int32_t stride)
{
    switch (rows) { /* a constant in each call, so that accumulators stay in registers */
    case 1:
        dots_tile(type, 1, dim, size, q, k, p, stride);
        break;
    case 2:
        dots_tile(type, 2, dim, size, q, k, p, stride);
        break;
#if TILE_ROWS > 2
    case 3:
        dots_tile(type, 3, dim, size, q, k, p, stride);
        break;
    default:
        dots_tile(type, 4, dim, size, q, k, p, stride);
        break;
#endif
    }
}

INLINE void dots_of(enum dtype type, int32_t dim, const float *q, int32_t rows, const char *const *k,
                    ptrdiff_t shift, int32_t n, const char *const *next, ptrdiff_t next_shift, float *p,
                    int32_t stride)
{
    const int32_t size = dtype_bytes(type);
    for (int32_t j = 0; j < n; j += 4) {
        const char *key[4];
        float edge[TILE_ROWS * 4];
        const int32_t left = n - j < 4 ? n - j : 4;
        for (int32_t i = 0; i < 4; i++) {
            key[i] = k[j + (i < left ? i : left - 1)] + shift;
            if (next && i < left) prefetch_row(next[j + i] + next_shift, (ptrdiff_t)dim * size);
        }
        for (int32_t row = 0; row < rows; row += TILE_ROWS) {
            const int32_t m = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            float *out = p + row * stride + j;
            if (left == 4) {
                dots_rows(type, m, dim, size, q + row * dim, key, out, stride);
                continue;
            }
            dots_rows(type, m, dim, size, q + row * dim, key, edge, 4);
            for (int32_t i = 0; i < m; i++)
                memcpy(out + i * stride, edge + i * 4, (size_t)left * sizeof *out);
        }
    }
}

/* ---- values ------------------------------------------------------------------------------------------------ */

INLINE void values_tile(enum dtype type, int32_t rows, int32_t dim, int32_t size, const float *p,
                        int32_t stride, const char *const v[4], float *acc)
{
    vf w[TILE_ROWS][4];
    int32_t x = 0;
    UNROLL
    for (int32_t i = 0; i < rows; i++)
        UNROLL
    for (int32_t j = 0; j < 4; j++)
        w[i][j] = splat(p[i * stride + j]);
    for (; x + W <= dim; x += W) {
        vf a[TILE_ROWS];
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            a[i] = load_vf(acc + i * dim + x);
        UNROLL
        for (int32_t j = 0; j < 4; j++) {
            const vf value = load_elements(type, v[j] + x * size);
            UNROLL
            for (int32_t i = 0; i < rows; i++)
                a[i] = vfma(w[i][j], value, a[i]);
        }
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            store_vf(acc + i * dim + x, a[i]);
    }
    for (int32_t i = 0; x < dim && i < rows; i++) {
        float last[W];
        vf a = load_first(DTYPE_FP32, (const char *)(acc + i * dim + x), dim - x);
        UNROLL
        for (int32_t j = 0; j < 4; j++)
            a = vfma(w[i][j], load_first(type, v[j] + x * size, dim - x), a);
        store_vf(last, a);
        memcpy(acc + i * dim + x, last, (size_t)(dim - x) * sizeof *acc);
    }
}

INLINE void values_rows(enum dtype type, int32_t rows, int32_t dim, int32_t size, const float *p,
                        int32_t stride, const char *const v[4], float *acc)
{
    switch (rows) {
    case 1:
        values_tile(type, 1, dim, size, p, stride, v, acc);
        break;
    case 2:
        values_tile(type, 2, dim, size, p, stride, v, acc);
        break;
#if TILE_ROWS > 2
    case 3:
        values_tile(type, 3, dim, size, p, stride, v, acc);
        break;
    default:
        values_tile(type, 4, dim, size, p, stride, v, acc);
        break;
#endif
    }
}

/* Four keys at a time; the last few repeat a key with weight 0. */
INLINE void values_of(enum dtype type, int32_t dim, const float *p, int32_t stride, int32_t rows,
                      const char *const *v, ptrdiff_t shift, int32_t n, const char *const *next,
                      ptrdiff_t next_shift, float *acc)
{
    const int32_t size = dtype_bytes(type);
    for (int32_t j = 0; j < n; j += 4) {
        const char *value[4];
        const int32_t left = n - j < 4 ? n - j : 4;
        for (int32_t i = 0; i < 4; i++) {
            value[i] = v[j + (i < left ? i : left - 1)] + shift;
            if (next && i < left) prefetch_row(next[j + i] + next_shift, (ptrdiff_t)dim * size);
        }
        for (int32_t row = 0; row < rows; row += TILE_ROWS) {
            const int32_t m = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            float edge[TILE_ROWS * 4] = {0};
            if (left == 4) {
                values_rows(type, m, dim, size, p + row * stride + j, stride, value, acc + row * dim);
                continue;
            }
            for (int32_t i = 0; i < m; i++)
                memcpy(edge + i * 4, p + (row + i) * stride + j, (size_t)left * sizeof *p);
            values_rows(type, m, dim, size, edge, 4, value, acc + row * dim);
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------- */

/* 2^x for x <= 127; from -127 down it is 0, between that and -126 anything below 2^-126; NaN stays. x = n + f,
 * |f| <= 1/2; 2^f = 1 + f g(f), g of degree 5, minimax over [-1/2, 1/2]: 0.04 u before its own roundings. 2^0 is 1
 * exactly. */
INLINE vf exp2_vf(vf x)
{
    const vf magic = splat(12582912.0f); /* 1.5 x 2^23: rounds to a whole number */
    const vf floor = vmax(splat(-127), x);
    const vf r = floor + magic, f = floor - (r - magic);
    vf g = splat(0x1.41fbbcp-13f);
    g = vfma(g, f, splat(0x1.5f3e52p-10f));
    g = vfma(g, f, splat(0x1.3b2d4cp-7f));
    g = vfma(g, f, splat(0x1.c6aee8p-5f));
    g = vfma(g, f, splat(0x1.ebfbdcp-3f));
    g = vfma(g, f, splat(0x1.62e43p-1f));
    return (vf)((vi)vfma(g, f, splat(1)) + (((vi)r - (vi)magic) << 23));
}

/* Scores of a vector of columns; tanh y = 1 - 2 / (e^2y + 1). */
INLINE vf scores_vf(const struct soften_row *r, vf dot, vf from_row)
{
    const vf s = vfma(dot, splat(r->scale), from_row * splat(r->slope));
    if (r->cap == 0) return s;
    const vf y = s * splat(2 * 1.44269504f);
    const vf e = exp2_vf(select_vf((vi)(y > splat(126)), splat(126), y));
    return splat(r->cap) * (splat(1) - splat(2) / (e + splat(1)));
}

INLINE vf round_vf(const struct rounding *t, vf p)
{
    const vi bits = (vi)p, half = (vi){0} + ((1 << (t->drop - 1)) - 1);
    const vf normal =
        (vf)((bits + half + ((bits >> t->drop) & 1)) & (vi)((vi){0} + (int32_t)(~0u << t->drop)));
    const vf small = (p + splat(t->magic)) - splat(t->magic);
    return select_vf((vi)(p < splat(t->least)), small, normal);
}

/* Lane by lane in index order. */
INLINE float sum_vf(vf v)
{
    float sum = 0, x[W];
    store_vf(x, v);
    for (int32_t i = 0; i < W; i++)
        sum += x[i];
    return sum;
}

INLINE float max_vf(vf v)
{
    float x[W];
    store_vf(x, v);
    for (int32_t i = 1; i < W; i++)
        x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
}

static void deny(const struct soften_row *r, float *p)
{
    for (int32_t j = r->from; j < r->to; j++) {
        const int64_t bit = r->bit + j;
        if (!(r->bits[bit / 8] >> (bit % 8) & 1)) p[j] = -INFINITY;
    }
}

/* Columns [0, n) all seen and logits that are scaled dots: the maximum needs no scores of its own. */
INLINE float max_of_dots(const struct soften_row *r, const float *p, int32_t n)
{
    vf a = splat(-INFINITY), b = a;
    int32_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) {
        a = vmax(load_vf(p + j), a);
        b = vmax(load_vf(p + j + W), b);
    }
    if (j < n) a = vmax(load_vf(p + j), a);
    return max_vf(vmax(a, b)) * r->scale;
}

/* Scores in place, -inf where the row does not look. */
INLINE float max_of_scores(const struct soften_row *r, float *p, int32_t n)
{
    const vf distance = splat((float)(r->first_key - r->position));
    const vi from = (vi){0} + r->from, to = (vi){0} + r->to;
    vi column = column_index(0);
    vf largest = splat(-INFINITY);
    for (int32_t j = 0; j < n; j += W, column += W) {
        const vi seen = (vi)(column >= from) & (vi)(column < to);
        const vf s = scores_vf(r, load_vf(p + j), distance + __builtin_convertvector(column, vf));
        store_vf(p + j, select_vf(seen, s, splat(-INFINITY)));
    }
    if (r->bits) deny(r, p);
    for (int32_t j = 0; j < n; j += W)
        largest = vmax(load_vf(p + j), largest);
    return max_vf(largest);
}

/* p[0..n) = exp2(p scale - shift), rounded; the sum before rounding. Sums of even and odd vectors apart. */
INLINE float weights(const struct rounding *rounding, float scale, float shift, float *p, int32_t n)
{
    vf even = splat(0), odd = splat(0);
    for (int32_t j = 0; j < n; j += 2 * W) {
        const vf a = exp2_vf(vfma(load_vf(p + j), splat(scale), splat(-shift)));
        store_vf(p + j, rounding->drop ? round_vf(rounding, a) : a);
        even += a;
        if (j + W == n) break;
        const vf b = exp2_vf(vfma(load_vf(p + j + W), splat(scale), splat(-shift)));
        store_vf(p + j + W, rounding->drop ? round_vf(rounding, b) : b);
        odd += b;
    }
    return sum_vf(even + odd);
}

static float soften(const struct soften_row *r, const struct rounding *rounding, float *p, int32_t n,
                    float *max, float *sum)
{
    const int32_t padded = (n + VECTOR_PAD - 1) / VECTOR_PAD * VECTOR_PAD;
    const bool plain = r->from == 0 && r->to == n && n == padded && r->cap == 0 && r->slope == 0 && !r->bits;
    float shrink = 1;
    for (int32_t j = n; j < padded; j++)
        p[j] = 0;
    const float tile_max = plain ? max_of_dots(r, p, n) : max_of_scores(r, p, padded);
    if (tile_max == -INFINITY && !plain) {
        for (int32_t j = 0; j < n; j++) {
            if (isnan(p[j])) *sum = NAN; /* vmax passes over it */
            p[j] = 0;
        }
        return 1;
    }
    if (!(tile_max <= *max)) {
        shrink = *max == -INFINITY ? 0 : exp2f(*max - tile_max);
        *max = tile_max;
    }
    *sum = *sum * shrink + weights(rounding, plain ? r->scale : 1, *max - rounding->offset, p, padded);
    return shrink;
}

static void scale(float *x, int32_t n, float factor)
{
    int32_t i = 0;
    for (; i + W <= n; i += W)
        store_vf(x + i, load_vf(x + i) * splat(factor));
    for (; i < n; i++)
        x[i] *= factor;
}

static void add_scaled(float *dst, const float *src, int32_t n, float factor)
{
    int32_t i = 0;
    for (; i + W <= n; i += W)
        store_vf(dst + i, vfma(load_vf(src + i), splat(factor), load_vf(dst + i)));
    for (; i < n; i++) {
        float one[W] = {src[i]}, sum[W] = {dst[i]};
        store_vf(sum, vfma(load_vf(one), splat(factor), load_vf(sum)));
        dst[i] = sum[0];
    }
}

/* ---- panels ------------------------------------------------------------------------------------------------ */

/* Four keys at a time: each group of four elements of d is a 4 x 4 transpose within 128 bits. */
INLINE void pack_four_keys(enum dtype type, int32_t dim, int32_t size, const char *const k[4], float *panel)
{
    for (int32_t x = 0; x < dim; x += W) {
        float turned[4][W];
        vf a[4];
        UNROLL
        for (int32_t j = 0; j < 4; j++)
            a[j] = x + W <= dim ? load_elements(type, k[j] + x * size)
                                : load_first(type, k[j] + x * size, dim - x);
        transpose_4(a);
        UNROLL
        for (int32_t j = 0; j < 4; j++)
            store_vf(turned[j], a[j]);
        for (int32_t d = 0; d < W && x + d < dim; d++)
            memcpy(panel + (x + d) * VECTOR_PANEL, &turned[d % 4][d / 4 * 4], 4 * sizeof(float));
    }
}

INLINE void pack_keys_of(enum dtype type, int32_t dim, const char *const *k, ptrdiff_t shift, int32_t n,
                         float *panels)
{
    const int32_t size = dtype_bytes(type);
    for (int32_t j = 0; j < n; j += 4) {
        const char *key[4];
        for (int32_t i = 0; i < 4; i++)
            key[i] = k[j + i < n ? j + i : n - 1] + shift;
        pack_four_keys(type, dim, size, key,
                       panels + j / VECTOR_PANEL * VECTOR_PANEL * dim + j % VECTOR_PANEL);
    }
    for (int32_t j = (n + 3) / 4 * 4; j % VECTOR_PANEL; j += 4)
        for (int32_t d = 0; d < dim; d++)
            memset(panels + (j / VECTOR_PANEL * dim + d) * VECTOR_PANEL + j % VECTOR_PANEL, 0,
                   4 * sizeof(float));
}

INLINE void pack_values_of(enum dtype type, int32_t dim, const char *const *v, ptrdiff_t shift, int32_t n,
                           float *panels)
{
    const int32_t size = dtype_bytes(type), padded = (dim + VECTOR_PANEL - 1) / VECTOR_PANEL * VECTOR_PANEL;
    for (int32_t j = 0; j < n; j++)
        for (int32_t x = 0; x < padded; x += W) {
            const char *at = v[j] + shift + x * size;
            const vf value = x + W <= dim ? load_elements(type, at)
                             : x < dim    ? load_first(type, at, dim - x)
                                          : splat(0);
            store_vf(panels + (x / VECTOR_PANEL * n + j) * VECTOR_PANEL + x % VECTOR_PANEL, value);
        }
}

/* `rows` rows of a against one panel. */
INLINE void multiply_tile(int32_t rows, const float *a, int32_t a_stride, const float *panel, int32_t depth,
                          float *c, int32_t c_stride, bool adds)
{
    enum { N = VECTOR_PANEL / W < 2 ? 1 : 2 };
    for (int32_t part = 0; part < VECTOR_PANEL; part += N * W) {
        vf sum[PANEL_ROWS][N];
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            UNROLL
        for (int32_t j = 0; j < N; j++)
            sum[i][j] = adds ? load_vf(c + i * c_stride + part + j * W) : splat(0);
        for (int32_t x = 0; x < depth; x++) {
            vf b[N];
            UNROLL
            for (int32_t j = 0; j < N; j++)
                b[j] = load_vf(panel + x * VECTOR_PANEL + part + j * W);
            UNROLL
            for (int32_t i = 0; i < rows; i++) {
                const vf factor = splat(a[i * a_stride + x]);
                UNROLL
                for (int32_t j = 0; j < N; j++)
                    sum[i][j] = vfma(factor, b[j], sum[i][j]);
            }
        }
        UNROLL
        for (int32_t i = 0; i < rows; i++)
            UNROLL
        for (int32_t j = 0; j < N; j++)
            store_vf(c + i * c_stride + part + j * W, sum[i][j]);
    }
}

/* The last rows one by one in halves: PANEL_ROWS / 2, 1. */
INLINE int32_t multiply_rows(int32_t left, const float *a, int32_t a_stride, const float *panel,
                             int32_t depth, float *c, int32_t c_stride, bool adds)
{
    if (left >= PANEL_ROWS) {
        multiply_tile(PANEL_ROWS, a, a_stride, panel, depth, c, c_stride, adds);
        return PANEL_ROWS;
    }
    if (left >= PANEL_ROWS / 2) {
        multiply_tile(PANEL_ROWS / 2, a, a_stride, panel, depth, c, c_stride, adds);
        return PANEL_ROWS / 2;
    }
    multiply_tile(1, a, a_stride, panel, depth, c, c_stride, adds);
    return 1;
}

/* A panel stays in the first-level cache while all rows pass by it. */
static void multiply(const float *a, int32_t a_stride, int32_t rows, const float *panels, int32_t depth,
                     int32_t depth_all, int32_t columns, float *c, int32_t c_stride, bool adds)
{
    for (int32_t j = 0; j < columns; j += VECTOR_PANEL, panels += VECTOR_PANEL * depth_all) {
        const int32_t n = columns - j < VECTOR_PANEL ? columns - j : VECTOR_PANEL;
        for (int32_t i = 0; i < rows;) {
            float edge[PANEL_ROWS * VECTOR_PANEL], *at = c + i * c_stride + j;
            const int32_t left = rows - i, m = left < PANEL_ROWS ? left : PANEL_ROWS;
            const float *from = a + (ptrdiff_t)i * a_stride;
            if (!adds || n == VECTOR_PANEL) {
                i += multiply_rows(left, from, a_stride, panels, depth, at, c_stride, adds);
                continue;
            }
            memset(edge, 0, sizeof edge);
            for (int32_t k = 0; k < m; k++)
                memcpy(edge + k * VECTOR_PANEL, at + k * c_stride, (size_t)n * sizeof *at);
            const int32_t done = multiply_rows(left, from, a_stride, panels, depth, edge, VECTOR_PANEL, adds);
            for (int32_t k = 0; k < done; k++)
                memcpy(at + k * c_stride, edge + k * VECTOR_PANEL, (size_t)n * sizeof *at);
            i += done;
        }
    }
}

/* ---- one function a type ----------------------------------------------------------------------------------- */

INLINE void convert_of(enum dtype type, const char *src, size_t n, float *dst)
{
    const size_t size = (size_t)dtype_bytes(type);
    size_t i = 0;
    for (; i + W <= n; i += W)
        store_vf(dst + i, load_elements(type, src + i * size));
    if (i < n) {
        float last[W];
        store_vf(last, load_first(type, src + i * size, (int32_t)(n - i)));
        memcpy(dst + i, last, (n - i) * sizeof *dst);
    }
}

#define FOR_TYPE(type, call)         \
    switch (type) {                  \
    case DTYPE_FP16: {               \
        enum { T = DTYPE_FP16 };     \
        call;                        \
        break;                       \
    }                                \
    case DTYPE_BF16: {               \
        enum { T = DTYPE_BF16 };     \
        call;                        \
        break;                       \
    }                                \
    case DTYPE_FP8_E4M3: {           \
        enum { T = DTYPE_FP8_E4M3 }; \
        call;                        \
        break;                       \
    }                                \
    case DTYPE_FP8_E5M2: {           \
        enum { T = DTYPE_FP8_E5M2 }; \
        call;                        \
        break;                       \
    }                                \
    default: {                       \
        enum { T = DTYPE_FP32 };     \
        call;                        \
        break;                       \
    }                                \
    }

static void convert(enum dtype type, const void *src, size_t n, float *dst)
{
    FOR_TYPE(type, convert_of((enum dtype)T, src, n, dst))
}

static void dots(enum dtype type, int32_t dim, const float *q, int32_t rows, const char *const *k,
                 ptrdiff_t shift, int32_t n, const char *const *next, ptrdiff_t next_shift, float *p,
                 int32_t stride)
{
    FOR_TYPE(type, dots_of((enum dtype)T, dim, q, rows, k, shift, n, next, next_shift, p, stride))
}

static void add_values(enum dtype type, int32_t dim, const float *p, int32_t stride, int32_t rows,
                       const char *const *v, ptrdiff_t shift, int32_t n, const char *const *next,
                       ptrdiff_t next_shift, float *acc)
{
    FOR_TYPE(type, values_of((enum dtype)T, dim, p, stride, rows, v, shift, n, next, next_shift, acc))
}

static void pack_keys(enum dtype type, int32_t dim, const char *const *k, ptrdiff_t shift, int32_t n,
                      float *panels)
{
    FOR_TYPE(type, pack_keys_of((enum dtype)T, dim, k, shift, n, panels))
}

static void pack_values(enum dtype type, int32_t dim, const char *const *v, ptrdiff_t shift, int32_t n,
                        float *panels)
{
    FOR_TYPE(type, pack_values_of((enum dtype)T, dim, v, shift, n, panels))
}

const struct vector_ops OPS = {
    .name = NAME,
    .convert = convert,
    .dots = dots,
    .add_values = add_values,
    .soften = soften,
    .scale = scale,
    .add_scaled = add_scaled,
    .pack_keys = pack_keys,
    .pack_values = pack_values,
    .multiply = USE_BLAS ? NULL : multiply,
};
