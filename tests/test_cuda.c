/* The differential suite on the GPU that is here: every plan that is proved and simulated runs there and agrees with
 * the oracle. Says so and passes where the build has no kernels or the machine no GPU.
 *
 * TANDEM_CUDA_BATCHES: how many random batches (default 500); TANDEM_CUDA_FIRST: the first seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/device_run.h"
#include "sched/plan_check.h"
#include "tests/random_batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_BATCHES = 500, FIRST_SEED = 7000 };

static struct cuda_device *device;

static int open_device(void **state)
{
    struct why why = {""};
    (void)state;
    if (cuda_open(&device, &why) == STATUS_OK) return 0;
    printf("test_cuda: skipped: %s\n", why.text);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    cuda_close(device);
    return 0;
}

#define NEEDS_DEVICE() \
    do {               \
        (void)state;   \
        if (!device) { \
            skip();    \
            return;    \
        }              \
    } while (0)

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text && atoll(text) > 0 ? (uint64_t)atoll(text) : otherwise;
}

/* What every batch of a test needs. */
struct fixture {
    struct workload w;
    struct machine m;
    struct device_run run;
};

static void begin(struct fixture *f)
{
    struct why why = {""};
    test_machine(&f->w, &f->m);
    f->run = (struct device_run){.device = device};
    if (device_run_begin(&f->run, &f->w, &f->m, &why) != STATUS_OK) fail_msg("%s: %s", f->w.name, why.text);
}

static void begin_spec(struct fixture *f, const char *spec)
{
    spec_batch(spec, 16, &f->w);
    begin(f);
}

static void end(struct fixture *f)
{
    device_run_end(&f->run);
    workload_free(&f->w);
}

/* merge: NULL or a value of that option. false: the policy does not take this batch. */
static bool make_plan(const struct fixture *f, const struct policy *policy, const char *merge,
                      struct plan *plan)
{
    static const char *const name = "merge";
    const struct options options = {merge != NULL, &name, &merge};
    struct why why = {""};
    const enum status status =
        policy_plan(policy, &f->w.batch, &f->m.gpu, &f->m.kernels, &options, plan, &why);
    if (status != STATUS_OK && status != STATUS_UNSUPPORTED)
        fail_msg("%s, %s: %s", policy->name, f->w.name, why.text);
    if (status == STATUS_UNSUPPORTED) plan_free(plan);
    return status == STATUS_OK;
}

static void verify_or_fail(struct fixture *f, const struct plan *plan, const char *who, struct record *r)
{
    struct why why = {""};
    record_init(r, &f->w);
    record_set_text(r->policy, who);
    if (device_run_verify(&f->run, &f->w, &f->m, plan, r, &why) != STATUS_OK)
        fail_msg("%s, %s: %s", who, f->w.name, why.text);
}

/* ---- random batches ---------------------------------------------------------------------------------------------- */

/* Two batches of three are such as tensor cores take. The ladder: mostly the fastest there is, every fourth attn_1_naive. */
static void test_policies_on_random_batches(void **state)
{
    NEEDS_DEVICE();
    const uint64_t first = number_of("TANDEM_CUDA_FIRST", FIRST_SEED),
                   n = number_of("TANDEM_CUDA_BATCHES", DEFAULT_BATCHES);
    int64_t plans = 0, mma = 0;
    double of_bound = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        struct fixture f;
        if (isatty(2))
            fprintf(stderr, "\r%llu of %llu ", (unsigned long long)(seed - first), (unsigned long long)n);
        (seed % 3 ? random_tensor_core_batch : random_batch)(seed, seed % 50 == 0 ? 2e7 : 1e6, &f.w);
        begin(&f);
        f.run.ladder = seed % 4 == 3 ? CUDA_LADDER_NAIVE : CUDA_LADDER_BEST;
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            struct record r;
            if (!make_plan(&f, policy_at(i), seed % 2 ? "last" : "grid", &plan)) continue;
            verify_or_fail(&f, &plan, policy_at(i)->name, &r);
            const char *at = strstr(r.options, "of_bound=");
            if (at && atof(at + 9) > of_bound) of_bound = atof(at + 9);
            mma += strstr(r.options, "attn_2_mma") != NULL;
            plans++;
            plan_free(&plan);
        }
        end(&f);
    }
    printf("%llu batches from seed %llu, %lld plans (%lld with attn_2_mma): worst error %.2f of its bound\n",
           (unsigned long long)n, (unsigned long long)first, (long long)plans, (long long)mma, of_bound);
    assert_true(mma > 0);
}

/* ---- large batches: judged by attn_1_naive in full ------------------------------------------------------------------ */

static void test_large_batches(void **state)
{
    NEEDS_DEVICE();
    static const char *const specs[] = {"q512s4k_64q1s4k", "q17s10000_122q1s600", "q1ks16k_3q1s100", "q8k"};
    for (size_t k = 0; k < sizeof specs / sizeof specs[0]; k++) {
        struct fixture f;
        begin_spec(&f, specs[k]);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            struct record r;
            if (!make_plan(&f, policy_at(i), k % 2 ? "last" : "grid", &plan)) continue;
            verify_or_fail(&f, &plan, policy_at(i)->name, &r);
            plan_free(&plan);
        }
        assert_false(f.run.whole && k == 0);
        end(&f);
    }
}

/* ---- batch invariance --------------------------------------------------------------------------------------------- */

/* One request of a batch as a batch of its own: the same pages of the same pool. */
static void alone(const struct workload *all, int32_t request, struct workload *out)
{
    const int32_t qo_len = batch_qo_len(&all->batch, request), kv_len = all->kv_len[request];
    struct workload_params p = workload_default_params();
    struct why why = {""};
    p.shape = all->batch.shape;
    p.page_size = all->batch.kv.page_size;
    p.seed = all->seed;
    assert_int_equal(workload_from_lengths(&qo_len, &kv_len, 1, &p, out, &why), STATUS_OK);
    assert_int_equal(workload_assign_pages(out, p.seed, &why), STATUS_OK);
    memcpy(out->kv_indices, all->kv_indices + all->kv_indptr[request],
           (size_t)out->kv_indptr[1] * sizeof *out->kv_indices);
    out->batch.kv.num_pages = all->batch.kv.num_pages;
    snprintf(out->name, sizeof out->name, "request %d alone", request);
    assert_int_equal(batch_check(&out->batch, &why), STATUS_OK);
}

/* fixed_split promises the same bits for a request with and without batch-mates. */
static void test_batch_invariance(void **state)
{
    NEEDS_DEVICE();
    struct fixture f;
    struct plan plan = {0};
    struct record r;
    struct why why = {""};
    const struct policy *policy = policy_find("fixed_split");
    begin_spec(&f, "q300s5000_3q1s7000_q1s100_q40s2100");
    assert_true(make_plan(&f, policy, NULL, &plan));
    verify_or_fail(&f, &plan, policy->name, &r);
    struct result all = f.run.got;
    f.run.got = (struct result){0};
    plan_free(&plan);
    for (int32_t request = 0; request < f.w.batch.n_requests; request++) {
        struct fixture one;
        const size_t row = (size_t)f.w.qo_indptr[request] * (size_t)f.w.batch.shape.num_qo_heads,
                     dv = (size_t)f.w.batch.shape.head_dim_vo;
        alone(&f.w, request, &one.w);
        test_machine(&one.w, &one.m);
        one.run = (struct device_run){.device = device};
        /* the pool is the batch's; Q begins at the request's first row */
        struct truth truth = {.tensors = f.run.truth.tensors};
        const size_t skip_bytes = (size_t)f.w.qo_indptr[request] * (size_t)truth.tensors.q_stride.token * 2;
        truth.tensors.q = (char *)truth.tensors.q + skip_bytes;
        truth.tensors.q_bytes -= skip_bytes;
        assert_int_equal(oracle_result_create(&one.w.batch, &truth.oracle, &why), STATUS_OK);
        assert_int_equal(device_run_adopt(&one.run, &one.w, &truth, &why), STATUS_OK);
        assert_true(make_plan(&one, policy, NULL, &plan));
        const struct cuda_options options = {.kernels = &one.m.kernels};
        assert_int_equal(cuda_prepare(device, &plan, &options, &why), STATUS_OK);
        assert_int_equal(cuda_execute(device, one.run.got.o, one.run.got.lse, &why), STATUS_OK);
        if (memcmp(one.run.got.lse, all.lse + row, one.run.got.n_rows * sizeof *all.lse) != 0 ||
            memcmp(one.run.got.o, all.o + row * dv, one.run.got.n_rows * dv * sizeof *all.o) != 0)
            fail_msg("request %d: other bits without its batch-mates", request);
        plan_free(&plan);
        oracle_result_free(&truth.oracle);
        device_run_release(&one.run);
        workload_free(&one.w);
    }
    result_free(&all);
    end(&f);
}

/* ---- what ran is what was planned and simulated -------------------------------------------------------------------- */

static int by_work(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->is_merge != y->is_merge) return x->is_merge - y->is_merge;
    return x->grid != y->grid ? (x->grid > y->grid) - (x->grid < y->grid)
                              : (x->item > y->item) - (x->item < y->item);
}

/* The simulator's spans and the device's name the same items and merges of the same grids; of FIXED grids the same
 * CTAs. Spans of one lane do not overlap, SMs are real, a stream's grids follow each other. */
static void compare_spans(const struct fixture *f, const struct plan *plan, const char *who)
{
    struct sim_result s;
    struct span *got = NULL;
    int64_t n = 0, merged_by_items = 0;
    struct why why = {""};
    struct cuda_card card;
    const struct sim_options sim = {.spans = true};
    const struct cuda_options options = {.ladder = f->run.ladder, .spans = true, .kernels = &f->m.kernels};
    assert_int_equal(cuda_card(device, &card, &why), STATUS_OK);
    assert_int_equal(sim_run(&f->w.batch, &f->m.gpu, &f->m.kernels, plan, &sim, &s, &why), STATUS_OK);
    assert_int_equal(cuda_prepare(device, plan, &options, &why), STATUS_OK);
    assert_int_equal(cuda_execute(device, f->run.got.o, f->run.got.lse, &why), STATUS_OK);
    assert_int_equal(cuda_spans(device, &got, &n, &why), STATUS_OK);
    qsort(got, (size_t)n, sizeof *got, by_work);
    qsort(s.spans, (size_t)s.n_spans, sizeof *s.spans, by_work);
    int64_t k = 0;
    for (int64_t i = 0; i < s.n_spans; i++) {
        const struct span *want = &s.spans[i];
        const struct grid *g = &plan->grids[want->grid];
        if (k < n && got[k].is_merge == want->is_merge && got[k].grid == want->grid &&
            got[k].item == want->item) {
            if (g->dispatch == DISPATCH_FIXED && got[k].cta != want->cta)
                fail_msg("%s: item %d of grid %d ran on CTA %d, simulated on %d", who, want->item, want->grid,
                         got[k].cta, want->cta);
            if (got[k].sm < 0 || got[k].sm >= card.sm_count || !(got[k].end_ns >= got[k].begin_ns))
                fail_msg("%s: item %d: SM %d, %.0f to %.0f ns", who, want->item, got[k].sm, got[k].begin_ns,
                         got[k].end_ns);
            k++;
        } else {
            merged_by_items++; /* last arrivers merge within their items' spans on the device */
        }
    }
    if (k != n)
        fail_msg("%s: the device ran grid %d item %d, which was not simulated", who, got[k].grid,
                 got[k].item);
    int64_t in_grids = 0;
    for (int32_t g = 0; g < plan->n_grids; g++)
        if (plan->grids[g].kernel == KERNEL_MERGE)
            in_grids += plan->list_indptr[plan->grids[g].list_begin + plan->grids[g].n_lists] -
                        plan->list_indptr[plan->grids[g].list_begin];
    if (n != plan->n_items + in_grids)
        fail_msg("%s: %lld spans for %d items and %lld merges", who, (long long)n, plan->n_items,
                 (long long)in_grids);
    assert_int_equal(merged_by_items, s.n_spans - n);
    free(got);
    sim_result_free(&s);
}

static void test_spans_match_the_simulation(void **state)
{
    NEEDS_DEVICE();
    static const char *const specs[] = {"q700s3000_20q1s4000", "5q200s900_3q1s20000"};
    for (size_t k = 0; k < 2; k++) {
        struct fixture f;
        begin_spec(&f, specs[k]);
        for (int32_t i = 0; i < policy_count(); i++)
            for (int last = 0; last < 2; last++) {
                struct plan plan = {0};
                if (!make_plan(&f, policy_at(i), last ? "last" : "grid", &plan)) continue;
                compare_spans(&f, &plan, policy_at(i)->name);
                plan_free(&plan);
            }
        end(&f);
    }
}

/* ---- occupancy ----------------------------------------------------------------------------------------------------- */

/* CTAs an SM of every row of the kernel table: the simulator's number is the driver's. */
static void test_occupancy_is_the_drivers(void **state)
{
    NEEDS_DEVICE();
    static const int32_t dims[] = {64, 128, 256};
    for (size_t d = 0; d < 3; d++) {
        struct fixture f;
        spec_batch("q64_2q1s50", 16, &f.w);
        f.w.batch.shape.head_dim_qk = f.w.batch.shape.head_dim_vo = dims[d];
        test_machine(&f.w, &f.m);
        for (int row = 0; row < KERNEL_COUNT; row++) {
            struct cuda_row r;
            struct why why = {""};
            if (f.m.kernels.fit[row].ctas_per_sm == 0) continue; /* does not fit the GPU at this head size */
            const enum status status =
                cuda_row(device, (enum kernel_id)row, &f.w.batch.shape, &f.m.kernels, &r, &why);
            if (status != STATUS_OK)
                fail_msg("%s, head_dim %d: %s", kernel_row((enum kernel_id)row)->name, dims[d], why.text);
            if (r.ctas_per_sm != f.m.kernels.fit[row].ctas_per_sm)
                fail_msg("%s, head_dim %d: the driver fits %d CTAs of %s an SM (%d threads, %d registers, "
                         "%lld bytes), the "
                         "table says %d",
                         kernel_row((enum kernel_id)row)->name, dims[d], r.ctas_per_sm, r.kernel, r.threads,
                         r.registers, (long long)r.smem_bytes, f.m.kernels.fit[row].ctas_per_sm);
        }
        workload_free(&f.w);
    }
}

/* ---- hostile plans ------------------------------------------------------------------------------------------------- */

/* Each makes a good plan, or the batch below it, bad. */
static void item_past_rows(struct plan *p)
{
    p->items[0].row_end += 100000;
}
static void item_past_keys(struct plan *p)
{
    p->items[0].kv_end += 1 << 20;
}
static void item_of_nobody(struct plan *p)
{
    p->items[0].group = p->n_requests + 7;
}
static void overlapping_partials(struct plan *p)
{
    int32_t seen = -1;
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0) {
            if (seen >= 0) p->items[i].partial = p->items[seen].partial;
            seen = seen < 0 ? i : seen;
        }
}
static void partials_past_the_workspace(struct plan *p)
{
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0) p->items[i].partial += p->partial_rows;
}
static void small_workspace(struct plan *p)
{
    p->workspace_bytes /= 2;
}
static void missing_item(struct plan *p)
{
    p->items[0] = p->items[1];
}
static void too_many_ctas(struct plan *p)
{
    p->grids[0].n_ctas += 50;
}

static void test_hostile_plans_are_refused(void **state)
{
    NEEDS_DEVICE();
    static const struct {
        const char *what;
        void (*spoil)(struct plan *p);
    } faults[] = {{"rows out of range", item_past_rows},
                  {"keys out of range", item_past_keys},
                  {"a row group that is none", item_of_nobody},
                  {"overlapping partials", overlapping_partials},
                  {"partials past the workspace", partials_past_the_workspace},
                  {"a workspace too small", small_workspace},
                  {"an item that is missing", missing_item},
                  {"CTAs without lists", too_many_ctas}};
    struct fixture f;
    struct plan plan = {0};
    struct why why = {""};
    const struct cuda_options options = {.kernels = NULL};
    begin_spec(&f, "q300s5000_q1s30000");
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        assert_true(make_plan(&f, policy_find("fixed_split"), NULL, &plan));
        faults[i].spoil(&plan);
        const enum status status = cuda_prepare(device, &plan, &options, &why);
        if (status != STATUS_INVALID_PLAN || why.text[0] == 0)
            fail_msg("%s: status %d: %s", faults[i].what, status, why.text);
        /* nothing is there to launch */
        assert_int_equal(cuda_execute(device, f.run.got.o, f.run.got.lse, &why), STATUS_INTERNAL);
        plan_free(&plan);
    }
    end(&f);
}

/* Pages outside the pool, tensors too short, tensors larger than the device. */
static void test_hostile_batches_are_refused(void **state)
{
    NEEDS_DEVICE();
    struct fixture f;
    struct why why = {""};
    begin_spec(&f, "q30s500_q1s300");
    const struct tensors *t = &f.run.truth.tensors;
    const struct cuda_tensors good = {
        .q = t->q,
        .k = t->k,
        .v = t->v,
        .q_bytes = t->q_bytes,
        .k_bytes = t->k_bytes,
        .v_bytes = t->v_bytes,
        .q_stride = {t->q_stride.token, t->q_stride.head},
        .o_stride = {f.run.got.o_stride.token, f.run.got.o_stride.head},
        .k_stride = {t->k_stride.page, t->k_stride.pos, t->k_stride.head},
        .v_stride = {t->v_stride.page, t->v_stride.pos, t->v_stride.head},
        .o_elements = f.run.got.o_elements,
    };
    struct cuda_tensors bad = good;
    assert_int_equal(cuda_load(device, &f.w.batch, &good, &why), STATUS_OK);
    bad.k_bytes -= 2;
    assert_int_equal(cuda_load(device, &f.w.batch, &bad, &why), STATUS_BAD_INPUT);
    bad = good;
    bad.o_elements -= 1;
    assert_int_equal(cuda_load(device, &f.w.batch, &bad, &why), STATUS_BAD_INPUT);
    bad = good;
    bad.k_bytes = (size_t)1 << 44; /* never read: the device says no first */
    assert_int_equal(cuda_load(device, &f.w.batch, &bad, &why), STATUS_NO_MEMORY);
    assert_non_null(strstr(why.text, "do not fit the device"));
    const int32_t page = f.w.kv_indices[0];
    f.w.kv_indices[0] = f.w.batch.kv.num_pages + 3;
    assert_int_equal(cuda_load(device, &f.w.batch, &good, &why), STATUS_BAD_INPUT);
    f.w.kv_indices[0] = -4;
    assert_int_equal(cuda_load(device, &f.w.batch, &good, &why), STATUS_BAD_INPUT);
    f.w.kv_indices[0] = page;
    /* after all that the device still works */
    assert_int_equal(cuda_load(device, &f.w.batch, &good, &why), STATUS_OK);
    struct plan plan = {0};
    struct record r;
    assert_true(make_plan(&f, policy_find("unified"), NULL, &plan));
    verify_or_fail(&f, &plan, "unified", &r);
    plan_free(&plan);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_occupancy_is_the_drivers),
        cmocka_unit_test(test_hostile_plans_are_refused),
        cmocka_unit_test(test_hostile_batches_are_refused),
        cmocka_unit_test(test_spans_match_the_simulation),
        cmocka_unit_test(test_batch_invariance),
        cmocka_unit_test(test_policies_on_random_batches),
        cmocka_unit_test(test_large_batches),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
