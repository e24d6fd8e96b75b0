/* fa3_varlen: FlashAttention-3's variable-length call over the whole mixed batch, with its scheduler
 * metadata.
 *
 * Source: flash-attention at 0251105a, hopper/ (prepare_varlen_num_blocks,
 * VarlenDynamicPersistentTileScheduler); the vLLM default. Rule, with m = ceil(qo_len * group / 128) packed
 * query tiles and n = ceil(kv_len / 128) KV blocks of a sequence:
 *   - blocks an SM: ceil(1.1 * sum m n * kv heads / S); splits = clamp(ceil(n / that), 1, bound), bound =
 *     fa3_num_splits for one sequence of the longest lengths; above 992 sequences nothing is split. A
 *     tile's own KV blocks (its causal end) are dealt to the splits evenly.
 *   - without a window, sequences come in descending order of KV blocks a split, causal: of n * 128 - m * 128,
 *     the keys before the first row; each 992 sequences by themselves.
 *   - heads come in groups that keep their KV blocks in L2: the largest of 16, 8, 4, 2, 1 with heads * n
 *     blocks within 8 MB (causal or window), at most kv heads; without either mask, all heads. Inside, the
 *     last query tile first.
 *   - PackGQA always; S persistent CTAs take tiles from one counter; a combine kernel follows if anything
 *     is split. */
#include "sched/fa_splits.h"

#include <stdlib.h>

enum { TILE = 128, MAX_L2_HEADS = 16 };
static const double l2_bytes = 8.0 * 1024 * 1024;

struct sequence {
    int32_t request, splits;
    int64_t m, n, sort_key;
};

struct prepare {
    const struct policy_input *in;
    struct sequence *sequences;
    int32_t n_sequences;
    struct works works;
};

static int64_t blocks(int64_t x)
{
    return (x + TILE - 1) / TILE;
}

static int compare_sequences(const void *x, const void *y)
{
    const struct sequence *a = x, *b = y;
    if (a->sort_key != b->sort_key) return a->sort_key > b->sort_key ? -1 : 1;
    return a->request < b->request ? -1 : a->request > b->request;
}

/* See "blocks an SM" above; returns per_sm in *per_sm and the bound. */
static int32_t split_bound(const struct prepare *p, int64_t *per_sm)
{
    const struct batch *b = p->in->batch;
    int64_t total = 0, most_m = 0, most_n = 0;
    for (int32_t i = 0; i < p->n_sequences; i++) {
        total += p->sequences[i].m * p->sequences[i].n;
        if (p->sequences[i].m > most_m) most_m = p->sequences[i].m;
        if (p->sequences[i].n > most_n) most_n = p->sequences[i].n;
    }
    *per_sm = fa3_varlen_blocks_per_sm(total, b->shape.num_kv_heads, p->in->gpu->sm_count);
    if (p->n_sequences > FA3_MAX_SPLIT_SEQUENCES) return 1;
    const double kv_bytes = (double)most_n * TILE * (double)shape_key_bytes(&b->shape);
    return fa3_num_splits(most_m * b->shape.num_kv_heads, p->in->gpu->sm_count, most_n, b->mask.causal,
                          kv_bytes);
}

static void prepare_sequences(struct prepare *p)
{
    const struct batch *b = p->in->batch;
    int64_t per_sm;
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0)
            p->sequences[p->n_sequences++] =
                (struct sequence){.request = r, .m = blocks(packed_rows(b, r)), .n = blocks(b->kv_len[r])};
    const int32_t bound = split_bound(p, &per_sm);
    for (int32_t i = 0; i < p->n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        s->splits = fa3_varlen_splits(s->n, per_sm, bound);
        const int64_t n = (s->n + s->splits - 1) / s->splits;
        s->sort_key = b->mask.causal ? (n - s->m) * TILE : n;
    }
    for (int32_t i = 0; b->mask.window_left < 0 && i < p->n_sequences; i += FA3_MAX_SPLIT_SEQUENCES) {
        const int32_t left = p->n_sequences - i,
                      n = left < FA3_MAX_SPLIT_SEQUENCES ? left : FA3_MAX_SPLIT_SEQUENCES;
        qsort(p->sequences + i, (size_t)n, sizeof *p->sequences, compare_sequences);
    }
}

static int32_t heads_in_l2(const struct batch *b, int64_t n)
{
    const double block_bytes = (double)TILE * (double)shape_key_bytes(&b->shape);
    int32_t heads = MAX_L2_HEADS;
    if (!b->mask.causal && b->mask.window_left < 0) return b->shape.num_kv_heads;
    while (heads > 1 && heads * (double)n * block_bytes > l2_bytes)
        heads /= 2;
    return heads < b->shape.num_kv_heads ? heads : b->shape.num_kv_heads;
}

/* One tile for one head: the tile's own KV blocks in `splits` even pieces. */
static enum status add_tile(struct prepare *p, const struct sequence *s, int32_t tile, int32_t head)
{
    const struct tile t = works_tile(p->in->batch, KERNEL_FA3_PACKED_128, s->request, tile);
    const int64_t piece = (blocks(t.keys.end - t.keys.begin) + s->splits - 1) / s->splits * TILE;
    const int32_t first = p->works.n;
    TRY(works_add_tile(&p->works, s->request, t.row_begin, t.row_end, t.keys, piece > 0 ? piece : TILE));
    for (int32_t i = first; i < p->works.n; i++)
        p->works.data[i].kv_head = head;
    return STATUS_OK;
}

/* Where all heads fit L2 together, one work stands for all of them: heads are innermost then as well. */
static enum status add_sequence(struct prepare *p, const struct sequence *s)
{
    const struct batch *b = p->in->batch;
    const int32_t heads = b->shape.num_kv_heads, section = heads_in_l2(b, s->n);
    if (section == heads) {
        for (int32_t tile = (int32_t)s->m; tile-- > 0;)
            TRY(add_tile(p, s, tile, WORK_ALL_HEADS));
        return STATUS_OK;
    }
    for (int32_t first = 0; first < heads; first += section)
        for (int32_t tile = (int32_t)s->m; tile-- > 0;)
            for (int32_t head = first; head < heads && head < first + section; head++)
                TRY(add_tile(p, s, tile, head));
    return STATUS_OK;
}

static enum status plan_sequences(struct prepare *p, struct plan *out)
{
    const struct works_emit emit = {.works = &p->works, .kernel = KERNEL_FA3_PACKED_128, .heads_inner = true};
    prepare_sequences(p);
    for (int32_t i = 0; i < p->n_sequences; i++)
        TRY(add_sequence(p, &p->sequences[i]));
    if (p->works.n == 0) return STATUS_OK;
    TRY(plan_begin_grid(out, emit.kernel, DISPATCH_QUEUE, 0, NULL));
    TRY(works_emit(&emit, p->in->batch, out));
    TRY(plan_end_list(out));
    TRY(plan_end_grid(out, p->in->gpu->sm_count));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_fa3_varlen(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct prepare p = {.in = in};
    if (in->kernels->fit[KERNEL_FA3_PACKED_128].ctas_per_sm < 1)
        return status_fail(why, STATUS_UNSUPPORTED,
                           "policy fa3_varlen: kernel fa3_packed_128 cannot launch on %s", in->gpu->name);
    p.sequences = malloc(((size_t)in->batch->n_requests + 1) * sizeof *p.sequences);
    const enum status status = p.sequences ? plan_sequences(&p, out) : STATUS_NO_MEMORY;
    free(p.sequences);
    works_free(&p.works);
    return status;
}

const struct policy policy_fa3_varlen = {
    .name = "fa3_varlen",
    .brief = "FlashAttention-3 varlen: per-sequence splits, sorted, heads in L2, one persistent grid",
    .source = "flash-attention at 0251105a, hopper/; vLLM's default on Hopper",
    .plan = plan_fa3_varlen,
};
