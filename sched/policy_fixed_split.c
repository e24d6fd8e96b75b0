/* fixed_split: batch-invariant attention: where a request is split depends on that request alone.
 *
 * Source: fixed split sizes of batch-invariant inference (FlashInfer's fixed_split_size, vLLM's and SGLang's
 * deterministic modes). Rule: a request whose packed rows fill one tile of 128 (decodes, short chunks) is cut
 * at the multiples of chunk_tokens, rounded up to whole pages; longer prefills, which have tiles enough, are
 * not cut. Decodes take tiles of 16 packed rows, all else tiles of 128. One fused grid, roles spread evenly
 * over blockIdx by a rational remap, one merge grid, partials merged in key order: the same request gives the
 * same bits in any batch, on any GPU. */
#include "sched/works.h"

static const struct policy_option options[] = {
    {"chunk_tokens", "int:128..1048576", "2048", "keys a chunk, rounded up to whole pages"},
    {0},
};

static enum status cut(const struct batch *b, const struct role_set *set, enum kernel_id kernel,
                       int64_t chunk, struct works *works)
{
    for (int32_t i = 0; i < set->n; i++) {
        const int32_t r = set->requests[i];
        const int64_t keys =
            packed_rows(b, r) <= kernel_row(KERNEL_FA2_PREFILL_128)->tile_q ? chunk : INT32_MAX;
        for (int32_t t = 0; t < works_n_tiles(b, kernel, r); t++) {
            struct tile tile = works_tile(b, kernel, r, t);
            /* a window moves with the token: cut at multiples of the chunk all the same */
            tile.keys.begin -= (int32_t)(tile.keys.begin % keys);
            TRY(works_add_tile(works, r, tile.row_begin, tile.row_end, tile.keys, keys));
        }
    }
    return STATUS_OK;
}

static enum status add_grid(const struct batch *b, const struct works works[2], struct plan *out)
{
    static const enum kernel_id kernels[2] = {KERNEL_FA2_PREFILL_128, KERNEL_FA2_DECODE_16};
    struct grid *grid;
    int32_t n[2] = {0, 0};
    if (works[0].n + works[1].n == 0) return STATUS_OK;
    TRY(plan_begin_grid(out, KERNEL_FUSED_128_16, DISPATCH_FIXED, 0, &grid));
    for (int role = 0; role < 2; role++) {
        const struct works_emit emit = {
            .works = &works[role], .kernel = kernels[role], .list_per_item = true};
        TRY(works_emit(&emit, b, out));
        n[role] = grid->n_lists - n[0];
    }
    grid->remap = (struct remap){.kind = REMAP_INTERLEAVED, .n_prefill = n[0], .n_decode = n[1]};
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_fixed_split(const struct policy_input *in, struct plan *out, struct why *why)
{
    const struct batch *b = in->batch;
    const int64_t page = b->kv.page_size, tokens = policy_option_int(in, "chunk_tokens");
    const int64_t chunk = (tokens + page - 1) / page * page;
    struct role_set prefill, decode;
    struct works works[2] = {{0}};
    (void)why;
    TRY(role_sets(b, &prefill, &decode));
    enum status status = cut(b, &prefill, KERNEL_FA2_PREFILL_128, chunk, &works[0]);
    if (status == STATUS_OK) status = cut(b, &decode, KERNEL_FA2_DECODE_16, chunk, &works[1]);
    if (status == STATUS_OK) status = add_grid(b, works, out);
    works_free(&works[0]);
    works_free(&works[1]);
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}

const struct policy policy_fixed_split = {
    .name = "fixed_split",
    .brief = "batch-invariant: a request's split points depend on that request alone",
    .source = "FlashInfer fixed_split_size; batch-invariant modes of vLLM and SGLang",
    .options = options,
    .plan = plan_fixed_split,
};
