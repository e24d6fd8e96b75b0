#include "ref/compare.h"

#include <math.h>

/* Error of one number against a bound; NaN, a missing infinity and an unexpected one are infinitely wrong. */
static double error_of(double got, double want)
{
    if (isinf(want)) return got == want ? 0 : INFINITY;
    return isfinite(got) ? fabs(got - want) : INFINITY;
}

/* One number: `largest` keeps the largest error, the comparison the first that is out of bounds. */
static void check(struct comparison *c, size_t row, int32_t dim, double got, double want, double bound,
                  double *largest)
{
    const double error = error_of(got, want), share = bound > 0 ? error / bound : error > 0 ? INFINITY : 0;
    if (error > *largest) *largest = error;
    if (share > c->of_bound) c->of_bound = share;
    if (error <= bound) return;
    c->ok = false;
    if (c->bad_row >= 0) return;
    c->bad_row = (int64_t)row;
    c->bad_dim = dim;
    c->got = got;
    c->want = want;
    c->bound = bound;
}

/* Row `row` of the batch, which is row `i` of what is wanted. */
static void check_row(const struct result *got, const struct oracle_result *want,
                      const struct error_model *model, size_t row, size_t i, int32_t n_keys,
                      struct comparison *c)
{
    const size_t dv = (size_t)got->head_dim_vo, at = tensor_row_at(got->o_stride, got->num_qo_heads, row);
    const double lse = want->lse[i];
    check(c, row, -1, got->lse[row], lse,
          isinf(lse) ? 0 : error_bound_lse(model, &want->sums[i], n_keys, lse), &c->max_err_lse);
    for (size_t d = 0; d < dv; d++) {
        const double o = want->o[i * dv + d];
        check(c, row, (int32_t)d, got->o[at + d], o,
              isinf(lse) ? 0 : error_bound_o(model, &want->sums[i], n_keys, lse, o), &c->max_err_o);
    }
}

struct comparison compare_result(const struct batch *b, const struct result *got,
                                 const struct oracle_result *want, const struct error_model *model)
{
    struct comparison c = {
        .ok = result_guard_ok(got) && got->n_rows == want->n_rows, .bad_row = -1, .bad_dim = -1};
    const size_t heads = (size_t)b->shape.num_qo_heads;
    for (int32_t r = 0; got->n_rows == want->n_rows && r < b->n_requests; r++)
        for (int32_t token = 0; token < batch_qo_len(b, r); token++) {
            const struct range seen = batch_visible(b, r, token);
            const size_t first = ((size_t)b->qo_indptr[r] + (size_t)token) * heads;
            for (size_t row = first; row < first + heads; row++)
                check_row(got, want, model, row, row, seen.end - seen.begin, &c);
        }
    return c;
}

struct comparison compare_rows(const struct batch *b, const struct result *got, const struct row_ref *rows,
                               int32_t n, const struct oracle_result *want, const struct error_model *model)
{
    struct comparison c = {
        .ok = result_guard_ok(got) && want->n_rows == (size_t)n, .bad_row = -1, .bad_dim = -1};
    for (int32_t i = 0; want->n_rows == (size_t)n && i < n; i++) {
        const struct range seen = batch_visible(b, rows[i].request, rows[i].token);
        check_row(got, want, model, batch_row(b, rows[i]), (size_t)i, seen.end - seen.begin, &c);
    }
    return c;
}
