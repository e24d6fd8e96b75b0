/* fa3_splits: FlashAttention-3 called twice: a forward over the prefills, then split-KV over the decodes.
 *
 * Source: flash-attention at 0251105a, hopper/ (heuristics.h, tile_scheduler.hpp, flash_api.cpp). Rule:
 *   - prefills: tiles of 128 rows, never split. PackGQA by fa3_packs_gqa; pages are read by TMA only if
 *     page_size is a multiple of the KV tile of 128 and qo_len * group > 128, so with small pages always
 *     packed. Causal: S persistent CTAs take tiles from one counter; heads come in sections whose K and V
 *     fit 32 MB of L2 (a power of two of KV heads), inside a section the longest (last) tiles first. Not
 *     causal: CTA i takes tiles i, i + S, i + 2 S, ..
 *   - decodes: packed tiles of 128 rows, one number of splits for the call: fa3_num_splits with b * kv
 *     heads * ceil(group / 128) tiles and KV tiles of 128 keys (q = 1 needs no causal mask, whose tile of
 *     176 is for unpaged K/V); every request in pieces of ceil(its blocks / splits). One tile a CTA; a
 *     combine kernel follows a split.
 * The fixed-length rule, here on ragged batches; today's FA3 sends those through the rule of fa3_varlen. */
#include "sched/fa_splits.h"

enum { TILE = 128 };
static const double section_bytes = 32.0 * 1024 * 1024;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int32_t longest_kv(const struct batch *b, const struct role_set *set)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (b->kv_len[set->requests[i]] > longest) longest = b->kv_len[set->requests[i]];
    return longest;
}

static double kv_head_bytes(const struct batch *b, int32_t kv_len)
{
    return (double)kv_len * (double)shape_key_bytes(&b->shape);
}

/* Every request's own KV blocks in `splits` pieces. */
static enum status cut_decodes(const struct batch *b, const struct role_set *set, int32_t splits,
                               struct works *works)
{
    for (int32_t i = 0; i < set->n; i++)
        for (int32_t t = 0; t < works_n_tiles(b, KERNEL_FA3_PACKED_128, set->requests[i]); t++) {
            const struct tile tile = works_tile(b, KERNEL_FA3_PACKED_128, set->requests[i], t);
            const int64_t blocks = ceil_div(tile.keys.end - tile.keys.begin, TILE);
            const int64_t piece = blocks > 0 ? ceil_div(blocks, splits) * TILE : TILE;
            TRY(works_add_tile(works, set->requests[i], tile.row_begin, tile.row_end, tile.keys, piece));
        }
    return STATUS_OK;
}

static enum status decode_grids(const struct policy_input *in, const struct role_set *set, struct plan *out)
{
    const struct batch *b = in->batch;
    const int32_t longest = longest_kv(b, set);
    const int64_t tiles = tile_count(KERNEL_FA3_PACKED_128, 1, batch_group_size(b));
    const int32_t splits = fa3_num_splits(set->n * tiles * b->shape.num_kv_heads, in->gpu->sm_count,
                                          ceil_div(longest, TILE), false, kv_head_bytes(b, longest));
    struct works works = {0};
    const struct works_emit emit = {
        .works = &works, .kernel = KERNEL_FA3_PACKED_128, .all_partial = splits > 1};
    enum status status = cut_decodes(b, set, splits, &works);
    if (status == STATUS_OK) status = works_emit_grids(&emit, 0, b, out);
    works_free(&works);
    return status;
}

/* KV heads whose K and V stay in L2 together: a power of two, at least 1. */
static int32_t section_heads(const struct batch *b, int32_t longest)
{
    int32_t heads = 1;
    while (heads < b->shape.num_kv_heads && 2 * heads * kv_head_bytes(b, longest) <= section_bytes)
        heads *= 2;
    return heads;
}

/* The tiles of (request, KV head) pairs [begin, end) of the set, last token tiles first across all of them.
 */
static enum status add_section(const struct batch *b, const struct role_set *set, enum kernel_id k,
                               int64_t begin, int64_t end, int32_t most_tiles, struct works *works)
{
    const int32_t heads = b->shape.num_kv_heads;
    const bool head_major = kernel_row(k)->row_order == ROWS_HEAD_MAJOR;
    for (int32_t tile = most_tiles; tile-- > 0;)
        for (int64_t pair = begin; pair < end; pair++) {
            const int32_t r = set->requests[pair / heads], n = works_n_tiles(b, k, r);
            const int32_t copies = head_major ? batch_group_size(b) : 1, per_head = n / copies;
            for (int32_t h = 0; tile < per_head && h < copies; h++) {
                const struct tile t = works_tile(b, k, r, h * per_head + tile);
                const struct work w = {.request = r,
                                       .row_begin = t.row_begin,
                                       .row_end = t.row_end,
                                       .kv_begin = t.keys.begin,
                                       .kv_end = t.keys.end,
                                       .n_chunks = 1,
                                       .kv_head = (int32_t)(pair % heads)};
                TRY(works_add(works, &w));
            }
        }
    return STATUS_OK;
}

static enum status cut_prefills(const struct policy_input *in, const struct role_set *set, enum kernel_id k,
                                struct works *works)
{
    const struct batch *b = in->batch;
    const int32_t copies = kernel_row(k)->row_order == ROWS_HEAD_MAJOR ? batch_group_size(b) : 1;
    const int64_t pairs = (int64_t)set->n * b->shape.num_kv_heads;
    const int32_t section = b->mask.causal ? section_heads(b, longest_kv(b, set)) : 1;
    int32_t most_tiles = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (works_n_tiles(b, k, set->requests[i]) / copies > most_tiles)
            most_tiles = works_n_tiles(b, k, set->requests[i]) / copies;
    for (int64_t begin = 0; begin < pairs; begin += section)
        TRY(add_section(b, set, k, begin, begin + section < pairs ? begin + section : pairs, most_tiles,
                        works));
    for (int32_t i = 0; i < works->n; i++)
        works->data[i].list = i % in->gpu->sm_count;
    return STATUS_OK;
}

static enum status prefill_grid(const struct policy_input *in, const struct role_set *set, struct plan *out)
{
    const struct batch *b = in->batch;
    const int32_t group_size = batch_group_size(b), sms = in->gpu->sm_count;
    const int64_t mean = set->rows / set->n;
    const bool tma = b->kv.page_size % TILE == 0 && mean * group_size > TILE;
    const enum kernel_id k =
        fa3_packs_gqa(!tma, mean, group_size, TILE) ? KERNEL_FA3_PACKED_128 : KERNEL_FA3_PREFILL_128;
    struct works works = {0};
    const struct works_emit emit = {.works = &works, .kernel = k};
    enum status status = cut_prefills(in, set, k, &works);
    if (status == STATUS_OK)
        status = plan_begin_grid(out, k, b->mask.causal ? DISPATCH_QUEUE : DISPATCH_FIXED, 0, NULL);
    if (status == STATUS_OK && b->mask.causal) status = works_emit(&emit, b, out);
    if (status == STATUS_OK && b->mask.causal) status = plan_end_list(out);
    if (status == STATUS_OK && !b->mask.causal) status = works_emit_lists(&emit, 1, sms, b, out);
    if (status == STATUS_OK) status = plan_end_grid(out, sms);
    works_free(&works);
    return status;
}

static enum status plan_fa3_splits(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct role_set prefill, decode;
    enum status status = STATUS_OK;
    if (in->kernels->fit[KERNEL_FA3_PACKED_128].ctas_per_sm < 1)
        return status_fail(why, STATUS_UNSUPPORTED,
                           "policy fa3_splits: kernel fa3_packed_128 cannot launch on %s", in->gpu->name);
    TRY(role_sets(in->batch, &prefill, &decode));
    if (prefill.n) status = prefill_grid(in, &prefill, out);
    if (decode.n && status == STATUS_OK) status = decode_grids(in, &decode, out);
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}

const struct policy policy_fa3_splits = {
    .name = "fa3_splits",
    .brief = "FlashAttention-3: persistent forward for prefills, then split-KV decodes with one split count",
    .source = "flash-attention at 0251105a, hopper/",
    .plan = plan_fa3_splits,
};
