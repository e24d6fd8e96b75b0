/* page_aware: every request is cut by its own paged KV length and its cost, shared pages are read once, and
 * one merge ends it.
 *
 * What the linear_bid proposal (FlashInfer PR #1231) left open ("scheduling that accounts for paged kv
 * length"), and ours. One launch, one merge:
 *
 *   1. Shared pages. Requests of few rows that hold the same physical pages at their start, found in
 * kv_indices (cascade.h), become row groups: the pages are read once for the rows of all of them.
 *   2. Kernels. Candidates are FA2 tiles (128 packed rows, 16 for decodes, 2 CTAs an SM) and, where the GPU
 * has it, FA3 tiles with a ring decode (1 CTA an SM), each with and without step 1. Every tile is priced by
 * cost.h: FLOPs with tile padding, bytes, the causal triangle.  The candidate with the least estimate is
 * taken: a smooth maximum of work per slot, tensor FLOPs over the chip's rate, and bytes over its bandwidth.
 *   3. Only one role has rows: every worker gets its own list. fill.h keeps short tiles whole, longest first
 * on the least loaded, and pours the longest ones over what is uneven, cut on page borders. Nothing is cut
 * where that would take longer, merge included.
 *   4. Both roles: a persistent grid with a queue a role (two_queues.h). Decodes begin on as many workers as
 * their share of the work, no more than keep the memory busy; who runs dry helps. Both queues run longest
 * first, and the work left at a tile's turn bounds its pieces (guided self-scheduling): remaining / (4 x
 * workers) for decodes; prefill tiles, whose partials are tall, are cut in at most 4 once less than a round
 * of them is left.
 *   5. Pieces have at least 256 keys and end on pages and KV tiles; partial rows stay within 2 x slots x tile
 * rows, or pieces grow until they do.
 *
 * Example of step 3, 2 workers, decodes of 12, 2, 2 keys: mean 8. The pool is the 12; 2 and 2 go to a worker
 * each; 6 and 6 of the 12 fill both to 8. */
#include "sched/cascade.h"
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
    SHARED_ROWS = 128,      /* packed rows up to which a request's prefix is worth sharing */
    MMA_KEYS = 16,          /* keys of one tensor instruction */
    DECODE_PIECES = 4,      /* of the remaining work per worker */
    MAX_PREFILL_PIECES = 4, /* of a tile */
    COARSE_PIECES = 8,      /* least decode pieces, as parts of the whole time */
    FINE_PIECES = 64
};

/* The kernels of one way to run the batch. */
struct family {
    enum kernel_id grid, roles[2];
};
static const struct family families[] = {
    {KERNEL_FUSED_128_16, {KERNEL_FA2_PREFILL_128, KERNEL_FA2_DECODE_16}},
    {KERNEL_FUSED_FA3_16, {KERNEL_FA3_PREFILL_128, KERNEL_RING_DECODE_16}},
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
    struct works works[2];
    int32_t *work_begin; /* first work of (tile, head), or of a tile for all heads; by sorted tile */
    bool all_heads;
    int32_t *first[2]; /* first partial row of each work */
};

static void planner_free(struct planner *p)
{
    free(p->tiles);
    free(p->group_tile);
    free(p->sorted);
    free(p->work_begin);
    for (int role = 0; role < 2; role++) {
        works_free(&p->works[role]);
        free(p->first[role]);
    }
}

/* ---- tiles */

static int32_t n_groups(const struct planner *p)
{
    return p->in->batch->n_requests + p->shared->n_nodes;
}

static int32_t group_tokens(const struct planner *p, int32_t group)
{
    const struct batch *b = p->in->batch;
    if (group < b->n_requests) return batch_qo_len(b, group);
    const struct cascade_node *node = &p->shared->nodes[group - b->n_requests];
    int32_t tokens = 0;
    for (int32_t m = node->member_begin; m < node->member_end; m++)
        tokens += batch_qo_len(b, p->shared->requests[m]);
    return tokens;
}

/* Decodes are decodes; a shared prefix has the rows of many and takes the tall tile unless they are few. */
static enum work_role group_role(const struct planner *p, int32_t group, int32_t tokens)
{
    const struct batch *b = p->in->batch;
    if (group < b->n_requests) return tokens == 1 ? WORK_DECODE : WORK_PREFILL;
    return tokens * batch_group_size(b) <= kernel_row(p->family.roles[WORK_DECODE])->tile_q ? WORK_DECODE
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
    const int32_t tokens = group_tokens(p, group), group_size = batch_group_size(b);
    const enum work_role role = group_role(p, group, tokens);
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

/* One way to fill: the works it makes and its estimated time. */
struct filled {
    struct works works[2];
    int32_t *begin;
    int32_t n_pool;
    double ns;
};

static void filled_free(struct filled *x)
{
    works_free(&x->works[0]);
    works_free(&x->works[1]);
    free(x->begin);
}

static enum status fill(const struct planner *p, bool cut, struct filled *out)
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
    *out = (struct filled){.begin = malloc(((size_t)p->n_tiles * (size_t)heads + 1) * sizeof *out->begin)};
    if (!out->begin) return STATUS_NO_MEMORY;
    TRY(fill_workers(&f, out->works, out->begin, &makespan, &out->n_pool));
    /* the end, when some workers are idle, is too thin to fill the chip: it takes its time whatever binds
     * before */
    out->ns =
        estimate_ns(p) + makespan - bounds_of(p).spread_ns + merge_ns(p, count_partial_rows(p, out->works));
    return STATUS_OK;
}

/* Cut, unless leaving all tiles whole is as fast. Whole tiles take at least as long as the longest. */
static enum status make_lists(struct planner *p)
{
    struct filled cut = {0}, whole = {0};
    enum status status = fill(p, true, &cut);
    if (status == STATUS_OK && cut.n_pool > 0 && p->longest_ns[0] <= cut.ns && p->longest_ns[1] <= cut.ns)
        status = fill(p, false, &whole);
    if (status == STATUS_OK) {
        struct filled *best = whole.begin && whole.ns <= cut.ns ? &whole : &cut;
        memcpy(p->works, best->works, sizeof p->works);
        p->work_begin = best->begin;
        *best = (struct filled){0};
    }
    filled_free(&cut);
    filled_free(&whole);
    return status;
}

/* ---- both roles: queues */

/* How fine the queues are cut. */
struct grain {
    int32_t workers[2]; /* by role */
    int32_t min_keys;
    int32_t max_prefill_pieces; /* of a tile */
    double least_decode_ns;     /* decode pieces are not made shorter than about this */
};

/* Keys a piece of the tile gets, when `left_ns` of its queue's work is left. */
static int64_t guided_keys(const struct planner *p, const struct fill_tile *t, double left_ns,
                           const struct grain *g)
{
    const int64_t keys = t->keys.end - t->keys.begin, unit = piece_unit(p, t->role);
    double share = left_ns / g->workers[t->role];
    if (t->role == WORK_DECODE) share /= DECODE_PIECES;
    if (t->role == WORK_DECODE && share < g->least_decode_ns) share = g->least_decode_ns;
    if (keys <= g->min_keys || t->ns <= share) return keys > 0 ? keys : 1;
    int64_t n = (int64_t)ceil(t->ns / share);
    if (t->role == WORK_PREFILL && n > g->max_prefill_pieces) n = g->max_prefill_pieces;
    if (n > keys / g->min_keys) n = keys / g->min_keys;
    return ((keys + n - 1) / n + unit - 1) / unit * unit;
}

static enum status cut_queues(struct planner *p, const struct grain *g)
{
    const int32_t heads = p->in->batch->shape.num_kv_heads;
    double left[2] = {p->role_ns[0], p->role_ns[1]};
    p->works[0].n = p->works[1].n = 0;
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct fill_tile *t = &p->tiles[i];
        struct works *works = &p->works[t->role];
        const int64_t keys = guided_keys(p, t, left[t->role], g);
        const int32_t first = p->work_begin[i] = works->n;
        TRY(works_add_tile(works, t->group, t->row_begin, t->row_end, t->keys, keys));
        for (int32_t w = first; w < works->n; w++)
            works->data[w].deferred = t->deferred;
        left[t->role] -= t->ns * heads;
    }
    return STATUS_OK;
}

/* Time of the queues as they are cut: the bounds, with half of the longest late piece as the ragged end, and
 * the merge. */
static double queues_ns(const struct planner *p, const struct grain *g)
{
    const double prefill = p->longest_ns[WORK_PREFILL] / g->max_prefill_pieces;
    const double decode =
        p->longest_ns[WORK_DECODE] < g->least_decode_ns ? p->longest_ns[WORK_DECODE] : g->least_decode_ns;
    const double end = bounds_of(p).spread_ns + (prefill > decode ? prefill : decode) / 2;
    const double chip = chip_bound_ns(p);
    return (end > chip ? end : chip) + merge_ns(p, count_partial_rows(p, p->works));
}

/* Cuts as finely as pays; then into longer pieces until the partial rows stay within 2 x slots x tile rows.
 */
static enum status choose_grain(struct planner *p, struct grain *g)
{
    const enum kernel_id tallest = p->family.roles[p->role_ns[WORK_PREFILL] > 0 ? WORK_PREFILL : WORK_DECODE];
    const double most_rows = 2.0 * p->n_workers * kernel_row(tallest)->tile_q, whole_ns = estimate_ns(p);
    struct grain best = *g;
    double best_ns = INFINITY;
    for (int fine = 0; fine < 2; fine++)
        for (int32_t pieces = 1; pieces <= MAX_PREFILL_PIECES; pieces++) {
            g->max_prefill_pieces = pieces;
            g->least_decode_ns = whole_ns / (fine ? FINE_PIECES : COARSE_PIECES);
            TRY(cut_queues(p, g));
            if (queues_ns(p, g) < best_ns &&
                (best_ns == INFINITY || count_partial_rows(p, p->works) <= most_rows)) {
                best_ns = queues_ns(p, g);
                best = *g;
            }
        }
    *g = best;
    TRY(cut_queues(p, g));
    while (count_partial_rows(p, p->works) > most_rows && g->min_keys <= INT32_MAX / 2) {
        g->min_keys *= 2;
        TRY(cut_queues(p, g));
    }
    return STATUS_OK;
}

static enum status make_queues(struct planner *p, int32_t *n_decode)
{
    *n_decode = two_queues_split(p->n_workers, p->role_ns[WORK_PREFILL], p->role_ns[WORK_DECODE],
                                 p->in->kernels->fit[p->family.roles[WORK_DECODE]].cta_bytes_per_ns,
                                 p->in->gpu->hbm_bytes_per_ns);
    struct grain g = {.workers = {p->n_workers - *n_decode, *n_decode}, .min_keys = MIN_CHUNK_KEYS};
    for (int role = 0; role < 2; role++)
        if (g.workers[role] < 1) g.workers[role] = 1;
    p->work_begin = malloc(((size_t)p->n_tiles + 1) * sizeof *p->work_begin);
    if (!p->work_begin) return STATUS_NO_MEMORY;
    p->all_heads = true;
    return choose_grain(p, &g);
}

/* ---- merges of shared prefixes */

/* First partial rows that hold (token, q head) of a row group's pieces; returns how many. */
static int32_t sources(const struct planner *p, int32_t group, int32_t token, int32_t kv_head, int32_t head,
                       int32_t *src)
{
    const int32_t tokens = group_tokens(p, group);
    const enum kernel_id k = p->family.roles[group_role(p, group, tokens)];
    const struct tile_place at = tile_locate(k, tokens, batch_group_size(p->in->batch), token, head);
    const int32_t tile = p->sorted[p->group_tile[group] + at.tile];
    const struct works *works = &p->works[p->tiles[tile].role];
    const int32_t *first = p->first[p->tiles[tile].role];
    const int32_t heads = p->in->batch->shape.num_kv_heads;
    const int32_t begin = p->all_heads ? p->work_begin[tile] : p->work_begin[(int64_t)tile * heads + kv_head];
    const struct work *w = &works->data[begin];
    for (int32_t c = 0; c < w->n_chunks; c++)
        src[c] = first[begin + c] + (p->all_heads ? kv_head * (w->row_end - w->row_begin) : 0) + at.row;
    return w->n_chunks;
}

/* A merge that grows while the next row's sources are the rows behind its own. */
struct pending {
    struct merge merge;
    int32_t *src, *next; /* [cap] of the first row, and of the row being looked at */
    int32_t n, cap;
};

static enum status flush(struct pending *m, struct plan *out)
{
    if (m->merge.row_begin == m->merge.row_end) return STATUS_OK;
    const enum status status = plan_add_merge(out, &m->merge, m->src, m->n);
    m->merge.row_begin = m->merge.row_end = 0;
    return status;
}

static bool follows(const struct pending *m, const struct merge *row, int32_t n)
{
    const int32_t rows = m->merge.row_end - m->merge.row_begin;
    if (rows == 0 || n != m->n || row->kv_head != m->merge.kv_head || row->request != m->merge.request ||
        row->row_begin != m->merge.row_end || (rows + 1) * n > PLAN_MERGE_ROWS)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (m->next[i] != m->src[i] + rows) return false;
    return true;
}

static enum status add_row(struct pending *m, const struct merge *row, int32_t n, struct plan *out)
{
    if (follows(m, row, n)) {
        m->merge.row_end++;
        return STATUS_OK;
    }
    TRY(flush(m, out));
    m->merge = *row;
    m->n = n;
    memcpy(m->src, m->next, (size_t)n * sizeof *m->src);
    return STATUS_OK;
}

/* Token of the node's row group at which a member's tokens begin. */
static int32_t member_token(const struct planner *p, const struct cascade_node *node, int32_t request)
{
    int32_t token = 0;
    for (int32_t m = node->member_begin; p->shared->requests[m] != request; m++)
        token += batch_qo_len(p->in->batch, p->shared->requests[m]);
    return token;
}

/* The chain of a request: its own rows, then its nodes from the deepest to the root. */
struct link {
    int32_t group, token;
};
enum { MAX_LINKS = 32 };

static int32_t chain_of(const struct planner *p, int32_t request, struct link *links)
{
    int32_t n = 0;
    links[n++] = (struct link){request, 0};
    for (int32_t node = p->shared->leaf[request]; node >= 0; node = p->shared->nodes[node].parent)
        links[n++] =
            (struct link){p->in->batch->n_requests + node, member_token(p, &p->shared->nodes[node], request)};
    return n;
}

static enum status merge_request(const struct planner *p, int32_t request, struct pending *m,
                                 struct plan *out)
{
    const struct batch *b = p->in->batch;
    const int32_t group_size = batch_group_size(b);
    struct link links[MAX_LINKS];
    const int32_t n_links = chain_of(p, request, links);
    for (int32_t kv_head = 0; kv_head < b->shape.num_kv_heads; kv_head++)
        for (int32_t token = 0; token < batch_qo_len(b, request); token++)
            for (int32_t head = 0; head < group_size; head++) {
                const int32_t row = token * group_size + head;
                const struct merge merge = {request, kv_head, row, row + 1, ROWS_TOKEN_MAJOR};
                int32_t n = 0;
                for (int32_t l = n_links; l-- > 0;) /* in key order */
                    n += sources(p, links[l].group, links[l].token + token, kv_head, head, m->next + n);
                TRY(add_row(m, &merge, n, out));
            }
    return flush(m, out);
}

static enum status add_shared_merges(const struct planner *p, struct plan *out)
{
    struct pending m = {0};
    if (p->shared->n_nodes == 0) return STATUS_OK;
    int32_t most = 1;
    for (int role = 0; role < 2; role++)
        for (int32_t i = 0; i < p->works[role].n; i++)
            if (p->works[role].data[i].n_chunks > most) most = p->works[role].data[i].n_chunks;
    const size_t cap = (size_t)most * MAX_LINKS;
    m.src = malloc(cap * sizeof *m.src);
    m.next = malloc(cap * sizeof *m.next);
    enum status status = m.src && m.next ? STATUS_OK : STATUS_NO_MEMORY;
    for (int32_t r = 0; r < p->in->batch->n_requests && status == STATUS_OK; r++)
        if (p->shared->leaf[r] >= 0) status = merge_request(p, r, &m, out);
    free(m.src);
    free(m.next);
    return status;
}

/* ---- emission */

static enum status add_groups(const struct planner *p, struct plan *out)
{
    enum status status = STATUS_OK;
    struct member *members = malloc(((size_t)p->in->batch->n_requests + 1) * sizeof *members);
    if (!members) return STATUS_NO_MEMORY;
    for (int32_t n = 0; n < p->shared->n_nodes && status == STATUS_OK; n++) {
        const struct cascade_node *node = &p->shared->nodes[n];
        int32_t group, count = 0;
        for (int32_t m = node->member_begin; m < node->member_end; m++) {
            const int32_t r = p->shared->requests[m];
            members[count++] = (struct member){r, 0, batch_qo_len(p->in->batch, r)};
        }
        status = plan_add_group(out, members, count, &group);
        assert(status != STATUS_OK || group == p->in->batch->n_requests + n);
    }
    free(members);
    return status;
}

static enum status emit_lists(const struct planner *p, const struct works_emit sets[2], struct plan *out)
{
    TRY(plan_begin_grid(out, p->grid_kernel, DISPATCH_FIXED, 0, NULL));
    TRY(works_emit_lists(sets, 2, p->n_workers, p->in->batch, out));
    return plan_end_grid(out, 0);
}

static enum status emit(struct planner *p, bool queues, int32_t n_decode, struct plan *out)
{
    struct works_emit sets[2];
    for (int role = 0; role < 2; role++) {
        p->first[role] = malloc(((size_t)p->works[role].n + 1) * sizeof *p->first[role]);
        if (!p->first[role]) return STATUS_NO_MEMORY;
        sets[role] = (struct works_emit){
            .works = &p->works[role], .kernel = p->family.roles[role], .first = p->first[role]};
    }
    const struct two_queues q = {.grid_kernel = p->grid_kernel,
                                 .roles = {sets[0], sets[1]},
                                 .n_workers = p->n_workers,
                                 .n_decode = n_decode,
                                 .steal = true};
    TRY(add_groups(p, out));
    TRY(queues ? two_queues_emit(&q, p->in, out) : emit_lists(p, sets, out));
    TRY(add_shared_merges(p, out));
    return plan_add_merge_grid(out, 0, out->n_merges, 0, NULL, 0);
}

/* ---- the choice */

static bool has_both_roles(const struct batch *b)
{
    bool has[2] = {false, false};
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0) has[batch_qo_len(b, r) == 1] = true;
    return has[0] && has[1];
}

static enum status plan_best(struct planner *p, struct plan *out)
{
    const char *dispatch = policy_option_word(p->in, "dispatch");
    const bool queues =
        strcmp(dispatch, "auto") == 0 ? has_both_roles(p->in->batch) : strcmp(dispatch, "queues") == 0;
    int32_t n_decode = 0;
    if (p->n_tiles == 0) return STATUS_OK;
    TRY(sort_tiles(p));
    TRY(queues ? make_queues(p, &n_decode) : make_lists(p));
    return emit(p, queues, n_decode, out);
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
