/* error_bound: how far from the exact answer right arithmetic may be. Derived from the roundings that are done
 * and from the data of the row; no number here was fitted.
 *
 * u is the unit roundoff of the arithmetic (2^-53 exact, 2^-24 fp32 and device). For one row, with p the
 * softmax weights, m the largest logit, n the keys seen, |v_j| the largest element of key j's V:
 *
 *   logit j   a dot product of d terms |q| |k_j| sm_scale = t_j. Its roundings are u times partial sums; of
 *             terms of independent signs those grow like sqrt(i / d) t_j / sqrt(d): standard deviation
 *             0.41 u t_j, of which 3 u t_j is seven. Terms of one sign (constant fills, tensors from files)
 *             may lean one way: d u t_j, whatever the order of the sum. RoPE rotates with four more roundings on
 *             either side, 6 u t_j. Scale, conversion to base 2, ALiBi's product and sum, the difference to m: 6 u
 *             (|s_j| + |alibi_j|) + 2 u |m|. A soft cap c (tanh by an exponential) 6 u c.
 *             e_j = (3 + 6) t_j + 6 (|s_j| + |alibi_j|) + 6 c, in units of u  (error_bound_logit)
 *   weight    exp of it: relative error u (e_j + 2 |m| + 4)
 *   sums      over keys of positive terms: blocks of up to 256 in a row, then the blocks. Roundings are
 *             uniform in +-u times partial sums that grow linearly: sd sqrt(256) / 3 within, sqrt(blocks) / 3
 *             across; six of both is  W = 2 sqrt(min(n, 256)) + 2 sqrt(n / 64)  (64: the smallest tile of a GPU
 *             kernel). Equal terms round alike: W = n. Rescaling by exp(m_old - m_new): 3 u a block, in W.
 *   O         |dO| <= u (sum p |v| e + sum p |v| (sum p e + 4 |m| + 2 W + 16))
 *   LSE       u (sum p e + 2 |m| + W + 8 + 4 |LSE|)
 *
 * Numerics `device` also rounds P to u_p before P V, to nearest even: independent keys, sd 1 / sqrt 3 of u_p, six
 * of it 3.5 u_p sqrt(sum p^2 v^2); equal terms u_p sum p |v|. Their mean is not quite 0: where the density of weights
 * falls like p^-a, rounding within a cell of width up to 2 u_p p leaves a u_p^2 / 3 of p: 2 u_p^2 sum p |v| for a up
 * to 6. A floor f_p on what is resolved below the running maximum adds 3.5 f_p sqrt(n), or n f_p, times the largest
 * |v| over sum exp(s - m). O is rounded to u_o, f_o.
 */
#ifndef TANDEM_REF_ERROR_BOUND_H
#define TANDEM_REF_ERROR_BOUND_H

#include "ref/numerics.h"
#include "ref/semantics.h"
#include "ref/tensor.h"

struct error_model {
    double unit;
    double p_unit, p_floor;
    double o_unit, o_floor;
    bool same_terms; /* equal keys or values: roundings lean one way */
};

/* The model of executing this batch over these tensors with the given numerics. */
struct error_model error_model(const struct batch *b, const struct tensors *t, struct numerics n);

/* e_j of a key with logit s, in units of u; `product` = sm_scale |q| |k_j|. */
static inline double error_bound_logit(const struct batch *b, const struct tensors *t,
                                       const struct score_row *row, double product, double s, int32_t key)
{
    const double d = b->shape.head_dim_qk, alibi = row->slope * (double)(key - row->position);
    const double dot = t->same_dots || d < 3 ? d : 3;
    return (dot + (b->rope.kind != ROPE_NONE ? 6 : 0)) * product + 6 * (fabs(s) + fabs(alibi)) + 6 * row->cap;
}

/* Largest errors allowed of a row that sees n keys: of element o of O, of the LSE. */
double error_bound_o(const struct error_model *m, const struct row_sums *sums, int32_t n, double lse,
                     double o);
double error_bound_lse(const struct error_model *m, const struct row_sums *sums, int32_t n, double lse);

#endif
