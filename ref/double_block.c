#include "ref/double_block.h"

#include "ref/convert.h"
#include "ref/error_bound.h"

#include <stdlib.h>
#include <string.h>

/* Arranged so that plain loops vectorise without reassociation:
 *
 *   K tile as doubles, transposed to [d][key]:  scores of a row = sum over d of q[d] * k[d][0..KEYS)
 *   V tile as doubles, [key][d]:                output of a row = sum over keys of p[key] * v[key][0..d)
 *
 * with the running maximum and sum of the softmax kept per row. */
enum { KEYS = DOUBLE_BLOCK_KEYS };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR_CLONES
#endif

VECTOR_CLONES static void add_scaled(double *restrict out, const double *restrict in, double factor,
                                     int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] += factor * in[i];
}

/* out[i] += a0 in0[i] + a1 in1[i] + a2 in2[i] + a3 in3[i], four terms a pass: fewer stores, the same order of
 * terms. */
VECTOR_CLONES static void add_scaled_4(double *restrict out, const double *restrict in, int32_t stride,
                                       const double *restrict factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] =
            (((out[i] + factor[0] * in[i]) + factor[1] * in[stride + i]) + factor[2] * in[2 * stride + i]) +
            factor[3] * in[3 * stride + i];
}

/* out[0..n) = sum over t < terms of factor[t] * in[t][0..n) */
static void weighted_sum(double *out, const double *in, int32_t stride, const double *factor, int32_t terms,
                         int32_t n)
{
    int32_t t = 0;
    for (; t + 4 <= terms; t += 4)
        add_scaled_4(out, in + (size_t)t * (size_t)stride, stride, factor + t, n);
    for (; t < terms; t++)
        add_scaled(out, in + (size_t)t * (size_t)stride, factor[t], n);
}

static void rotate(const struct batch *b, int64_t position, double *x)
{
    for (int32_t pair = 0; pair < batch_rope_dim(b) / 2; pair++) {
        const double angle = semantics_rope_angle(b, position, pair), c = cos(angle), s = sin(angle);
        int32_t i, j;
        semantics_rope_pair(b, pair, &i, &j);
        const double first = x[i] * c - x[j] * s;
        x[j] = x[i] * s + x[j] * c;
        x[i] = first;
    }
}

static double norm(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* One vector of dim elements as doubles, times scale. */
static void load(enum dtype type, const void *src, size_t at, int32_t dim, double scale, float *line,
                 double *out)
{
    convert_to_float(type, src, at, (size_t)dim, line);
    for (int32_t d = 0; d < dim; d++)
        out[d] = scale * line[d];
}

static void load_keys(struct double_block *x, int32_t request, int32_t kv_head, int32_t first, int32_t n)
{
    const struct batch *b = x->b;
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo, page_size = b->kv.page_size;
    for (int32_t j = 0; j < n; j++) {
        const int32_t key = first + j, pos = key % page_size;
        const int32_t page = b->kv.kv_indices[b->kv.kv_indptr[request] + key / page_size];
        double *v = x->v + (size_t)j * (size_t)dv, large = 0;
        load(b->shape.kv_dtype, x->t->k, tensor_kv_at(x->t->k_stride, page, pos, kv_head), dk,
             semantics_k_scale(b, kv_head), x->line, x->dim_line);
        rotate(b, key, x->dim_line);
        for (int32_t d = 0; d < dk; d++)
            x->k[d * KEYS + j] = x->dim_line[d];
        load(b->shape.kv_dtype, x->t->v, tensor_kv_at(x->t->v_stride, page, pos, kv_head), dv,
             semantics_v_scale(b, kv_head), x->line, v);
        for (int32_t d = 0; d < dv; d++)
            large = fabs(v[d]) > large ? fabs(v[d]) : large;
        x->k_norm[j] = norm(x->dim_line, dk);
        x->v_large[j] = large;
    }
}

/* Everything summed so far of row i, times `factor`. */
static void shrink(struct double_block *x, int32_t i, double factor)
{
    const int32_t dv = x->b->shape.head_dim_vo;
    struct row_sums *s = &x->sums[i];
    for (int32_t d = 0; d < dv; d++)
        x->acc[(size_t)i * (size_t)dv + (size_t)d] *= factor;
    x->sum[i] *= factor;
    s->value *= factor;
    s->value_sq *= factor * factor;
    s->value_error *= factor;
    s->error *= factor;
}

static void note_sums(struct row_sums *s, double weight, double large, double error)
{
    s->value += weight * large;
    s->value_sq += weight * weight * large * large;
    s->value_error += weight * large * error;
    s->error += weight * error;
    if (large > s->largest) s->largest = large;
}

/* Row i against keys [begin, end) of the tile that starts at key `first`. */
static void attend(struct double_block *x, int32_t i, int32_t first, int32_t begin, int32_t end)
{
    const struct batch *b = x->b;
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo, n = end - begin, skip = begin - first;
    const struct row_ref *row = &x->row[i];
    double p[KEYS] = {0}, tile_max = -INFINITY;
    weighted_sum(p, x->k + skip, KEYS, x->q + (size_t)i * (size_t)dk, dk, n);
    for (int32_t j = 0; j < n; j++) {
        p[j] = batch_custom_bit(b, row->request, row->token, begin + j)
                   ? semantics_logit(&x->score[i], p[j], begin + j)
                   : -INFINITY;
        if (!(p[j] <= tile_max)) tile_max = p[j]; /* NaN stays visible */
    }
    if (tile_max == -INFINITY) return;
    if (!(tile_max <= x->max[i])) {
        shrink(x, i, x->sum[i] > 0 ? exp(x->max[i] - tile_max) : 0); /* first tile: nothing to shrink */
        x->max[i] = tile_max;
    }
    for (int32_t j = 0; j < n; j++) {
        const double s = p[j];
        if (s == -INFINITY) {
            p[j] = 0;
            continue;
        }
        p[j] = exp(s - x->max[i]);
        x->sum[i] += p[j];
        note_sums(&x->sums[i], p[j], x->v_large[skip + j],
                  error_bound_logit(b, x->t, &x->score[i], x->q_norm[i] * x->k_norm[skip + j], s, begin + j));
    }
    weighted_sum(x->acc + (size_t)i * (size_t)dv, x->v + (size_t)skip * (size_t)dv, dv, p, n, dv);
}

struct range double_block_begin(struct double_block *x, const struct row_ref *rows, int32_t n, int32_t begin,
                                int32_t end)
{
    const struct batch *b = x->b;
    const int32_t dk = b->shape.head_dim_qk, heads = b->shape.num_qo_heads;
    struct range all = {end, begin};
    x->n_rows = n;
    memset(x->acc, 0, (size_t)n * (size_t)b->shape.head_dim_vo * sizeof *x->acc);
    memset(x->sums, 0, (size_t)n * sizeof *x->sums);
    for (int32_t i = 0; i < n; i++) {
        const struct row_ref *r = &rows[i];
        const struct range v = batch_visible(b, r->request, r->token);
        double *q = x->q + (size_t)i * (size_t)dk;
        x->row[i] = *r;
        x->score[i] = semantics_score_row(b, r->request, r->token, r->qo_head);
        x->seen[i] = (struct range){v.begin > begin ? v.begin : begin, v.end < end ? v.end : end};
        load(b->shape.q_dtype, x->t->q, tensor_row_at(x->t->q_stride, heads, batch_row(b, *r)), dk, 1,
             x->line, q);
        rotate(b, x->score[i].position, q);
        x->q_norm[i] = x->score[i].scale * norm(q, dk);
        x->max[i] = -INFINITY;
        x->sum[i] = 0;
        if (x->seen[i].begin >= x->seen[i].end) continue;
        if (x->seen[i].begin < all.begin) all.begin = x->seen[i].begin;
        if (x->seen[i].end > all.end) all.end = x->seen[i].end;
    }
    return all;
}

void double_block_attend(struct double_block *x, int32_t request, int32_t kv_head, int32_t begin, int32_t end)
{
    for (int32_t first = begin; first < end; first += KEYS) {
        const int32_t n = end - first < KEYS ? end - first : KEYS;
        load_keys(x, request, kv_head, first, n);
        for (int32_t i = 0; i < x->n_rows; i++) {
            const int32_t from = x->seen[i].begin > first ? x->seen[i].begin : first,
                          to = x->seen[i].end < first + n ? x->seen[i].end : first + n;
            if (from < to) attend(x, i, first, from, to);
        }
    }
}

/* O = acc / sum, LSE = max + log sum; a sink is one more term of the sum without a value. */
double double_block_finish(const struct double_block *x, int32_t i, const double *sink, double *o)
{
    const int32_t dv = x->b->shape.head_dim_vo;
    double max = x->max[i], sum = x->sum[i], scale = 1;
    if (sink) {
        const double top = max > *sink ? max : *sink;
        scale = sum > 0 ? exp(max - top) : 0;
        sum = sum * scale + exp(*sink - top);
        max = top;
    }
    for (int32_t d = 0; d < dv; d++)
        o[d] = sum == 0 ? 0 : x->acc[(size_t)i * (size_t)dv + (size_t)d] * scale / sum;
    return sum == 0 ? -INFINITY : max + log(sum);
}

bool double_block_create(const struct batch *b, const struct tensors *t, int32_t max_rows,
                         struct double_block *out)
{
    const size_t rows = (size_t)max_rows, dk = (size_t)b->shape.head_dim_qk,
                 dv = (size_t)b->shape.head_dim_vo;
    *out = (struct double_block){.b = b, .t = t, .max_rows = max_rows};
    out->row = malloc(rows * sizeof *out->row);
    out->score = malloc(rows * sizeof *out->score);
    out->seen = malloc(rows * sizeof *out->seen);
    out->sums = malloc(rows * sizeof *out->sums);
    out->line = malloc((dk > dv ? dk : dv) * sizeof *out->line);
    out->q = malloc((rows * (dk + dv + 3) + KEYS * (dk + dv + 2) + dk) * sizeof *out->q);
    if (!out->row || !out->score || !out->seen || !out->sums || !out->line || !out->q) return false;
    out->acc = out->q + rows * dk;
    out->q_norm = out->acc + rows * dv;
    out->max = out->q_norm + rows;
    out->sum = out->max + rows;
    out->k = out->sum + rows;
    out->v = out->k + KEYS * dk;
    out->k_norm = out->v + KEYS * dv;
    out->v_large = out->k_norm + KEYS;
    out->dim_line = out->v_large + KEYS;
    return true;
}

void double_block_free(struct double_block *x)
{
    free(x->row);
    free(x->score);
    free(x->seen);
    free(x->sums);
    free(x->line);
    free(x->q);
    memset(x, 0, sizeof *x);
}
