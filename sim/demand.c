#include "sim/demand.h"

#include "sched/cost.h"

#include <stdlib.h>
#include <string.h>

/* Of one (row group, kv head): how many keys its items read in all and the span they cover, and how many
 * query rows they read, once for every chunk of keys. */
struct reuse {
    double keys_read, rows_read;
    int32_t begin, end;
};

static enum pipe pipe_of(const struct kernel *k)
{
    switch (k->math) {
    case MATH_MMA_SYNC:
    case MATH_WGMMA:
        return PIPE_TENSOR;
    case MATH_FMA:
        return PIPE_FMA;
    default:
        return PIPE_NONE;
    }
}

/* Turns totals over the alone time into demands per ns. An item without any work (no rows) is over at once.
 */
static struct demand make_demand(const struct kernel *k, const struct kernel_fit *fit, const struct cost *c,
                                 double hbm_bytes)
{
    struct demand d = {.alone_ns = c->ns,
                       .issued_flops = c->issued_flops,
                       .inflight_bytes_per_ns = fit->cta_bytes_per_ns,
                       .pipe = pipe_of(k)};
    if (c->ns <= 0) return d;
    if (d.pipe != PIPE_NONE && fit->sm_flops_per_ns > 0)
        d.pipe_frac = c->issued_flops / c->ns / fit->sm_flops_per_ns;
    d.sm_bytes_per_ns = (c->kv_bytes + c->row_bytes) / c->ns;
    d.hbm_bytes_per_ns = hbm_bytes / c->ns;
    return d;
}

static void count_reuse(const struct batch *b, const struct plan *p, struct reuse *reuse)
{
    const int32_t heads = b->shape.num_kv_heads;
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        const struct range keys = plan_item_keys(p, b, item);
        struct reuse *r = &reuse[(int64_t)item->group * heads + item->kv_head];
        const int32_t tile_q = kernel_row((enum kernel_id)item->kernel)->tile_q;
        r->rows_read += item->row_end - item->row_begin;
        if (keys.begin == keys.end) continue;
        if (r->keys_read == 0 || keys.begin < r->begin) r->begin = keys.begin;
        if (r->keys_read == 0 || keys.end > r->end) r->end = keys.end;
        /* a row tile reads its keys once; cost_item counts the same way */
        r->keys_read +=
            (double)((item->row_end - item->row_begin + tile_q - 1) / tile_q) * (keys.end - keys.begin);
    }
}

static void price_items(const struct batch *b, const struct kernels *kernels, const struct plan *p,
                        const struct reuse *reuse, double partial_frac, struct demands *out)
{
    const struct shape *s = &b->shape;
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        const struct reuse *r = &reuse[(int64_t)item->group * s->num_kv_heads + item->kv_head];
        const struct cost c = cost_item(p, b, kernels, item);
        const double rows = item->row_end - item->row_begin;
        const double q_bytes = rows * s->head_dim_qk * dtype_bytes(s->q_dtype);
        const double unique_rows = (double)plan_group_tokens(p, b, item->group) * batch_group_size(b);
        const double first_read = r->rows_read > unique_rows ? unique_rows / r->rows_read : 1.0;
        const double out_bytes = (c.row_bytes - q_bytes) * (item->partial >= 0 ? partial_frac : 1.0);
        const double unique_frac = r->keys_read > 0 ? (r->end - r->begin) / r->keys_read : 1.0;
        const double hbm =
            c.kv_bytes * (unique_frac < 1 ? unique_frac : 1.0) + q_bytes * first_read + out_bytes;
        out->items[i] =
            make_demand(kernel_row((enum kernel_id)item->kernel), &kernels->fit[item->kernel], &c, hbm);
        out->hbm_bytes += hbm;
    }
}

static void price_merges(const struct batch *b, const struct kernels *kernels, const struct plan *p,
                         double partial_frac, struct demands *out)
{
    const struct shape *s = &b->shape;
    for (int32_t m = 0; m < p->n_merges; m++) {
        const struct cost c = cost_merge(p, b, kernels, m);
        const double rows = p->merges[m].row_end - p->merges[m].row_begin;
        const double o_bytes = rows * s->head_dim_vo * dtype_bytes(s->q_dtype);
        const double hbm = o_bytes + (c.row_bytes - o_bytes) * partial_frac;
        out->merges[m] = make_demand(kernel_row(KERNEL_MERGE), &kernels->fit[KERNEL_MERGE], &c, hbm);
        out->hbm_bytes += hbm;
    }
}

enum status demands_create(const struct batch *b, const struct gpu *gpu, const struct kernels *kernels,
                           const struct plan *p, struct demands *out)
{
    const double partial_frac = (double)p->workspace_bytes > gpu->l2_bytes / 2 ? 1.0 : 0.0;
    const size_t groups = (size_t)p->n_requests + (size_t)plan_n_groups(p);
    struct reuse *reuse = calloc(groups * (size_t)b->shape.num_kv_heads + 1, sizeof *reuse);
    memset(out, 0, sizeof *out);
    out->items = malloc(((size_t)p->n_items + 1) * sizeof *out->items);
    out->merges = malloc(((size_t)p->n_merges + 1) * sizeof *out->merges);
    const bool ok = reuse && out->items && out->merges;
    if (ok) {
        count_reuse(b, p, reuse);
        price_items(b, kernels, p, reuse, partial_frac, out);
        price_merges(b, kernels, p, partial_frac, out);
    } else {
        demands_free(out);
    }
    free(reuse);
    return ok ? STATUS_OK : STATUS_NO_MEMORY;
}

void demands_free(struct demands *d)
{
    free(d->items);
    free(d->merges);
    memset(d, 0, sizeof *d);
}
