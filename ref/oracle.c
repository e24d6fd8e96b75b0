#include "ref/oracle.h"

#include "ref/convert.h"
#include "ref/score.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Textbook attention in double, arranged so that plain loops vectorise without reassociation:
 *
 *   task = (request, kv head, TOKENS query tokens); for each tile of KEYS keys:
 *     K tile as doubles, transposed to [d][key]:  scores of a row = sum over d of q[d] * k[d][0..KEYS)
 *     V tile as doubles, [key][d]:                output of a row = sum over keys of p[key] * v[key][0..d)
 *
 * with the running maximum and sum of the softmax kept per row. Sums run over d, and over keys, in index
 * order. */
enum { KEYS = 128, TOKENS = 16 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTOR_CLONES
#endif

struct scratch {
    double *q;         /* [rows][head_dim_qk] */
    double *k;         /* [head_dim_qk][KEYS] */
    double *v;         /* [KEYS][head_dim_vo] */
    double *acc;       /* [rows][head_dim_vo] */
    double *max, *sum; /* [rows] */
    float *line;       /* one vector as fp32 */
};

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

static void load_keys(const struct batch *b, const struct tensors *t, int32_t request, int32_t kv_head,
                      int32_t first, int32_t n, struct scratch *s)
{
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo, page_size = b->kv.page_size;
    for (int32_t j = 0; j < n; j++) {
        const int32_t key = first + j;
        const int32_t page = b->kv.kv_indices[b->kv.kv_indptr[request] + key / page_size];
        const size_t k_at = tensor_kv_offset(b, t->layout, dk, page, key % page_size, kv_head);
        const size_t v_at = tensor_kv_offset(b, t->layout, dv, page, key % page_size, kv_head);
        convert_to_float(b->shape.kv_dtype, t->k, k_at, (size_t)dk, s->line);
        for (int32_t d = 0; d < dk; d++)
            s->k[d * KEYS + j] = s->line[d];
        convert_to_float(b->shape.kv_dtype, t->v, v_at, (size_t)dv, s->line);
        for (int32_t d = 0; d < dv; d++)
            s->v[j * dv + d] = s->line[d];
    }
}

/* One row against keys [begin, end) of the tile that starts at key `first`. */
static void attend(const struct batch *b, const struct score_row *row, int32_t i, int32_t first,
                   int32_t begin, int32_t end, struct scratch *s)
{
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo, n = end - begin;
    double scores[KEYS] = {0}, tile_max = -INFINITY;
    weighted_sum(scores, s->k + (begin - first), KEYS, s->q + (size_t)i * (size_t)dk, dk, n);
    for (int32_t j = 0; j < n; j++) {
        scores[j] = score_logit(row, scores[j], begin + j);
        if (scores[j] > tile_max) tile_max = scores[j];
    }
    if (tile_max > s->max[i]) {
        const double shrink =
            s->sum[i] > 0 ? exp(s->max[i] - tile_max) : 0; /* first tile: nothing to shrink */
        for (int32_t d = 0; d < dv; d++)
            s->acc[(size_t)i * (size_t)dv + (size_t)d] *= shrink;
        s->sum[i] *= shrink;
        s->max[i] = tile_max;
    }
    for (int32_t j = 0; j < n; j++) {
        scores[j] = exp(scores[j] - s->max[i]);
        s->sum[i] += scores[j];
    }
    weighted_sum(s->acc + (size_t)i * (size_t)dv, s->v + (size_t)(begin - first) * (size_t)dv, dv, scores, n,
                 dv);
}

/* O = acc / sum, LSE = max + log sum; a sink is one more term of the sum without a value. */
static void finish_row(const struct batch *b, int32_t i, size_t row, int32_t qo_head, const struct scratch *s,
                       struct oracle_result *out)
{
    const int32_t dv = b->shape.head_dim_vo;
    double max = s->max[i], sum = s->sum[i], scale = 1;
    if (b->mask.sink) {
        const double sink = b->mask.sink[qo_head];
        const double top = max > sink ? max : sink;
        scale = sum > 0 ? exp(max - top) : 0;
        sum = sum * scale + exp(sink - top);
        max = top;
    }
    for (int32_t d = 0; d < dv; d++)
        out->o[row * (size_t)dv + (size_t)d] =
            sum > 0 ? s->acc[(size_t)i * (size_t)dv + (size_t)d] * scale / sum : 0;
    out->lse[row] = sum > 0 ? max + log(sum) : -INFINITY;
}

static void run_task(const struct batch *b, const struct tensors *t, int32_t request, int32_t kv_head,
                     int32_t token, int32_t n_tokens, struct scratch *s, struct oracle_result *out)
{
    const int32_t group = batch_group_size(b), rows = n_tokens * group, dk = b->shape.head_dim_qk,
                  dv = b->shape.head_dim_vo;
    const int32_t begin = batch_visible(b, request, token).begin,
                  end = batch_visible(b, request, token + n_tokens - 1).end;
    const size_t first_row = ((size_t)b->qo_indptr[request] + (size_t)token) * (size_t)b->shape.num_qo_heads;
    memset(s->acc, 0, (size_t)rows * (size_t)dv * sizeof *s->acc);
    for (int32_t i = 0; i < rows; i++) {
        const size_t row = first_row + (size_t)(i / group) * (size_t)b->shape.num_qo_heads +
                           (size_t)(kv_head * group + i % group);
        convert_to_float(b->shape.q_dtype, t->q, row * (size_t)dk, (size_t)dk, s->line);
        for (int32_t d = 0; d < dk; d++)
            s->q[i * dk + d] = s->line[d];
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
    for (int32_t first = begin; first < end; first += KEYS) {
        const int32_t n = end - first < KEYS ? end - first : KEYS;
        load_keys(b, t, request, kv_head, first, n, s);
        for (int32_t i = 0; i < rows; i++) {
            const struct range seen = batch_visible(b, request, token + i / group);
            const struct score_row row =
                score_row(b, request, token + i / group, kv_head * group + i % group);
            const int32_t from = seen.begin > first ? seen.begin : first,
                          to = seen.end < first + n ? seen.end : first + n;
            if (from < to) attend(b, &row, i, first, from, to, s);
        }
    }
    for (int32_t i = 0; i < rows; i++) {
        const int32_t qo_head = kv_head * group + i % group;
        finish_row(b, i, first_row + (size_t)(i / group) * (size_t)b->shape.num_qo_heads + (size_t)qo_head,
                   qo_head, s, out);
    }
}

static bool scratch_create(const struct batch *b, struct scratch *s)
{
    const size_t rows = (size_t)TOKENS * (size_t)batch_group_size(b), dk = (size_t)b->shape.head_dim_qk,
                 dv = (size_t)b->shape.head_dim_vo;
    double *all = malloc((rows * (dk + dv + 2) + KEYS * (dk + dv)) * sizeof *all);
    s->line = malloc((dk > dv ? dk : dv) * sizeof *s->line);
    s->q = all;
    if (!all || !s->line) return false;
    s->k = s->q + rows * dk;
    s->v = s->k + KEYS * dk;
    s->acc = s->v + KEYS * dv;
    s->max = s->acc + rows * dv;
    s->sum = s->max + rows;
    return true;
}

/* Tasks of request r start at task_indptr[r]: heads x blocks of TOKENS tokens. */
static int32_t find_request(const int64_t *task_indptr, int32_t n, int64_t task)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (task_indptr[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum status oracle_run(const struct batch *b, const struct tensors *t, struct oracle_result *out,
                       struct why *why)
{
    const int32_t heads = b->shape.num_kv_heads;
    bool ok = true;
    int64_t *indptr = malloc(((size_t)b->n_requests + 1) * sizeof *indptr);
    if (!indptr) return status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
    indptr[0] = 0;
    for (int32_t r = 0; r < b->n_requests; r++)
        indptr[r + 1] = indptr[r] + (int64_t)heads * ((batch_qo_len(b, r) + TOKENS - 1) / TOKENS);
#pragma omp parallel reduction(&& : ok)
    {
        struct scratch s = {0};
        ok = scratch_create(b, &s);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < indptr[b->n_requests]; task++) {
            if (!ok) continue;
            const int32_t r = find_request(indptr, b->n_requests, task);
            const int32_t head = (int32_t)((task - indptr[r]) % heads),
                          block = (int32_t)((task - indptr[r]) / heads);
            const int32_t token = block * TOKENS, left = batch_qo_len(b, r) - token;
            run_task(b, t, r, head, token, left < TOKENS ? left : TOKENS, &s, out);
        }
        free(s.q);
        free(s.line);
    }
    free(indptr);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
}
