/* page_aware: every request is split by its own paged KV length, longest work first.
 *
 * What the linear_bid proposal left open ("scheduling that accounts for paged kv length"), and ours. One
 * fused launch and one merge; but instead of one chunk size for all, a target time:
 *
 *   1. Tiles: 128 packed rows of a prefill (causal: only keys the tile sees), 16 of a decode, priced by
 * cost.h.
 *   2. A target T. A tile of cost c is cut into ceil(c / T) chunks of equal length, rounded up to whole pages
 * and to the kernel's KV tile, at least MIN_CHUNK_KEYS: so a 128k request is cut into many chunks beside 1k
 * ones left whole.
 *   3. T is the candidate (a fraction of the mean work per slot) with the least estimate: mean per slot + a
 * tail, no less than the longest item, + the merge. Prefill tiles are cut only where that still pays after
 * what the decodes' bytes take anyway, because their partials are tall (128 rows a chunk against a GQA
 * group's few).
 *   4. Works of each role longest first (ties in batch order), drawn by SM tickets in the exact ratio of
 * their numbers: an SM holds both roles, the long works start first, the short ones fill the end.
 * (Alternating roles over blockIdx would not do: CTAs i and i + 132 meet on one SM of a 132-SM chip, and have
 * the same parity.)
 *
 * Example, 2 slots, decodes of 12, 2, 2 (mean 8): T = 4 cuts the first into 3 x 4, and 4 4 4 2 2 ends at 8,
 * not 12. */
#include "sched/cost.h"
#include "sched/works.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CHUNK_KEYS = 256, PREFILL_TILE = 128, DECODE_TILE = 16 };

/* Mean work per slot is divided by these to get candidate targets; fewer cuts first, so ties keep the plan
 * small. */
static const double divisors[] = {0.5, 1, 1.5, 2, 3, 4, 6, 8};
enum { N_DIVISORS = sizeof divisors / sizeof divisors[0] };

struct priced_tile {
    int32_t request, row_begin, row_end;
    struct range keys;
    double ns;
};

struct role {
    enum kernel_id kernel;
    int32_t tile_q;
    struct priced_tile *tiles;
    int32_t n_tiles, cap_tiles;
    struct works works;
    int32_t *order;
};

struct planner {
    const struct policy_input *in;
    struct role roles[2]; /* WORK_PREFILL, WORK_DECODE */
    double slots;
    double memory_ns; /* K/V of all decodes over the chip's bandwidth: no cut makes that shorter */
};

/* What a CTA costs beside its items: they are not free to cut. */
static double cta_overhead_ns(const struct gpu *gpu)
{
    return gpu->cta_start_ns + gpu->cta_end_ns;
}

static enum status add_tile(struct role *role, const struct priced_tile *tile)
{
    if (role->n_tiles == role->cap_tiles) {
        if (role->cap_tiles > INT32_MAX / 2) return STATUS_TOO_LARGE;
        const int32_t cap = role->cap_tiles ? role->cap_tiles * 2 : 64;
        struct priced_tile *tiles = realloc(role->tiles, (size_t)cap * sizeof *tiles);
        if (!tiles) return STATUS_NO_MEMORY;
        role->tiles = tiles;
        role->cap_tiles = cap;
    }
    role->tiles[role->n_tiles++] = *tile;
    return STATUS_OK;
}

static enum status add_tiles(struct planner *p, int32_t request)
{
    const struct batch *b = p->in->batch;
    struct role *role = &p->roles[batch_qo_len(b, request) == 1 ? WORK_DECODE : WORK_PREFILL];
    const int64_t rows = packed_rows(b, request);
    for (int64_t row = 0; row < rows; row += role->tile_q) {
        struct priced_tile t = {.request = request, .row_begin = (int32_t)row};
        t.row_end = rows - row < role->tile_q ? (int32_t)rows : (int32_t)row + role->tile_q;
        t.keys = works_tile_keys(b, request, t.row_begin, t.row_end);
        t.ns = cost_rect(&b->shape, p->in->kernels, role->kernel, t.row_end - t.row_begin,
                         t.keys.end - t.keys.begin, false)
                   .ns;
        TRY(add_tile(role, &t));
    }
    if (role == &p->roles[WORK_DECODE])
        p->memory_ns += (double)b->kv_len[request] * b->shape.num_kv_heads *
                        (b->shape.head_dim_qk + b->shape.head_dim_vo) * dtype_bytes(b->shape.kv_dtype) /
                        p->in->gpu->hbm_bytes_per_ns;
    return STATUS_OK;
}

/* Keys a chunk of this tile gets for a target: equal chunks, whole pages, whole KV tiles. */
static int64_t chunk_keys(const struct planner *p, const struct role *role, const struct priced_tile *t,
                          double target_ns)
{
    const int64_t keys = t->keys.end - t->keys.begin, page = p->in->batch->kv.page_size;
    if (t->ns <= target_ns || keys <= MIN_CHUNK_KEYS) return keys > 0 ? keys : 1;
    int64_t n = (int64_t)(t->ns / target_ns) + 1;
    if (n > keys / MIN_CHUNK_KEYS) n = keys / MIN_CHUNK_KEYS;
    int64_t unit = p->in->kernels->fit[role->kernel].tile_kv;
    unit =
        (unit + page - 1) / page * page; /* a KV tile in whole pages (page sizes above the tile: the page) */
    const int64_t chunk = (keys + n - 1) / n;
    return (chunk + unit - 1) / unit * unit;
}

/* A way to cut: the target, and whether prefill tiles are cut too. */
struct cut {
    double target_ns;
    bool prefill;
    double work_ns, merge_ns; /* its estimate, in two parts */
};

static double cut_target(const struct cut *cut, int role)
{
    return role == WORK_PREFILL && !cut->prefill ? INFINITY : cut->target_ns;
}

/* Fills in the estimate: see the header comment, step 3. The tail of a longest-first schedule is taken as a
 * third of the mean item, weighted by work. */
static void estimate(const struct planner *p, struct cut *cut)
{
    const struct batch *b = p->in->batch;
    const double heads = b->shape.num_kv_heads, overhead = cta_overhead_ns(p->in->gpu);
    double total = 0, squares = 0, longest = 0, partial_rows = 0, deepest = 0;
    for (int r = 0; r < 2; r++)
        for (int32_t i = 0; i < p->roles[r].n_tiles; i++) {
            const struct priced_tile *t = &p->roles[r].tiles[i];
            const int64_t keys = t->keys.end - t->keys.begin;
            const int64_t chunk = chunk_keys(p, &p->roles[r], t, cut_target(cut, r));
            const int64_t n = keys > chunk ? (keys + chunk - 1) / chunk : 1;
            const double item = (n > 1 ? t->ns * (double)chunk / (double)keys : t->ns) + overhead;
            total += t->ns + (double)n * overhead;
            squares += (t->ns + (double)n * overhead) * item;
            if (item > longest) longest = item;
            if (n > 1) partial_rows += (double)n * (t->row_end - t->row_begin);
            if (n > deepest) deepest = (double)n;
        }
    cut->work_ns = total * heads / p->slots + squares / total / 3;
    if (cut->work_ns < longest) cut->work_ns = longest;
    /* partials go out and come back, the merge is a launch, and one CTA reads all chunks of a row */
    const double row_bytes = 4.0 * (b->shape.head_dim_vo + 1);
    cut->merge_ns = 0;
    if (partial_rows > 0)
        cut->merge_ns = p->in->gpu->launch_ns +
                        2 * partial_rows * heads * row_bytes / p->in->gpu->hbm_bytes_per_ns +
                        deepest * row_bytes / p->in->kernels->fit[KERNEL_MERGE].cta_bytes_per_ns;
}

static struct cut best_target(const struct planner *p, double mean_ns, bool prefill)
{
    struct cut best = {0};
    for (int d = 0; d < N_DIVISORS; d++) {
        struct cut cut = {.target_ns = mean_ns / divisors[d], .prefill = prefill};
        estimate(p, &cut);
        if (d == 0 || cut.work_ns + cut.merge_ns < best.work_ns + best.merge_ns) best = cut;
    }
    return best;
}

static double bounded_ns(const struct planner *p, const struct cut *cut)
{
    return (cut->work_ns > p->memory_ns ? cut->work_ns : p->memory_ns) + cut->merge_ns;
}

static struct cut pick_cut(const struct planner *p)
{
    double total = 0;
    for (int r = 0; r < 2; r++)
        for (int32_t i = 0; i < p->roles[r].n_tiles; i++)
            total += p->roles[r].tiles[i].ns + cta_overhead_ns(p->in->gpu);
    const double mean = total * p->in->batch->shape.num_kv_heads / p->slots;
    const struct cut whole = best_target(p, mean, false), all = best_target(p, mean, true);
    return bounded_ns(p, &all) < bounded_ns(p, &whole) ? all : whole;
}

struct sort_key {
    double ns;
    int32_t index;
};

static int compare_longest_first(const void *x, const void *y)
{
    const struct sort_key *a = x, *b = y;
    if (a->ns != b->ns) return a->ns > b->ns ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Cuts a role's tiles and sorts the works longest first. */
static enum status cut_role(struct planner *p, struct role *role, double target_ns)
{
    for (int32_t i = 0; i < role->n_tiles; i++) {
        const struct priced_tile *t = &role->tiles[i];
        TRY(works_add_tile(&role->works, t->request, t->row_begin, t->row_end, t->keys,
                           chunk_keys(p, role, t, target_ns)));
    }
    const int32_t n = role->works.n;
    struct sort_key *keys = malloc(((size_t)n + 1) * sizeof *keys);
    role->order = malloc(((size_t)n + 1) * sizeof *role->order);
    if (keys && role->order) {
        for (int32_t i = 0; i < n; i++) {
            const struct work *w = &role->works.data[i];
            keys[i] = (struct sort_key){cost_rect(&p->in->batch->shape, p->in->kernels, role->kernel,
                                                  w->row_end - w->row_begin, w->kv_end - w->kv_begin,
                                                  w->n_chunks > 1)
                                            .ns,
                                        i};
        }
        qsort(keys, (size_t)n, sizeof *keys, compare_longest_first);
        for (int32_t i = 0; i < n; i++)
            role->order[i] = keys[i].index;
    }
    const enum status status = keys && role->order ? STATUS_OK : STATUS_NO_MEMORY;
    free(keys);
    return status;
}

static enum kernel_id grid_kernel(const struct planner *p)
{
    if (p->roles[WORK_DECODE].n_tiles == 0) return p->roles[WORK_PREFILL].kernel;
    return p->roles[WORK_PREFILL].n_tiles == 0 ? p->roles[WORK_DECODE].kernel : KERNEL_FUSED_128_16;
}

static enum status emit(struct planner *p, struct plan *out)
{
    const struct batch *b = p->in->batch;
    const bool both = p->roles[WORK_PREFILL].n_tiles > 0 && p->roles[WORK_DECODE].n_tiles > 0;
    struct grid *grid;
    TRY(plan_begin_grid(out, grid_kernel(p), both ? DISPATCH_SM_TICKET : DISPATCH_FIXED, 0, &grid));
    if (both) grid->ticket.kind = TICKET_EXACT;
    for (int r = 0; r < 2; r++) {
        const struct works_emit e = {.works = &p->roles[r].works,
                                     .kernel = p->roles[r].kernel,
                                     .list_per_item = !both,
                                     .heads_inner = true,
                                     .order = p->roles[r].order};
        TRY(works_emit(&e, b, out));
        if (both) TRY(plan_end_list(out));
    }
    TRY(plan_end_grid(out, 0));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

static enum status plan_tiles(struct planner *p, struct plan *out)
{
    const struct batch *b = p->in->batch;
    for (int32_t r = 0; r < b->n_requests; r++)
        TRY(add_tiles(p, r));
    if (p->roles[0].n_tiles + p->roles[1].n_tiles == 0) return STATUS_OK;
    const int32_t per_sm = p->in->kernels->fit[grid_kernel(p)].ctas_per_sm;
    p->slots = (double)p->in->gpu->sm_count * (per_sm > 0 ? per_sm : 1);
    const struct cut cut = pick_cut(p);
    for (int r = 0; r < 2; r++)
        TRY(cut_role(p, &p->roles[r], cut_target(&cut, r)));
    return emit(p, out);
}

static enum status plan_page_aware(const struct policy_input *in, struct plan *out, struct why *why)
{
    (void)why;
    struct planner p = {.in = in};
    p.roles[WORK_PREFILL] = (struct role){.kernel = KERNEL_FA2_PREFILL_128, .tile_q = PREFILL_TILE};
    p.roles[WORK_DECODE] = (struct role){.kernel = KERNEL_FA2_DECODE_16, .tile_q = DECODE_TILE};
    const enum status status = plan_tiles(&p, out);
    for (int r = 0; r < 2; r++) {
        free(p.roles[r].tiles);
        free(p.roles[r].order);
        works_free(&p.roles[r].works);
    }
    return status;
}

const struct policy policy_page_aware = {
    .name = "page_aware",
    .brief = "one fused grid; each request split by its own paged kv length, longest first, one merge",
    .source = "this project; the open TODO of FlashInfer PR #1231",
    .plan = plan_page_aware,
};
