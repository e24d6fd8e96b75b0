/* quantile: medians and quantiles of measured times. */
#ifndef TANDEM_CUDA_QUANTILE_H
#define TANDEM_CUDA_QUANTILE_H

#include <stdint.h>
#include <stdlib.h>

static inline int quantile_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void quantile_sort(double *values, int32_t n)
{
    qsort(values, (size_t)n, sizeof *values, quantile_compare);
}

/* Quantile q in [0, 1] of n >= 1 sorted values, between two of them in proportion. */
static inline double quantile_of(const double *sorted, int32_t n, double q)
{
    const double at = q * (n - 1);
    const int32_t below = (int32_t)at;
    return sorted[below] + (at - below) * (sorted[below + 1 < n ? below + 1 : below] - sorted[below]);
}

#endif
