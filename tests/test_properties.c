/* Properties that every registered policy must have, on seeded random ragged batches: the plan is proved, its
 * execution agrees with the oracle, thread counts and the order of requests do not matter, planning is a pure
 * function, and the simulator respects the floor. TANDEM_FUZZ_BATCHES sets how many batches (default 60). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/rng.h"
#include "lab/run.h"
#include "ref/ref_exec.h"
#include "sched/cost.h"
#include "sched/plan_check.h"
#include "tests/random_batch.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_BATCHES = 60, FIRST_SEED = 1000 };
static const double max_pairs = 2e7;

/* TANDEM_FUZZ_FIRST moves on where an earlier run ended. */
static uint64_t first_seed(void)
{
    const char *text = getenv("TANDEM_FUZZ_FIRST");
    return text && atoll(text) > 0 ? (uint64_t)atoll(text) : FIRST_SEED;
}

static uint64_t n_batches(void)
{
    const char *text = getenv("TANDEM_FUZZ_BATCHES");
    return text && atoi(text) > 0 ? (uint64_t)atoi(text) : DEFAULT_BATCHES;
}

/* Query-key pairs x heads a batch may have: mostly small ones, which find most, and now and then a large one; long
 * runs take ten times smaller ones. */
static double pairs_of(uint64_t seed)
{
    const double most = n_batches() > 10000 && seed % 1000 != 0 ? max_pairs / 10 : max_pairs;
    return seed % 100 == 0 ? most : seed % 10 == 0 ? most / 10 : most / 50;
}

/* One line on a terminal, and where a long run stands for whoever interrupts it. */
static void show_progress(uint64_t seed)
{
    const uint64_t done = seed - first_seed();
    if (done % 50 == 0 && isatty(2))
        fprintf(stderr, "\r%llu of %llu batches (TANDEM_FUZZ_FIRST=%llu goes on here) ",
                (unsigned long long)done, (unsigned long long)n_batches(), (unsigned long long)seed);
}

/* Planning that succeeds or fails the test with the reason. */
/* false: the policy's kernels do not take this head shape. */
static bool plan_or_skip(const struct policy *policy, const struct workload *w, const struct machine *m,
                         struct plan *plan)
{
    struct why why = {""};
    const int32_t dim = w->batch.shape.head_dim_qk;
    enum status status = policy_plan(policy, &w->batch, &m->gpu, &m->kernels, NULL, plan, &why);
    if (status == STATUS_UNSUPPORTED && dim > 128) {
        plan_free(plan);
        return false;
    }
    if (status == STATUS_OK) status = plan_check(plan, &w->batch, &why);
    if (status != STATUS_OK) fail_msg("%s, %s: %s", policy->name, w->name, why.text);
    return true;
}

static void execute_or_fail(const struct workload *w, const struct tensors *t, const struct plan *plan,
                            struct result *out)
{
    struct why why = {""};
    if (result_create(&w->batch, w->layout.o, out, &why) != STATUS_OK ||
        ref_exec(&w->batch, t, plan, NULL, out, &why) != STATUS_OK)
        fail_msg("%s: %s", w->name, why.text);
}

/* Plans agree byte for byte. */
static void assert_same_plan(const struct plan *a, const struct plan *b, const char *policy)
{
    const struct {
        const void *x, *y;
        int32_t nx, ny;
        size_t size;
    } arrays[] = {{a->grids, b->grids, a->n_grids, b->n_grids, sizeof *a->grids},
                  {a->items, b->items, a->n_items, b->n_items, sizeof *a->items},
                  {a->list_indptr, b->list_indptr, a->n_list_indptr, b->n_list_indptr, 4},
                  {a->merges, b->merges, a->n_merges, b->n_merges, sizeof *a->merges},
                  {a->merge_src, b->merge_src, a->n_merge_src, b->n_merge_src, 4}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (arrays[i].nx != arrays[i].ny ||
            (arrays[i].nx && memcmp(arrays[i].x, arrays[i].y, (size_t)arrays[i].nx * arrays[i].size) != 0))
            fail_msg("%s: planned twice, array %zu differs", policy, i);
}

/* Same bits on 1, 2 and 3 threads. */
static void check_threads(const struct workload *w, const struct tensors *t, const struct plan *plan,
                          const struct result *want, const char *policy)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct result r;
        omp_set_num_threads(threads);
        execute_or_fail(w, t, plan, &r);
        if (memcmp(r.o, want->o, r.o_elements * sizeof *r.o) != 0 ||
            memcmp(r.lse, want->lse, r.n_rows * sizeof *r.lse) != 0)
            fail_msg("%s, %s: other bits on %d threads", policy, w->name, threads);
        result_free(&r);
    }
}

/* Every numerics and instruction set within its own bound. */
static void check_numerics(const struct workload *w, struct truth *truth, const struct plan *plan,
                           const char *policy)
{
    static const char *const sets[] = {"base", "avx2", "avx512"};
    for (int kind = 0; kind < NUMERICS_COUNT; kind++)
        for (int set = 0; set < 3; set++) {
            struct result r;
            struct why why = {""};
            truth_set_numerics(w, numerics_of((enum numerics_kind)kind, &w->batch), truth);
            truth->exec.ops = vector_find(sets[set]);
            if (!truth->exec.ops || (kind == NUMERICS_EXACT && set > 0)) continue;
            assert_int_equal(result_create(&w->batch, w->layout.o, &r, &why), STATUS_OK);
            assert_int_equal(ref_exec(&w->batch, &truth->tensors, plan, &truth->exec, &r, &why), STATUS_OK);
            const struct comparison c = compare_result(&w->batch, &r, &truth->oracle, &truth->model);
            if (!c.ok)
                fail_msg("%s, %s, %s on %s: row %lld dim %d: got %.9g, want %.9g (within %.2g)", policy,
                         w->name, numerics_names[kind], sets[set], (long long)c.bad_row, c.bad_dim, c.got,
                         c.want, c.bound);
            result_free(&r);
        }
    truth_set_numerics(w, numerics_of(NUMERICS_FP32, &w->batch), truth);
}

static void check_simulation(const struct workload *w, const struct machine *m, const struct plan *plan,
                             const char *policy)
{
    struct sim_result s;
    struct why why = {""};
    const struct sim_options options = {.spans = true};
    const enum status status = sim_run(&w->batch, &m->gpu, &m->kernels, plan, &options, &s, &why);
    if (status == STATUS_UNSUPPORTED) return; /* a kernel too large for this head shape */
    if (status != STATUS_OK) fail_msg("%s, %s: %s", policy, w->name, why.text);
    const double limit_ns = cost_limit_ns(&w->batch, &m->gpu);
    if (plan->n_items && !(s.makespan_ns >= limit_ns))
        fail_msg("%s, %s: %.1f ns, below the floor of %.1f", policy, w->name, s.makespan_ns, limit_ns);
    if (!(s.hbm_bytes >= 0) || !(s.tensor_util <= 1) || !(s.hbm_util <= 1) || !(s.sm_busy_frac <= 1 + 1e-9))
        fail_msg("%s, %s: utilisations %g %g %g", policy, w->name, s.tensor_util, s.hbm_util, s.sm_busy_frac);
    assert_int_equal(s.n_spans, plan->n_items + plan->n_merges);
    sim_result_free(&s);
}

/* merge=last: no merge grid is left, every partial item merges, and not a bit of the results changes. */
static void check_merge_last(const struct workload *w, const struct machine *m, const struct policy *policy,
                             const struct plan *grid, const struct truth *truth, const struct result *want)
{
    static const char *const name = "merge", *const value = "last";
    const struct options options = {1, &name, &value};
    struct plan plan = {0};
    struct result r;
    struct why why = {""};
    const enum status status = policy_plan(policy, &w->batch, &m->gpu, &m->kernels, &options, &plan, &why);
    if (status != STATUS_UNSUPPORTED) {
        if (status != STATUS_OK || plan_check(&plan, &w->batch, &why) != STATUS_OK)
            fail_msg("%s, %s, merge=last: %s", policy->name, w->name, why.text);
        assert_int_equal(plan.n_items, grid->n_items);
        for (int32_t g = 0; g < plan.n_grids; g++)
            assert_int_not_equal(plan.grids[g].kernel, KERNEL_MERGE);
        execute_or_fail(w, &truth->tensors, &plan, &r);
        if (memcmp(r.o, want->o, r.o_elements * sizeof *r.o) != 0)
            fail_msg("%s, %s: merge=last: other bits", policy->name, w->name);
        result_free(&r);
        check_simulation(w, m, &plan, policy->name);
    }
    plan_free(&plan);
}

static void test_policies_on_random_batches(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed(); seed < first_seed() + n_batches(); seed++) {
        struct workload w;
        struct machine m;
        struct truth truth;
        struct why why = {""};
        show_progress(seed);
        random_batch(seed, pairs_of(seed), &w);
        test_machine(&w, &m);
        if (truth_create(&w, &truth, &why) != STATUS_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, why.text);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0}, again = {0};
            struct result r;
            if (!plan_or_skip(policy_at(i), &w, &m, &plan)) continue;
            plan_or_skip(policy_at(i), &w, &m, &again);
            assert_same_plan(&plan, &again, policy_at(i)->name);
            omp_set_num_threads(2);
            execute_or_fail(&w, &truth.tensors, &plan, &r);
            const struct comparison c = compare_result(&w.batch, &r, &truth.oracle, &truth.model);
            if (!c.ok)
                fail_msg("%s, seed %llu: row %lld dim %d: got %.9g, want %.9g (within %.2g)",
                         policy_at(i)->name, (unsigned long long)seed, (long long)c.bad_row, c.bad_dim, c.got,
                         c.want, c.bound);
            if (seed % 8 == 0) check_threads(&w, &truth.tensors, &plan, &r, policy_at(i)->name);
            if (seed % 4 == (uint64_t)i % 4) check_numerics(&w, &truth, &plan, policy_at(i)->name);
            check_simulation(&w, &m, &plan, policy_at(i)->name);
            if (plan.n_merges) check_merge_last(&w, &m, policy_at(i), &plan, &truth, &r);
            result_free(&r);
            plan_free(&again);
            plan_free(&plan);
        }
        truth_free(&truth);
        workload_free(&w);
    }
}

/* The batch with its requests in reverse order; pages keep their ids, so K and V are the same pools. */
static void reverse_requests(const struct workload *w, struct workload *out)
{
    const int32_t n = w->batch.n_requests;
    int32_t *qo_len = malloc(((size_t)n + 1) * sizeof *qo_len),
            *kv_len = malloc(((size_t)n + 1) * sizeof *kv_len);
    struct workload_params p = workload_default_params();
    struct why why = {""};
    p.shape = w->batch.shape;
    p.mask = w->batch.mask;
    p.page_size = w->batch.kv.page_size;
    p.seed = w->seed;
    for (int32_t r = 0; r < n; r++) {
        qo_len[r] = batch_qo_len(&w->batch, n - 1 - r);
        kv_len[r] = w->kv_len[n - 1 - r];
    }
    assert_int_equal(workload_from_lengths(qo_len, kv_len, n, &p, out, &why), STATUS_OK);
    assert_int_equal(workload_assign_pages(out, p.seed, &why), STATUS_OK);
    for (int32_t r = 0; r < n; r++)
        memcpy(out->kv_indices + out->kv_indptr[r], w->kv_indices + w->kv_indptr[n - 1 - r],
               (size_t)(w->kv_indptr[n - r] - w->kv_indptr[n - 1 - r]) * sizeof(int32_t));
    out->batch.kv.num_pages = w->batch.kv.num_pages;
    /* what is the same for all requests is borrowed */
    out->batch.rope = w->batch.rope;
    out->batch.k_scale = w->k_scale;
    out->batch.v_scale = w->v_scale;
    out->batch.mask.sink = w->sink;
    if (w->custom) {
        out->custom_indptr = malloc(((size_t)n + 1) * sizeof *out->custom_indptr);
        out->custom = malloc((size_t)w->custom_indptr[n] + 1);
        out->custom_indptr[0] = 0;
        for (int32_t r = 0; r < n; r++) {
            const int64_t from = w->custom_indptr[n - 1 - r], bytes = w->custom_indptr[n - r] - from;
            memcpy(out->custom + out->custom_indptr[r], w->custom + from, (size_t)bytes);
            out->custom_indptr[r + 1] = out->custom_indptr[r] + bytes;
        }
        out->batch.mask.custom = out->custom;
        out->batch.mask.custom_indptr = out->custom_indptr;
    }
    assert_int_equal(batch_check(&out->batch, &why), STATUS_OK);
    free(qo_len);
    free(kv_len);
}

/* Rows of each request moved to where the batch of opposite order has them; `row` bytes a token. */
static void reverse_rows(const struct workload *from, const struct workload *to, size_t row, const void *src,
                         void *dst)
{
    const int32_t n = from->batch.n_requests;
    for (int32_t r = 0; r < n; r++)
        memcpy((char *)dst + (size_t)to->qo_indptr[n - 1 - r] * row,
               (const char *)src + (size_t)from->qo_indptr[r] * row,
               (size_t)batch_qo_len(&from->batch, r) * row);
}

static void reverse_queries(const struct workload *w, const struct workload *rev, struct tensors *t)
{
    void *q = malloc(t->q_bytes + 1);
    reverse_rows(w, rev, (size_t)t->q_stride.token * (size_t)dtype_bytes(w->batch.shape.q_dtype), t->q, q);
    free(t->q);
    t->q = q;
}

/* Does a request get the same answer wherever it stands in the batch? */
static void test_order_of_requests_does_not_matter(void **state)
{
    (void)state;
    for (uint64_t seed = 500; seed < 500 + n_batches() / 20 + 1; seed++) {
        struct workload w, rev;
        struct machine m;
        struct truth truth;
        struct why why = {""};
        random_batch(seed, max_pairs / 20, &w);
        w.layout.q = w.layout.o = (struct row_stride){0, 0};
        test_machine(&w, &m);
        reverse_requests(&w, &rev);
        assert_int_equal(truth_create(&w, &truth, &why), STATUS_OK);
        reverse_queries(&w, &rev, &truth.tensors);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            struct result r, back;
            const size_t heads = (size_t)w.batch.shape.num_qo_heads;
            if (!plan_or_skip(policy_at(i), &rev, &m, &plan)) continue;
            execute_or_fail(&rev, &truth.tensors, &plan, &r);
            assert_int_equal(result_create(&w.batch, w.layout.o, &back, &why), STATUS_OK);
            reverse_rows(&rev, &w, heads * (size_t)r.head_dim_vo * sizeof *r.o, r.o, back.o);
            reverse_rows(&rev, &w, heads * sizeof *r.lse, r.lse, back.lse);
            const struct comparison c = compare_result(&w.batch, &back, &truth.oracle, &truth.model);
            if (!c.ok)
                fail_msg("%s, seed %llu: row %lld dim %d: got %.9g, want %.9g", policy_at(i)->name,
                         (unsigned long long)seed, (long long)c.bad_row, c.bad_dim, c.got, c.want);
            result_free(&back);
            result_free(&r);
            plan_free(&plan);
        }
        truth_free(&truth);
        workload_free(&rev);
        workload_free(&w);
    }
}

/* Batches too large to execute: planned and proved, with a sane imbalance. */
static void test_plans_of_large_batches(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed(); seed < first_seed() + n_batches() / 50 + 1; seed++) {
        struct workload w;
        struct machine m;
        random_large_batch(seed, &w);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            double imbalance;
            plan_or_skip(policy_at(i), &w, &m, &plan);
            assert_int_equal(cost_imbalance(&plan, &w.batch, &m.gpu, &m.kernels, &imbalance), STATUS_OK);
            if (!(imbalance >= 1 - 1e-9 || isnan(imbalance)))
                fail_msg("%s, %s: imbalance %g", policy_at(i)->name, w.name, imbalance);
            plan_free(&plan);
        }
        workload_free(&w);
    }
}

/* Nothing to do is a plan too: no requests, requests without rows. */
static void test_empty_batches(void **state)
{
    (void)state;
    static const int32_t zeros[3] = {0, 0, 0}, kv_len[3] = {5, 0, 40};
    for (int32_t n = 0; n <= 3; n += 3) {
        struct workload w;
        struct machine m;
        struct why why = {""};
        const struct workload_params p = workload_default_params();
        assert_int_equal(workload_from_lengths(zeros, kv_len, n, &p, &w, &why), STATUS_OK);
        assert_int_equal(workload_finish(&w, &why), STATUS_OK);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            plan_or_skip(policy_at(i), &w, &m, &plan);
            assert_int_equal(plan.n_items, 0);
            check_simulation(&w, &m, &plan, policy_at(i)->name);
            plan_free(&plan);
        }
        workload_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies_on_random_batches),
        cmocka_unit_test(test_plans_of_large_batches),
        cmocka_unit_test(test_order_of_requests_does_not_matter),
        cmocka_unit_test(test_empty_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
