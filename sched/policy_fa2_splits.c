/* fa2_splits: FlashAttention-2 as engines call it: a forward over the prefills, then split-KV over the
 * decodes.
 *
 * Source: flash-attention at 0251105a, csrc/flash_attn (mha_fwd_kvcache, num_splits_heuristic). Rule:
 * prefills by tiles of 128 tokens of one q head, never split; decodes by tiles of 64 packed rows (the GQA
 * group takes the place of the query length) in ONE number of splits for the whole call: fa2_num_splits with
 * b * kv heads * ceil(group / 64) CTAs, 2 x SMs slots and ceil(longest kv_len / 128) blocks. A combine kernel
 * follows a split. Two launches on one stream. */
#include "sched/fa_splits.h"

enum { BLOCK_KEYS = 128, SLOTS_PER_SM = 2 };

static int32_t decode_splits(const struct policy_input *in, const struct role_set *decode)
{
    const struct batch *b = in->batch;
    int32_t longest = 0;
    for (int32_t i = 0; i < decode->n; i++)
        if (b->kv_len[decode->requests[i]] > longest) longest = b->kv_len[decode->requests[i]];
    const int64_t tiles = tile_count(KERNEL_FA2_SPLITKV_64, 1, batch_group_size(b));
    return fa2_num_splits(decode->n * tiles * b->shape.num_kv_heads,
                          SLOTS_PER_SM * (int64_t)in->gpu->sm_count,
                          ((int64_t)longest + BLOCK_KEYS - 1) / BLOCK_KEYS, FA_MAX_SPLITS);
}

static enum status add_grid(const struct policy_input *in, const struct role_set *set, enum kernel_id kernel,
                            int32_t splits, struct plan *out)
{
    struct works works = {0};
    const struct works_emit emit = {.works = &works, .kernel = kernel, .all_partial = splits > 1};
    enum status status = fa2_cut(in->batch, set, kernel, BLOCK_KEYS, splits, &works);
    if (status == STATUS_OK) status = works_emit_grids(&emit, 0, in->batch, out);
    works_free(&works);
    return status;
}

static enum status plan_fa2_splits(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct role_set prefill, decode;
    enum status status = STATUS_OK;
    (void)why;
    TRY(role_sets(in->batch, &prefill, &decode));
    if (prefill.n) status = add_grid(in, &prefill, KERNEL_FA2_FWD_128, 1, out);
    if (decode.n && status == STATUS_OK)
        status = add_grid(in, &decode, KERNEL_FA2_SPLITKV_64, decode_splits(in, &decode), out);
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}

const struct policy policy_fa2_splits = {
    .name = "fa2_splits",
    .brief = "FlashAttention-2: forward for prefills, then split-KV decodes with one split count",
    .source = "flash-attention at 0251105a, csrc/flash_attn",
    .plan = plan_fa2_splits,
};
