/* pod: POD-Attention: prefill and decode CTAs of one launch meet on every SM by SM-aware tickets.
 *
 * Source: POD-Attention (ASPLOS 2025, arXiv 2410.18038), vattention/pod_attn at ef3fff25. With S SMs, 2 S
 * slots, W = sum over prefills of q heads * ceil(qo_len / 128) and D = decodes * kv heads (the GQA group is
 * folded in):
 *
 *   splits of decodes   floor(slots / D) + 1 when 0.8 slots <= D < slots and (mode 9, or W >= slots, or
 *                       2 W < 0.8 slots); else the FA2 rule on D
 *   splits of prefills  none when D >= slots; else the FA2 rule on 2 W under the cap floor(slots / W), which
 *                       keeps prefill within two waves ("limited"; prefill_splits=uncapped lifts it)
 *   mode                9 (2 CTAs an SM) when anything is split; 11 (4 an SM) for W < 2 S and D < 3 S; then 9
 *                       for W < 2 S and kv_p * 8 >= kv_d * 5; 11 for W >= 2 S, D < 2 S and kv_p * 8 >= kv_d *
 *                       5; 11 for D >= W; else 9 (kv_p, kv_d: longest kv_len of each role)
 *   tickets             proportional (an integer ratio of CTA counts) or 50:50; exact is the rational ratio
 *                       that the published rule truncates
 *
 *   mode  prefill tile              decode, unsplit               decode, split
 *   9     128 x 64; split 64 x 128  4 virtual CTAs of 16 x 32     64 x 128
 *   11    64 x 32                   2 virtual CTAs of 16 x 32     64 x 128, then 2 prefill tiles a CTA
 *
 * A virtual CTA is one warp with its own shared memory: a lane (kernel.h). Splits are block-wise as in FA2:
 * pieces of ceil(blocks / s) blocks of 128 keys, by the longest request of the role. Entries in request
 * order; a merge launch for each role that split. The published planner takes one prefill length and one
 * decode length; for ragged batches W and D are sums and lengths the longest. */
#include "sched/fa_splits.h"

#include <string.h>

static const struct policy_option options[] = {
    {"ctas", "auto|2|4", "auto", "CTAs an SM: mode 9 (2), mode 11 (4), or chosen (15)"},
    {"ratio", "proportional|half|exact", "proportional", "ticket rule: integer ratio, 50:50, or rational"},
    {"prefill_splits", "limited|uncapped|off", "limited", "KV splits of prefills"},
    {"decode_splits", "auto|off", "auto", "KV splits of decodes"},
    {0},
};

enum { TILE_TOKENS = 128, SPLIT_BLOCK = 128 };

struct pod {
    struct role_set prefill, decode;
    int64_t slots;
    int64_t prefill_ctas, decode_ctas; /* W and D */
    int32_t prefill_kv, decode_kv;     /* longest kv_len of each role */
    int32_t prefill_splits, decode_splits;
    bool four; /* mode 11 */
};

static int32_t longest(const struct batch *b, const struct role_set *set)
{
    int32_t most = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (b->kv_len[set->requests[i]] > most) most = b->kv_len[set->requests[i]];
    return most;
}

static int64_t blocks(int32_t kv_len)
{
    return ((int64_t)kv_len + SPLIT_BLOCK - 1) / SPLIT_BLOCK;
}

static void measure(const struct policy_input *in, struct pod *p)
{
    const struct batch *b = in->batch;
    for (int32_t i = 0; i < p->prefill.n; i++)
        p->prefill_ctas += ((int64_t)batch_qo_len(b, p->prefill.requests[i]) + TILE_TOKENS - 1) /
                           TILE_TOKENS * b->shape.num_qo_heads;
    p->decode_ctas = (int64_t)p->decode.n * b->shape.num_kv_heads;
    p->slots = 2 * (int64_t)in->gpu->sm_count;
    p->prefill_kv = longest(b, &p->prefill);
    p->decode_kv = longest(b, &p->decode);
}

static bool option_is(const struct policy_input *in, const char *name, const char *word)
{
    return strcmp(policy_option_word(in, name), word) == 0;
}

static int32_t decode_splits(const struct policy_input *in, const struct pod *p)
{
    const int64_t slots = p->slots, w = p->prefill_ctas, d = p->decode_ctas;
    const bool may = option_is(in, "ctas", "2") || w >= slots || 10 * w < 4 * slots;
    if (option_is(in, "decode_splits", "off") || d == 0) return 1;
    if (may && 10 * d >= 8 * slots && d < slots) return (int32_t)(slots / d) + 1;
    return fa2_num_splits(d, slots, blocks(p->decode_kv), FA_MAX_SPLITS);
}

static int32_t prefill_splits(const struct policy_input *in, const struct pod *p)
{
    const int64_t slots = p->slots, w = p->prefill_ctas;
    /* mode 11 has no split prefill tile */
    if (option_is(in, "prefill_splits", "off") || option_is(in, "ctas", "4") || w == 0) return 1;
    if (p->decode_ctas >= slots) return 1;
    const int64_t cap = option_is(in, "prefill_splits", "uncapped") ? FA_MAX_SPLITS : slots / w;
    return fa2_num_splits(2 * w, slots, blocks(p->prefill_kv), cap > 1 ? cap : 1);
}

static bool picks_four(const struct policy_input *in, const struct pod *p)
{
    const int64_t sms = in->gpu->sm_count, w = p->prefill_ctas, d = p->decode_ctas;
    const bool long_prefill = (int64_t)p->prefill_kv * 8 >= (int64_t)p->decode_kv * 5;
    if (!option_is(in, "ctas", "auto")) return option_is(in, "ctas", "4");
    if (p->prefill_splits > 1 || p->decode_splits > 1) return false;
    if (w < 2 * sms && d < 3 * sms) return true;
    if (w < 2 * sms && long_prefill) return false;
    if (w >= 2 * sms && d < 2 * sms && long_prefill) return true;
    return d >= w;
}

static enum kernel_id fused_kernel(const struct pod *p)
{
    const bool split_p = p->prefill_splits > 1, split_d = p->decode_splits > 1;
    if (p->four) return split_d ? KERNEL_POD_4_DECODE_SPLIT : KERNEL_POD_4;
    if (split_p) return split_d ? KERNEL_POD_2_BOTH_SPLIT : KERNEL_POD_2_PREFILL_SPLIT;
    return split_d ? KERNEL_POD_2_DECODE_SPLIT : KERNEL_POD_2;
}

/* Emits a role as one list of the ticket grid. */
static enum status emit_role(const struct policy_input *in, const struct role_set *set, enum kernel_id kernel,
                             int32_t splits, struct plan *out)
{
    const struct batch *b = in->batch;
    struct works works = {0};
    const struct works_emit emit = {.works = &works, .kernel = kernel, .all_partial = splits > 1};
    enum status status = fa2_cut(b, set, kernel, SPLIT_BLOCK, splits, &works);
    if (status == STATUS_OK) status = works_emit(&emit, b, out);
    if (status == STATUS_OK) status = plan_end_list(out);
    works_free(&works);
    return status;
}

static enum status add_grids(const struct policy_input *in, const struct pod *p, struct plan *out)
{
    const enum kernel_id fused = fused_kernel(p);
    const struct kernel *row = kernel_row(fused);
    const char *ratio = policy_option_word(in, "ratio");
    struct grid *grid;
    TRY(plan_begin_grid(out, fused, DISPATCH_SM_TICKET, 0, &grid));
    grid->ticket.kind = strcmp(ratio, "exact") == 0  ? TICKET_EXACT
                        : strcmp(ratio, "half") == 0 ? TICKET_HALF
                                                     : TICKET_PROPORTIONAL;
    TRY(emit_role(in, &p->prefill, row->fused_prefill, p->prefill_splits, out));
    const int32_t prefill_merges = out->n_merges;
    TRY(emit_role(in, &p->decode, row->fused_decode, p->decode_splits, out));
    TRY(plan_end_grid(out, 0));
    TRY(plan_add_merge_grid(out, 0, prefill_merges, 0, NULL, 0));
    return plan_add_merge_grid(out, prefill_merges, out->n_merges, 0, NULL, 0);
}

static enum status plan_pod(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct pod p = {0};
    enum status status = STATUS_OK;
    (void)why;
    TRY(role_sets(in->batch, &p.prefill, &p.decode));
    measure(in, &p);
    p.decode_splits = decode_splits(in, &p);
    p.prefill_splits = prefill_splits(in, &p);
    p.four = picks_four(in, &p);
    if (p.prefill.n + p.decode.n > 0) status = add_grids(in, &p, out);
    role_set_free(&p.prefill);
    role_set_free(&p.decode);
    return status;
}

const struct policy policy_pod = {
    .name = "pod",
    .brief = "POD-Attention: one fused grid, SM-aware tickets, virtual decode CTAs, 2 or 4 CTAs an SM",
    .source = "POD-Attention (ASPLOS 2025), vattention/pod_attn at ef3fff25",
    .options = options,
    .plan = plan_pod,
};
