/* stream_k: every worker gets the same number of KV iterations, across tiles, heads and requests.
 *
 * Source: Stream-K (PPoPP 2023) for GEMM, LeanAttention (arXiv 2405.10480) for attention. Rule: lay the KV
 * tiles of all (request, kv head, q tile) one after another, I of them in all; with W workers (SMs x
 * occupancy of the fused kernel) worker w takes iterations [w I / W, (w + 1) I / W), wherever that cuts a
 * tile's keys; a tile in several workers is merged. An iteration is one KV tile of the kernel: 64 keys for
 * tiles of 128 rows, 128 for tiles of 16; weight=cost counts each by its time alone on an SM (cost.h)
 * instead, which the published rule does not.
 *
 *   worker      0         1         2
 *   iterations  |---------|---------|---------|
 *   tiles       [  a  ][    b    ][c][   d    ]      b: workers 0 and 1, d: worker 2 alone */
#include "sched/cost.h"
#include "sched/works.h"

#include <math.h>
#include <string.h>

static const struct policy_option options[] = {
    {"weight", "iterations|cost", "iterations", "what is dealt out evenly"},
    {0},
};

static const enum kernel_id kernels[2] = {KERNEL_FA2_PREFILL_128, KERNEL_FA2_DECODE_16};

struct dealer {
    const struct policy_input *in;
    int32_t n_workers;
    bool by_cost;
    double total, dealt; /* weight */
    int32_t worker;      /* who takes the next iteration: the one whose share holds `dealt` */
    double border;       /* where that share ends */
    struct works works[2];
};

static enum work_role role_of(const struct batch *b, int32_t request)
{
    return batch_qo_len(b, request) == 1 ? WORK_DECODE : WORK_PREFILL;
}

static int32_t iterations(const struct dealer *d, enum work_role role, const struct tile *t)
{
    const int32_t tile_kv = d->in->kernels->fit[kernels[role]].tile_kv;
    return (t->keys.end - t->keys.begin + tile_kv - 1) / tile_kv;
}

/* Weight of one iteration of the tile: its share of the tile's time, so that Q and O are not paid by each. */
static double weight(const struct dealer *d, enum work_role role, const struct tile *t)
{
    const int32_t n = iterations(d, role, t);
    if (!d->by_cost || n == 0) return 1;
    const struct cost whole = cost_rect(&d->in->batch->shape, d->in->kernels, kernels[role],
                                        t->row_end - t->row_begin, t->keys.end - t->keys.begin, false);
    return whole.ns / n;
}

/* Sums the weight of all tiles and makes room for their works: one a tile and head, and one for every border.
 */
static enum status add_up(struct dealer *d)
{
    const struct batch *b = d->in->batch;
    const int64_t heads = b->shape.num_kv_heads;
    int64_t n[2] = {0, 0};
    for (int32_t r = 0; r < b->n_requests; r++) {
        const enum work_role role = role_of(b, r);
        const int32_t n_tiles = works_n_tiles(b, kernels[role], r);
        n[role] += n_tiles * heads;
        for (int32_t i = 0; i < n_tiles; i++) {
            const struct tile t = works_tile(b, kernels[role], r, i);
            d->total += iterations(d, role, &t) * weight(d, role, &t) * (double)heads;
        }
    }
    for (int role = 0; role < 2; role++)
        if (n[role] > 0) TRY(works_reserve(&d->works[role], n[role] + d->n_workers));
    return STATUS_OK;
}

static void set_worker(struct dealer *d, int32_t worker)
{
    d->worker = worker;
    d->border = (worker + 1.0) / d->n_workers * d->total;
}

/* Cuts n iterations of `one` weight each, a tile for one head, at the workers' borders and gives the pieces
 * their worker. */
static enum status deal_tile(struct dealer *d, struct works *works, int32_t tile_kv, int32_t n, double one,
                             struct work w)
{
    const int32_t first = works->n, keys_begin = w.kv_begin, keys_end = w.kv_end;
    for (int32_t done = 0; done < n || (n == 0 && w.chunk == 0);) {
        while (d->dealt >= d->border && d->worker < d->n_workers - 1)
            set_worker(d, d->worker + 1);
        /* iterations that begin before the worker's border */
        int32_t more = n - done;
        if (d->worker < d->n_workers - 1 && d->dealt + more * one > d->border)
            more = (int32_t)ceil((d->border - d->dealt) / one);
        if (more < 1) more = 1;
        if (more > n - done) more = n - done;
        done += more;
        d->dealt += more * one;
        w.list = d->worker;
        w.kv_end = done < n ? keys_begin + done * tile_kv : keys_end;
        TRY(works_add(works, &w));
        w.kv_begin = w.kv_end;
        w.chunk++;
    }
    for (int32_t i = first; i < works->n; i++)
        works->data[i].n_chunks = w.chunk;
    return STATUS_OK;
}

/* The one tile of a request for all heads at once, where the worker's share holds them all: the same pieces as head by
 * head, in one work. *dealt says whether it did. */
static enum status deal_whole(struct dealer *d, struct works *works, int32_t n, double one, struct work w,
                              bool *dealt)
{
    const double all = (double)n * one * d->in->batch->shape.num_kv_heads;
    while (d->dealt >= d->border && d->worker < d->n_workers - 1)
        set_worker(d, d->worker + 1);
    *dealt = d->worker == d->n_workers - 1 || d->dealt + all <= d->border;
    if (!*dealt) return STATUS_OK;
    d->dealt += all;
    w.list = d->worker;
    w.n_chunks = 1;
    w.kv_head = WORK_ALL_HEADS;
    return works_add(works, &w);
}

static enum status deal_request(struct dealer *d, int32_t request)
{
    const struct batch *b = d->in->batch;
    const enum work_role role = role_of(b, request);
    const int32_t n_tiles = works_n_tiles(b, kernels[role], request), heads = b->shape.num_kv_heads;
    const int32_t tile_kv = d->in->kernels->fit[kernels[role]].tile_kv;
    struct tile t = {0};
    int32_t n = 0;
    double one = 1;
    for (int32_t at = 0; at < heads * n_tiles; at++) { /* tiles of a head next to each other */
        if (at == 0 || n_tiles > 1) {
            t = works_tile(b, kernels[role], request, at % n_tiles);
            n = iterations(d, role, &t);
            one = weight(d, role, &t);
        }
        const struct work w = {.request = request,
                               .row_begin = t.row_begin,
                               .row_end = t.row_end,
                               .kv_begin = t.keys.begin,
                               .kv_end = t.keys.end,
                               .kv_head = at / n_tiles};
        bool whole = false;
        if (n_tiles == 1 && at == 0) TRY(deal_whole(d, &d->works[role], n, one, w, &whole));
        if (whole) return STATUS_OK;
        TRY(deal_tile(d, &d->works[role], tile_kv, n, one, w));
    }
    return STATUS_OK;
}

static enum status deal_all(struct dealer *d)
{
    TRY(add_up(d));
    set_worker(d, 0);
    for (int32_t r = 0; r < d->in->batch->n_requests; r++)
        TRY(deal_request(d, r));
    return STATUS_OK;
}

static enum status plan_workers(struct dealer *d, struct plan *out)
{
    const struct batch *b = d->in->batch;
    TRY(deal_all(d));
    if (d->works[0].n + d->works[1].n == 0) return STATUS_OK;
    const struct works_emit sets[2] = {{.works = &d->works[0], .kernel = kernels[0]},
                                       {.works = &d->works[1], .kernel = kernels[1]}};
    TRY(plan_begin_grid(out, KERNEL_FUSED_128_16, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit_lists(sets, 2, d->n_workers, b, out));
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_stream_k(const struct policy_input *in, struct plan *out, struct why *why)
{
    const int32_t per_sm = in->kernels->fit[KERNEL_FUSED_128_16].ctas_per_sm;
    struct dealer d = {.in = in, .by_cost = strcmp(policy_option_word(in, "weight"), "cost") == 0};
    (void)why;
    d.n_workers = in->gpu->sm_count * (per_sm > 0 ? per_sm : 1);
    const enum status status = plan_workers(&d, out);
    works_free(&d.works[0]);
    works_free(&d.works[1]);
    return status;
}

const struct policy policy_stream_k = {
    .name = "stream_k",
    .brief = "equal KV iterations a worker, across tiles, heads and requests",
    .source = "Stream-K (PPoPP 2023), LeanAttention (arXiv 2405.10480)",
    .options = options,
    .plan = plan_stream_k,
};
