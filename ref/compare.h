/* compare: is a result right? Errors against the oracle, the first bad index, NaN-proof. */
#ifndef TANDEM_REF_COMPARE_H
#define TANDEM_REF_COMPARE_H

#include "ref/error_bound.h"
#include "ref/tensor.h"

struct comparison {
    bool ok;
    double max_err_o,
        max_err_lse; /* over rows with finite references; NaN and missing writes count as infinite */
    double of_bound; /* largest error over what error_bound.h allows: 1 is the limit */
    int64_t bad_row; /* first row (token * num_qo_heads + head) out of bounds, -1 if none */
    int32_t bad_dim; /* its element of O, -1 when it is the LSE */
    double got, want, bound;
};

/* Every element of O and LSE within the bound of its row, no guard word touched. */
struct comparison compare_result(const struct batch *b, const struct result *got,
                                 const struct oracle_result *want, const struct error_model *model);

/* The same for n chosen rows: want holds rows[i] at i. */
struct comparison compare_rows(const struct batch *b, const struct result *got, const struct row_ref *rows,
                               int32_t n, const struct oracle_result *want, const struct error_model *model);

#endif
