/* compare: is a result right? Errors against the oracle, the first bad index, NaN-proof. */
#ifndef TANDEM_REF_COMPARE_H
#define TANDEM_REF_COMPARE_H

#include "ref/tensor.h"

/* Most error allowed: |o - o_ref| <= o_abs and |lse - lse_ref| <= lse_abs + lse_rel * |lse_ref|. */
struct tolerance {
    double o_abs, lse_abs, lse_rel;
};

struct comparison {
    bool ok;
    double max_err_o,
        max_err_lse; /* over rows with finite references; NaN and missing writes count as infinite */
    int64_t bad_row; /* first row (token * num_qo_heads + head) out of tolerance, -1 if none */
    int32_t bad_dim; /* its element of O, -1 when it is the LSE */
    double got, want;
};

/* Tolerance for fp32 execution of this batch (and these tensors' magnitudes) against double, derived in
 * compare.c. */
struct tolerance compare_tolerance(const struct batch *b, const struct tensors *t);

struct comparison compare_result(const struct result *got, const struct oracle_result *want,
                                 struct tolerance tolerance);

#endif
