/* The kernels' logic without a GPU: draws under hostile orders, arrivals, walks, merge arithmetic; and whole plans
 * through attn_1_naive on fibers (cuda_cpu), every policy, judged by the oracle.
 *
 * TANDEM_FUZZ_BATCHES: a tenth as many random batches, 4 at least (default 120). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/draw.h"
#include "cuda/lower.h"
#include "cuda/merge_math.h"
#include "cuda/quantile.h"
#include "cuda/walk.h"
#include "lab/rng.h"
#include "lab/run.h"
#include "sched/cost.h"
#include "sched/kernel.h"
#include "tests/cuda_cpu.h"
#include "tests/random_batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_BATCHES = 120, FIRST_SEED = 9000, SM_COUNT = 5 };
/* Of a batch that runs on fibers: query-key pairs x heads wanted, FLOPs allowed. */
static const double fiber_pairs = 6e3, fiber_flops = 3e6;

static uint64_t n_batches(void)
{
    const char *text = getenv("TANDEM_FUZZ_BATCHES");
    const uint64_t n = (text && atoi(text) > 0 ? (uint64_t)atoi(text) : DEFAULT_BATCHES) / 10;
    return n < 4 ? 4 : n;
}

/* false: the policy does not take this batch. */
static bool make_plan(const struct workload *w, const struct machine *m, const struct policy *policy,
                      const char *merge, struct plan *plan)
{
    static const char *const name = "merge";
    const struct options options = {1, &name, &merge};
    struct why why = {""};
    const enum status status = policy_plan(policy, &w->batch, &m->gpu, &m->kernels, &options, plan, &why);
    if (status != STATUS_OK && status != STATUS_UNSUPPORTED)
        fail_msg("%s, %s: %s", policy->name, w->name, why.text);
    if (status != STATUS_OK) plan_free(plan);
    return status == STATUS_OK;
}

/* ---- draws ------------------------------------------------------------------------------------------------------- */

/* CTAs of a grid in flight, each with what it still holds. */
struct drawing {
    const struct view *x;
    const struct view_grid *g;
    int32_t *drawn; /* of each item */
};

/* FIXED and SM_TICKET CTAs draw once. */
static void draw_once(const struct drawing *d, int32_t cta, struct rng *rng)
{
    const struct range r = d->g->dispatch == DISPATCH_FIXED
                               ? draw_list(d->x, d->g, cta)
                               : draw_ticket(d->x, d->g, (uint32_t)rng_next(rng));
    for (int32_t i = r.begin; i < r.end; i++)
        d->drawn[i]++;
}

/* All CTAs of a grid draw until dry, in an order as unfair as the seed makes it: now one at a time, now a few ahead. */
static void draw_all(const struct drawing *d, struct rng *rng)
{
    const int32_t n = d->g->n_ctas;
    int32_t *cta = malloc(((size_t)n + 1) * sizeof *cta), *tried = calloc((size_t)n + 1, sizeof *tried),
            left = n;
    const uint64_t window = 1 + rng_below(rng, 2) * rng_below(rng, (uint64_t)n + 1);
    assert_non_null(cta);
    assert_non_null(tried);
    for (int32_t i = 0; i < n; i++)
        cta[i] = i;
    while (left > 0) {
        const int32_t at = (int32_t)rng_below(rng, (uint64_t)left < window ? (uint64_t)left : window);
        bool over = true;
        if (d->g->dispatch == DISPATCH_QUEUE) {
            const int32_t item = draw_queue(d->x, d->g, cta[at], &tried[cta[at]]);
            over = item < 0;
            if (!over) d->drawn[item]++;
        } else {
            draw_once(d, cta[at], rng);
        }
        if (!over) continue;
        draw_done(d->g);
        cta[at] = cta[--left];
    }
    free(cta);
    free(tried);
}

/* Twice over the same counters, with guards around them. */
static void check_grid(const struct plan *p, const struct view *x, int32_t index, int32_t *drawn,
                       struct rng *rng, const char *who)
{
    enum { GUARD = 16, WORD = 0x7eadbeef };
    struct view_grid g = lower_grid(p, index, SM_COUNT);
    const int32_t n = view_counters(&g);
    int32_t *words = malloc((size_t)(n + 2 * GUARD) * sizeof *words);
    assert_non_null(words);
    for (int32_t i = 0; i < n + 2 * GUARD; i++)
        words[i] = i < GUARD || i >= n + GUARD ? WORD : 0;
    g.counters = words + GUARD;
    for (int round = 0; round < 2; round++)
        draw_all(&(struct drawing){x, &g, drawn}, rng);
    for (int32_t i = 0; i < n + 2 * GUARD; i++)
        if (words[i] != (i < GUARD || i >= n + GUARD ? WORD : 0))
            fail_msg("%s: grid %d: counter %d is %d after the grid", who, index, i - GUARD, words[i]);
    free(words);
}

/* Every item of every grid of every policy is drawn exactly once a run. */
static void test_draws_under_any_order(void **state)
{
    (void)state;
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 2 * n_batches(); seed++) {
        struct workload w;
        struct machine m;
        struct rng rng = {seed};
        random_batch(seed, 1e6, &w);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan p = {0};
            if (!make_plan(&w, &m, policy_at(i), "grid", &p)) continue;
            const struct view x = {
                .items = p.items, .list_indptr = p.list_indptr, .home = p.home, .steal = p.steal};
            int32_t *drawn = calloc((size_t)p.n_items + (size_t)p.n_merges + 1, sizeof *drawn);
            assert_non_null(drawn);
            for (int32_t g = 0; g < p.n_grids; g++)
                if (kernel_row((enum kernel_id)p.grids[g].kernel)->role != ROLE_MERGE)
                    check_grid(&p, &x, g, drawn, &rng, policy_at(i)->name);
            for (int32_t k = 0; k < p.n_items; k++)
                if (drawn[k] != 2)
                    fail_msg("%s, %s: item %d drawn %d times in two runs", policy_at(i)->name, w.name, k,
                             drawn[k]);
            free(drawn);
            plan_free(&p);
        }
        workload_free(&w);
    }
}

/* ---- arrivals ---------------------------------------------------------------------------------------------------- */

/* Have all items that write a merge's sources arrived? */
static bool sources_arrived(const struct plan *p, int32_t m, const bool *arrived_rows)
{
    const int32_t rows = p->merges[m].row_end - p->merges[m].row_begin;
    for (int32_t s = p->merge_indptr[m]; s < p->merge_indptr[m + 1]; s++)
        for (int32_t i = 0; i < rows; i++)
            if (!arrived_rows[p->merge_src[s] + i]) return false;
    return true;
}

static void check_arrivals(const struct plan *p, struct rng *rng, const char *who)
{
    struct lowered l;
    struct why why = {""};
    assert_int_equal(lower_plan(p, &l, &why), STATUS_OK);
    int32_t *order = malloc(((size_t)p->n_items + 1) * sizeof *order),
            *arrived = calloc((size_t)p->n_merges + 1, sizeof *arrived),
            *merged = calloc((size_t)p->n_merges + 1, sizeof *merged);
    bool *rows = calloc((size_t)p->partial_rows + 1, sizeof *rows);
    const struct view x = {.merge_needs = l.merge_needs, .merge_arrived = arrived};
    for (int32_t i = 0; i < p->n_items; i++) {
        const int32_t j = (int32_t)rng_below(rng, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t k = 0; l.item_merge_indptr && k < p->n_items; k++) {
        const struct item *item = &p->items[order[k]];
        for (int32_t i = 0; item->partial >= 0 && i < item->row_end - item->row_begin; i++)
            rows[item->partial + i] = true;
        for (int32_t i = l.item_merge_indptr[order[k]]; i < l.item_merge_indptr[order[k] + 1]; i++) {
            const int32_t at = l.item_merges[i];
            if (!draw_arrive(&x, at)) continue;
            merged[at]++;
            if (!sources_arrived(p, at, rows)) fail_msg("%s: merge %d came before its sources", who, at);
        }
    }
    for (int32_t i = 0; l.item_merge_indptr && i < p->n_merges; i++)
        if (merged[i] != 1 || arrived[i] != 0)
            fail_msg("%s: merge %d was done %d times, %d arrivals left", who, i, merged[i], arrived[i]);
    free(order);
    free(arrived);
    free(merged);
    free(rows);
    lowered_free(&l);
}

static void test_last_arrivers(void **state)
{
    int64_t merges = 0;
    (void)state;
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 2 * n_batches(); seed++) {
        struct workload w;
        struct machine m;
        struct rng rng = {seed};
        random_batch(seed, 1e6, &w);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan p = {0};
            if (!make_plan(&w, &m, policy_at(i), "last", &p)) continue;
            check_arrivals(&p, &rng, policy_at(i)->name);
            merges += p.n_merges;
            plan_free(&p);
        }
        workload_free(&w);
    }
    assert_true(merges > 0);
}

/* ---- walks ------------------------------------------------------------------------------------------------------- */

static void check_row(const struct plan *p, const struct batch *b, const struct view *x,
                      const struct item *item, int32_t row, const char *who)
{
    const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
    const struct row_ref want = plan_row(p, b, item->group, item->kv_head, order, row);
    const struct walk_row got = walk_item_row(x, item, order, row);
    const struct range seen = batch_visible(b, want.request, want.token);
    const int32_t begin = seen.begin > item->kv_begin ? seen.begin : item->kv_begin,
                  end = seen.end < item->kv_end ? seen.end : item->kv_end;
    if (got.request != want.request || got.local != want.token || got.head != want.qo_head ||
        got.token != b->qo_indptr[want.request] + want.token)
        fail_msg("%s: group %d row %d: request %d token %d head %d, want %d %d %d", who, item->group, row,
                 got.request, got.local, got.head, want.request, want.token, want.qo_head);
    if (got.begin != begin || got.end != (end > begin ? end : begin))
        fail_msg("%s: group %d row %d sees %d..%d, want %d..%d", who, item->group, row, got.begin, got.end,
                 begin, end);
}

/* Rows of items against plan_row and batch_visible. */
static void check_rows(const struct workload *w, bool need_groups)
{
    struct machine m;
    bool groups = false;
    test_machine(w, &m);
    for (int32_t i = 0; i < policy_count(); i++) {
        struct plan p = {0};
        struct lowered l;
        struct why why = {""};
        if (!make_plan(w, &m, policy_at(i), "grid", &p)) continue;
        assert_int_equal(lower_plan(&p, &l, &why), STATUS_OK);
        const struct view x = {.b = w->batch,
                               .items = p.items,
                               .group_indptr = p.group_indptr,
                               .members = p.members,
                               .member_first = l.member_first};
        for (int32_t k = 0; k < p.n_items; k++)
            for (int32_t row = p.items[k].row_begin; row < p.items[k].row_end; row++)
                check_row(&p, &w->batch, &x, &p.items[k], row, policy_at(i)->name);
        groups |= plan_n_groups(&p) > 0;
        lowered_free(&l);
        plan_free(&p);
    }
    assert_true(groups || !need_groups);
}

/* Keys against the page table. */
static void check_keys(const struct workload *w)
{
    const struct kv_table *kv = &w->batch.kv;
    const struct view x = {.b = w->batch};
    const struct view_keys s = {1 << 20, 1 << 8, 3};
    for (int32_t r = 0; r < w->batch.n_requests; r++)
        for (int32_t key = 0; key < w->batch.kv_len[r]; key++) {
            const int32_t page = kv->kv_indices[kv->kv_indptr[r] + key / kv->page_size];
            if (walk_key(&x, s, r, key, 1) != page * s.page + key % kv->page_size * s.pos + s.head)
                fail_msg("%s: request %d key %d lies elsewhere", w->name, r, key);
        }
}

static void test_walks(void **state)
{
    struct workload w;
    struct why why = {""};
    const struct workload_params p = workload_default_params();
    (void)state;
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + 2 * n_batches(); seed++) {
        random_batch(seed, 1e5, &w);
        check_rows(&w, false);
        check_keys(&w);
        workload_free(&w);
    }
    assert_int_equal(workload_generate("shared-prefix-64", &p, &w, &why), STATUS_OK);
    check_rows(&w, true); /* groups of 64 members */
    workload_free(&w);
}

/* ---- merge arithmetic ---------------------------------------------------------------------------------------------- */

/* Weights and finish against double precision, LSEs from -inf to +-80, with and without a sink. */
static void test_merge_math(void **state)
{
    struct rng rng = {7};
    (void)state;
    for (int round = 0; round < 20000; round++) {
        const int32_t n = 1 + (int32_t)rng_below(&rng, 9);
        const bool with_sink = rng_below(&rng, 2);
        const float sink = (float)(rng_uniform(&rng) * 20 - 10);
        float lse[9], max = -INFINITY, sum = 0, factor;
        double exact = with_sink ? exp((double)sink) : 0, parts = 0;
        for (int32_t i = 0; i < n; i++) {
            lse[i] = rng_below(&rng, 4) ? (float)(rng_uniform(&rng) * 160 - 80) : -INFINITY;
            if (lse[i] > max) max = lse[i];
            exact += exp((double)lse[i]);
        }
        for (int32_t i = 0; i < n; i++)
            sum += merge_weight(lse[i], max);
        const float got = merge_finish(max, sum, with_sink ? &sink : NULL, &factor);
        for (int32_t i = 0; i < n; i++)
            parts += (double)merge_weight(lse[i], max) * factor;
        if (exact == 0) {
            assert_true(got == -INFINITY && factor == 0);
            continue;
        }
        const double want = log(exact), share = 1 - (with_sink ? exp((double)sink) : 0) / exact;
        if (!(fabs(got - want) <= 0x1p-22 * (4 + fabs(want))) || !(fabs(parts - share) <= 0x1p-21 * (1 + n)))
            fail_msg("round %d: LSE %.9g, want %.9g; weights add up to %.9g, want %.9g", round, got, want,
                     parts, share);
    }
}

/* ---- whole plans on fibers ------------------------------------------------------------------------------------------- */

static void run_twice(const struct workload *w, const struct truth *truth, const struct plan *p,
                      uint64_t seed, const char *who)
{
    struct result r[2];
    struct why why = {""};
    for (int i = 0; i < 2; i++) {
        char text[200];
        const struct cuda_cpu run = {.b = &w->batch,
                                     .t = &truth->tensors,
                                     .p = p,
                                     .seed = seed + 17 * (uint64_t)i,
                                     .sm_count = SM_COUNT,
                                     .replays = 1 + i};
        assert_int_equal(result_create(&w->batch, w->layout.o, &r[i], &why), STATUS_OK);
        result_poison(&r[i]);
        if (!cuda_cpu_run(&run, &r[i], text, sizeof text)) fail_msg("%s, %s: %s", who, w->name, text);
    }
    const struct comparison c = compare_result(&w->batch, &r[0], &truth->oracle, &truth->model);
    if (!c.ok)
        fail_msg("%s, %s: row %lld dim %d: got %.9g, want %.9g (within %.2g)", who, w->name,
                 (long long)c.bad_row, c.bad_dim, c.got, c.want, c.bound);
    if (memcmp(r[0].o, r[1].o, r[0].o_elements * sizeof *r[0].o) != 0 ||
        memcmp(r[0].lse, r[1].lse, r[0].n_rows * sizeof *r[0].lse) != 0)
        fail_msg("%s, %s: other bits under another order of CTAs", who, w->name);
    result_free(&r[0]);
    result_free(&r[1]);
}

/* Every stride-th policy, from `first` on; returns plans run. */
static int32_t run_policies(const struct workload *w, int32_t first, int32_t stride, uint64_t seed)
{
    struct machine m;
    struct truth truth;
    struct why why = {""};
    int32_t n = 0;
    test_machine(w, &m);
    if (truth_create(w, &truth, &why) != STATUS_OK) fail_msg("%s: %s", w->name, why.text);
    truth_set_numerics(w, numerics_of(NUMERICS_DEVICE, &w->batch), &truth);
    for (int32_t i = first % stride; i < policy_count(); i += stride) {
        struct plan p = {0};
        if (!make_plan(w, &m, policy_at(i), (seed + (uint64_t)i) % 2 ? "last" : "grid", &p)) continue;
        run_twice(w, &truth, &p, seed, policy_at(i)->name);
        plan_free(&p);
        n++;
    }
    truth_free(&truth);
    return n;
}

/* Seeds whose batches are small enough for fibers, one after the other. */
static void test_whole_plans_on_random_batches(void **state)
{
    int32_t plans = 0;
    uint64_t seed = FIRST_SEED;
    (void)state;
    for (uint64_t done = 0; done < n_batches(); seed++) {
        struct workload w;
        random_batch(seed, fiber_pairs, &w);
        if (cost_batch_flops(&w.batch) <= fiber_flops) {
            plans += run_policies(&w, 0, 1, seed);
            done++;
        }
        workload_free(&w);
    }
    print_message("%d plans of %llu batches, up to seed %llu\n", plans, (unsigned long long)n_batches(),
                  (unsigned long long)seed - 1);
}

/* Does the plan have a CTA whose lanes (POD-Attention's virtual CTAs) hold more than one item? */
static bool has_lanes(const struct plan *p)
{
    for (int32_t i = 0; i < p->n_grids; i++) {
        const struct grid *g = &p->grids[i];
        const int32_t *list = p->list_indptr + g->list_begin;
        for (int32_t role = 0; g->dispatch == DISPATCH_SM_TICKET && role < 2; role++)
            if (kernel_role_lanes(kernel_row((enum kernel_id)g->kernel), role == WORK_DECODE) > 1 &&
                list[role + 1] - list[role] > 1)
                return true;
    }
    return false;
}

/* Does a row of a merge have a source that sees none of its keys (LSE = -inf), by the plan's items? */
static bool has_blind_source(const struct plan *p, const struct batch *b)
{
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
        for (int32_t row = item->row_begin; item->partial >= 0 && row < item->row_end; row++) {
            const struct row_ref at = plan_row(p, b, item->group, item->kv_head, order, row);
            const struct range seen = batch_visible(b, at.request, at.token);
            if (seen.begin >= item->kv_end || seen.end <= item->kv_begin) return true;
        }
    }
    return false;
}

/* Batches chosen to reach what random ones may miss: CTAs of several lanes, parts that saw nothing. */
static void test_whole_plans_on_chosen_batches(void **state)
{
    static const int32_t decodes[][2] = {{20, 40}, {1, 16}, {1, 9}, {1, 23}, {1, 16}, {1, 5}, {1, 30}};
    static const int32_t split[][2] = {{60, 300}, {1, 270}, {1, 40}};
    static const struct {
        const int32_t (*lengths)[2];
        int32_t n;
    } chosen[] = {{decodes, 7}, {split, 3}};
    bool lanes = false, blind = false;
    (void)state;
    for (size_t k = 0; k < sizeof chosen / sizeof chosen[0]; k++) {
        struct workload_params params = workload_default_params();
        struct workload w;
        struct machine m;
        struct why why = {""};
        int32_t qo_len[8], kv_len[8];
        params.shape.num_qo_heads = 2;
        params.shape.num_kv_heads = 1;
        params.shape.head_dim_qk = params.shape.head_dim_vo = 16;
        for (int32_t r = 0; r < chosen[k].n; r++) {
            qo_len[r] = chosen[k].lengths[r][0];
            kv_len[r] = chosen[k].lengths[r][1];
        }
        assert_int_equal(workload_from_lengths(qo_len, kv_len, chosen[k].n, &params, &w, &why), STATUS_OK);
        assert_int_equal(workload_finish(&w, &why), STATUS_OK);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan p = {0};
            if (!make_plan(&w, &m, policy_at(i), "grid", &p)) continue;
            lanes |= has_lanes(&p);
            blind |= has_blind_source(&p, &w.batch);
            plan_free(&p);
        }
        run_policies(&w, 0, 1, k);
        workload_free(&w);
    }
    assert_true(lanes && blind);
}

/* The same lengths, divided by n, pages anew. */
static void shrink(struct workload *w, int32_t n)
{
    const int32_t requests = w->batch.n_requests;
    int32_t *qo_len = malloc(((size_t)requests + 1) * sizeof *qo_len),
            *kv_len = malloc(((size_t)requests + 1) * sizeof *kv_len);
    struct workload_params p = workload_default_params();
    struct workload small;
    struct why why = {""};
    p.shape = w->batch.shape;
    p.mask = w->batch.mask;
    p.mask.custom = NULL;
    p.mask.sink = NULL;
    p.page_size = w->batch.kv.page_size;
    for (int32_t r = 0; r < requests; r++) {
        qo_len[r] = (batch_qo_len(&w->batch, r) + n - 1) / n;
        kv_len[r] = (w->kv_len[r] + n - 1) / n;
    }
    assert_int_equal(workload_from_lengths(qo_len, kv_len, requests, &p, &small, &why), STATUS_OK);
    assert_int_equal(workload_finish(&small, &why), STATUS_OK);
    snprintf(small.name, sizeof small.name, "%.40s / %d", w->name, n);
    workload_free(w);
    *w = small;
    free(qo_len);
    free(kv_len);
}

static void test_whole_plans_on_public_bugs(void **state)
{
    static const char path[] = "../shared/cases/public_bugs.jsonl";
    struct workload_reader *reader;
    struct why why = {""};
    int32_t plans = 0, cases = 0;
    (void)state;
    if (access(path, R_OK) != 0) {
        print_message("skipped: no corpus of public bugs beside this checkout\n");
        skip();
    }
    assert_int_equal(workload_reader_open(path, true, &reader, &why), STATUS_OK);
    for (;; cases++) {
        struct workload w;
        bool done = false;
        if (workload_reader_next(reader, &w, &done, &why) != STATUS_OK) fail_msg("%s", why.text);
        if (done) break;
        for (int32_t n = 2; cost_batch_flops(&w.batch) > 1e7 && n <= 64; n *= 2)
            shrink(&w, n);
        /* about a third of the policies each, fewer of the larger ones */
        const double flops = cost_batch_flops(&w.batch);
        plans += run_policies(&w, cases, flops > 3e6 ? 9 : flops > 1e6 ? 6 : 3, (uint64_t)cases);
        workload_free(&w);
    }
    workload_reader_close(reader);
    print_message("%d plans of %d cases\n", plans, cases);
    assert_true(plans > 0);
}

/* Quantiles lie between two values in proportion; one value is every quantile. */
static void test_quantiles(void **state)
{
    double five[] = {40, 10, 50, 20, 30}, two[] = {3, 1}, one[] = {7};
    (void)state;
    quantile_sort(five, 5);
    quantile_sort(two, 2);
    assert_true(five[0] == 10 && five[4] == 50);
    assert_true(quantile_of(five, 5, 0.5) == 30 && quantile_of(five, 5, 0) == 10 &&
                quantile_of(five, 5, 1) == 50);
    assert_true(fabs(quantile_of(five, 5, 0.1) - 14) < 1e-12 && quantile_of(two, 2, 0.5) == 2);
    assert_true(quantile_of(one, 1, 0.1) == 7 && quantile_of(one, 1, 1) == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_draws_under_any_order),
        cmocka_unit_test(test_last_arrivers),
        cmocka_unit_test(test_walks),
        cmocka_unit_test(test_merge_math),
        cmocka_unit_test(test_whole_plans_on_chosen_batches),
        cmocka_unit_test(test_whole_plans_on_random_batches),
        cmocka_unit_test(test_whole_plans_on_public_bugs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
