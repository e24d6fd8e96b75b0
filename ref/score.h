/* score: from a dot product to the logit that enters the softmax. The order every engine uses: scale (+
 * alibi), soft cap; the mask is batch_visible, the sink joins the denominator at the end. */
#ifndef TANDEM_REF_SCORE_H
#define TANDEM_REF_SCORE_H

#include "sched/batch.h"

#include <math.h>

/* What one query row needs to turn dots into logits. */
struct score_row {
    double scale, cap;
    double slope;    /* 0 without alibi */
    int64_t aligned; /* the row's own position among the keys: alibi adds slope * (key - aligned) */
};

/* ALiBi slope of head h of n (Press et al. 2022): n a power of two: 2^(-8 (h + 1) / n); else the slopes of
 * the power of two p below n, then every second one of those of 2 p. */
static inline double score_alibi_slope(int32_t h, int32_t n)
{
    int32_t p = 1;
    while (p * 2 <= n)
        p *= 2;
    return h < p ? exp2(-8.0 * (h + 1) / p) : exp2(-4.0 * (2 * (h - p) + 1) / p);
}

static inline struct score_row score_row(const struct batch *b, int32_t request, int32_t token,
                                         int32_t qo_head)
{
    return (struct score_row){
        .scale = batch_sm_scale(b),
        .cap = b->mask.logits_soft_cap,
        .slope = b->mask.alibi ? score_alibi_slope(qo_head, b->shape.num_qo_heads) : 0,
        .aligned = (int64_t)b->kv_len[request] - batch_qo_len(b, request) + token,
    };
}

static inline double score_logit(const struct score_row *r, double dot, int32_t key)
{
    double s = dot * r->scale + r->slope * (double)(key - r->aligned);
    if (r->cap > 0) s = r->cap * tanh(s / r->cap);
    return s;
}

#endif
