/* warp_fused: prefill warps and decode warps side by side in every CTA.
 *
 * Source: horizontal fusion (HFuse, CGO 2022) as POD-Attention's FA_HFuse baseline builds it (mode 64 of
 * vattention/pod_attn at ef3fff25): 4 warps of a 128 x 64 prefill tile beside 4 warps of a 64 x 128 decode
 * tile, 256 threads, 144 KB, 1 CTA an SM. Rule: CTA i runs prefill tile i in its one half and decode tile i
 * in its other, max(prefill tiles, decode tiles) CTAs in all; a CTA holds its slot until its slower half
 * ends. Nothing is split. order=lpt sorts both sides longest first, so that long halves meet long ones; the
 * published one takes them in request order. */
#include "sched/cost.h"
#include "sched/works.h"

#include <stdlib.h>
#include <string.h>

static const struct policy_option options[] = {
    {"order", "request|lpt", "request", "which tiles share a CTA"},
    {0},
};

static const enum kernel_id kernels[2] = {KERNEL_FA2_FWD_128, KERNEL_FA2_SPLITKV_64};

static int compare_keys(const void *x, const void *y)
{
    const struct work *a = x, *b = y;
    const int32_t ka = a->kv_end - a->kv_begin, kb = b->kv_end - b->kv_begin;
    if (ka != kb) return ka > kb ? -1 : 1;
    if (a->request != b->request) return a->request < b->request ? -1 : 1;
    if (a->row_begin != b->row_begin) return a->row_begin < b->row_begin ? -1 : 1;
    return a->kv_head < b->kv_head ? -1 : a->kv_head > b->kv_head;
}

/* All tiles of a role, heads innermost, each with a CTA of its own: 0, 1, 2, ... */
static enum status pair_role(const struct policy_input *in, const struct role_set *set, enum kernel_id k,
                             struct works *works)
{
    const struct batch *b = in->batch;
    int64_t n = 0;
    for (int32_t i = 0; i < set->n; i++)
        n += (int64_t)works_n_tiles(b, k, set->requests[i]) * b->shape.num_kv_heads;
    TRY(works_reserve(works, n));
    for (int32_t i = 0; i < set->n; i++)
        for (int32_t t = 0; t < works_n_tiles(b, k, set->requests[i]); t++) {
            const struct tile tile = works_tile(b, k, set->requests[i], t);
            struct work w = {.request = set->requests[i],
                             .row_begin = tile.row_begin,
                             .row_end = tile.row_end,
                             .kv_begin = tile.keys.begin,
                             .kv_end = tile.keys.end,
                             .n_chunks = 1};
            for (; w.kv_head < b->shape.num_kv_heads; w.kv_head++)
                TRY(works_add(works, &w));
        }
    if (strcmp(policy_option_word(in, "order"), "lpt") == 0 && works->n)
        qsort(works->data, (size_t)works->n, sizeof *works->data, compare_keys);
    for (int32_t i = 0; i < works->n; i++)
        works->data[i].list = i;
    return STATUS_OK;
}

static enum status add_grid(const struct batch *b, const struct works works[2], struct plan *out)
{
    const int32_t n_ctas = works[0].n > works[1].n ? works[0].n : works[1].n;
    const struct works_emit sets[2] = {{.works = &works[0], .kernel = kernels[0]},
                                       {.works = &works[1], .kernel = kernels[1]}};
    if (n_ctas == 0) return STATUS_OK;
    TRY(plan_begin_grid(out, KERNEL_WARP_FUSED_128_64, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit_lists(sets, 2, n_ctas, b, out));
    return plan_end_grid(out, 0);
}

static enum status plan_warp_fused(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct role_set prefill, decode;
    struct works works[2] = {{0}};
    (void)why;
    TRY(role_sets(in->batch, &prefill, &decode));
    enum status status = pair_role(in, &prefill, kernels[0], &works[0]);
    if (status == STATUS_OK) status = pair_role(in, &decode, kernels[1], &works[1]);
    if (status == STATUS_OK) status = add_grid(in->batch, works, out);
    works_free(&works[0]);
    works_free(&works[1]);
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}

const struct policy policy_warp_fused = {
    .name = "warp_fused",
    .brief = "prefill warps beside decode warps in every CTA; a CTA lasts as long as its slower half",
    .source = "HFuse (CGO 2022); POD-Attention's FA_HFuse",
    .options = options,
    .plan = plan_warp_fused,
};
