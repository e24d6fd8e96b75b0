#include "ref/exact_exec.h"

#include "ref/double_block.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 };

struct exact {
    const struct batch *b;
    const struct plan *p;
    double *partial_o, *partial_lse; /* [partial_rows][head_dim_vo], [partial_rows] */
    struct result *out;
};

static const double *sink_of(const struct exact *e, struct row_ref ref, double *value)
{
    if (!e->b->mask.sink) return NULL;
    *value = e->b->mask.sink[ref.qo_head];
    return value;
}

static void store(const struct exact *e, struct row_ref ref, const double *o, double lse)
{
    const size_t row = batch_row(e->b, ref),
                 at = tensor_row_at(e->out->o_stride, e->b->shape.num_qo_heads, row);
    for (int32_t d = 0; d < e->b->shape.head_dim_vo; d++)
        e->out->o[at + (size_t)d] = (float)o[d];
    e->out->lse[row] = (float)lse;
}

static void run_rows(const struct exact *e, const struct item *item, int32_t row, int32_t n,
                     struct double_block *x, double *o)
{
    const size_t dv = (size_t)e->b->shape.head_dim_vo;
    const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
    struct row_ref refs[ROWS];
    double sink;
    for (int32_t i = 0; i < n; i++)
        refs[i] = plan_row(e->p, e->b, item->group, item->kv_head, order, row + i);
    const struct range keys = double_block_begin(x, refs, n, item->kv_begin, item->kv_end);
    double_block_attend(x, refs[0].request, item->kv_head, keys.begin, keys.end);
    for (int32_t i = 0; i < n; i++) {
        const size_t at = item->partial >= 0 ? (size_t)(item->partial + row + i - item->row_begin) : 0;
        if (item->partial >= 0)
            e->partial_lse[at] = double_block_finish(x, i, NULL, e->partial_o + at * dv);
        else
            store(e, refs[i], o, double_block_finish(x, i, sink_of(e, refs[i], &sink), o));
    }
}

/* Rule 14 of semantics.h. */
static void merge_row(const struct exact *e, const struct merge *m, const int32_t *src, int32_t n_src,
                      int32_t row, double *o)
{
    const size_t dv = (size_t)e->b->shape.head_dim_vo, offset = (size_t)(row - m->row_begin);
    const struct row_ref ref =
        plan_row(e->p, e->b, m->request, m->kv_head, (enum row_order)m->row_order, row);
    double sink, max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_src; i++)
        if (!(e->partial_lse[(size_t)src[i] + offset] <= max)) max = e->partial_lse[(size_t)src[i] + offset];
    if (sink_of(e, ref, &sink)) {
        if (!(sink <= max)) max = sink;
        sum = exp(sink - max);
    }
    memset(o, 0, dv * sizeof *o);
    for (int32_t i = 0; i < n_src; i++) {
        const size_t at = (size_t)src[i] + offset;
        const double weight = e->partial_lse[at] == -INFINITY ? 0 : exp(e->partial_lse[at] - max);
        sum += weight;
        for (size_t d = 0; d < dv; d++)
            o[d] += weight == 0 ? 0 : weight * e->partial_o[at * dv + d];
    }
    for (size_t d = 0; d < dv && sum != 0; d++)
        o[d] /= sum;
    store(e, ref, o, sum == 0 ? -INFINITY : max + log(sum));
}

static void run_item(const struct exact *e, const struct item *item, struct double_block *x, double *o)
{
    for (int32_t row = item->row_begin; row < item->row_end; row += ROWS)
        run_rows(e, item, row, item->row_end - row < ROWS ? item->row_end - row : ROWS, x, o);
}

static void run_merge(const struct exact *e, int32_t index, double *o)
{
    const struct merge *m = &e->p->merges[index];
    const int32_t first = e->p->merge_indptr[index], n = e->p->merge_indptr[index + 1] - first;
    for (int32_t row = m->row_begin; row < m->row_end; row++)
        merge_row(e, m, e->p->merge_src + first, n, row, o);
}

static bool run_all(const struct exact *e, const struct tensors *t)
{
    bool ok = true;
#pragma omp parallel reduction(&& : ok)
    {
        struct double_block x = {0};
        double *o = malloc((size_t)e->b->shape.head_dim_vo * sizeof *o);
        ok = double_block_create(e->b, t, ROWS, &x) && o;
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < e->p->n_items; i++)
            if (ok) run_item(e, &e->p->items[i], &x, o);
#pragma omp for schedule(dynamic, 64)
        for (int32_t m = 0; m < e->p->n_merges; m++)
            if (ok) run_merge(e, m, o);
        double_block_free(&x);
        free(o);
    }
    return ok;
}

enum status exact_exec(const struct batch *b, const struct tensors *t, const struct plan *p,
                       struct result *out, struct why *why)
{
    const size_t rows = (size_t)p->partial_rows, dv = (size_t)b->shape.head_dim_vo;
    struct exact e = {.b = b, .p = p, .out = out};
    e.partial_o = malloc((rows * dv + 1) * sizeof *e.partial_o);
    e.partial_lse = malloc((rows + 1) * sizeof *e.partial_lse);
    bool ok = e.partial_o && e.partial_lse;
    for (size_t i = 0; ok && i < rows; i++)
        e.partial_lse[i] = NAN; /* a partial nobody wrote shows */
    if (ok) ok = run_all(&e, t);
    free(e.partial_o);
    free(e.partial_lse);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "ref_exec: out of memory");
}
