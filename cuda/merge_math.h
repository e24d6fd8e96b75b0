/* merge_math: the arithmetic of LSE-weighted merging, for kernels and their tests.
 *
 *   O = sum of w_i O_i / sum of w_i,  w_i = exp(LSE_i - max),  LSE = max + log(sum of w_i)
 *
 * Parts that saw nothing (LSE = -inf) weigh nothing; a sink joins the sum once, without a value. */
#ifndef TANDEM_CUDA_MERGE_MATH_H
#define TANDEM_CUDA_MERGE_MATH_H

#include "sched/inline.h"

#include <math.h>

/* Weight of a part beside the largest LSE; 0 where nothing was seen at all. */
TANDEM_INLINE float merge_weight(float lse, float max)
{
    return lse == -INFINITY ? 0.0f : expf(lse - max);
}

/* A row's end: what its sum of exp(logit - max) and sum of weighted values become. *factor is what the accumulator is
 * multiplied by; returned is the LSE. sink: NULL or the logit that joins. */
TANDEM_INLINE float merge_finish(float max, float sum, const float *sink, float *factor)
{
    float scale = 1.0f;
    if (sink) {
        const float most = max > *sink ? max : *sink;
        scale = max == -INFINITY ? 0.0f : expf(max - most);
        sum = sum * scale + expf(*sink - most);
        max = most;
    }
    *factor = sum > 0 ? scale / sum : 0.0f;
    return sum > 0 ? max + logf(sum) : -INFINITY;
}

#endif
