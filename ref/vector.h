/* vector: ref_exec's inner loops, compiled once for each instruction set and picked at run time.
 *
 * One body (vector_body.h) in terms of a vector of W floats; vector_base.c (GNU C vectors of 4: SSE2, NEON),
 * vector_avx2.c (AVX2, FMA, F16C) and vector_avx512.c (AVX-512 F, BW, DQ, VL) say what W and a few operations
 * are. Every loop's order of operations is fixed, so one instruction set gives one set of bits. */
#ifndef TANDEM_REF_VECTOR_H
#define TANDEM_REF_VECTOR_H

#include "sched/batch.h"

#include <stddef.h>

/* Rows of scores are padded to whole vectors: strides of p are multiples of this. */
enum { VECTOR_PAD = 16, VECTOR_PANEL = 32 };

/* How one row's dots become weights; everything in base 2 (log2 e times the logit of ref/semantics.h). */
struct soften_row {
    float scale;         /* sm_scale x k_scale x log2 e; with a cap: sm_scale x k_scale / cap */
    float slope;         /* ALiBi's, times the same constants */
    float cap;           /* 0, or soft cap x log2 e */
    int64_t position;    /* of the row among the keys */
    int32_t from, to;    /* tile columns that are seen; the others get weight 0 */
    int32_t first_key;   /* key of column 0 */
    const uint8_t *bits; /* NULL, or the request's custom mask; column j is bit `bit` + j */
    int64_t bit;
};

/* Rounding of weights to a narrower type: drops fraction bits; below `least` (its smallest normal number) to
 * multiples of the last place that adding `magic` leaves. drop 0: none. */
struct rounding {
    int32_t drop;
    float least, magic;
    float offset; /* weights are exp2(s - max + offset) */
};

struct vector_ops {
    const char *name;

    /* dst[0..n) = src[0..n) of `type` as fp32. */
    void (*convert)(enum dtype type, const void *src, size_t n, float *dst);

    /* p[i * stride + j] = q_i . k_j: rows of q are dim apart, key j is at k[j] + shift bytes. While reading, asks
     * for the dim elements at next[j] + next_shift (next NULL: nothing). */
    void (*dots)(enum dtype type, int32_t dim, const float *q, int32_t rows, const char *const *k,
                 ptrdiff_t shift, int32_t n, const char *const *next, ptrdiff_t next_shift, float *p,
                 int32_t stride);

    /* acc_i += sum over j of p[i * stride + j] v_j; rows of acc are dim apart. */
    void (*add_values)(enum dtype type, int32_t dim, const float *p, int32_t stride, int32_t rows,
                       const char *const *v, ptrdiff_t shift, int32_t n, const char *const *next,
                       ptrdiff_t next_shift, float *acc);

    /* Turns n dots into weights exp2(s - max) in place (and what is behind them up to VECTOR_PAD into anything),
     * rounded as asked; *max and *sum (of unrounded weights)
     * go on from what they were. Returns the factor for what was accumulated before: exp2(old max - new). */
    float (*soften)(const struct soften_row *row, const struct rounding *rounding, float *p, int32_t n,
                    float *max, float *sum);

    /* x[0..n) *= factor. */
    void (*scale)(float *x, int32_t n, float factor);

    /* dst[0..n) += factor x src[0..n). */
    void (*add_scaled)(float *dst, const float *src, int32_t n, float factor);

    /* Matrix products over panels, for tall blocks; NULL: use BLAS, which is faster there. A panel holds
     * VECTOR_PANEL columns of every row of its matrix, next to each other: K^T [dim][keys] is packed by
     * pack_keys, V [keys][dim] by pack_values (what a last panel lacks is zeros). */
    void (*pack_keys)(enum dtype type, int32_t dim, const char *const *k, ptrdiff_t shift, int32_t n,
                      float *panels);
    void (*pack_values)(enum dtype type, int32_t dim, const char *const *v, ptrdiff_t shift, int32_t n,
                        float *panels);

    /* c[i * c_stride + j] (+)= sum over x < depth of a[i * a_stride + x] panels[x][j], for rows x columns of c.
     * Of a panel of `depth_all` rows those from the pointer on are used. Each element's sum runs in order of
     * x. Where not `adds`, whole panels of c are written. */
    void (*multiply)(const float *a, int32_t a_stride, int32_t rows, const float *panels, int32_t depth,
                     int32_t depth_all, int32_t columns, float *c, int32_t c_stride, bool adds);
};

/* The best this CPU has. */
const struct vector_ops *vector_best(void);

/* By name: "base", "avx2", "avx512"; NULL for what this CPU or build has not. */
const struct vector_ops *vector_find(const char *name);

/* The types a weight can be rounded to. fp32 rounds nothing. */
struct rounding vector_rounding(enum dtype type);

extern const struct vector_ops vector_base, vector_avx2, vector_avx512;

#endif
