/* fi_prefill: FlashInfer's batched prefill (FA2 plan) over all rows, with the knobs of its planner.
 *
 * Source: flashinfer scheduler.cuh at fb28d7242, the prefill plan. Rule (fi_split.h): a tile of 16, 64 or 128
 * packed rows by the AVERAGE packed length; one KV chunk for all requests, the smallest of at least 128
 * tokens (whole pages) with sum ceil(packed / tile) * ceil(pages / chunk) <= (2 x SMs - colocated) / kv
 * heads; works in request, tile, chunk order; once anything splits every work writes partials and a merge
 * kernel follows. Neither causal-aware nor sorted. `unified` is this plan with nothing set.
 *
 *   tile=..             fixes the tile, as a CUDA graph's worst case would
 *   split=off           never splits (disable_split_kv)
 *   split=fixed         chunks of chunk_pages pages (fixed_split_size): a request's split points then depend
 *                       on that request alone
 *   colocated=N         takes N CTAs off the budget (num_colocated_ctas of batch POD) */
#include "sched/fi_split.h"

#include <string.h>

static const struct policy_option options[] = {
    {"tile", "auto|16|64|128", "auto", "packed rows a CTA"},
    {"split", "auto|off|fixed", "auto", "how the KV chunk is chosen"},
    {"chunk_pages", "int:1..1048576", "128", "pages a chunk, for split=fixed"},
    {"colocated", "int:0..100000", "0", "CTAs taken off the budget"},
    {0},
};

static int32_t tile_option(const struct policy_input *in, const struct role_set *set)
{
    const char *tile = policy_option_word(in, "tile");
    if (strcmp(tile, "auto") == 0) return fi_prefill_tile(in->batch, set);
    return strcmp(tile, "16") == 0 ? 16 : strcmp(tile, "64") == 0 ? 64 : 128;
}

static struct fi_split decide(const struct policy_input *in, const struct role_set *set)
{
    const char *split = policy_option_word(in, "split");
    const int32_t tile_q = tile_option(in, set);
    if (strcmp(split, "off") == 0) return fi_fixed_split(in->batch, set, tile_q, INT32_MAX);
    if (strcmp(split, "fixed") == 0)
        return fi_fixed_split(in->batch, set, tile_q, policy_option_int(in, "chunk_pages"));
    return fi_prefill_split(in->batch, in->gpu, set, tile_q, policy_option_int(in, "colocated"));
}

static enum status plan_fi_prefill(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    struct role_set all;
    TRY(role_set_all(in->batch, &all));
    const struct fi_split split = decide(in, &all);
    const enum status status = all.n ? fi_prefill_grids(in->batch, &all, &split, out) : STATUS_OK;
    role_set_free(&all);
    return status;
}

const struct policy policy_fi_prefill = {
    .name = "fi_prefill",
    .brief = "FlashInfer's FA2 prefill plan over all rows: tile by average length, one global KV chunk",
    .source = "FlashInfer scheduler.cuh at fb28d7242, prefill plan",
    .options = options,
    .plan = plan_fi_prefill,
};
