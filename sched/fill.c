#include "sched/fill.h"

#include "sched/heap.h"

#include <stdlib.h>
#include <string.h>

/* Unevenness, as a part of the mean load, that is not worth a cut. */
static const double slack_frac = 0.003;

enum { MAX_ROUNDS = 6 };

struct state {
    const struct fill_input *f;
    struct works *works;
    int32_t *work_begin;
    struct heap_slot *workers;
    double total_ns;
    int32_t n_pool; /* tiles 0 .. n_pool are cut */
    double pool_ns;
    double *poured_ns; /* by worker in order of load */
};

static void note_begin(const struct state *s, int32_t tile, int32_t head)
{
    const int32_t role = s->f->tiles[tile].role;
    if (s->work_begin) s->work_begin[(int64_t)tile * s->f->n_heads + head] = s->works[role].n;
}

/* Step 1. The pool must be able to lift all workers by the longest whole tile, which is the most that LPT
 * leaves between two of them. */
static void choose_pool(struct state *s)
{
    const struct fill_input *f = s->f;
    const double slack_ns = slack_frac * s->total_ns / f->n_workers;
    if (!f->cut) return;
    while (s->n_pool < f->n_tiles && (f->tiles[s->n_pool].ns - slack_ns) * f->n_workers > s->pool_ns)
        s->pool_ns += f->tiles[s->n_pool++].ns * f->n_heads;
}

static struct work whole_tile(const struct fill_tile *t, int32_t head)
{
    return (struct work){.request = t->group,
                         .row_begin = t->row_begin,
                         .row_end = t->row_end,
                         .kv_begin = t->keys.begin,
                         .kv_end = t->keys.end,
                         .n_chunks = 1,
                         .kv_head = head,
                         .deferred = t->deferred};
}

/* Step 2. */
static enum status place_whole(struct state *s)
{
    const struct fill_input *f = s->f;
    int64_t n[2] = {s->works[0].n, s->works[1].n};
    for (int32_t i = 0; i < f->n_tiles; i++)
        n[f->tiles[i].role] += f->n_heads;
    for (int role = 0; role < 2; role++)
        TRY(works_reserve(&s->works[role], n[role] + (n[role] > 0 ? f->n_workers : 0)));
    heap_reset(s->workers, f->n_workers);
    for (int32_t i = s->n_pool; i < f->n_tiles; i++)
        for (int32_t head = 0; head < f->n_heads; head++) {
            struct work w = whole_tile(&f->tiles[i], head);
            w.list = s->workers[0].index;
            note_begin(s, i, head);
            TRY(works_add(&s->works[f->tiles[i].role], &w));
            heap_add_to_root(s->workers, f->n_workers, f->tiles[i].ns);
        }
    return STATUS_OK;
}

static int compare_load(const void *x, const void *y)
{
    const struct heap_slot *a = x, *b = y;
    if (a->load != b->load) return a->load < b->load ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The level that the pool reaches over workers sorted by load, and how many of them it covers. */
static double water_level(const struct state *s, int32_t *n_covered)
{
    double loads = 0;
    for (int32_t m = 1; m <= s->f->n_workers; m++) {
        loads += s->workers[m - 1].load;
        const double level = (s->pool_ns + loads) / m;
        *n_covered = m;
        if (m == s->f->n_workers || level <= s->workers[m].load) return level;
    }
    return 0;
}

/* Where the pouring stands: the tile and head in hand, its next key, and its works so far. */
struct pour {
    int32_t tile, head, first_work;
    int64_t next_key;
};

static void open_tile(const struct state *s, struct pour *at)
{
    if (at->tile == s->n_pool) return;
    note_begin(s, at->tile, at->head);
    at->next_key = s->f->tiles[at->tile].keys.begin;
    at->first_work = s->works[s->f->tiles[at->tile].role].n;
}

/* All pieces of a tile and head are there: tell them their number. */
static void close_tile(const struct state *s, struct pour *at)
{
    struct works *works = &s->works[s->f->tiles[at->tile].role];
    for (int32_t i = at->first_work; i < works->n; i++) {
        works->data[i].chunk = i - at->first_work;
        works->data[i].n_chunks = works->n - at->first_work;
    }
    if (++at->head < s->f->n_heads) return;
    at->head = 0;
    at->tile++;
}

/* Most keys of the tile, in whole units, whose cost fits the gap. The straight line of the tile's own cost
 * gives a first guess; a piece costs a little more, for its rows and for a KV tile it only starts. */
static int64_t keys_that_fit(const struct state *s, const struct fill_tile *t, int64_t left, double gap_ns)
{
    const int64_t unit = s->f->unit_keys[t->role];
    const double key_ns = t->ns / (double)(t->keys.end - t->keys.begin);
    int64_t keys = (int64_t)(gap_ns / key_ns / (double)unit) * unit;
    if (keys > left) keys = left;
    while (keys > 0 && s->f->piece_ns(s->f->context, t, keys) > gap_ns)
        keys = (keys - 1) / unit * unit;
    return keys;
}

/* Gives a worker what its gap holds of the tile in hand (all that is left where `rest`); *poured_ns is its
 * cost. */
static enum status pour_piece(struct state *s, struct pour *at, int32_t worker, double gap_ns, bool rest,
                              double *poured_ns)
{
    const struct fill_tile *t = &s->f->tiles[at->tile];
    const int64_t left = t->keys.end - at->next_key;
    const int64_t keys = rest || left == 0 ? left : keys_that_fit(s, t, left, gap_ns);
    *poured_ns = 0;
    if (keys == 0 && left > 0) return STATUS_OK;
    struct work w = whole_tile(t, at->head);
    w.kv_begin = (int32_t)at->next_key;
    w.kv_end = (int32_t)(at->next_key + keys);
    w.list = worker;
    TRY(works_add(&s->works[t->role], &w));
    at->next_key += keys;
    *poured_ns = s->f->piece_ns(s->f->context, t, keys);
    return STATUS_OK;
}

/* Pours the pool over the first n_covered workers up to `level`; *over_ns is what the last one got beyond it.
 */
static enum status pour_pool(struct state *s, double level, int32_t n_covered, double *over_ns)
{
    struct pour at = {0};
    open_tile(s, &at);
    for (int32_t m = 0; m < n_covered && at.tile < s->n_pool; m++) {
        const bool rest = m == n_covered - 1;
        double gap_ns = level - s->workers[m].load;
        while (at.tile < s->n_pool && (rest || gap_ns > 0)) {
            double poured_ns;
            TRY(pour_piece(s, &at, s->workers[m].index, gap_ns, rest, &poured_ns));
            s->poured_ns[m] += poured_ns;
            gap_ns -= poured_ns;
            if (at.next_key < s->f->tiles[at.tile].keys.end) break; /* the worker is full */
            close_tile(s, &at);
            open_tile(s, &at);
        }
    }
    *over_ns = s->workers[n_covered - 1].load + s->poured_ns[n_covered - 1] - level;
    return STATUS_OK;
}

/* Step 3. Cutting makes the pool cost more than its tiles did, which the last worker would get: the level is
 * raised by that and the pool poured again. */
static enum status level_out(struct state *s)
{
    const int32_t n_works[2] = {s->works[0].n, s->works[1].n};
    int32_t n_covered = 0;
    double over_ns = 0;
    if (s->n_pool == 0) return STATUS_OK;
    qsort(s->workers, (size_t)s->f->n_workers, sizeof *s->workers, compare_load);
    double level = water_level(s, &n_covered);
    for (int round = 0; round < MAX_ROUNDS; round++) {
        s->works[0].n = n_works[0];
        s->works[1].n = n_works[1];
        memset(s->poured_ns, 0, (size_t)s->f->n_workers * sizeof *s->poured_ns);
        TRY(pour_pool(s, level, n_covered, &over_ns));
        if (over_ns <= slack_frac * level) break;
        level += over_ns / n_covered;
    }
    for (int32_t m = 0; m < n_covered; m++)
        s->workers[m].load += s->poured_ns[m];
    return STATUS_OK;
}

enum status fill_workers(const struct fill_input *f, struct works works[2], int32_t *work_begin,
                         double *makespan_ns, int32_t *n_pool)
{
    struct state s = {.f = f, .works = works, .work_begin = work_begin};
    s.workers = malloc((size_t)f->n_workers * sizeof *s.workers);
    s.poured_ns = malloc((size_t)f->n_workers * sizeof *s.poured_ns);
    for (int32_t i = 0; i < f->n_tiles; i++)
        s.total_ns += f->tiles[i].ns * f->n_heads;
    choose_pool(&s);
    enum status status = s.workers && s.poured_ns ? place_whole(&s) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) status = level_out(&s);
    *makespan_ns = 0;
    *n_pool = s.n_pool;
    for (int32_t w = 0; status == STATUS_OK && w < f->n_workers; w++)
        if (s.workers[w].load > *makespan_ns) *makespan_ns = s.workers[w].load;
    free(s.workers);
    free(s.poured_ns);
    return status;
}
