/* engine: the event loop behind sim_run.
 *
 *   ready grids --place--> CTA: start delay | item | gap | item | ... | end delay --free--> place the next
 *                                            \_ progresses at a rate that share.h sets whenever the set of
 *                                               items in progress changes
 *
 * Two kinds of events: timers (delays that end, grids that become ready), in a heap; and the earliest finish
 * among the items in progress, known after each change of rates. Between changes nothing is touched. Ties:
 * timers first, then by the order in which they were set. */
#include "sim/sim.h"

#include "sched/cost.h"
#include "sim/residency.h"
#include "sim/share.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Equal CTAs end at times that differ by rounding only. */
static const double same_instant_ns = 1e-6;

/* A resident CTA. */
struct cta {
    int32_t grid, index; /* index within the grid */
    int32_t sm, slot;
    int32_t n_lanes, lanes_left; /* lanes that got work, and those that still have some */
};

/* A stream of work inside a CTA: its only one, or one of its virtual CTAs, or a half of a BESIDE kernel. Lane
 * l of CTA c is lanes[c * KERNEL_MAX_LANES + l]. */
struct lane {
    int32_t next, end;   /* items (or merges) of its own still to do: FIXED and SM_TICKET */
    int32_t work;        /* item or merge in hand; -1 none */
    int32_t merge_queue; /* first merge this lane was left to do as last arriver, -1 none */
    int32_t consumer;    /* index into consumers while running */
    bool running;
    bool is_merge;   /* `work` is a merge */
    double begin_ns; /* of the span of `work` */
};

enum timer_kind { TIMER_GRID_READY, TIMER_LANE_START, TIMER_CTA_END };

struct timer {
    double at_ns;
    int64_t seq;
    int32_t kind, id;
};

struct grid_state {
    int32_t waits;  /* grids that must end first */
    int32_t placed; /* CTAs placed */
    int32_t live;   /* CTAs not yet gone */
    bool ready, done;
    int32_t ticket_next[2]; /* SM_TICKET: next entry of each role */
    int32_t *queue_next;    /* QUEUE: next item of each queue */
    int32_t *sm_ticket;     /* SM_TICKET: next ticket of each SM */
};

struct sm {
    struct sm_use use;
    uint32_t slots_used; /* bit i = slot i */
    int32_t ctas[32];    /* resident, running or not */
    int32_t n_ctas;
    double busy_since_ns, busy_ns;
};

struct engine {
    const struct batch *b;
    const struct gpu *gpu;
    const struct kernels *kernels;
    const struct plan *p;
    const struct sim_options *options;
    struct sim_result *r;
    struct demands demands;
    struct footprint footprint[KERNEL_COUNT];

    struct grid_state *grids;
    struct sm *sms;
    int32_t *sm_order; /* order in which equal SMs are chosen */
    int32_t *room;     /* of each SM for the grid at the head, valid while room_grid is it */
    int32_t room_kernel;
    int32_t head;        /* first grid with CTAs to place, or n_grids */
    struct cta *ctas;    /* sm * max_ctas_per_sm + slot */
    struct lane *lanes;  /* KERNEL_MAX_LANES a CTA */
    int32_t lane_stride; /* most lanes of any grid: how far apart the slots of two CTAs are in spans */

    struct timer *timers;
    int32_t n_timers, cap_timers;
    int64_t seq;

    struct consumers run;
    int32_t *run_lane; /* lane of each consumer */
    int32_t *due;      /* lanes whose work ends at this instant */
    bool stale;        /* the set of consumers changed since the last update_rates */
    double now_ns, updated_ns, finish_ns;
    int32_t finisher;
    double level; /* HBM water level */

    int32_t *merge_of_row; /* last-arriver merges: merge that reads a partial row, or -1 */
    int64_t *merge_left;   /* partial rows still missing */
    int32_t *merge_next;   /* chains the merges a CTA was left to do */

    int64_t cap_spans, cap_samples;
    int32_t resident;
};

/* ---- timers
 * -------------------------------------------------------------------------------------------------------- */

static bool timer_before(const struct timer *a, const struct timer *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->seq < b->seq);
}

static enum status add_timer(struct engine *e, double at_ns, enum timer_kind kind, int32_t id)
{
    if (e->n_timers == e->cap_timers) {
        const int32_t cap = e->cap_timers ? e->cap_timers * 2 : 256;
        struct timer *timers = realloc(e->timers, (size_t)cap * sizeof *timers);
        if (!timers) return STATUS_NO_MEMORY;
        e->timers = timers;
        e->cap_timers = cap;
    }
    const struct timer t = {at_ns, e->seq++, kind, id};
    int32_t i = e->n_timers++;
    for (; i > 0 && timer_before(&t, &e->timers[(i - 1) / 2]); i = (i - 1) / 2)
        e->timers[i] = e->timers[(i - 1) / 2];
    e->timers[i] = t;
    return STATUS_OK;
}

static struct timer pop_timer(struct engine *e)
{
    const struct timer top = e->timers[0], last = e->timers[--e->n_timers];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= e->n_timers) break;
        if (child + 1 < e->n_timers && timer_before(&e->timers[child + 1], &e->timers[child])) child++;
        if (!timer_before(&e->timers[child], &last)) break;
        e->timers[i] = e->timers[child];
        i = child;
    }
    e->timers[i] = last;
    return top;
}

/* ---- rates
 * ---------------------------------------------------------------------------------------------------------
 */

static const struct demand *demand_of(const struct engine *e, const struct lane *l)
{
    return l->is_merge ? &e->demands.merges[l->work] : &e->demands.items[l->work];
}

static struct cta *cta_of(const struct engine *e, int32_t lane)
{
    return &e->ctas[lane / KERNEL_MAX_LANES];
}

/* Brings the work left up to now. */
static void advance(struct engine *e)
{
    const double dt = e->now_ns - e->updated_ns;
    if (dt > 0)
        for (int32_t i = 0; i < e->run.n; i++)
            e->run.left_ns[i] -= dt * e->run.rate[i];
    e->updated_ns = e->now_ns;
}

static void share_on_sm(struct engine *e, const struct sm *sm)
{
    const struct demand *demands[32 * KERNEL_MAX_LANES] = {NULL};
    int32_t consumer[32 * KERNEL_MAX_LANES], n = 0;
    double local[32 * KERNEL_MAX_LANES];
    for (int32_t i = 0; i < sm->n_ctas; i++) {
        const struct lane *lanes = &e->lanes[sm->ctas[i] * KERNEL_MAX_LANES];
        for (int32_t l = 0; l < e->ctas[sm->ctas[i]].n_lanes; l++) {
            if (!lanes[l].running) continue;
            demands[n] = demand_of(e, &lanes[l]);
            consumer[n++] = lanes[l].consumer;
        }
    }
    share_sm(demands, n, e->gpu->sm_bytes_per_ns, local);
    for (int32_t i = 0; i < n; i++)
        e->run.local[consumer[i]] = local[i];
}

static enum status add_sample(struct engine *e, double hbm)
{
    struct sim_result *r = e->r;
    double tensor = 0;
    if (!e->options->spans) return STATUS_OK;
    if (r->n_samples == e->cap_samples) {
        const int64_t cap = e->cap_samples ? e->cap_samples * 2 : 1024;
        struct sim_sample *samples = realloc(r->samples, (size_t)cap * sizeof *samples);
        if (!samples) return STATUS_NO_MEMORY;
        r->samples = samples;
        e->cap_samples = cap;
    }
    for (int32_t i = 0; i < e->run.n; i++) {
        const struct demand *d = demand_of(e, &e->lanes[e->run_lane[i]]);
        if (d->pipe == PIPE_TENSOR) tensor += d->pipe_frac * e->run.rate[i];
    }
    r->samples[r->n_samples++] = (struct sim_sample){e->now_ns, tensor / e->gpu->sm_count, hbm, e->resident};
    return STATUS_OK;
}

/* Sets all rates anew and finds the next finish. Ties go to the lowest lane. */
static enum status update_rates(struct engine *e)
{
    const double hbm = share_hbm(&e->run, e->gpu->hbm_bytes_per_ns, &e->level);
    double least = INFINITY;
    e->finisher = -1;
    for (int32_t i = 0; i < e->run.n; i++) {
        const double left = e->run.left_ns[i] > 0 ? e->run.left_ns[i] : 0;
        const double ns = left / e->run.rate[i];
        if (e->finisher < 0 || ns < least || (ns == least && e->run_lane[i] < e->run_lane[e->finisher])) {
            least = ns;
            e->finisher = i;
        }
    }
    e->finish_ns = e->now_ns + least;
    e->stale = false;
    return add_sample(e, hbm);
}

static void start_running(struct engine *e, int32_t id)
{
    struct lane *l = &e->lanes[id];
    const struct demand *d = demand_of(e, l);
    advance(e);
    l->running = true;
    l->consumer = e->run.n++;
    e->run_lane[l->consumer] = id;
    e->run.left_ns[l->consumer] = d->alone_ns;
    e->run.hbm[l->consumer] = d->hbm_bytes_per_ns;
    e->run.weight[l->consumer] = d->inflight_bytes_per_ns;
    share_on_sm(e, &e->sms[cta_of(e, id)->sm]);
    e->stale = true;
}

/* Takes the lane out of the consumers. */
static void stop_running(struct engine *e, int32_t id)
{
    advance(e);
    const int32_t i = e->lanes[id].consumer, last = --e->run.n;
    e->run_lane[i] = e->run_lane[last];
    e->run.left_ns[i] = e->run.left_ns[last];
    e->run.local[i] = e->run.local[last];
    e->run.rate[i] = e->run.rate[last];
    e->run.hbm[i] = e->run.hbm[last];
    e->run.weight[i] = e->run.weight[last];
    if (i != last) e->lanes[e->run_lane[i]].consumer = i;
    e->lanes[id].running = false;
    share_on_sm(e, &e->sms[cta_of(e, id)->sm]);
    e->stale = true;
}

/* ---- which work a CTA takes
 * ---------------------------------------------------------------------------------------- */

static const int32_t *grid_lists(const struct engine *e, const struct grid *g)
{
    return e->p->list_indptr + g->list_begin;
}

/* QUEUE: the next item of the home queue, else along its steal order; -1 when all are dry. */
static int32_t draw_from_queues(struct engine *e, int32_t grid, int32_t index)
{
    const struct grid *g = &e->p->grids[grid];
    const int32_t home = e->p->home[g->home_begin + index], *indptr = grid_lists(e, g);
    const int32_t *order = e->p->steal + g->steal_begin + (int64_t)home * g->n_lists;
    for (int32_t k = 0; k < g->n_lists && order[k] >= 0; k++) {
        int32_t *next = &e->grids[grid].queue_next[order[k]];
        if (*next < indptr[order[k] + 1]) return (*next)++;
    }
    return -1;
}

/* SM_TICKET: the SM's ticket names a role, the role's ticket its next entries, as many as a CTA of that role
 * has lanes; a dry role hands over to the other. */
static struct range draw_ticket(struct engine *e, int32_t grid, int32_t sm)
{
    const struct grid *g = &e->p->grids[grid];
    struct grid_state *s = &e->grids[grid];
    const int32_t *indptr = grid_lists(e, g);
    int32_t role = ticket_role(g->ticket, s->sm_ticket[sm]++);
    if (s->ticket_next[role] == indptr[role + 1]) role = !role;
    const int32_t lanes = kernel_role_lanes(kernel_row((enum kernel_id)g->kernel), role == WORK_DECODE);
    const int32_t begin = s->ticket_next[role], left = indptr[role + 1] - begin;
    s->ticket_next[role] += left < lanes ? left : lanes;
    return (struct range){begin, s->ticket_next[role]};
}

static struct range draw_list(struct engine *e, const struct cta *c)
{
    const struct grid *g = &e->p->grids[c->grid];
    if (g->dispatch == DISPATCH_SM_TICKET) return draw_ticket(e, c->grid, c->sm);
    if (g->dispatch == DISPATCH_QUEUE) return (struct range){0, 0};
    const int32_t *list = grid_lists(e, g) + remap_linear_bid(g->remap, c->index).entry;
    return (struct range){list[0], list[1]};
}

/* Entries of a BESIDE list: prefill items come first. */
static int32_t first_decode(const struct engine *e, const struct kernel *k, struct range list)
{
    while (list.begin < list.end && e->p->items[list.begin].kernel == k->fused_prefill)
        list.begin++;
    return list.begin;
}

/* Deals the work of a CTA that was just placed to its lanes: all to the one lane; a half to each of two; or,
 * where a ticket drew several entries, one each. */
static void deal_lanes(struct engine *e, int32_t id)
{
    struct cta *c = &e->ctas[id];
    const struct grid *g = &e->p->grids[c->grid];
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    const struct range list = draw_list(e, c);
    struct lane *lanes = &e->lanes[id * KERNEL_MAX_LANES];
    const bool beside = k->role == ROLE_FUSED && k->fused_how == FUSED_BESIDE;
    const int32_t middle = beside ? first_decode(e, k, list) : list.end;
    c->n_lanes = beside ? 2 : g->dispatch == DISPATCH_SM_TICKET ? list.end - list.begin : 1;
    for (int32_t l = 0; l < c->n_lanes; l++) {
        lanes[l] = (struct lane){.next = list.begin, .end = middle, .merge_queue = -1, .begin_ns = e->now_ns};
        if (beside && l == 1) lanes[l].next = middle, lanes[l].end = list.end;
        if (!beside && c->n_lanes > 1) lanes[l].next = list.begin + l, lanes[l].end = list.begin + l + 1;
    }
}

/* Next work of a lane into lane->work; false when it has none left. */
static bool take_work(struct engine *e, int32_t id)
{
    const struct cta *c = cta_of(e, id);
    struct lane *l = &e->lanes[id];
    const struct grid *g = &e->p->grids[c->grid];
    if (l->merge_queue >= 0) {
        l->is_merge = true;
        l->work = l->merge_queue;
        l->merge_queue = e->merge_next[l->merge_queue];
        return true;
    }
    l->is_merge = kernel_row((enum kernel_id)g->kernel)->role == ROLE_MERGE;
    l->work = g->dispatch == DISPATCH_QUEUE ? draw_from_queues(e, c->grid, c->index)
              : l->next < l->end            ? l->next++
                                            : -1;
    return l->work >= 0;
}

/* ---- placement
 * ------------------------------------------------------------------------------------------------------ */

static bool head_grid(struct engine *e)
{
    const int32_t n = e->p->n_grids;
    for (e->head = 0; e->head < n; e->head++) {
        const struct grid_state *s = &e->grids[e->head];
        if (s->ready && s->placed < e->p->grids[e->head].n_ctas) return true;
    }
    return false;
}

static void refresh_room(struct engine *e, int32_t kernel)
{
    if (e->room_kernel == kernel) return;
    e->room_kernel = kernel;
    for (int32_t s = 0; s < e->gpu->sm_count; s++)
        e->room[s] = residency_room(e->gpu, &e->sms[s].use, &e->footprint[kernel]);
}

/* The SM with most room, in sm_order among equals; -1 when nothing fits. */
static int32_t roomiest_sm(const struct engine *e)
{
    int32_t best = -1, most = 0;
    for (int32_t i = 0; i < e->gpu->sm_count; i++)
        if (e->room[e->sm_order[i]] > most) {
            best = e->sm_order[i];
            most = e->room[best];
        }
    return best;
}

static int32_t lowest_free_slot(uint32_t used)
{
    return __builtin_ctz(~used);
}

static void track_busy(struct engine *e, struct sm *sm, int32_t change)
{
    if (change > 0 && sm->n_ctas == 0) sm->busy_since_ns = e->now_ns;
    if (change < 0 && sm->n_ctas == 1) sm->busy_ns += e->now_ns - sm->busy_since_ns;
    e->resident += change;
}

static enum status place_cta(struct engine *e, int32_t grid, int32_t sm_id)
{
    struct sm *sm = &e->sms[sm_id];
    const int32_t slot = lowest_free_slot(sm->slots_used), kernel = e->p->grids[grid].kernel;
    const int32_t id = sm_id * e->gpu->max_ctas_per_sm + slot;
    struct cta *c = &e->ctas[id];
    *c = (struct cta){.grid = grid, .index = e->grids[grid].placed++, .sm = sm_id, .slot = slot};
    track_busy(e, sm, 1);
    sm->slots_used |= 1u << slot;
    sm->ctas[sm->n_ctas++] = id;
    residency_add(&sm->use, &e->footprint[kernel]);
    e->room[sm_id] = residency_room(e->gpu, &sm->use, &e->footprint[e->room_kernel]);
    e->r->ctas++;
    deal_lanes(e, id);
    for (int32_t l = id * KERNEL_MAX_LANES; l < id * KERNEL_MAX_LANES + c->n_lanes; l++) {
        if (!take_work(e, l)) continue;
        c->lanes_left++;
        TRY(add_timer(e, e->now_ns + e->gpu->cta_start_ns, TIMER_LANE_START, l));
    }
    if (c->lanes_left > 0) return STATUS_OK;
    return add_timer(e, e->now_ns + e->gpu->cta_start_ns + e->gpu->cta_end_ns, TIMER_CTA_END, id);
}

/* Leftover rule: only the first ready grid with CTAs to place is served; later ones wait even if they would
 * fit. */
static enum status place_all(struct engine *e)
{
    while (head_grid(e)) {
        refresh_room(e, e->p->grids[e->head].kernel);
        const int32_t sm = roomiest_sm(e);
        if (sm < 0) return STATUS_OK;
        TRY(place_cta(e, e->head, sm));
    }
    return STATUS_OK;
}

/* ---- ends
 * -----------------------------------------------------------------------------------------------------------
 */

static enum status add_span(struct engine *e, int32_t id)
{
    const struct cta *c = cta_of(e, id);
    const struct lane *l = &e->lanes[id];
    struct sim_result *r = e->r;
    if (!e->options->spans) return STATUS_OK;
    if (r->n_spans == e->cap_spans) {
        const int64_t cap = e->cap_spans ? e->cap_spans * 2 : 1024;
        struct span *spans = realloc(r->spans, (size_t)cap * sizeof *spans);
        if (!spans) return STATUS_NO_MEMORY;
        r->spans = spans;
        e->cap_spans = cap;
    }
    r->spans[r->n_spans++] = (struct span){c->sm,       c->slot * e->lane_stride + id % KERNEL_MAX_LANES,
                                           c->grid,     c->index,
                                           l->work,     l->is_merge,
                                           l->begin_ns, e->now_ns};
    return STATUS_OK;
}

static void note_end(struct engine *e, const struct lane *l)
{
    double *end = &e->r->merge_end_ns;
    if (!l->is_merge)
        end = kernel_row((enum kernel_id)e->p->items[l->work].kernel)->role == ROLE_DECODE
                  ? &e->r->decode_end_ns
                  : &e->r->prefill_end_ns;
    if (isnan(*end) || e->now_ns > *end) *end = e->now_ns;
}

/* Last-arriver merging: counts the item's partial rows in; merges that became complete are chained onto this
 * lane. */
static void arrive(struct engine *e, struct lane *l)
{
    if (l->is_merge || !e->merge_of_row) return;
    const struct item *item = &e->p->items[l->work];
    if (item->partial < 0 || !(item->flags & ITEM_LAST_MERGES)) return;
    for (int32_t row = item->partial; row < item->partial + (item->row_end - item->row_begin); row++) {
        const int32_t m = e->merge_of_row[row];
        if (m < 0 || --e->merge_left[m] > 0) continue;
        e->merge_next[m] = l->merge_queue;
        l->merge_queue = m;
    }
}

/* The lane's work is done: what it does next. The CTA ends with its last lane. */
static enum status finish_work(struct engine *e, int32_t id)
{
    struct lane *l = &e->lanes[id];
    stop_running(e, id);
    e->r->items_done++;
    TRY(add_span(e, id));
    note_end(e, l);
    arrive(e, l);
    l->begin_ns = e->now_ns;
    if (take_work(e, id)) return add_timer(e, e->now_ns + e->gpu->item_ns, TIMER_LANE_START, id);
    if (--cta_of(e, id)->lanes_left > 0) return STATUS_OK;
    return add_timer(e, e->now_ns + e->gpu->cta_end_ns, TIMER_CTA_END, id / KERNEL_MAX_LANES);
}

static int compare_ids(const void *x, const void *y)
{
    const int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* Ends all work that is done at this instant, by lane: equal CTAs end together, as a wave does, whatever
 * their sums rounded to. The finisher is always among them, however coarse time is by now. */
static enum status finish_due(struct engine *e)
{
    const int32_t finisher = e->finisher;
    int32_t n = 0;
    e->now_ns = e->finish_ns;
    advance(e);
    for (int32_t i = 0; i < e->run.n; i++)
        if (i == finisher || e->run.left_ns[i] <= same_instant_ns * e->run.rate[i])
            e->due[n++] = e->run_lane[i];
    qsort(e->due, (size_t)n, sizeof *e->due, compare_ids);
    for (int32_t i = 0; i < n; i++)
        TRY(finish_work(e, e->due[i]));
    return STATUS_OK;
}

static bool depends_on(const struct plan *p, int32_t later, int32_t earlier)
{
    const struct grid *g = &p->grids[later];
    for (int32_t i = g->after_begin; i < g->after_end; i++)
        if (p->after[i] == earlier) return true;
    return g->stream == p->grids[earlier].stream;
}

static enum status finish_grid(struct engine *e, int32_t grid)
{
    e->grids[grid].done = true;
    for (int32_t g = grid + 1; g < e->p->n_grids; g++)
        if (depends_on(e->p, g, grid) && --e->grids[g].waits == 0)
            TRY(add_timer(e, e->now_ns + e->gpu->launch_ns, TIMER_GRID_READY, g));
    return STATUS_OK;
}

static enum status free_cta(struct engine *e, int32_t id)
{
    struct cta *c = &e->ctas[id];
    struct sm *sm = &e->sms[c->sm];
    track_busy(e, sm, -1);
    for (int32_t i = 0; i < sm->n_ctas; i++)
        if (sm->ctas[i] == id) {
            memmove(&sm->ctas[i], &sm->ctas[i + 1], (size_t)(--sm->n_ctas - i) * sizeof sm->ctas[0]);
            break;
        }
    sm->slots_used &= ~(1u << c->slot);
    residency_remove(&sm->use, &e->footprint[e->p->grids[c->grid].kernel]);
    if (e->room_kernel >= 0) e->room[c->sm] = residency_room(e->gpu, &sm->use, &e->footprint[e->room_kernel]);
    e->r->makespan_ns = e->now_ns;
    return --e->grids[c->grid].live == 0 ? finish_grid(e, c->grid) : STATUS_OK;
}

/* ---- set-up and loop
 * ------------------------------------------------------------------------------------------------ */

static enum status check_launch(const struct engine *e, struct why *why)
{
    if (e->gpu->max_ctas_per_sm > 32)
        return status_fail(why, STATUS_UNSUPPORTED, "gpu %s: max_ctas_per_sm %d: expected at most 32",
                           e->gpu->name, e->gpu->max_ctas_per_sm);
    for (int32_t g = 0; g < e->p->n_grids; g++) {
        const enum kernel_id k = (enum kernel_id)e->p->grids[g].kernel;
        const struct kernel_fit *fit = &e->kernels->fit[k];
        if (fit->ctas_per_sm < 1)
            return status_fail(
                why, STATUS_UNSUPPORTED,
                "grid %d: kernel %s cannot launch on %s: %d threads x %d registers, %d bytes of shared "
                "memory, sm_%d",
                g, kernel_row(k)->name, e->gpu->name, kernel_row(k)->threads, kernel_row(k)->registers,
                fit->smem_bytes, kernel_row(k)->min_cc);
    }
    return STATUS_OK;
}

/* Which merge reads each partial row, for plans whose items merge as last arrivers. */
static enum status prepare_last_arrivers(struct engine *e)
{
    const struct plan *p = e->p;
    bool any = false;
    for (int32_t i = 0; i < p->n_items && !any; i++)
        any = p->items[i].flags & ITEM_LAST_MERGES;
    if (!any) return STATUS_OK;
    e->merge_of_row = malloc(((size_t)p->partial_rows + 1) * sizeof *e->merge_of_row);
    e->merge_left = calloc((size_t)p->n_merges + 1, sizeof *e->merge_left);
    e->merge_next = malloc(((size_t)p->n_merges + 1) * sizeof *e->merge_next);
    if (!e->merge_of_row || !e->merge_left || !e->merge_next) return STATUS_NO_MEMORY;
    for (int32_t row = 0; row < p->partial_rows; row++)
        e->merge_of_row[row] = -1;
    for (int32_t m = 0; m < p->n_merges; m++)
        for (int32_t s = p->merge_indptr[m]; s < p->merge_indptr[m + 1]; s++)
            for (int32_t row = 0; row < p->merges[m].row_end - p->merges[m].row_begin; row++) {
                e->merge_of_row[p->merge_src[s] + row] = m;
                e->merge_left[m]++;
            }
    return STATUS_OK;
}

static enum status prepare_grids(struct engine *e)
{
    const struct plan *p = e->p;
    for (int32_t g = 0; g < p->n_grids; g++) {
        const struct grid *grid = &p->grids[g];
        struct grid_state *s = &e->grids[g];
        const int32_t *indptr = grid_lists(e, grid);
        s->live = grid->n_ctas;
        for (int32_t earlier = 0; earlier < g; earlier++)
            s->waits += depends_on(p, g, earlier) && p->grids[earlier].n_ctas > 0;
        if (grid->dispatch == DISPATCH_QUEUE) {
            s->queue_next = malloc(((size_t)grid->n_lists + 1) * sizeof *s->queue_next);
            if (!s->queue_next) return STATUS_NO_MEMORY;
            memcpy(s->queue_next, indptr, (size_t)grid->n_lists * sizeof *s->queue_next);
        } else if (grid->dispatch == DISPATCH_SM_TICKET) {
            s->ticket_next[0] = indptr[0];
            s->ticket_next[1] = indptr[1];
            s->sm_ticket = calloc((size_t)e->gpu->sm_count, sizeof *s->sm_ticket);
            if (!s->sm_ticket) return STATUS_NO_MEMORY;
        }
        if (s->waits == 0 && grid->n_ctas > 0) TRY(add_timer(e, 0, TIMER_GRID_READY, g));
    }
    return STATUS_OK;
}

static enum status prepare(struct engine *e)
{
    const int32_t sms = e->gpu->sm_count;
    const size_t residents = (size_t)sms * (size_t)e->gpu->max_ctas_per_sm;
    const size_t n_lanes = residents * KERNEL_MAX_LANES;
    e->grids = calloc((size_t)e->p->n_grids + 1, sizeof *e->grids);
    e->sms = calloc((size_t)sms, sizeof *e->sms);
    e->sm_order = malloc((size_t)sms * sizeof *e->sm_order);
    e->room = malloc((size_t)sms * sizeof *e->room);
    e->ctas = calloc(residents, sizeof *e->ctas);
    e->lanes = calloc(n_lanes, sizeof *e->lanes);
    e->run_lane = malloc(n_lanes * sizeof *e->run_lane);
    e->due = malloc(n_lanes * sizeof *e->due);
    double *columns = malloc(5 * n_lanes * sizeof *columns);
    e->run = (struct consumers){.left_ns = columns}; /* owns all five */
    if (!e->grids || !e->sms || !e->sm_order || !e->room || !e->ctas || !e->lanes || !e->run_lane ||
        !e->due || !columns)
        return STATUS_NO_MEMORY;
    e->run = (struct consumers){
        0, columns, columns + n_lanes, columns + 2 * n_lanes, columns + 3 * n_lanes, columns + 4 * n_lanes};
    e->lane_stride = 1;
    for (int32_t g = 0; g < e->p->n_grids; g++) {
        const int32_t lanes = kernel_lanes(kernel_row((enum kernel_id)e->p->grids[g].kernel));
        if (lanes > e->lane_stride) e->lane_stride = lanes;
    }
    /* siblings of a TPC apart: 0 2 4 ... 1 3 5 ... */
    for (int32_t i = 0, n = 0; n < sms; i += 2, n++) {
        if (i >= sms) i = 1;
        e->sm_order[n] = i;
    }
    for (int k = 0; k < KERNEL_COUNT; k++)
        e->footprint[k] = residency_footprint(e->gpu, kernel_row((enum kernel_id)k), &e->kernels->fit[k]);
    e->room_kernel = -1;
    e->level = e->finish_ns = INFINITY;
    e->finisher = -1;
    TRY(demands_create(e->b, e->gpu, e->kernels, e->p, &e->demands));
    TRY(prepare_last_arrivers(e));
    return prepare_grids(e);
}

static void release(struct engine *e)
{
    for (int32_t g = 0; e->grids && g < e->p->n_grids; g++) {
        free(e->grids[g].queue_next);
        free(e->grids[g].sm_ticket);
    }
    free(e->grids);
    free(e->sms);
    free(e->sm_order);
    free(e->room);
    free(e->ctas);
    free(e->lanes);
    free(e->run_lane);
    free(e->due);
    free(e->run.left_ns);
    free(e->timers);
    free(e->merge_of_row);
    free(e->merge_left);
    free(e->merge_next);
    demands_free(&e->demands);
}

static enum status fire_timer(struct engine *e)
{
    const struct timer t = pop_timer(e);
    e->now_ns = t.at_ns;
    if (t.kind == TIMER_GRID_READY)
        e->grids[t.id].ready = true;
    else if (t.kind == TIMER_CTA_END)
        TRY(free_cta(e, t.id));
    else
        start_running(e, t.id);
    /* Slots that come free at one instant are filled together, so that the roomiest SM is chosen among all of
     * them. */
    return e->n_timers > 0 && e->timers[0].at_ns <= e->now_ns + same_instant_ns ? STATUS_OK : place_all(e);
}

/* Rates are set anew once an instant, after all that happens in it: a wave of starts is one update. */
static enum status run_events(struct engine *e)
{
    while (e->n_timers > 0 || e->run.n > 0) {
        if (e->options->stop_ns > 0 && e->now_ns > e->options->stop_ns) {
            e->r->stopped = true;
            e->r->makespan_ns = e->now_ns;
            return STATUS_OK;
        }
        const double timer_ns = e->n_timers > 0 ? e->timers[0].at_ns : INFINITY;
        if (e->stale && timer_ns > e->now_ns) TRY(update_rates(e));
        TRY(e->n_timers > 0 && timer_ns <= e->finish_ns ? fire_timer(e) : finish_due(e));
    }
    return STATUS_OK;
}

static int compare_spans(const void *x, const void *y)
{
    const struct span *a = x, *b = y;
    if (a->begin_ns != b->begin_ns) return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->sm != b->sm) return a->sm < b->sm ? -1 : 1;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}

static void summarise(struct engine *e)
{
    struct sim_result *r = e->r;
    double busy = 0;
    for (int32_t s = 0; s < e->gpu->sm_count; s++)
        busy += e->sms[s].busy_ns;
    r->flops = cost_batch_flops(e->b);
    r->hbm_bytes = e->demands.hbm_bytes;
    if (r->makespan_ns > 0) {
        r->tensor_util = r->flops / (r->makespan_ns * e->gpu->peak_flops_per_ns);
        r->hbm_util = r->hbm_bytes / (r->makespan_ns * e->gpu->peak_hbm_bytes_per_ns);
        r->sm_busy_frac = busy / (r->makespan_ns * e->gpu->sm_count);
    }
    if (r->n_spans) qsort(r->spans, (size_t)r->n_spans, sizeof *r->spans, compare_spans);
}

enum status sim_run(const struct batch *b, const struct gpu *gpu, const struct kernels *kernels,
                    const struct plan *p, const struct sim_options *options, struct sim_result *r,
                    struct why *why)
{
    struct engine e = {.b = b, .gpu = gpu, .kernels = kernels, .p = p, .options = options, .r = r};
    *r = (struct sim_result){.prefill_end_ns = NAN, .decode_end_ns = NAN, .merge_end_ns = NAN};
    TRY(check_launch(&e, why));
    enum status status = prepare(&e);
    if (status == STATUS_OK) status = run_events(&e);
    if (status != STATUS_OK)
        sim_result_free(r);
    else if (!r->stopped)
        summarise(&e);
    release(&e);
    if (status == STATUS_NO_MEMORY) return status_fail(why, status, "simulator: out of memory");
    return status;
}

void sim_result_free(struct sim_result *r)
{
    free(r->spans);
    free(r->samples);
    memset(r, 0, sizeof *r);
}
