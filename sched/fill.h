/* fill: lays tiles on workers so that all end together, cutting only what must be cut.
 *
 *   1. The longest tiles form a pool: as many as it takes for the pool to even out what whole tiles
 *      leave uneven.
 *   2. The others stay whole and go, longest first, each to the least loaded worker (LPT).
 *   3. The pool is poured over the workers up to one level: each gets the keys that its gap holds.
 *
 *        level ------------------------------
 *               pool  |pool| pool |  pool |     a pool tile is cut where a worker is full: at most one piece
 *              -------+    +------|       |     more than there are workers and pool tiles
 *              whole  |    | whole| whole |
 *
 * Stream-K cuts wherever a worker's share ends; this cuts long tiles only, on page borders, by cost. */
#ifndef TANDEM_SCHED_FILL_H
#define TANDEM_SCHED_FILL_H

#include "sched/works.h"

/* A tile of one row group, the same for every kv head. */
struct fill_tile {
    int32_t group;
    int32_t row_begin, row_end;
    struct range keys;
    int32_t role;  /* enum work_role: which set of works it goes to */
    double ns;     /* one head of it alone on an SM */
    bool deferred; /* see struct work */
};

struct fill_input {
    const struct fill_tile *tiles; /* longest first */
    int32_t n_tiles;
    int32_t n_heads, n_workers;
    int32_t unit_keys[2]; /* by role: pieces are whole multiples, counted from the tile's first key */
    double (*piece_ns)(const void *context, const struct fill_tile *tile, int64_t keys); /* of so many keys */
    const void *context;
    bool cut; /* false: step 2 only, with every tile whole */
};

/* Appends the pieces to works[role], with their kv head and list = worker; pieces of a tile and head follow
 * each other. work_begin, if not NULL, gets the index in works[role] of the first piece of (tile, head) at
 * [tile * n_heads + head]. *makespan_ns is the longest worker's work, *n_pool how
 * many tiles were in the pool: with none, cutting and leaving whole are the same. */
enum status fill_workers(const struct fill_input *f, struct works works[2], int32_t *work_begin,
                         double *makespan_ns, int32_t *n_pool);

#endif
