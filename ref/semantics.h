/* semantics: what attention means here, in one place. Every executor is held to these rules; the functions
 * below are the rules in double precision, and tests/test_semantics.c checks each example.
 *
 *  1 Lengths    kv_len counts the new tokens. qo_len 2, kv_len 5: query row 0 stands at key 3, row 1 at key 4
 *               (kv_len - qo_len + i). Where qo_len > kv_len rows stand before key 0: qo_len 3, kv_len 1 puts
 *               rows 0, 1, 2 at -2, -1, 0.
 *  2 Causal     bottom-right aligned: row i sees keys [0, kv_len - qo_len + i + 1). qo_len 2, kv_len 5: row 0
 *               sees 0..3, row 1 sees 0..4.
 *  3 Window     window_left w keeps key j of row i if j >= kv_len - qo_len + i - w; with causal that leaves
 *               w + 1 keys. qo_len 2, kv_len 5, w 1: row 0 sees 2, 3; row 1 sees 3, 4.
 *  4 Bits       a custom mask takes keys from what 2 and 3 leave: bit i * kv_len + j of the request's bytes,
 *               least significant bit first. qo_len 2, kv_len 5, bytes 0xd7 0x02: bits 1110 1011 01, row 0
 *               has 1,1,1,0,1 and row 1 has 0,1,1,0,1.
 *  5 Scales     the true K of kv head h is k_scale[h] times what is stored; V likewise.
 *  6 RoPE       rotates pair j of dim d by the angle position / scale * theta^(-2 j / d):
 *               (x, y) -> (x cos - y sin, x sin + y cos). LLAMA pairs (j, j + d / 2), INTERLEAVED (2 j, 2 j + 1).
 *               Row i of Q turns by its position of rule 1, key j by j: their product depends on the
 *               distance only. d 4, theta 100, position 3: angles 3 and 0.3; LLAMA turns (1, 0, 0, 0) into
 *               (cos 3, 0, sin 3, 0), INTERLEAVED into (cos 3, sin 3, 0, 0). Elements from d on stay.
 *  7 Logit      s = dot * sm_scale (1 / sqrt(head_dim_qk) unless given)
 *  8 ALiBi      s += slope(head) * (j - position): 0 at the row's own key, falling to the left. 4 heads: slopes
 *               1/4, 1/16, 1/64, 1/256. 3 heads: those of 2 heads 1/16, 1/256, then the first of 4 heads
 *               that is not among them, 1/4.
 *  9 Soft cap   s = c tanh(s / c), after scale and ALiBi, before the mask. c 2, s 2: 2 tanh 1 = 1.523
 * 10 Softmax    over the keys seen: p = exp(s - max) / sum, O = sum of p V. Scores 0, ln 2 and V 1, 4:
 *               p = 1/3, 2/3, O = 3.
 * 11 LSE        log(sum of exp(s)), natural: ln 3 in that example. Base 2, for engines that keep it so, is
 *               LSE / ln 2: log2 3 = 1.585.
 * 12 Sink       one more term exp(sink[head]) in the sum, without a value. Example of 10 with sink ln 3:
 *               p = 1/6, 2/6, O = 1.5, LSE = ln 6.
 * 13 Nothing    a row that sees no key has O = 0 and LSE = -inf (with a sink: LSE = the sink), and is written
 *               all the same.
 * 14 Merge      partial results over disjoint keys: O = sum of w O_i / sum of w, w = exp(LSE_i - max LSE), LSE =
 *               max + log(sum of w); parts with LSE = -inf weigh nothing. The sink joins here, once.
 *               O 1, 4 with LSE 0, ln 2: w = 1/2, 1, O = 3, LSE = ln 3. */
#ifndef TANDEM_REF_SEMANTICS_H
#define TANDEM_REF_SEMANTICS_H

#include "sched/batch.h"

#include <math.h>

/* Rule 1: where row `token` of a request stands among the keys. */
static inline int64_t semantics_position(const struct batch *b, int32_t request, int32_t token)
{
    return (int64_t)b->kv_len[request] - batch_qo_len(b, request) + token;
}

/* Rules 2 to 4 (2 and 3 are batch_visible). */
static inline bool semantics_sees(const struct batch *b, int32_t request, int32_t token, int32_t key)
{
    const struct range v = batch_visible(b, request, token);
    return key >= v.begin && key < v.end && batch_custom_bit(b, request, token, key);
}

/* Rule 5. */
static inline double semantics_k_scale(const struct batch *b, int32_t kv_head)
{
    return b->k_scale ? b->k_scale[kv_head] : 1;
}

static inline double semantics_v_scale(const struct batch *b, int32_t kv_head)
{
    return b->v_scale ? b->v_scale[kv_head] : 1;
}

/* Rule 6: radians pair j turns by at a position; elements of the pair. */
static inline double semantics_rope_angle(const struct batch *b, int64_t position, int32_t pair)
{
    const double theta = b->rope.theta > 0 ? b->rope.theta : 10000,
                 scale = b->rope.scale > 0 ? b->rope.scale : 1;
    return (double)position / scale * pow(theta, -2.0 * pair / batch_rope_dim(b));
}

static inline void semantics_rope_pair(const struct batch *b, int32_t pair, int32_t *first, int32_t *second)
{
    const bool interleaved = b->rope.kind == ROPE_INTERLEAVED;
    *first = interleaved ? 2 * pair : pair;
    *second = interleaved ? 2 * pair + 1 : pair + batch_rope_dim(b) / 2;
}

/* Rule 8 (Press et al. 2022): n a power of two: 2^(-8 (h + 1) / n); else the slopes of the power of two p
 * below n, then every second one of those of 2 p. */
static inline double semantics_alibi_slope(int32_t h, int32_t n)
{
    int32_t p = 1;
    while (p * 2 <= n)
        p *= 2;
    return h < p ? exp2(-8.0 * (h + 1) / p) : exp2(-4.0 * (2 * (h - p) + 1) / p);
}

/* What one query row needs to turn dots into logits: rules 7 to 9. */
struct score_row {
    double scale, cap;
    double slope;     /* 0 without alibi */
    int64_t position; /* of the row among the keys */
};

static inline struct score_row semantics_score_row(const struct batch *b, int32_t request, int32_t token,
                                                   int32_t qo_head)
{
    return (struct score_row){
        .scale = batch_sm_scale(b),
        .cap = b->mask.logits_soft_cap,
        .slope = b->mask.alibi ? semantics_alibi_slope(qo_head, b->shape.num_qo_heads) : 0,
        .position = semantics_position(b, request, token),
    };
}

static inline double semantics_logit(const struct score_row *r, double dot, int32_t key)
{
    double s = dot * r->scale + r->slope * (double)(key - r->position);
    if (r->cap > 0) s = r->cap * tanh(s / r->cap);
    return s;
}

/* Rule 11. */
static inline double semantics_lse_log2(double lse)
{
    return lse * 1.4426950408889634; /* log2 e; -inf stays */
}

#endif
