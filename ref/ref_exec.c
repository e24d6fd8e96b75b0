#include "ref/ref_exec.h"

#include "ref/convert.h"
#include "ref/score.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* One item at a time on one thread, in blocks of ROWS packed rows against tiles of KEYS keys:
 *
 *   gather K, V through the page table -> S = Q K^T -> mask, softmax with running max and sum
 *                                      -> O = O * shrink + P V
 *
 * Tall blocks use sgemm, short ones (decodes) plain loops, which beat it there. Rows keep (O unnormalised,
 * max, sum); a direct item writes O / sum and LSE, a split one O / sum and LSE as a partial row. Nothing is
 * repaired: keys that no item holds are missing from the result. */
enum { ROWS = 128, KEYS = 256, GEMM_ROWS = 24 };

struct scratch {
    float *q;            /* [ROWS][head_dim_qk] */
    float *k;            /* [KEYS][head_dim_qk] */
    float *v;            /* [KEYS][head_dim_vo] */
    float *s;            /* [ROWS][KEYS] */
    float *acc;          /* [ROWS][head_dim_vo] */
    float *max, *sum;    /* [ROWS] */
    struct row_ref *ref; /* [ROWS] */
    struct range *seen;  /* [ROWS] keys the row sees within the item */
    struct score_row *score;
};

struct exec {
    const struct batch *b;
    const struct tensors *t;
    const struct plan *p;
    float *partial_o;   /* [partial_rows][head_dim_vo] */
    float *partial_lse; /* [partial_rows] */
    struct result *out;
};

static size_t output_row(const struct batch *b, struct row_ref ref)
{
    return ((size_t)b->qo_indptr[ref.request] + (size_t)ref.token) * (size_t)b->shape.num_qo_heads +
           (size_t)ref.qo_head;
}

/* K and V of keys [first, first + n) as fp32. Members of a row group read the same pages: any one's table
 * will do. */
static void gather(const struct exec *e, int32_t request, int32_t kv_head, int32_t first, int32_t n,
                   struct scratch *s)
{
    const struct batch *b = e->b;
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo, page_size = b->kv.page_size;
    const int32_t *pages = b->kv.kv_indices + b->kv.kv_indptr[request];
    for (int32_t j = 0; j < n; j++) {
        const int32_t key = first + j, page = pages[key / page_size], pos = key % page_size;
        convert_to_float(b->shape.kv_dtype, e->t->k,
                         tensor_kv_offset(b, e->t->layout, dk, page, pos, kv_head), (size_t)dk,
                         s->k + (size_t)j * (size_t)dk);
        convert_to_float(b->shape.kv_dtype, e->t->v,
                         tensor_kv_offset(b, e->t->layout, dv, page, pos, kv_head), (size_t)dv,
                         s->v + (size_t)j * (size_t)dv);
    }
}

static float dot(const float *restrict x, const float *restrict y, int32_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void scores(const struct exec *e, int32_t rows, int32_t n, struct scratch *s)
{
    const int32_t dk = e->b->shape.head_dim_qk;
    if (rows >= GEMM_ROWS) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, dk, 1, s->q, dk, s->k, dk, 0, s->s,
                    KEYS);
        return;
    }
    for (int32_t j = 0; j < n; j++)
        for (int32_t i = 0; i < rows; i++)
            s->s[i * KEYS + j] = dot(s->q + (size_t)i * (size_t)dk, s->k + (size_t)j * (size_t)dk, dk);
}

/* Turns a row of dots into weights in place (0 outside what it sees) and rescales what it has so far. */
static void soften(const struct exec *e, int32_t i, int32_t first, int32_t n, struct scratch *s)
{
    const int32_t dv = e->b->shape.head_dim_vo;
    const int32_t from = clamp_i32((int64_t)s->seen[i].begin - first, 0, n),
                  to = clamp_i32((int64_t)s->seen[i].end - first, from, n);
    float *p = s->s + (size_t)i * KEYS, tile_max = -INFINITY;
    for (int32_t j = from; j < to; j++) {
        p[j] = (float)score_logit(&s->score[i], p[j], first + j);
        if (p[j] > tile_max) tile_max = p[j];
    }
    if (tile_max > s->max[i]) {
        const float shrink = s->sum[i] > 0 ? expf(s->max[i] - tile_max) : 0;
        for (int32_t d = 0; d < dv; d++)
            s->acc[(size_t)i * (size_t)dv + (size_t)d] *= shrink;
        s->sum[i] *= shrink;
        s->max[i] = tile_max;
    }
    float sum = 0;
    for (int32_t j = 0; j < from; j++)
        p[j] = 0;
    for (int32_t j = from; j < to; j++) {
        p[j] = expf(p[j] - s->max[i]);
        sum += p[j];
    }
    for (int32_t j = to; j < n; j++)
        p[j] = 0;
    s->sum[i] += sum;
}

static void add_values(const struct exec *e, int32_t rows, int32_t n, struct scratch *s)
{
    const int32_t dv = e->b->shape.head_dim_vo;
    if (rows >= GEMM_ROWS) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dv, n, 1, s->s, KEYS, s->v, dv, 1,
                    s->acc, dv);
        return;
    }
    for (int32_t j = 0; j < n; j++)
        for (int32_t i = 0; i < rows; i++) {
            const float p = s->s[i * KEYS + j];
            float *restrict acc = s->acc + (size_t)i * (size_t)dv;
            const float *restrict v = s->v + (size_t)j * (size_t)dv;
            if (p == 0) continue; /* unseen: its V may be anything */
#pragma omp simd
            for (int32_t d = 0; d < dv; d++)
                acc[d] += p * v[d];
        }
}

/* Resolves rows [row, row + n) of the item; returns the union of the keys they see inside it. */
static struct range load_rows(const struct exec *e, const struct item *item, int32_t row, int32_t n,
                              struct scratch *s)
{
    const struct batch *b = e->b;
    const int32_t dk = b->shape.head_dim_qk, dv = b->shape.head_dim_vo;
    const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
    struct range all = {item->kv_end, item->kv_begin};
    for (int32_t i = 0; i < n; i++) {
        const struct row_ref ref = plan_row(e->p, b, item->group, item->kv_head, order, row + i);
        const struct range v = batch_visible(b, ref.request, ref.token);
        struct range seen = {v.begin > item->kv_begin ? v.begin : item->kv_begin,
                             v.end < item->kv_end ? v.end : item->kv_end};
        if (seen.end < seen.begin) seen.end = seen.begin;
        s->ref[i] = ref;
        s->seen[i] = seen;
        s->score[i] = score_row(b, ref.request, ref.token, ref.qo_head);
        convert_to_float(b->shape.q_dtype, e->t->q, output_row(b, ref) * (size_t)dk, (size_t)dk,
                         s->q + (size_t)i * (size_t)dk);
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
        if (seen.begin == seen.end) continue;
        if (seen.begin < all.begin) all.begin = seen.begin;
        if (seen.end > all.end) all.end = seen.end;
    }
    memset(s->acc, 0, (size_t)n * (size_t)dv * sizeof *s->acc);
    return all;
}

/* Normalises a row into o[], returns its LSE. The sink joins only where the whole row is known: in direct
 * items and in merges, not in partial rows. */
static float finish_row(const struct exec *e, const float *acc, float max, float sum, const float *sink,
                        float *o)
{
    const int32_t dv = e->b->shape.head_dim_vo;
    float scale = 1;
    if (sink) {
        const float top = max > *sink ? max : *sink;
        scale = sum > 0 ? expf(max - top) : 0;
        sum = sum * scale + expf(*sink - top);
        max = top;
    }
    for (int32_t d = 0; d < dv; d++)
        o[d] = sum > 0 ? acc[d] * scale / sum : 0;
    return sum > 0 ? max + logf(sum) : -INFINITY;
}

static void store_rows(const struct exec *e, const struct item *item, int32_t row, int32_t n,
                       const struct scratch *s)
{
    const size_t dv = (size_t)e->b->shape.head_dim_vo;
    for (int32_t i = 0; i < n; i++) {
        const float *acc = s->acc + (size_t)i * dv, *sink = e->b->mask.sink;
        if (item->partial >= 0) {
            const size_t at = (size_t)item->partial + (size_t)(row - item->row_begin + i);
            e->partial_lse[at] = finish_row(e, acc, s->max[i], s->sum[i], NULL, e->partial_o + at * dv);
        } else {
            const size_t at = output_row(e->b, s->ref[i]);
            e->out->lse[at] = finish_row(e, acc, s->max[i], s->sum[i], sink ? sink + s->ref[i].qo_head : NULL,
                                         e->out->o + at * dv);
        }
    }
}

static void run_item(const struct exec *e, const struct item *item, struct scratch *s)
{
    for (int32_t row = item->row_begin; row < item->row_end; row += ROWS) {
        const int32_t n = item->row_end - row < ROWS ? item->row_end - row : ROWS;
        const struct range keys = load_rows(e, item, row, n, s);
        const int32_t tiles = keys.end > keys.begin ? (keys.end - keys.begin + KEYS - 1) / KEYS : 0;
        for (int32_t step = 0; step < tiles; step++) {
            const int32_t tile = item->flags & ITEM_KV_REVERSED ? tiles - 1 - step : step;
            const int32_t first = keys.begin + tile * KEYS, left = keys.end - first,
                          n_keys = left < KEYS ? left : KEYS;
            gather(e, s->ref[0].request, item->kv_head, first, n_keys, s);
            scores(e, n, n_keys, s);
            for (int32_t i = 0; i < n; i++)
                soften(e, i, first, n_keys, s);
            add_values(e, n, n_keys, s);
        }
        store_rows(e, item, row, n, s);
    }
}

/* Weighs the partial rows of one output row by exp(LSE - max LSE), in list order. */
static void merge_row(const struct exec *e, const struct merge *m, const int32_t *src, int32_t n_src,
                      int32_t row, float *acc)
{
    const struct batch *b = e->b;
    const size_t dv = (size_t)b->shape.head_dim_vo, offset = (size_t)(row - m->row_begin);
    const struct row_ref ref = plan_row(e->p, b, m->request, m->kv_head, (enum row_order)m->row_order, row);
    float max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_src; i++) {
        const float lse = e->partial_lse[(size_t)src[i] + offset];
        if (!(lse <= max)) max = lse; /* a NaN partial stays visible */
    }
    memset(acc, 0, dv * sizeof *acc);
    for (int32_t i = 0; i < n_src; i++) {
        const size_t at = (size_t)src[i] + offset;
        if (e->partial_lse[at] == -INFINITY) continue; /* an empty chunk has nothing to say */
        const float weight = expf(e->partial_lse[at] - max);
        sum += weight;
        for (size_t d = 0; d < dv; d++)
            acc[d] += weight * e->partial_o[at * dv + d];
    }
    const size_t at = output_row(b, ref);
    const float *sink = b->mask.sink ? b->mask.sink + ref.qo_head : NULL;
    e->out->lse[at] = finish_row(e, acc, max, sum, sink, e->out->o + at * dv);
    if (isnan(max)) e->out->lse[at] = NAN;
}

static void run_merge(const struct exec *e, int32_t index, float *acc)
{
    const struct merge *m = &e->p->merges[index];
    const int32_t first = e->p->merge_indptr[index], n = e->p->merge_indptr[index + 1] - first;
    for (int32_t row = m->row_begin; row < m->row_end; row++)
        merge_row(e, m, e->p->merge_src + first, n, row, acc);
}

static bool scratch_create(const struct batch *b, struct scratch *s)
{
    const size_t dk = (size_t)b->shape.head_dim_qk, dv = (size_t)b->shape.head_dim_vo;
    float *all = malloc((ROWS * (dk + dv + KEYS + 2) + KEYS * (dk + dv)) * sizeof *all);
    s->q = all;
    s->ref = malloc(ROWS * sizeof *s->ref);
    s->seen = malloc(ROWS * sizeof *s->seen);
    s->score = malloc(ROWS * sizeof *s->score);
    if (!all || !s->ref || !s->seen || !s->score) return false;
    s->k = s->q + ROWS * dk;
    s->v = s->k + KEYS * dk;
    s->s = s->v + KEYS * dv;
    s->acc = s->s + (size_t)ROWS * KEYS;
    s->max = s->acc + ROWS * dv;
    s->sum = s->max + ROWS;
    return true;
}

static void scratch_free(struct scratch *s)
{
    free(s->q);
    free(s->ref);
    free(s->seen);
    free(s->score);
}

static bool run_all(const struct exec *e)
{
    bool ok = true;
#pragma omp parallel reduction(&& : ok)
    {
        struct scratch s = {0};
        ok = scratch_create(e->b, &s);
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < e->p->n_items; i++)
            if (ok) run_item(e, &e->p->items[i], &s);
                /* the barrier above ends all items before the first merge, which is all a plan's dependencies
                 * ask */
#pragma omp for schedule(dynamic, 64)
        for (int32_t m = 0; m < e->p->n_merges; m++)
            if (ok) run_merge(e, m, s.acc);
        scratch_free(&s);
    }
    return ok;
}

/* BLAS must stay on the calling thread: parallelism is over items. In the OpenMP flavour
 * openblas_set_num_threads also sets OpenMP's own thread count, so that is put back. */
static void serial_blas(void)
{
    const int threads = omp_get_max_threads();
    openblas_set_num_threads(1);
    omp_set_num_threads(threads);
}

enum status ref_exec(const struct batch *b, const struct tensors *t, const struct plan *p, struct result *out,
                     struct why *why)
{
    struct exec e = {.b = b, .t = t, .p = p, .out = out};
    const size_t rows = (size_t)p->partial_rows, dv = (size_t)b->shape.head_dim_vo;
    e.partial_o = malloc((rows * dv + 1) * sizeof *e.partial_o);
    e.partial_lse = malloc((rows + 1) * sizeof *e.partial_lse);
    bool ok = e.partial_o && e.partial_lse;
    if (ok) {
        for (size_t i = 0; i < rows; i++)
            e.partial_lse[i] = NAN; /* a partial nobody wrote shows */
        serial_blas();
        ok = run_all(&e);
    }
    free(e.partial_o);
    free(e.partial_lse);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "ref_exec: out of memory");
}
