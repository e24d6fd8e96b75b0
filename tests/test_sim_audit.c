/* The simulator audited from what it hands out. Its spans say when each item ran and where; from them alone
 * the audit works out again
 *   rates      between any two events the rates of the items then running, from scratch; integrated over an
 *              item's span they must give exactly its alone time
 *   placement  no SM ever holds more than fits; CTAs start in grid order, not before what their grid waits
 *              for; a later grid gets nothing while an earlier one has CTAs to place (leftover rule); and no
 *              CTA waits while an SM has room for it
 *   samples    their integrals are the bytes and the FLOPs of the plan
 * for every policy on specs and random batches, each with its lanes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/profile.h"
#include "lab/run.h"
#include "sim/demand.h"
#include "sim/occupancy.h"
#include "sim/residency.h"
#include "sim/share.h"
#include "tests/random_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_RANDOM = 40, FIRST_SEED = 7000 };
static const double max_pairs = 4e6, same_instant_ns = 1e-5;

/* One simulated plan under audit. */
struct audit {
    const struct workload *w;
    const struct machine *m;
    const struct plan *p;
    const char *policy;
    struct sim_result r;
    struct demands demands;
    struct cta *ctas; /* by grid, then index */
    int32_t n_ctas;
    int32_t *cta_indptr; /* [n_grids + 1] */
};

/* A CTA's stay on its SM, from its spans. */
struct cta {
    int32_t grid, sm;
    double begin_ns, end_ns;
    bool known; /* it had work, so left spans */
};

static struct cta *cta_of(const struct audit *a, const struct span *s)
{
    return &a->ctas[a->cta_indptr[s->grid] + s->cta];
}

static const struct demand *demand_of(const struct audit *a, const struct span *s)
{
    return s->is_merge ? &a->demands.merges[s->item] : &a->demands.items[s->item];
}

/* Spans are in order of begin, so a CTA's first comes first. */
static void collect_ctas(struct audit *a)
{
    a->cta_indptr = calloc((size_t)a->p->n_grids + 1, sizeof *a->cta_indptr);
    for (int32_t g = 0; g < a->p->n_grids; g++)
        a->cta_indptr[g + 1] = a->cta_indptr[g] + a->p->grids[g].n_ctas;
    a->n_ctas = a->cta_indptr[a->p->n_grids];
    a->ctas = calloc((size_t)a->n_ctas + 1, sizeof *a->ctas);
    for (int64_t i = 0; i < a->r.n_spans; i++) {
        const struct span *s = &a->r.spans[i];
        struct cta *c = cta_of(a, s);
        if (!c->known) *c = (struct cta){s->grid, s->sm, s->begin_ns, 0, true};
        /* a CTA with lanes ends with the last of them */
        if (s->end_ns + a->m->gpu.cta_end_ns > c->end_ns) c->end_ns = s->end_ns + a->m->gpu.cta_end_ns;
    }
}

/* ---- rates */

struct event {
    double ns;
    int32_t span;
    bool begins;
};

static int compare_events(const void *x, const void *y)
{
    const struct event *a = x, *b = y;
    return a->ns < b->ns ? -1 : a->ns > b->ns;
}

/* A span opens with a delay: the CTA's start, or the step to its next item. */
static struct event *list_events(const struct audit *a)
{
    struct event *events = malloc(2 * ((size_t)a->r.n_spans + 1) * sizeof *events);
    for (int64_t i = 0; i < a->r.n_spans; i++) {
        const struct span *s = &a->r.spans[i];
        const double delay =
            s->begin_ns == cta_of(a, s)->begin_ns ? a->m->gpu.cta_start_ns : a->m->gpu.item_ns;
        events[2 * i] = (struct event){s->begin_ns + delay, (int32_t)i, true};
        events[2 * i + 1] = (struct event){s->end_ns, (int32_t)i, false};
    }
    qsort(events, 2 * (size_t)a->r.n_spans, sizeof *events, compare_events);
    return events;
}

/* The spans in progress, and what the sharing rules make of them. */
struct progress {
    struct consumers c;
    int32_t *spans; /* [c.n] */
    double lanes[5][132 * 32 * KERNEL_MAX_LANES];
};

static void share_all(const struct audit *a, struct progress *now)
{
    double level = INFINITY;
    for (int32_t sm = 0; sm < a->m->gpu.sm_count; sm++) {
        const struct demand *demands[32 * KERNEL_MAX_LANES];
        int32_t who[32 * KERNEL_MAX_LANES], n = 0;
        double local[32 * KERNEL_MAX_LANES];
        for (int32_t i = 0; i < now->c.n; i++) {
            if (a->r.spans[now->spans[i]].sm != sm) continue;
            demands[n] = demand_of(a, &a->r.spans[now->spans[i]]);
            who[n++] = i;
        }
        share_sm(demands, n, a->m->gpu.sm_bytes_per_ns, local);
        for (int32_t k = 0; k < n; k++) {
            now->c.local[who[k]] = local[k];
            now->c.hbm[who[k]] = demands[k]->hbm_bytes_per_ns;
            now->c.weight[who[k]] = demands[k]->inflight_bytes_per_ns;
        }
    }
    share_hbm(&now->c, a->m->gpu.hbm_bytes_per_ns, &level);
}

static void apply_event(struct progress *now, const struct event *e)
{
    if (e->begins) {
        now->spans[now->c.n++] = e->span;
        return;
    }
    for (int32_t i = 0; i < now->c.n; i++)
        if (now->spans[i] == e->span) {
            now->spans[i] = now->spans[--now->c.n];
            return;
        }
}

static void audit_rates(const struct audit *a)
{
    struct progress *now = calloc(1, sizeof *now);
    struct event *events = list_events(a);
    double *done_ns = calloc((size_t)a->r.n_spans + 1, sizeof *done_ns);
    now->spans = malloc(((size_t)a->r.n_spans + 1) * sizeof *now->spans);
    now->c = (struct consumers){0, now->lanes[0], now->lanes[1], now->lanes[2], now->lanes[3], now->lanes[4]};
    for (int64_t e = 0; e + 1 < 2 * a->r.n_spans; e++) {
        apply_event(now, &events[e]);
        const double dt = events[e + 1].ns - events[e].ns;
        if (dt <= 0 || now->c.n == 0) continue;
        share_all(a, now);
        for (int32_t i = 0; i < now->c.n; i++)
            done_ns[now->spans[i]] += dt * now->c.rate[i];
    }
    for (int64_t i = 0; i < a->r.n_spans; i++) {
        const double want = demand_of(a, &a->r.spans[i])->alone_ns;
        if (!(fabs(done_ns[i] - want) <= 1e-9 * (want + a->r.makespan_ns)))
            fail_msg("%s, %s: span %d did %.9g of %.9g ns of work", a->policy, a->w->name, (int)i, done_ns[i],
                     want);
    }
    free(now->spans);
    free(now);
    free(events);
    free(done_ns);
}

/* ---- placement */

/* When the last CTA of a grid began (last = true) or ended. */
static double grid_ns(const struct audit *a, int32_t grid, bool begin)
{
    double ns = 0;
    for (int32_t c = a->cta_indptr[grid]; c < a->cta_indptr[grid + 1]; c++)
        ns = fmax(ns, begin ? a->ctas[c].begin_ns : a->ctas[c].end_ns);
    return ns;
}

static bool waits_for(const struct plan *p, int32_t later, int32_t earlier)
{
    const struct grid *g = &p->grids[later];
    bool listed = g->stream == p->grids[earlier].stream;
    for (int32_t i = g->after_begin; i < g->after_end; i++)
        listed |= p->after[i] == earlier;
    return listed;
}

static double ready_ns(const struct audit *a, int32_t grid)
{
    double ns = 0;
    for (int32_t g = 0; g < grid; g++)
        if (waits_for(a->p, grid, g)) ns = fmax(ns, grid_ns(a, g, false) + a->m->gpu.launch_ns);
    return ns;
}

/* From when the grid was first in line: ready, and all CTAs of earlier grids that were ready placed. */
static double head_ns(const struct audit *a, int32_t grid)
{
    double ns = ready_ns(a, grid);
    for (int32_t g = 0; g < grid; g++)
        if (ready_ns(a, g) <= ns) ns = fmax(ns, grid_ns(a, g, true));
    return ns;
}

/* What SM `sm` holds at a time. CTAs that begin then are not yet there, those that end then are. */
static struct sm_use use_at(const struct audit *a, int32_t sm, double ns)
{
    struct sm_use use = {0};
    for (int32_t i = 0; i < a->n_ctas; i++) {
        const struct cta *c = &a->ctas[i];
        const int32_t k = a->p->grids[c->grid].kernel;
        if (c->sm != sm || !(c->begin_ns < ns && ns <= c->end_ns)) continue;
        const struct footprint f =
            residency_footprint(&a->m->gpu, kernel_row((enum kernel_id)k), &a->m->kernels.fit[k]);
        residency_add(&use, &f);
    }
    return use;
}

static void audit_cta(const struct audit *a, int32_t index, double head)
{
    const struct cta *c = &a->ctas[index];
    const struct gpu *gpu = &a->m->gpu;
    const int32_t k = a->p->grids[c->grid].kernel;
    const struct footprint f = residency_footprint(gpu, kernel_row((enum kernel_id)k), &a->m->kernels.fit[k]);
    const struct sm_use with = use_at(a, c->sm, c->begin_ns + same_instant_ns);
    if (with.warps > gpu->max_threads_per_sm / 32 || with.smem_bytes > gpu->smem_per_sm_bytes ||
        with.ctas > gpu->max_ctas_per_sm || with.register_frac > 1 + 1e-6)
        fail_msg("%s, %s: CTA %d does not fit SM %d", a->policy, a->w->name, index, c->sm);
    if (!(c->begin_ns >= head - same_instant_ns))
        fail_msg("%s, %s: CTA %d of grid %d at %.3f, before %.3f", a->policy, a->w->name, index, c->grid,
                 c->begin_ns, head);
    if (c->begin_ns <= head + same_instant_ns) return;
    for (int32_t sm = 0; sm < gpu->sm_count; sm++) {
        const struct sm_use before = use_at(a, sm, c->begin_ns - same_instant_ns);
        if (residency_room(gpu, &before, &f) > 0)
            fail_msg("%s, %s: CTA %d of grid %d waited till %.3f while SM %d had room", a->policy, a->w->name,
                     index, c->grid, c->begin_ns, sm);
    }
}

/* Every n-th CTA is judged, so that plans of any size cost about the same. A CTA without work leaves no span;
 * plans that have such CTAs are not judged. */
static void audit_placement(const struct audit *a)
{
    const int32_t step = 1 + a->n_ctas / 60;
    for (int32_t i = 0; i < a->n_ctas; i++)
        if (!a->ctas[i].known) return;
    assert_int_equal(a->r.ctas, a->n_ctas);
    for (int32_t g = 0; g < a->p->n_grids; g++) {
        const double head = head_ns(a, g);
        for (int32_t i = a->cta_indptr[g]; i < a->cta_indptr[g + 1]; i++) {
            if (i > a->cta_indptr[g]) assert_true(a->ctas[i].begin_ns >= a->ctas[i - 1].begin_ns);
            if (i % step == 0) audit_cta(a, i, head);
        }
    }
}

/* ---- samples */

static void audit_samples(const struct audit *a)
{
    double bytes = 0, flops = 0, want_flops = 0;
    for (int64_t i = 0; i + 1 < a->r.n_samples; i++) {
        const double dt = a->r.samples[i + 1].ns - a->r.samples[i].ns;
        bytes += dt * a->r.samples[i].hbm_bytes_per_ns;
        flops += dt * a->r.samples[i].tensor_frac * a->m->gpu.sm_count;
    }
    for (int32_t i = 0; i < a->p->n_items; i++)
        if (a->demands.items[i].pipe == PIPE_TENSOR)
            want_flops += a->demands.items[i].pipe_frac * a->demands.items[i].alone_ns;
    if (!(fabs(bytes - a->r.hbm_bytes) <= 1e-9 * a->r.hbm_bytes + 1e-3) ||
        !(fabs(flops - want_flops) <= 1e-9 * want_flops + 1e-6))
        fail_msg("%s, %s: samples hold %.9g of %.9g bytes, %.9g of %.9g ns of tensor pipe", a->policy,
                 a->w->name, bytes, a->r.hbm_bytes, flops, want_flops);
}

static void audit_policy(const struct workload *w, const struct machine *m, const struct policy *policy)
{
    struct plan p = {0};
    struct why why = {""};
    struct audit a = {.w = w, .m = m, .p = &p, .policy = policy->name};
    const struct sim_options options = {.spans = true};
    enum status status = policy_plan(policy, &w->batch, &m->gpu, &m->kernels, NULL, &p, &why);
    if (status == STATUS_UNSUPPORTED && m->gpu.cc_major < 9) return; /* its kernels need Hopper */
    if (status == STATUS_OK) status = sim_run(&w->batch, &m->gpu, &m->kernels, &p, &options, &a.r, &why);
    if (status == STATUS_OK) {
        assert_int_equal(demands_create(&w->batch, &m->gpu, &m->kernels, &p, &a.demands), STATUS_OK);
        collect_ctas(&a);
        audit_rates(&a);
        audit_placement(&a);
        audit_samples(&a);
        demands_free(&a.demands);
        free(a.ctas);
        free(a.cta_indptr);
        sim_result_free(&a.r);
    } else if (status != STATUS_UNSUPPORTED) { /* a kernel too large for this head shape is */
        fail_msg("%s, %s: %s", policy->name, w->name, why.text);
    }
    plan_free(&p);
}

/* On an H200 registers bound how many CTAs an SM holds, on an RTX 4090 shared memory does. */
static void audit_all(const struct workload *w)
{
    static const char *const gpus[] = {"h200", "rtx4090"};
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        struct machine m;
        struct why why = {""};
        if (profile_load(gpus[g], &m.gpu, &why) != STATUS_OK) fail_msg("%s", why.text);
        kernels_resolve(&m.gpu, &w->batch.shape, &m.kernels);
        for (int32_t i = 0; i < policy_count(); i++)
            audit_policy(w, &m, policy_at(i));
    }
}

/* Mixed, skewed, and a queue of short CTAs; several waves each. */
static void test_specs(void **state)
{
    static const char *const specs[] = {"q512s2k_40q1s2k", "q1ks4k_20q1s1k_q1s40k", "q17s3000_60q1s600"};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct workload w;
        spec_batch(specs[i], 16, &w);
        audit_all(&w);
        workload_free(&w);
    }
}

static void test_random_batches(void **state)
{
    (void)state;
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + N_RANDOM; seed++) {
        struct workload w;
        random_batch(seed, max_pairs, &w);
        audit_all(&w);
        workload_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_random_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
