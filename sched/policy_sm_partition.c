/* sm_partition: one persistent grid; n SMs begin with decodes, the others with prefills, and whoever runs dry
 * helps the other side.
 *
 * Source: this project's co-run measurements on an H200: tensor-core prefill and HBM streaming share one SM
 * badly (mma.sync starves beside wgmma) and share the chip well; the number of decode SMs is the sensitive
 * parameter (28 to 32 of 132 at equal work, 14 to 16 at 2:1, 38 to 44 at 1:2), so it must not stay fixed;
 * green-context schedulers (Bullet, Nexus, MuxWise) pick it per step. Rule:
 *   - one CTA an SM, fused_fa3_16: FA3 prefill tiles of 128 tokens, decodes of 16 packed rows through a ring
 * that owns the SM's shared memory; where the GPU has no FA3, fused_128_16 with its 2 CTAs an SM;
 *   - n of the W workers have the decode queue as their home, so that both sides would end together:
 *     n = W * decode work / all work (cost.h), at least 1 and at most W - 1 when both roles have work, no
 * more than keep HBM saturated; decode_sms=n fixes it;
 *   - both queues longest first; decodes are cut to at most 1/8 of a decode worker's share (whole pages and
 * KV tiles, 256 keys at least), prefill tiles are not cut;
 *   - steal=on: a worker whose home is dry draws from the other queue. */
#include "sched/cost.h"
#include "sched/works.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct policy_option options[] = {
    {"decode_sms", "int:0..1024", "0", "SMs that begin with decodes; 0: by the work ratio"},
    {"steal", "on|off", "on", "does a side that runs dry help the other"},
    {0},
};

enum { MIN_CHUNK_KEYS = 256, PIECES_PER_WORKER = 8 };

struct partition {
    const struct policy_input *in;
    enum kernel_id grid_kernel, kernels[2]; /* by role */
    int32_t per_sm, n_workers, n_decode;
    double ns[2]; /* work of each role, alone on an SM */
    struct works works[2];
};

static void pick_kernels(struct partition *p)
{
    const bool fa3 = p->in->kernels->fit[KERNEL_FUSED_FA3_16].ctas_per_sm > 0;
    p->grid_kernel = fa3 ? KERNEL_FUSED_FA3_16 : KERNEL_FUSED_128_16;
    p->kernels[WORK_PREFILL] = kernel_row(p->grid_kernel)->fused_prefill;
    p->kernels[WORK_DECODE] = kernel_row(p->grid_kernel)->fused_decode;
    p->per_sm = p->in->kernels->fit[p->grid_kernel].ctas_per_sm;
    if (p->per_sm < 1) p->per_sm = 1;
    p->n_workers = p->in->gpu->sm_count * p->per_sm;
}

static double work_ns(const struct partition *p, enum work_role role, int64_t rows, int64_t keys)
{
    return cost_rect(&p->in->batch->shape, p->in->kernels, p->kernels[role], rows, keys, false).ns;
}

static void add_up(struct partition *p, const struct role_set sets[2])
{
    const struct batch *b = p->in->batch;
    for (int role = 0; role < 2; role++)
        for (int32_t i = 0; i < sets[role].n; i++)
            for (int32_t t = 0; t < works_n_tiles(b, p->kernels[role], sets[role].requests[i]); t++) {
                const struct tile tile = works_tile(b, p->kernels[role], sets[role].requests[i], t);
                p->ns[role] += b->shape.num_kv_heads * work_ns(p, role, tile.row_end - tile.row_begin,
                                                               tile.keys.end - tile.keys.begin);
            }
}

/* Workers that together pull all HBM gives: more would take SMs from the prefills and stream no faster. */
static int32_t saturating_workers(const struct partition *p)
{
    const double each = p->in->kernels->fit[p->kernels[WORK_DECODE]].cta_bytes_per_ns;
    return each > 0 ? (int32_t)ceil(p->in->gpu->hbm_bytes_per_ns / each) : p->n_workers;
}

static int32_t decode_workers(const struct partition *p)
{
    const int32_t given = policy_option_int(p->in, "decode_sms") * p->per_sm;
    if (p->ns[WORK_DECODE] <= 0) return 0;
    if (p->ns[WORK_PREFILL] <= 0) return p->n_workers;
    const double share = p->ns[WORK_DECODE] / (p->ns[WORK_DECODE] + p->ns[WORK_PREFILL]);
    int32_t n = given > 0 ? given : (int32_t)(p->n_workers * share + 0.5);
    if (given == 0 && n > saturating_workers(p)) n = saturating_workers(p);
    return clamp_i32(n, 1, p->n_workers - 1);
}

/* Keys a decode chunk gets at most. */
static int64_t decode_chunk(const struct partition *p)
{
    const struct batch *b = p->in->batch;
    const int64_t page = b->kv.page_size, tile_kv = p->in->kernels->fit[p->kernels[WORK_DECODE]].tile_kv;
    const double key_ns = work_ns(p, WORK_DECODE, batch_group_size(b), 1 << 20) / (1 << 20);
    const double keys = p->ns[WORK_DECODE] / (p->n_decode * PIECES_PER_WORKER) / key_ns;
    const int64_t unit = (tile_kv + page - 1) / page * page;
    const int64_t least = keys > MIN_CHUNK_KEYS ? (int64_t)keys : MIN_CHUNK_KEYS;
    return (least + unit - 1) / unit * unit;
}

static enum status cut(struct partition *p, const struct role_set *set, enum work_role role, int64_t chunk)
{
    const struct batch *b = p->in->batch;
    for (int32_t i = 0; i < set->n; i++)
        for (int32_t t = 0; t < works_n_tiles(b, p->kernels[role], set->requests[i]); t++) {
            const struct tile tile = works_tile(b, p->kernels[role], set->requests[i], t);
            TRY(works_add_tile(&p->works[role], set->requests[i], tile.row_begin, tile.row_end, tile.keys,
                               chunk));
        }
    return STATUS_OK;
}

struct by_keys {
    int32_t keys, index;
};

static int compare_longest_first(const void *x, const void *y)
{
    const struct by_keys *a = x, *b = y;
    if (a->keys != b->keys) return a->keys > b->keys ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Emits a role's queue, longest work first. */
static enum status emit_queue(const struct partition *p, enum work_role role, struct plan *out)
{
    const struct works *works = &p->works[role];
    struct by_keys *keys = malloc(((size_t)works->n + 1) * sizeof *keys);
    int32_t *order = malloc(((size_t)works->n + 1) * sizeof *order);
    enum status status = keys && order ? STATUS_OK : STATUS_NO_MEMORY;
    if (status == STATUS_OK) {
        for (int32_t i = 0; i < works->n; i++)
            keys[i] = (struct by_keys){works->data[i].kv_end - works->data[i].kv_begin, i};
        qsort(keys, (size_t)works->n, sizeof *keys, compare_longest_first);
        for (int32_t i = 0; i < works->n; i++)
            order[i] = keys[i].index;
        const struct works_emit emit = {
            .works = works, .kernel = p->kernels[role], .heads_inner = true, .order = order};
        status = works_emit(&emit, p->in->batch, out);
    }
    if (status == STATUS_OK) status = plan_end_list(out);
    free(keys);
    free(order);
    return status;
}

/* Homes: the first n_decode CTAs start with decodes; a breadth-first launch puts those on n_decode SMs (with
 * two CTAs an SM: on both slots of half as many only by chance, which stealing makes good). */
static enum status add_grid(const struct partition *p, struct plan *out)
{
    const bool steal = strcmp(policy_option_word(p->in, "steal"), "on") == 0;
    const int32_t order[4] = {0, steal ? 1 : -1, 1, steal ? 0 : -1};
    int32_t *homes = malloc((size_t)p->n_workers * sizeof *homes);
    if (!homes) return STATUS_NO_MEMORY;
    for (int32_t w = 0; w < p->n_workers; w++)
        homes[w] = w < p->n_decode ? WORK_DECODE : WORK_PREFILL;
    enum status status = plan_begin_grid(out, p->grid_kernel, DISPATCH_QUEUE, 0, NULL);
    for (int role = 0; role < 2 && status == STATUS_OK; role++)
        status = emit_queue(p, role, out);
    if (status == STATUS_OK) status = plan_set_home(out, homes, p->n_workers);
    if (status == STATUS_OK) status = plan_set_steal(out, order, 2);
    if (status == STATUS_OK) status = plan_end_grid(out, p->n_workers);
    if (status == STATUS_OK) status = plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
    free(homes);
    return status;
}

static enum status plan_sets(struct partition *p, const struct role_set sets[2], struct plan *out)
{
    if (sets[0].n + sets[1].n == 0) return STATUS_OK;
    add_up(p, sets);
    p->n_decode = decode_workers(p);
    TRY(cut(p, &sets[WORK_PREFILL], WORK_PREFILL, INT32_MAX));
    TRY(cut(p, &sets[WORK_DECODE], WORK_DECODE, p->n_decode ? decode_chunk(p) : INT32_MAX));
    return add_grid(p, out);
}

static enum status plan_sm_partition(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct partition p = {.in = in};
    struct role_set sets[2];
    (void)why;
    pick_kernels(&p);
    TRY(role_sets(in->batch, &sets[WORK_PREFILL], &sets[WORK_DECODE]));
    const enum status status = plan_sets(&p, sets, out);
    for (int role = 0; role < 2; role++) {
        works_free(&p.works[role]);
        role_set_free(&sets[role]);
    }
    return status;
}

const struct policy policy_sm_partition = {
    .name = "sm_partition",
    .brief = "persistent grid: n SMs begin with decodes, the rest with prefills, the dry side steals",
    .source = "this project's co-run measurements; green-context schedulers",
    .options = options,
    .plan = plan_sm_partition,
};
