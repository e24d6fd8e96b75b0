/* sm_partition: one persistent grid; n SMs begin with decodes, the others with prefills, and whoever runs dry
 * helps the other side.
 *
 * Source: this project's co-run measurements on an H200: tensor-core prefill and HBM streaming share one SM
 * badly (mma.sync starves beside wgmma) and share the chip well; the number of decode SMs is the sensitive
 * parameter (28 to 32 of 132 at equal work, 14 to 16 at 2:1, 38 to 44 at 1:2), so it must not stay fixed;
 * green-context schedulers (Bullet, Nexus, MuxWise) pick it per step. Rule:
 *   - one CTA an SM, fused_fa3_16: FA3 prefill tiles of 128 tokens, decodes of 16 packed rows through a
 *     ring that owns the SM's shared memory; where the GPU has no FA3, fused_128_16 with its 2 CTAs an SM;
 *   - n of the W workers have the decode queue as their home, so that both sides would end together:
 *     n = W * decode work / all work (cost.h), at least 1 and at most W - 1 when both roles have work, no more
 *     than keep HBM saturated; decode_sms=n fixes it;
 *   - both queues longest first; decodes are cut to at most 1/8 of a decode worker's share (whole pages and
 *     KV tiles, 256 keys at least), prefill tiles are not cut;
 *   - steal=on: a worker whose home is dry draws from the other queue. */
#include "sched/cost.h"
#include "sched/two_queues.h"

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

static int32_t decode_workers(const struct partition *p)
{
    const int32_t given = policy_option_int(p->in, "decode_sms") * p->per_sm;
    const int32_t n = two_queues_split(p->n_workers, p->ns[WORK_PREFILL], p->ns[WORK_DECODE],
                                       p->in->kernels->fit[p->kernels[WORK_DECODE]].cta_bytes_per_ns,
                                       p->in->gpu->hbm_bytes_per_ns);
    if (given == 0 || n == 0 || n == p->n_workers) return n;
    return given < p->n_workers ? given : p->n_workers - 1;
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

static enum status add_grids(const struct partition *p, struct plan *out)
{
    const struct two_queues q = {
        .grid_kernel = p->grid_kernel,
        .roles = {{.works = &p->works[0], .kernel = p->kernels[0]},
                  {.works = &p->works[1], .kernel = p->kernels[1]}},
        .n_workers = p->n_workers,
        .n_decode = p->n_decode,
        .steal = strcmp(policy_option_word(p->in, "steal"), "on") == 0,
    };
    TRY(two_queues_emit(&q, p->in, out));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_sets(struct partition *p, const struct role_set sets[2], struct plan *out)
{
    if (sets[0].n + sets[1].n == 0) return STATUS_OK;
    add_up(p, sets);
    p->n_decode = decode_workers(p);
    TRY(cut(p, &sets[WORK_PREFILL], WORK_PREFILL, INT32_MAX));
    TRY(cut(p, &sets[WORK_DECODE], WORK_DECODE, p->n_decode ? decode_chunk(p) : INT32_MAX));
    return add_grids(p, out);
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
