/* fi_holistic: FlashInfer's persistent BatchAttention: two tiles in one kernel, chunks limited by total work.
 *
 * Source: flashinfer scheduler.cuh at fb28d7242, TwoStageHolisticPlan. Rule:
 *   - requests with more than 16 packed rows take tiles of 128, the others tiles of 16;
 *   - total = sum over all tiles of the keys up to their causal end; limit = f(ceil(total * kv heads /
 *     CTAs)), f(x) = 128 up to 128, else rounded up to 256; CTAs = 2 x SMs (1 x SMs from head_dim 256 on);
 *     tiles of 128 use limit / min(kv heads, 2);
 *   - in batch order, tiles of 128 first: each chunk of `limit` keys of a tile, for each kv head, goes to the
 *     least loaded CTA, where it costs 2 * tile + its keys; one heap for both tile sizes;
 *   - only cut tiles write partials; a CTA runs its 128-row list, then its 16-row list; then all merge. The
 *     merge is a grid of its own here: the public kernel does it behind a grid-wide barrier.
 *
 * Example, 132 SMs, 32/8 heads: decodes of 131072 and 127 x 1024: total 261120, x 8 / 264 = 7912.7, so chunks
 * of at most 7936 keys: 17 for the long one. */
#include "sched/heap.h"
#include "sched/works.h"

#include <stdlib.h>

enum { TALL_TILE = 128, SHORT_TILE = 16, LIMIT_STEP = 256, SMALL_LIMIT = 128 };

struct planner {
    const struct batch *b;
    int32_t n_ctas;
    struct heap_slot *heap;
    struct works works[2]; /* WORK_PREFILL: tiles of 128; WORK_DECODE: tiles of 16 */
};

static const enum kernel_id kernels[2] = {KERNEL_FA2_PREFILL_128, KERNEL_FA2_DECODE_16};

static enum work_role role_of(const struct batch *b, int32_t request)
{
    return packed_rows(b, request) > SHORT_TILE ? WORK_PREFILL : WORK_DECODE;
}

static int64_t total_keys(const struct batch *b)
{
    int64_t total = 0;
    for (int32_t r = 0; r < b->n_requests; r++) {
        const enum kernel_id k = kernels[role_of(b, r)];
        for (int32_t i = 0; i < works_n_tiles(b, k, r); i++) {
            const struct range keys = works_tile(b, k, r, i).keys;
            total += keys.end - keys.begin;
        }
    }
    return total;
}

/* Keys a chunk, see the header comment. */
static int64_t chunk_limit(const struct batch *b, int64_t total, int32_t n_ctas, enum work_role role)
{
    const int64_t heads = b->shape.num_kv_heads, mean = (total * heads + n_ctas - 1) / n_ctas;
    const int64_t limit =
        mean <= SMALL_LIMIT ? SMALL_LIMIT : (mean + LIMIT_STEP - 1) / LIMIT_STEP * LIMIT_STEP;
    return role == WORK_PREFILL ? limit / (heads < 2 ? heads : 2) : limit;
}

/* The chunks of one tile, chunk by chunk over all heads, as CTAs are drawn; works of one head must follow
 * each other, so each head's chunks are first given their place and then filled. */
static enum status deal_tile(struct planner *p, enum work_role role, int32_t request, const struct tile *t,
                             int64_t limit)
{
    struct works *works = &p->works[role];
    const int32_t heads = p->b->shape.num_kv_heads, first = works->n;
    const int64_t keys = t->keys.end - t->keys.begin;
    const int32_t n = keys > 0 ? (int32_t)((keys + limit - 1) / limit) : 1;
    const double tile_q = role == WORK_PREFILL ? TALL_TILE : SHORT_TILE;
    struct work w = {.request = request, .row_begin = t->row_begin, .row_end = t->row_end, .n_chunks = n};
    for (int32_t i = 0; i < n * heads; i++)
        TRY(works_add(works, &w));
    for (int32_t c = 0; c < n; c++) {
        w.chunk = c;
        w.kv_begin = t->keys.begin + (int32_t)(c * limit);
        w.kv_end = c == n - 1 ? t->keys.end : w.kv_begin + (int32_t)limit;
        for (w.kv_head = 0; w.kv_head < heads; w.kv_head++) {
            w.list = p->heap[0].index;
            heap_add_to_root(p->heap, p->n_ctas, 2 * tile_q + (w.kv_end - w.kv_begin));
            works->data[first + w.kv_head * n + c] = w;
        }
    }
    return STATUS_OK;
}

static enum status deal_role(struct planner *p, enum work_role role, int64_t limit)
{
    const struct batch *b = p->b;
    for (int32_t r = 0; r < b->n_requests; r++) {
        if (batch_qo_len(b, r) == 0 || role_of(b, r) != role) continue;
        for (int32_t i = 0; i < works_n_tiles(b, kernels[role], r); i++) {
            const struct tile t = works_tile(b, kernels[role], r, i);
            TRY(deal_tile(p, role, r, &t, limit));
        }
    }
    return STATUS_OK;
}

static enum status plan_lists(struct planner *p, struct plan *out)
{
    const int64_t total = total_keys(p->b);
    heap_reset(p->heap, p->n_ctas);
    for (int role = 0; role < 2; role++)
        TRY(deal_role(p, role, chunk_limit(p->b, total, p->n_ctas, role)));
    if (p->works[0].n + p->works[1].n == 0) return STATUS_OK;
    const struct works_emit sets[2] = {{.works = &p->works[0], .kernel = kernels[0]},
                                       {.works = &p->works[1], .kernel = kernels[1]}};
    TRY(plan_begin_grid(out, KERNEL_FUSED_128_16, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit_lists(sets, 2, p->n_ctas, p->b, out));
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_fi_holistic(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    struct planner p = {.b = in->batch};
    p.n_ctas = in->gpu->sm_count * (in->batch->shape.head_dim_vo >= 256 ? 1 : 2);
    p.heap = malloc((size_t)p.n_ctas * sizeof *p.heap);
    const enum status status = p.heap ? plan_lists(&p, out) : STATUS_NO_MEMORY;
    free(p.heap);
    works_free(&p.works[0]);
    works_free(&p.works[1]);
    return status;
}

const struct policy policy_fi_holistic = {
    .name = "fi_holistic",
    .brief = "persistent CTAs for both tiles; chunks limited by total work, each to the least loaded CTA",
    .source = "FlashInfer scheduler.cuh at fb28d7242, TwoStageHolisticPlan (BatchAttention)",
    .plan = plan_fi_holistic,
};
