#include "ref/compare.h"

#include <math.h>
#include <stdlib.h>

/* How far fp32 execution may be from double, eps = 2^-24.
 *
 *   score   a dot of d terms: errors of its roundings add like a random walk, sqrt(d) eps of the size S of a
 *           score. Independent normals of rms q, k: S = scale sqrt(d) q k. Constants: S = scale d q k, and all
 *           scores alike. ALiBi adds up to kv_len to a score. E = 2 sqrt(d) eps S
 *   weight  exp of a difference of two scores: relative error 2 E + 4 eps
 *   O       a weighted mean of V: weights' errors and the sum over L keys, sqrt(L) eps:
 *           |V| (2 E + (8 + sqrt(L)) eps), |V| = 3.53 rms, the largest normal tensor.c makes
 *           (where a request holds a page twice its roundings lean one way: L instead of sqrt(L))
 *   LSE     E + (8 + sqrt(L)) eps, and relative 4 eps where scores are large */
static const double eps = 0x1p-24;

static double score_size(const struct batch *b, const struct tensors *t)
{
    const double d = b->shape.head_dim_qk, product = (dtype_is_fp8(b->shape.kv_dtype) ? 1.125 : 1) *
                                                     fabs(t->fill[0].value * t->fill[1].value) *
                                                     batch_sm_scale(b);
    const bool coherent = t->fill[0].kind == FILL_CONSTANT && t->fill[1].kind == FILL_CONSTANT;
    return product * (coherent ? d : sqrt(d));
}

static double longest_kv(const struct batch *b)
{
    double longest = 1;
    for (int32_t r = 0; r < b->n_requests; r++)
        if (b->kv_len[r] > longest) longest = b->kv_len[r];
    return longest;
}

/* Does a request hold a page twice? Then it has equal keys, whose roundings lean the same way. */
static bool repeats_pages(const struct batch *b)
{
    int32_t *holder = malloc(((size_t)b->kv.num_pages + 1) * sizeof *holder);
    bool repeats = holder == NULL; /* not known: the wider bound */
    for (int32_t page = 0; holder && page < b->kv.num_pages; page++)
        holder[page] = -1;
    for (int32_t r = 0; r < b->n_requests && !repeats; r++)
        for (int32_t p = b->kv.kv_indptr[r]; p < b->kv.kv_indptr[r + 1]; p++) {
            repeats |= holder[b->kv.kv_indices[p]] == r;
            holder[b->kv.kv_indices[p]] = r;
        }
    free(holder);
    return repeats;
}

struct tolerance compare_tolerance(const struct batch *b, const struct tensors *t)
{
    const double keys = longest_kv(b), d = b->shape.head_dim_qk;
    const double size = score_size(b, t) + (b->mask.alibi ? keys : 0);
    const double score_error = 2 * sqrt(d) * eps * size;
    const double rounded =
        dtype_is_fp8(b->shape.kv_dtype) ? 1.125 : 1; /* e5m2 rounds up by an eighth at most */
    const double v = rounded * fabs(t->fill[2].value) * (t->fill[2].kind == FILL_NORMAL ? 3.53 : 1);
    const double walk = repeats_pages(b) ? keys : sqrt(256 / 3.0) + sqrt(keys / 256 / 3);
    const double sums = (8 + walk) * eps;
    return (struct tolerance){
        .o_abs = v * (2 * score_error + sums), .lse_abs = score_error + sums, .lse_rel = 4 * eps};
}

/* Error of one number against a bound; NaN, a missing infinity and an unexpected one are infinitely wrong. */
static double error_of(double got, double want)
{
    if (isinf(want)) return got == want ? 0 : INFINITY;
    return isfinite(got) ? fabs(got - want) : INFINITY;
}

static void note_bad(struct comparison *c, size_t row, int32_t dim, double got, double want)
{
    c->ok = false;
    if (c->bad_row >= 0) return;
    c->bad_row = (int64_t)row;
    c->bad_dim = dim;
    c->got = got;
    c->want = want;
}

struct comparison compare_result(const struct result *got, const struct oracle_result *want,
                                 struct tolerance tolerance)
{
    struct comparison c = {
        .ok = result_guard_ok(got) && got->n_rows == want->n_rows, .bad_row = -1, .bad_dim = -1};
    const size_t dv = (size_t)got->head_dim_vo;
    for (size_t row = 0; row < got->n_rows && row < want->n_rows; row++) {
        const double lse = want->lse[row], lse_error = error_of(got->lse[row], lse);
        if (lse_error > c.max_err_lse) c.max_err_lse = lse_error;
        if (!(lse_error <= tolerance.lse_abs + (isinf(lse) ? 0 : tolerance.lse_rel * fabs(lse))))
            note_bad(&c, row, -1, got->lse[row], lse);
        for (size_t d = 0; d < dv; d++) {
            const double o_error = error_of(got->o[row * dv + d], want->o[row * dv + d]);
            if (o_error > c.max_err_o) c.max_err_o = o_error;
            if (!(o_error <= tolerance.o_abs))
                note_bad(&c, row, (int32_t)d, got->o[row * dv + d], want->o[row * dv + d]);
        }
    }
    return c;
}
