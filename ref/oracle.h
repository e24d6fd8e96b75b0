/* oracle: what the right answer is. Double precision, textbook softmax attention, knows no plan. */
#ifndef TANDEM_REF_ORACLE_H
#define TANDEM_REF_ORACLE_H

#include "ref/tensor.h"

/* Attention of every row of the batch. Row with no visible key: O = 0, LSE = -inf (with a sink: LSE = the
 * sink's logit). Parallel over rows; the same bits on any thread count. */
enum status oracle_run(const struct batch *b, const struct tensors *t, struct oracle_result *out,
                       struct why *why);

/* Attention of n chosen rows only; out (oracle_result_create_rows) holds row rows[i] at i. For batches too large to do
 * whole. */
enum status oracle_run_rows(const struct batch *b, const struct tensors *t, const struct row_ref *rows,
                            int32_t n, struct oracle_result *out, struct why *why);

#endif
