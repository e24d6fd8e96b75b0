/* page_aware: every request is cut by its own paged KV length and its cost, shared pages are read once, and
 * one merge ends it.
 *
 * What the linear_bid proposal (FlashInfer PR #1231) left open ("scheduling that accounts for paged kv
 * length"), and ours. One launch, one merge:
 *
 *   1. Shared pages. Requests of few rows that hold the same physical pages at their start, found in
 *      kv_indices (cascade.h), become row groups: the pages are read once for the rows of all of them.
 *   2. Kernels. Rows that a tile of 16 holds are decodes, all others prefills. Candidates are FA2 tiles
 *      (128 packed rows, 16 for decodes, 2 CTAs an SM) and, where the GPU has it, FA3 tiles with a ring
 *      decode (1 CTA an SM), each with and without step 1. Every tile is priced by cost.h: FLOPs with tile
 *      padding, bytes, the causal triangle. The candidate with the least estimate is taken: a smooth
 *      maximum of work per slot, tensor FLOPs over the chip's rate, and bytes over its bandwidth.
 *   3. Lists: every worker gets its own. fill.h keeps short tiles whole, longest first on the least loaded,
 *      and pours the longest ones over what is uneven, cut on page borders. Nothing is cut where that would
 *      take longer, merge included. The roles follow each other.
 *   4. Queues, where there are both roles: a persistent grid with a queue a role (two_queues.h). Decodes
 *      begin on as many workers as their share of the work, no more than keep the memory busy; who runs dry
 *      helps. Both queues run longest first, and the work left at a tile's turn bounds its pieces (guided
 *      self-scheduling): remaining / (4 x workers) for decodes; prefill tiles, whose partials are tall, are
 *      cut in at most 4 once less than a round of them is left, and longer ones into eighths of the whole
 *      time. The roles overlap.
 *   5. The faster of both by list scheduling of its pieces, no less than the chip's bounds, with its merge.
 *   6. Pieces end on pages, and on KV tiles where a started one costs a full one; in queues they have at
 *      least 256 keys, and partial rows stay within 2 x slots x tile rows, or pieces grow until they do.
 *
 * Example of step 3, 2 workers, decodes of 12, 2, 2 keys: mean 8. The pool is the 12; 2 and 2 go to a worker
 * each; 6 and 6 of the 12 fill both to 8. */
#include "sched/cascade_plan.h"
#include "sched/cost.h"
#include "sched/fill.h"
#include "sched/two_queues.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct policy_option options[] = {
    {"kernels", "auto|fa2|fa3", "auto", "prefill and decode kernels"},
    {"shared", "auto|off", "auto", "read pages that requests share once"},
    {"dispatch", "auto|lists|queues", "auto", "a list a worker, or a queue a role"},
    {0},
};

enum {
    MIN_CHUNK_KEYS = 256,
    SHARED_ROWS = 128, /* packed rows up to which a request's prefix is worth sharing */
    MMA_KEYS = 16,     /* keys of one tensor instruction */
    DECODE_PIECES = 4, /* of the remaining work per worker */
    PREFILL_PIECES = 1,
    MAX_PREFILL_PIECES = 4, /* of a tile */
    COARSE_PIECES = 8,      /* of the whole time: longest late prefill pieces, shortest decode pieces */
    FINE_PIECES = 64
};

/* The kernels of one way to run the batch. */
struct family {
    enum kernel_id grid, roles[2];
};
static const struct family families[] = {
    {KERNEL_FUSED_128_16, {KERNEL_FA2_PREFILL_128, KERNEL_FA2_DECODE_16}},
    {KERNEL_FUSED_FA3_16, {KERNEL_FA3_PACKED_128, KERNEL_RING_DECODE_16}},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

struct planner {
    const struct policy_input *in;
    const struct cascade *shared; /* no nodes: nothing shared */
    struct family family;
    enum kernel_id grid_kernel;
    int32_t n_workers;

    struct fill_tile *tiles; /* row group by row group, then sorted longest first */
    int32_t n_tiles, cap_tiles;
    int32_t *group_tile; /* first tile of each row group, before sorting */
    int32_t *sorted;     /* [n_tiles] where a tile went */

    double role_ns[2], role_flops[2], bytes; /* all heads */
    double longest_ns[2];
};

static void planner_free(struct planner *p)
{
    free(p->tiles);
    free(p->group_tile);
    free(p->sorted);
}

/* The tiles cut and laid out in one way. */
struct layout {
    bool queues; /* a queue a role; else a list a worker */
    struct works works[2];
    int32_t *begin; /* first work of a tile (sorted): queues, for all heads; lists, [tile * heads + head] */
    int32_t *first[2]; /* first partial row of each work */
    int32_t n_decode;  /* queues: workers at home with the decodes */
    int32_t n_pool;    /* lists: tiles that were cut */
    double ns;         /* estimated time, merge included */
};

static void layout_free(struct layout *x)
{
    for (int role = 0; role < 2; role++) {
        works_free(&x->works[role]);
        free(x->first[role]);
    }
    free(x->begin);
}

/* Keeps the faster of two layouts in *best (an empty one has no begin) and frees the other. */
static void keep_faster(struct layout *best, struct layout *other)
{
    if (!best->begin || other->ns < best->ns) {
        const struct layout swap = *best;
        *best = *other;
        *other = swap;
    }
    layout_free(other);
    *other = (struct layout){0};
}

/* ---- tiles */

static int32_t n_groups(const struct planner *p)
{
    return p->in->batch->n_requests + p->shared->n_nodes;
}

/* Few rows, which a decode tile holds, wait for memory: decodes, short extends of a small GQA group, small
 * groups that share a prefix. */
static enum work_role group_role(const struct planner *p, int32_t tokens)
{
    const int64_t rows = (int64_t)tokens * batch_group_size(p->in->batch);
    return tokens == 1 || rows <= kernel_row(p->family.roles[WORK_DECODE])->tile_q ? WORK_DECODE
                                                                                   : WORK_PREFILL;
}

static enum status push_tile(struct planner *p, const struct fill_tile *tile)
{
    if (p->n_tiles == p->cap_tiles) {
        if (p->cap_tiles > INT32_MAX / 2) return STATUS_TOO_LARGE;
        const int32_t cap = p->cap_tiles ? p->cap_tiles * 2 : 64;
        struct fill_tile *tiles = realloc(p->tiles, (size_t)cap * sizeof *tiles);
        if (!tiles) return STATUS_NO_MEMORY;
        p->tiles = tiles;
        p->cap_tiles = cap;
    }
    p->tiles[p->n_tiles++] = *tile;
    return STATUS_OK;
}

/* Keys of a tile, from a page border on: what the request has to itself, or the node's. */
static void set_keys(const struct planner *p, enum kernel_id k, int32_t i, struct fill_tile *t)
{
    const struct batch *b = p->in->batch;
    if (t->group >= b->n_requests) {
        t->keys = p->shared->nodes[t->group - b->n_requests].keys;
        t->deferred = true;
        return;
    }
    const int32_t own = cascade_own_begin(p->shared, t->group);
    t->keys = works_tile(b, k, t->group, i).keys;
    t->keys.begin -= t->keys.begin % b->kv.page_size;
    if (own > t->keys.begin) t->keys.begin = own;
    t->deferred = own > 0;
}

static enum status add_tiles(struct planner *p, int32_t group)
{
    const struct batch *b = p->in->batch;
    const int32_t tokens = cascade_group_tokens(p->shared, p->in->batch, group),
                  group_size = batch_group_size(b);
    const enum work_role role = group_role(p, tokens);
    const enum kernel_id k = p->family.roles[role];
    const double heads = b->shape.num_kv_heads;
    for (int32_t i = 0; i < tile_count(k, tokens, group_size); i++) {
        const struct range rows = tile_rows(k, tokens, group_size, i);
        struct fill_tile t = {.group = group, .row_begin = rows.begin, .row_end = rows.end, .role = role};
        set_keys(p, k, i, &t);
        const struct cost c = cost_rect(&b->shape, p->in->kernels, k, rows.end - rows.begin,
                                        t.keys.end - t.keys.begin, t.deferred);
        t.ns = c.ns;
        p->role_ns[role] += c.ns * heads;
        p->role_flops[role] += c.issued_flops * heads;
        /* K and V once a row group, from its longest tile: the other tiles find them in L2 */
        p->bytes += (c.row_bytes + (i == tile_count(k, tokens, group_size) - 1 ? c.kv_bytes : 0)) * heads;
        if (t.ns > p->longest_ns[role]) p->longest_ns[role] = t.ns;
        TRY(push_tile(p, &t));
    }
    return STATUS_OK;
}

static enum status make_tiles(struct planner *p)
{
    const struct kernel_fit *fit = p->in->kernels->fit;
    p->group_tile = malloc(((size_t)n_groups(p) + 1) * sizeof *p->group_tile);
    if (!p->group_tile) return STATUS_NO_MEMORY;
    for (int32_t g = 0; g < n_groups(p); g++) {
        p->group_tile[g] = p->n_tiles;
        TRY(add_tiles(p, g));
    }
    p->grid_kernel = p->role_ns[WORK_PREFILL] <= 0  ? p->family.roles[WORK_DECODE]
                     : p->role_ns[WORK_DECODE] <= 0 ? p->family.roles[WORK_PREFILL]
                                                    : p->family.grid;
    p->n_workers =
        p->in->gpu->sm_count * (fit[p->grid_kernel].ctas_per_sm > 0 ? fit[p->grid_kernel].ctas_per_sm : 1);
    return STATUS_OK;
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

static enum status sort_tiles(struct planner *p)
{
    const size_t n = (size_t)p->n_tiles + 1;
    struct sort_key *keys = malloc(n * sizeof *keys);
    struct fill_tile *tiles = malloc(n * sizeof *tiles);
    p->sorted = malloc(n * sizeof *p->sorted);
    const bool ok = keys && tiles && p->sorted;
    if (ok) {
        for (int32_t i = 0; i < p->n_tiles; i++)
            keys[i] = (struct sort_key){p->tiles[i].ns, i};
        qsort(keys, (size_t)p->n_tiles, sizeof *keys, compare_longest_first);
        for (int32_t i = 0; i < p->n_tiles; i++) {
            tiles[i] = p->tiles[keys[i].index];
            p->sorted[keys[i].index] = i;
        }
        free(p->tiles);
        p->tiles = tiles;
        tiles = NULL;
    }
    free(keys);
    free(tiles);
    return ok ? STATUS_OK : STATUS_NO_MEMORY;
}

/* ---- bounds */

/* No schedule of these tiles is faster than any of three: their FLOPs on all tensor pipes, their bytes from
 * HBM, their work spread over all workers. */
struct bounds {
    double pipe_ns, memory_ns, spread_ns;
};

static struct bounds bounds_of(const struct planner *p)
{
    struct bounds x = {.memory_ns = p->bytes / p->in->gpu->hbm_bytes_per_ns,
                       .spread_ns = (p->role_ns[0] + p->role_ns[1]) / p->n_workers};
    for (int role = 0; role < 2; role++) {
        const double rate = p->in->kernels->fit[p->family.roles[role]].sm_flops_per_ns * p->in->gpu->sm_count;
        if (rate > 0) x.pipe_ns += p->role_flops[role] / rate;
    }
    return x;
}

static double chip_bound_ns(const struct planner *p)
{
    const struct bounds x = bounds_of(p);
    return x.pipe_ns > x.memory_ns ? x.pipe_ns : x.memory_ns;
}

/* A smooth maximum of the three (their 4-norm): bounds that come close to each other get in each other's way.
 */
static double smooth_max(struct bounds x)
{
    return pow(pow(x.pipe_ns, 4) + pow(x.memory_ns, 4) + pow(x.spread_ns, 4), 0.25);
}

static double estimate_ns(const struct planner *p)
{
    return smooth_max(bounds_of(p));
}

/* A merge launch: its CTAs' start, one CTA's rows, and partial rows out and back. */
static double merge_ns(const struct planner *p, double partial_rows)
{
    const struct gpu *gpu = p->in->gpu;
    const double row_bytes = 4.0 * (p->in->batch->shape.head_dim_vo + 1);
    if (partial_rows <= 0) return 0;
    return gpu->launch_ns + gpu->cta_start_ns + gpu->cta_end_ns +
           PLAN_MERGE_ROWS * row_bytes / p->in->kernels->fit[KERNEL_MERGE].cta_bytes_per_ns +
           2 * partial_rows * row_bytes / gpu->hbm_bytes_per_ns;
}

static double count_partial_rows(const struct planner *p, const struct works works[2])
{
    double rows = 0;
    for (int role = 0; role < 2; role++)
        for (int32_t i = 0; i < works[role].n; i++) {
            const struct work *w = &works[role].data[i];
            const double heads = w->kv_head == WORK_ALL_HEADS ? p->in->batch->shape.num_kv_heads : 1;
            if (w->n_chunks > 1 || w->deferred) rows += heads * (w->row_end - w->row_begin);
        }
    return rows;
}

/* ---- one role: lists */

/* Pieces are whole pages and whole tensor instructions; tall tiles, where a started KV tile costs a full one,
 * whole KV tiles. */
static int32_t piece_unit(const struct planner *p, enum work_role role)
{
    const int32_t page = p->in->batch->kv.page_size;
    const int32_t keys = role == WORK_DECODE ? MMA_KEYS : p->in->kernels->fit[p->family.roles[role]].tile_kv;
    return (keys + page - 1) / page * page;
}

static double piece_ns(const void *context, const struct fill_tile *t, int64_t keys)
{
    const struct planner *p = context;
    return cost_rect(&p->in->batch->shape, p->in->kernels, p->family.roles[t->role],
                     t->row_end - t->row_begin, keys, true)
        .ns;
}

/* Workers run their prefill pieces first, so that the roles follow each other: prefill's share, then the
 * longer of the decodes' share and their bytes. What is uneven at the end takes its time whatever binds
 * before. */
static double lists_ns(const struct planner *p, double makespan_ns)
{
    const struct bounds x = bounds_of(p);
    const double prefill = p->role_ns[WORK_PREFILL] / p->n_workers,
                 decode = p->role_ns[WORK_DECODE] / p->n_workers;
    double phases = prefill + (decode > x.memory_ns ? decode : x.memory_ns);
    if (p->role_ns[WORK_DECODE] <= 0 || p->role_ns[WORK_PREFILL] <= 0) phases = smooth_max(x);
    if (phases < x.pipe_ns) phases = x.pipe_ns;
    return phases + makespan_ns - x.spread_ns;
}

static enum status fill(const struct planner *p, bool cut, struct layout *out)
{
    const int32_t heads = p->in->batch->shape.num_kv_heads;
    const struct fill_input f = {.tiles = p->tiles,
                                 .n_tiles = p->n_tiles,
                                 .n_heads = heads,
                                 .n_workers = p->n_workers,
                                 .unit_keys = {piece_unit(p, WORK_PREFILL), piece_unit(p, WORK_DECODE)},
                                 .piece_ns = piece_ns,
                                 .context = p,
                                 .cut = cut};
    double makespan;
    *out = (struct layout){.begin = malloc(((size_t)p->n_tiles * (size_t)heads + 1) * sizeof *out->begin)};
    if (!out->begin) return STATUS_NO_MEMORY;
    TRY(fill_workers(&f, out->works, out->begin, &makespan, &out->n_pool));
    out->ns = lists_ns(p, makespan) + merge_ns(p, count_partial_rows(p, out->works));
    return STATUS_OK;
}

/* Cut, unless leaving all tiles whole is as fast. Whole tiles take at least as long as the longest. */
static enum status make_lists(const struct planner *p, struct layout *best)
{
    struct layout cut = {0}, whole = {0};
    if (best->begin && lists_ns(p, bounds_of(p).spread_ns) >= best->ns)
        return STATUS_OK; /* even lists are slower */
    enum status status = fill(p, true, &cut);
    if (status == STATUS_OK && cut.n_pool > 0 && p->longest_ns[0] <= cut.ns && p->longest_ns[1] <= cut.ns)
        status = fill(p, false, &whole);
    if (status == STATUS_OK && whole.begin) keep_faster(best, &whole);
    if (status == STATUS_OK) keep_faster(best, &cut);
    layout_free(&cut);
    layout_free(&whole);
    return status;
}

/* ---- both roles: queues */

/* How fine the queues are cut. */
struct grain {
    int32_t workers[2]; /* by role */
    int32_t min_keys;
    int32_t max_prefill_pieces; /* of a tile, unless they would be longer than most_prefill_ns */
    double most_prefill_ns;
    double least_decode_ns; /* decode pieces are not made shorter than about this */
};

/* Keys a piece of the tile gets, when `left_ns` of its queue's work is left. */
static int64_t guided_keys(const struct planner *p, const struct fill_tile *t, double left_ns,
                           const struct grain *g)
{
    const int64_t keys = t->keys.end - t->keys.begin, unit = piece_unit(p, t->role);
    double share = left_ns / g->workers[t->role];
    share /= t->role == WORK_DECODE ? DECODE_PIECES : PREFILL_PIECES;
    if (t->role == WORK_DECODE && share < g->least_decode_ns) share = g->least_decode_ns;
    if (keys <= g->min_keys || t->ns <= share) return keys > 0 ? keys : 1;
    int64_t n = (int64_t)ceil(t->ns / share);
    if (t->role == WORK_PREFILL) {
        const int64_t most = (int64_t)ceil(t->ns / g->most_prefill_ns);
        if (n > g->max_prefill_pieces) n = most > g->max_prefill_pieces ? most : g->max_prefill_pieces;
    }
    if (n > keys / g->min_keys) n = keys / g->min_keys;
    return ((keys + n - 1) / n + unit - 1) / unit * unit;
}

static enum status cut_queues(const struct planner *p, const struct grain *g, struct layout *out)
{
    const int32_t heads = p->in->batch->shape.num_kv_heads;
    double left[2] = {p->role_ns[0], p->role_ns[1]};
    out->works[0].n = out->works[1].n = 0;
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct fill_tile *t = &p->tiles[i];
        struct works *works = &out->works[t->role];
        const int64_t keys = guided_keys(p, t, left[t->role], g);
        const int32_t first = out->begin[i] = works->n;
        TRY(works_add_tile(works, t->group, t->row_begin, t->row_end, t->keys, keys));
        for (int32_t w = first; w < works->n; w++)
            works->data[w].deferred = t->deferred;
        left[t->role] -= t->ns * heads;
    }
    return STATUS_OK;
}

/* Time of the queues as they are cut: the bounds, with half of the longest late piece as the ragged end, and
 * the merge. */
static double grain_ns(const struct planner *p, const struct grain *g, const struct layout *x)
{
    const double pieces = p->longest_ns[WORK_PREFILL] / g->max_prefill_pieces;
    const double prefill = pieces < g->most_prefill_ns ? pieces : g->most_prefill_ns;
    const double decode =
        p->longest_ns[WORK_DECODE] < g->least_decode_ns ? p->longest_ns[WORK_DECODE] : g->least_decode_ns;
    const double end = bounds_of(p).spread_ns + (prefill > decode ? prefill : decode) / 2;
    const double chip = chip_bound_ns(p);
    return (end > chip ? end : chip) + merge_ns(p, count_partial_rows(p, x->works));
}

/* Cuts as finely as pays; then into longer pieces until the partial rows stay within 2 x slots x tile rows.
 */
static enum status choose_grain(const struct planner *p, struct grain *g, struct layout *out)
{
    const enum kernel_id tallest = p->family.roles[p->role_ns[WORK_PREFILL] > 0 ? WORK_PREFILL : WORK_DECODE];
    const double most_rows = 2.0 * p->n_workers * kernel_row(tallest)->tile_q, whole_ns = estimate_ns(p);
    struct grain best = *g;
    double best_ns = INFINITY;
    for (int fine = 0; fine < 2; fine++)
        for (int32_t pieces = 1; pieces <= MAX_PREFILL_PIECES; pieces++) {
            g->max_prefill_pieces = pieces;
            g->most_prefill_ns = whole_ns / COARSE_PIECES;
            g->least_decode_ns = whole_ns / (fine ? FINE_PIECES : COARSE_PIECES);
            TRY(cut_queues(p, g, out));
            const double ns = grain_ns(p, g, out);
            if (ns < best_ns && (best_ns == INFINITY || count_partial_rows(p, out->works) <= most_rows)) {
                best_ns = ns;
                best = *g;
            }
        }
    *g = best;
    TRY(cut_queues(p, g, out));
    while (count_partial_rows(p, out->works) > most_rows && g->min_keys <= INT32_MAX / 2) {
        g->min_keys *= 2;
        TRY(cut_queues(p, g, out));
    }
    return STATUS_OK;
}

static struct two_queues queues_of(const struct planner *p, const struct layout *x)
{
    return (struct two_queues){
        .grid_kernel = p->grid_kernel,
        .roles = {{.works = &x->works[0], .kernel = p->family.roles[0], .first = x->first[0]},
                  {.works = &x->works[1], .kernel = p->family.roles[1], .first = x->first[1]}},
        .n_workers = p->n_workers,
        .n_decode = x->n_decode,
        .steal = true};
}

/* What list scheduling makes of the queues, and the merge. */
static enum status time_queues(const struct planner *p, struct layout *x)
{
    const struct two_queues q = queues_of(p, x);
    double *ns[2], makespan = 0;
    enum status status = STATUS_OK;
    for (int role = 0; role < 2; role++) {
        ns[role] = malloc(((size_t)x->works[role].n + 1) * sizeof *ns[role]);
        if (!ns[role]) status = STATUS_NO_MEMORY;
        for (int32_t i = 0; ns[role] && i < x->works[role].n; i++) {
            const struct work *w = &x->works[role].data[i];
            const struct fill_tile t = {.row_begin = w->row_begin, .row_end = w->row_end, .role = role};
            ns[role][i] = piece_ns(p, &t, w->kv_end - w->kv_begin);
        }
    }
    if (status == STATUS_OK) status = two_queues_makespan(&q, p->in, ns, &makespan);
    const double chip = chip_bound_ns(p);
    x->ns = (makespan > chip ? makespan : chip) + merge_ns(p, count_partial_rows(p, x->works));
    free(ns[0]);
    free(ns[1]);
    return status;
}

static enum status make_queues(const struct planner *p, struct layout *best)
{
    struct layout x = {.queues = true, .begin = malloc(((size_t)p->n_tiles + 1) * sizeof *x.begin)};
    x.n_decode = two_queues_split(p->n_workers, p->role_ns[WORK_PREFILL], p->role_ns[WORK_DECODE],
                                  p->in->kernels->fit[p->family.roles[WORK_DECODE]].cta_bytes_per_ns,
                                  p->in->gpu->hbm_bytes_per_ns);
    struct grain g = {.workers = {p->n_workers - x.n_decode, x.n_decode}, .min_keys = MIN_CHUNK_KEYS};
    for (int role = 0; role < 2; role++)
        if (g.workers[role] < 1) g.workers[role] = 1;
    enum status status = x.begin ? choose_grain(p, &g, &x) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) status = time_queues(p, &x);
    if (status == STATUS_OK) keep_faster(best, &x);
    layout_free(&x);
    return status;
}

/* ---- emission */

/* A layout and its planner, for the merges of shared prefixes. */
struct laid_out {
    const struct planner *p;
    const struct layout *x;
};

static int32_t sources(const void *context, int32_t group, int32_t token, int32_t kv_head, int32_t head,
                       int32_t *src)
{
    const struct planner *p = ((const struct laid_out *)context)->p;
    const struct layout *x = ((const struct laid_out *)context)->x;
    const int32_t tokens = cascade_group_tokens(p->shared, p->in->batch, group);
    const enum kernel_id k = p->family.roles[group_role(p, tokens)];
    const struct tile_place at = tile_locate(k, tokens, batch_group_size(p->in->batch), token, head);
    const int32_t tile = p->sorted[p->group_tile[group] + at.tile], heads = p->in->batch->shape.num_kv_heads;
    const int32_t role = p->tiles[tile].role;
    const int32_t begin = x->queues ? x->begin[tile] : x->begin[(int64_t)tile * heads + kv_head];
    const struct work *w = &x->works[role].data[begin];
    for (int32_t c = 0; c < w->n_chunks; c++)
        src[c] = x->first[role][begin + c] + (x->queues ? kv_head * (w->row_end - w->row_begin) : 0) + at.row;
    return w->n_chunks;
}

static enum status add_shared_merges(const struct planner *p, const struct layout *x, struct plan *out)
{
    const struct laid_out context = {p, x};
    struct cascade_sources s = {sources, &context, 1};
    for (int role = 0; role < 2; role++)
        for (int32_t i = 0; i < x->works[role].n; i++)
            if (x->works[role].data[i].n_chunks > s.most_sources)
                s.most_sources = x->works[role].data[i].n_chunks;
    return cascade_add_merges(p->shared, p->in->batch, &s, out);
}

static enum status emit_lists(const struct planner *p, const struct works_emit sets[2], struct plan *out)
{
    TRY(plan_begin_grid(out, p->grid_kernel, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit_lists(sets, 2, p->n_workers, p->in->batch, out));
    return plan_end_grid(out, 0);
}

static enum status emit(const struct planner *p, struct layout *x, struct plan *out)
{
    for (int role = 0; role < 2; role++) {
        x->first[role] = malloc(((size_t)x->works[role].n + 1) * sizeof *x->first[role]);
        if (!x->first[role]) return STATUS_NO_MEMORY;
    }
    const struct two_queues q = queues_of(p, x);
    TRY(cascade_add_groups(p->shared, p->in->batch, out));
    TRY(x->queues ? two_queues_emit(&q, p->in, out) : emit_lists(p, q.roles, out));
    TRY(add_shared_merges(p, x, out));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

/* ---- the choice */

/* Rows of requests in both roles; shared prefixes go along with the decodes they belong to. */
static bool has_both_roles(const struct planner *p)
{
    const struct batch *b = p->in->batch;
    bool has[2] = {false, false};
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0) has[group_role(p, batch_qo_len(b, r))] = true;
    return has[0] && has[1];
}

static enum status plan_best(struct planner *p, struct plan *out)
{
    const char *dispatch = policy_option_word(p->in, "dispatch");
    const bool free_choice = strcmp(dispatch, "auto") == 0;
    struct layout best = {0};
    enum status status = p->n_tiles ? sort_tiles(p) : STATUS_OK;
    if (p->n_tiles == 0 || status != STATUS_OK) return status;
    if (free_choice ? has_both_roles(p) : strcmp(dispatch, "queues") == 0) status = make_queues(p, &best);
    if (status == STATUS_OK && (free_choice || strcmp(dispatch, "lists") == 0)) status = make_lists(p, &best);
    if (status == STATUS_OK) status = emit(p, &best, out);
    layout_free(&best);
    return status;
}

static bool family_allowed(const struct policy_input *in, int family)
{
    const char *word = policy_option_word(in, "kernels");
    if (strcmp(word, "auto") != 0) return (strcmp(word, "fa3") == 0) == (family == 1);
    return family == 0 || in->kernels->fit[families[family].grid].ctas_per_sm > 0;
}

/* Tries every allowed pair of kernels with and without sharing; *best is the one with the least
 * estimate. */
static enum status pick(const struct policy_input *in, const struct cascade *shared, struct planner *best)
{
    static const struct cascade nothing = {0};
    double best_ns = INFINITY;
    for (int family = 0; family < N_FAMILIES; family++)
        for (int share = 0; share < (shared->n_nodes > 0 ? 2 : 1); share++) {
            struct planner p = {.in = in, .shared = share ? shared : &nothing, .family = families[family]};
            if (!family_allowed(in, family)) continue;
            const enum status status = make_tiles(&p);
            if (status != STATUS_OK) {
                planner_free(&p);
                return status;
            }
            const bool better = estimate_ns(&p) < best_ns || !best->in;
            if (better) best_ns = estimate_ns(&p);
            planner_free(better ? best : &p);
            if (better) *best = p;
        }
    return STATUS_OK;
}

static enum status plan_page_aware(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct cascade shared = {0};
    struct planner best = {0};
    (void)why;
    if (strcmp(policy_option_word(in, "shared"), "auto") == 0)
        TRY(cascade_find(in->batch, SHARED_ROWS, MIN_CHUNK_KEYS, &shared));
    enum status status = pick(in, &shared, &best);
    if (status == STATUS_OK) status = plan_best(&best, out);
    planner_free(&best);
    cascade_free(&shared);
    return status;
}

const struct policy policy_page_aware = {
    .name = "page_aware",
    .brief =
        "each request cut by its own paged kv length and cost; shared pages read once; one grid, one merge",
    .source = "this project; the open TODO of FlashInfer PR #1231",
    .options = options,
    .plan = plan_page_aware,
};
