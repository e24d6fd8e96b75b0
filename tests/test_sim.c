/* The simulator against closed formulas and exact dispatch sequences. A toy GPU makes the numbers easy: 2
 * SMs, one 16-row decode CTA fits an SM twice; a CTA alone does 100 FLOP/ns, an SM 150, a CTA pulls 10
 * byte/ns, HBM gives 30. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/run.h"
#include "sched/cost.h"
#include "sched/plan_check.h"
#include "sim/occupancy.h"
#include "sim/residency.h"
#include "tests/random_batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define assert_near(got, want)                                                 \
    do {                                                                       \
        const double got_ = (got), want_ = (want);                             \
        if (!(fabs(got_ - want_) <= 1e-9 * fabs(want_)))                       \
            fail_msg("line %d: got %.12g, want %.12g", __LINE__, got_, want_); \
    } while (0)

#define K KERNEL_FA2_DECODE_16

static struct machine toy(void)
{
    struct machine m;
    memset(&m, 0, sizeof m);
    m.gpu = (struct gpu){.name = "toy",
                         .cc_major = 9,
                         .sm_count = 2,
                         .max_threads_per_sm = 2048,
                         .max_ctas_per_sm = 32,
                         .registers_per_sm = 65536,
                         .smem_per_sm_bytes = 233472,
                         .smem_optin_bytes = 232448,
                         .n_smem_sizes = 1,
                         .smem_sizes_bytes = {233472},
                         .barrier_factor = 2,
                         .peak_flops_per_ns = 1e6,
                         .peak_hbm_bytes_per_ns = 1e6,
                         .hbm_bytes_per_ns = 30,
                         .sm_bytes_per_ns = 1e6,
                         .memory_latency_ns = 1,
                         .l2_bytes = 1e9,
                         .launch_ns = 50,
                         .cta_start_ns = 7,
                         .cta_end_ns = 3,
                         .item_ns = 2};
    for (int k = 0; k < KERNEL_COUNT; k++)
        m.kernels.fit[k] = (struct kernel_fit){.tile_kv = 16,
                                               .smem_bytes = 1024,
                                               .ctas_per_sm = 2,
                                               .sm_flops_per_ns = 1e9,
                                               .cta_flops_per_ns = 1e9,
                                               .cta_bytes_per_ns = 10};
    return m;
}

/* n decodes of `keys` keys each, heads 4/1, head_dim 128: one item a request. */
static void decodes(const char *spec, struct workload *w)
{
    struct workload_params p = workload_default_params();
    struct why why = {""};
    p.shape.num_qo_heads = 4;
    p.shape.num_kv_heads = 1;
    if (workload_from_spec(spec, &p, w, &why) != STATUS_OK) fail_msg("%s", why.text);
}

static void add_decode(struct plan *p, const struct workload *w, int32_t r)
{
    const struct item item = {.group = r, .row_end = 4, .kv_end = w->kv_len[r], .partial = -1, .kernel = K};
    assert_int_equal(plan_add_item(p, &item), STATUS_OK);
}

/* One FIXED grid, one request a CTA. */
static void one_each(const struct workload *w, struct plan *p)
{
    plan_begin(p, &w->batch);
    assert_int_equal(plan_begin_grid(p, K, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    for (int32_t r = 0; r < w->batch.n_requests; r++) {
        add_decode(p, w, r);
        assert_int_equal(plan_end_list(p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(p, 0), STATUS_OK);
    plan_finish(p, &w->batch);
}

static struct sim_result simulate(const struct workload *w, const struct machine *m, const struct plan *p)
{
    struct sim_result r;
    struct why why = {""};
    const struct sim_options options = {.spans = true};
    if (sim_run(&w->batch, &m->gpu, &m->kernels, p, &options, &r, &why) != STATUS_OK)
        fail_msg("%s", why.text);
    return r;
}

/* Bytes of one decode of n keys: K and V 512 n, Q and O 4 x 512. */
static double decode_bytes(int32_t keys)
{
    return 512.0 * keys + 2048;
}

/* One CTA alone: start + bytes / its own rate + end. Compute-bound: start + FLOPs / rate + end. */
static void test_one_cta(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    decodes("q1s160", &w);
    one_each(&w, &p);
    struct sim_result r = simulate(&w, &m, &p);
    assert_near(r.makespan_ns, 7 + decode_bytes(160) / 10 + 3);
    assert_near(r.decode_end_ns, 7 + decode_bytes(160) / 10);
    assert_true(isnan(r.prefill_end_ns) && isnan(r.merge_end_ns));
    assert_near(r.hbm_bytes, decode_bytes(160));
    assert_near(r.sm_busy_frac, 0.5);
    sim_result_free(&r);
    m.kernels.fit[K].cta_flops_per_ns = 100; /* 10 tiles x 16 x 16 x 512 FLOP */
    m.kernels.fit[K].sm_flops_per_ns = 150;
    r = simulate(&w, &m, &p);
    assert_near(r.makespan_ns, 7 + 10 * 131072.0 / 100 + 3);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* HBM bound: n equal CTAs, all resident, share 30 byte/ns. 4 CTAs ask 40: time = total bytes / 30. */
static void test_saturated_bandwidth(void **state)
{
    struct workload w;
    struct plan p = {0};
    const struct machine m = toy();
    (void)state;
    decodes("4q1s160", &w);
    one_each(&w, &p);
    struct sim_result r = simulate(&w, &m, &p);
    assert_near(r.makespan_ns, 7 + 4 * decode_bytes(160) / 30 + 3);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* ... and when some end, the rest go faster: three short ones at 7.5 byte/ns, then the long one alone at
 * its 10. */
static void test_bandwidth_is_shared_anew(void **state)
{
    struct workload w;
    struct plan p = {0};
    const struct machine m = toy();
    (void)state;
    decodes("3q1s160_q1s320", &w);
    one_each(&w, &p);
    struct sim_result r = simulate(&w, &m, &p);
    assert_near(r.makespan_ns,
                7 + decode_bytes(160) / 7.5 + (decode_bytes(320) - decode_bytes(160)) / 10 + 3);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* Pipe bound: two CTAs on each SM want 100 of 150 FLOP/ns each: rate 3/4. Waves: 10 CTAs on 4 slots is 3
 * waves, the last of 2 CTAs, one an SM, at full speed. */
static void test_waves_share_the_pipe(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    m.kernels.fit[K].cta_flops_per_ns = 100;
    m.kernels.fit[K].sm_flops_per_ns = 150;
    m.gpu.hbm_bytes_per_ns = 1e6;
    m.kernels.fit[K].cta_bytes_per_ns = 1e6;
    decodes("10q1s160", &w);
    one_each(&w, &p);
    struct sim_result r = simulate(&w, &m, &p);
    const double alone = 1310720.0 / 100;
    assert_near(r.makespan_ns, 2 * (7 + alone * 4 / 3 + 3) + 7 + alone + 3);
    assert_int_equal(r.ctas, 10);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* A compute-bound CTA that asks HBM for little keeps its speed while streaming CTAs fill the memory: they
 * share what it leaves. 1 CTA of 1 byte/ns by its pipe, 3 streaming ones: (30 - 1) / 3 each. */
static void test_compute_bound_is_not_slowed(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    decodes("4q1s160", &w);
    one_each(&w, &p);
    m.gpu.hbm_bytes_per_ns = 20;
    m.kernels.fit[K].sm_flops_per_ns = 1e300; /* the streaming CTAs leave the pipe alone */
    const struct cost c = cost_rect(&w.batch.shape, &m.kernels, K, 4, 160, false);
    const double bytes = c.kv_bytes + c.row_bytes;
    /* request 0 becomes compute bound through the prefill row of the kernel table: same bytes, slower pipe */
    p.items[0].kernel = KERNEL_FA2_PREFILL_64;
    m.kernels.fit[KERNEL_FA2_PREFILL_64].cta_flops_per_ns =
        m.kernels.fit[KERNEL_FA2_PREFILL_64].sm_flops_per_ns = 10.0 * 64 * 16 * 512 / bytes;
    p.grids[0].kernel = KERNEL_FUSED_64_16;
    struct sim_result r = simulate(&w, &m, &p);
    assert_near(r.prefill_end_ns, 7 + bytes);             /* 1 byte/ns */
    assert_near(r.decode_end_ns, 7 + bytes / (19.0 / 3)); /* the others share 19 */
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* Exact order: which SM and slot each CTA of a tiny plan gets. Breadth first: 0 1 | 0 1, then whoever frees
 * first. */
static void test_fixed_dispatch_order(void **state)
{
    static const int32_t want_sm[] = {0, 1, 0, 1, 1, 0};
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    /* lengths: CTA 1 ends first (SM 1), then CTA 2 (SM 0) */
    decodes("q1s320_q1s32_q1s64_q1s320_2q1s320", &w);
    one_each(&w, &p);
    struct sim_result r = simulate(&w, &m, &p);
    for (int64_t i = 0; i < r.n_spans; i++)
        assert_int_equal(r.spans[i].sm, want_sm[r.spans[i].cta]);
    sim_result_free(&r);
    p.grids[0].remap = (struct remap){REMAP_DECODE_FIRST, 4, 2}; /* CTAs 0 and 1 take entries 4 and 5 */
    r = simulate(&w, &m, &p);
    for (int64_t i = 0; i < r.n_spans; i++)
        assert_int_equal(r.spans[i].item, remap_linear_bid(p.grids[0].remap, r.spans[i].cta).entry);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* QUEUE: 2 workers (one an SM) at home in queues 0 and 1, stealing allowed. Queue 0 holds one long item,
 * queue 1 three short ones and worker 1 then steals nothing: item order per worker is exact. */
static void test_queue_order(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    decodes("q1s64_4q1s16", &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, K, DISPATCH_QUEUE, 0, NULL), STATUS_OK);
    add_decode(&p, &w, 0);
    assert_int_equal(plan_end_list(&p), STATUS_OK);
    for (int32_t r = 1; r < 5; r++)
        add_decode(&p, &w, r);
    assert_int_equal(plan_end_list(&p), STATUS_OK);
    assert_int_equal(plan_set_home(&p, (int32_t[]){0, 1}, 2), STATUS_OK);
    assert_int_equal(plan_set_steal(&p, (int32_t[]){0, 1, 1, 0}, 2), STATUS_OK);
    assert_int_equal(plan_end_grid(&p, 2), STATUS_OK);
    plan_finish(&p, &w.batch);
    struct sim_result r = simulate(&w, &m, &p);
    /* long: 3481.6 ns, short: 1024 ns. Worker 1 does items 1, 2, 3 and takes 4 at 7 + 3 (1024 + 2) = 3085,
     * before worker 0 is free at 3488.6 */
    const double a = decode_bytes(64) / 10, b = decode_bytes(16) / 10;
    assert_near(r.makespan_ns, 7 + 4 * b + 3 * 2 + 3);
    for (int64_t i = 0; i < r.n_spans; i++)
        assert_int_equal(r.spans[i].cta, r.spans[i].item == 0 ? 0 : 1);
    assert_true(a > 3 * b);
    sim_result_free(&r);
    /* without a home of its own, queue 1 is stolen: worker 0 first does its own item */
    p.home[1] = 0;
    r = simulate(&w, &m, &p);
    assert_int_equal(r.spans[0].item, 0);
    assert_int_equal(r.spans[1].item, 1);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* SM_TICKET: 3 prefills and 5 decodes, cycle P D on each SM. First wave: each SM's first ticket is a prefill,
 * the second a decode; the fourth prefill ticket finds none left and takes a decode. Every item runs once. */
static void test_ticket_order(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    struct grid *g;
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    decodes("8q1s160", &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, KERNEL_FUSED_64_16, DISPATCH_SM_TICKET, 0, &g), STATUS_OK);
    for (int32_t r = 0; r < 8; r++) {
        add_decode(&p, &w, r);
        if (r < 3) p.items[r].kernel = KERNEL_FA2_PREFILL_64;
        if (r == 2) assert_int_equal(plan_end_list(&p), STATUS_OK);
    }
    assert_int_equal(plan_end_list(&p), STATUS_OK);
    assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
    plan_finish(&p, &w.batch);
    struct sim_result r = simulate(&w, &m, &p);
    static const int32_t want[4][2] = {{0, 0}, {1, 1}, {0, 3}, {1, 4}}; /* SM, item of CTAs 0..3 */
    for (int64_t i = 0; i < r.n_spans; i++)
        if (r.spans[i].cta < 4) {
            assert_int_equal(r.spans[i].sm, want[r.spans[i].cta][0]);
            assert_int_equal(r.spans[i].item, want[r.spans[i].cta][1]);
        }
    int seen[8] = {0};
    for (int64_t i = 0; i < r.n_spans; i++)
        seen[r.spans[i].item]++;
    for (int i = 0; i < 8; i++)
        assert_int_equal(seen[i], 1);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* Two grids: on one stream the second starts launch_ns after the first ended; on two streams it fills what is
 * left, but only once the first has nothing left to place. */
static void test_streams_and_leftovers(void **state)
{
    struct workload w;
    struct machine m = toy();
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    decodes("6q1s160", &w);
    const double item = decode_bytes(160) / 10, cta = 7 + item + 3;
    for (int32_t stream = 0; stream < 2; stream++) {
        struct plan p = {0};
        plan_begin(&p, &w.batch);
        for (int32_t r = 0; r < 6; r++) {
            if (r % 5 == 0)
                assert_int_equal(plan_begin_grid(&p, K, DISPATCH_FIXED, r ? stream : 0, NULL), STATUS_OK);
            add_decode(&p, &w, r);
            assert_int_equal(plan_end_list(&p), STATUS_OK);
            if (r >= 4) assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
        }
        plan_finish(&p, &w.batch);
        struct sim_result r = simulate(&w, &m, &p);
        /* first grid: 5 CTAs on 4 slots = 2 waves. Serial: + launch + 1. Streams: the sixth CTA runs beside
         * the fifth. */
        assert_near(r.makespan_ns, stream ? 2 * cta : 3 * cta + 50);
        sim_result_free(&r);
        plan_free(&p);
    }
    workload_free(&w);
}

/* Last-arriver merging appends the merge to the CTA that ends last, with no second launch. */
static void test_last_arriver(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    decodes("q1s160", &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, K, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    for (int32_t i = 0; i < 2; i++) {
        const struct item item = {.row_end = 4,
                                  .kv_begin = i ? 32 : 0,
                                  .kv_end = i ? 160 : 32,
                                  .partial = 4 * i,
                                  .kernel = K,
                                  .flags = ITEM_LAST_MERGES};
        assert_int_equal(plan_add_item(&p, &item), STATUS_OK);
        assert_int_equal(plan_end_list(&p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
    p.partial_rows = 8;
    assert_int_equal(plan_add_merge(&p, &(struct merge){0, 0, 0, 4, ROWS_TOKEN_MAJOR}, (int32_t[]){0, 4}, 2),
                     STATUS_OK);
    plan_finish(&p, &w.batch);
    struct sim_result r = simulate(&w, &m, &p);
    /* 128 keys as partials: 65536 + 4 x (256 + 516) bytes; merge: 4 x (2 x 516 + 256) bytes */
    assert_near(r.makespan_ns, 7 + (65536 + 3088) / 10.0 + 2 + 4 * (1032 + 256) / 10.0 + 3);
    assert_int_equal(r.n_spans, 3);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* All rates doubled and all overheads halved: exactly half the time, for every policy. */
static void test_scale_invariance(void **state)
{
    struct workload w;
    struct machine m, fast;
    struct why why = {""};
    (void)state;
    spec_batch("q300s2000_20q1s700_q1s9000", 16, &w);
    test_machine(&w, &m);
    fast = m;
    double *const rates[] = {&fast.gpu.hbm_bytes_per_ns, &fast.gpu.sm_bytes_per_ns,
                             &fast.gpu.peak_flops_per_ns, &fast.gpu.peak_hbm_bytes_per_ns};
    double *const delays[] = {&fast.gpu.launch_ns, &fast.gpu.cta_start_ns, &fast.gpu.cta_end_ns,
                              &fast.gpu.item_ns, &fast.gpu.memory_latency_ns};
    for (int i = 0; i < 4; i++)
        *rates[i] *= 2;
    for (int i = 0; i < 5; i++)
        *delays[i] /= 2;
    kernels_resolve(&fast.gpu, &w.batch.shape, &fast.kernels);
    for (int32_t i = 0; i < policy_count(); i++) {
        struct plan p = {0};
        assert_int_equal(policy_plan(policy_at(i), &w.batch, &m.gpu, &m.kernels, NULL, &p, &why), STATUS_OK);
        struct sim_result slow_r = simulate(&w, &m, &p), fast_r = simulate(&w, &fast, &p);
        assert_near(fast_r.makespan_ns, slow_r.makespan_ns / 2);
        sim_result_free(&slow_r);
        sim_result_free(&fast_r);
        plan_free(&p);
    }
    workload_free(&w);
}

/* Spans of one (SM, slot) never overlap, every item and merge has one, and none ends after the makespan. */
static void test_spans_are_lanes(void **state)
{
    struct workload w;
    struct machine m;
    struct why why = {""};
    (void)state;
    spec_batch("q700s3000_40q1s900_q1s30000", 16, &w);
    test_machine(&w, &m);
    for (int32_t i = 0; i < policy_count(); i++) {
        struct plan p = {0};
        double free_at[132][32] = {{0}};
        assert_int_equal(policy_plan(policy_at(i), &w.batch, &m.gpu, &m.kernels, NULL, &p, &why), STATUS_OK);
        struct sim_result r = simulate(&w, &m, &p);
        assert_int_equal(r.n_spans, p.n_items + p.n_merges);
        for (int64_t s = 0; s < r.n_spans; s++) {
            const struct span *x = &r.spans[s];
            assert_true(x->begin_ns >= free_at[x->sm][x->slot] && x->end_ns >= x->begin_ns &&
                        x->end_ns <= r.makespan_ns);
            free_at[x->sm][x->slot] = x->end_ns;
        }
        sim_result_free(&r);
        plan_free(&p);
    }
    workload_free(&w);
}

/* Policies in the order an H200 measured for FlashInfer's counterparts (sim/CALIBRATION.md, cases A, B, F):
 * for every pair more than 3 % apart. */
static void test_measured_order(void **state)
{
    static const char *const policies[] = {"serial", "streams", "fi_batch_pod", "unified"};
    static const struct {
        const char *spec;
        double measured_ms[4];
    } cases[] = {{"q512s4k_64q1s4k", {0.3267, 0.3173, 0.3020, 0.3695}},
                 {"q2ks8k_64q1s8k", {0.9750, 0.9247, 0.9219, 1.5447}},
                 {"q2ks8k_63q1s1k_q1s128k", {0.8054, 0.7837, 2.2747, 4.4831}}};
    (void)state;
    for (int c = 0; c < 3; c++) {
        struct workload w;
        struct machine m;
        struct why why = {""};
        double ns[4];
        spec_batch(cases[c].spec, 16, &w);
        test_machine(&w, &m);
        for (int i = 0; i < 4; i++) {
            struct plan p = {0};
            assert_int_equal(
                policy_plan(policy_find(policies[i]), &w.batch, &m.gpu, &m.kernels, NULL, &p, &why),
                STATUS_OK);
            struct sim_result r = simulate(&w, &m, &p);
            ns[i] = r.makespan_ns;
            sim_result_free(&r);
            plan_free(&p);
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                if (cases[c].measured_ms[i] > 1.03 * cases[c].measured_ms[j] && !(ns[i] > ns[j]))
                    fail_msg("%s: %s %.0f ns, %s %.0f ns: measured the other way", cases[c].spec, policies[i],
                             ns[i], policies[j], ns[j]);
        workload_free(&w);
    }
}

/* A kernel that cannot launch is said so, not simulated. */
static void test_unlaunchable(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    struct sim_result r;
    struct why why = {""};
    const struct sim_options options = {.spans = false};
    (void)state;
    decodes("q1s16", &w);
    one_each(&w, &p);
    m.kernels.fit[K].ctas_per_sm = 0;
    assert_int_equal(sim_run(&w.batch, &m.gpu, &m.kernels, &p, &options, &r, &why), STATUS_UNSUPPORTED);
    assert_non_null(strstr(why.text, "fa2_decode_16 cannot launch on toy"));
    plan_free(&p);
    workload_free(&w);
}

/* An SM_TICKET grid of n decodes on the kernel, no prefills. */
static void ticket_decodes(const struct workload *w, enum kernel_id fused, struct plan *p)
{
    struct grid *g;
    plan_begin(p, &w->batch);
    assert_int_equal(plan_begin_grid(p, fused, DISPATCH_SM_TICKET, 0, &g), STATUS_OK);
    assert_int_equal(plan_end_list(p), STATUS_OK);
    for (int32_t r = 0; r < w->batch.n_requests; r++) {
        const struct item item = {.group = r,
                                  .row_end = 4,
                                  .kv_end = w->kv_len[r],
                                  .partial = -1,
                                  .kernel = (uint16_t)kernel_row(fused)->fused_decode};
        assert_int_equal(plan_add_item(p, &item), STATUS_OK);
    }
    assert_int_equal(plan_end_list(p), STATUS_OK);
    assert_int_equal(plan_end_grid(p, 0), STATUS_OK);
    plan_finish(p, &w->batch);
}

/* Virtual CTAs: 8 decodes on a kernel with 4 lanes are 2 CTAs, one an SM, whose lanes run side by side: 8 x
 * 10 byte/ns of 30. One lane a CTA would be 8 CTAs in 2 rounds of 4. The ninth decode is a third CTA, beside
 * the first. */
static void test_virtual_ctas(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    (void)state;
    decodes("8q1s160", &w);
    ticket_decodes(&w, KERNEL_POD_2, &p);
    assert_int_equal(p.grids[0].n_ctas, 2);
    struct sim_result r = simulate(&w, &m, &p);
    assert_near(r.makespan_ns, 7 + 8 * decode_bytes(160) / 30 + 3);
    assert_int_equal(r.ctas, 2);
    for (int64_t i = 0; i < 8; i++) { /* by begin, SM, slot: four lanes of slot 0 on each */
        assert_int_equal(r.spans[i].sm, i / 4);
        assert_int_equal(r.spans[i].slot, i % 4);
    }
    sim_result_free(&r);
    workload_free(&w);
    decodes("9q1s160", &w);
    ticket_decodes(&w, KERNEL_POD_2, &p);
    r = simulate(&w, &m, &p);
    assert_int_equal(r.ctas, 3);
    assert_near(r.makespan_ns, 7 + 9 * decode_bytes(160) / 30 + 3);
    sim_result_free(&r);
    workload_free(&w);
    m.gpu.hbm_bytes_per_ns = 1e6; /* a CTA lasts as long as its longest lane: the others do not draw again */
    decodes("3q1s160_q1s1600_8q1s160", &w);
    ticket_decodes(&w, KERNEL_POD_2, &p);
    m.kernels.fit[KERNEL_POD_2].ctas_per_sm = 2;
    r = simulate(&w, &m, &p);
    assert_int_equal(r.ctas, 3);
    assert_near(r.makespan_ns, 7 + decode_bytes(1600) / 10 + 3);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* Halves side by side: a CTA of a BESIDE kernel lasts as long as its slower half, and frees its slot only
 * then. 3 CTAs on 2 SMs of one slot each: (160 | 320), (160 | 160), then (320 | none) on the SM that is free
 * first. */
static void test_beside(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct machine m = toy();
    static const int32_t lists[3][2] = {{0, 1}, {2, 3}, {4, -1}};
    const struct kernel *k = kernel_row(KERNEL_WARP_FUSED_128_64);
    (void)state;
    m.gpu.hbm_bytes_per_ns = 1e6;
    decodes("q1s160_q1s320_2q1s160_q1s320", &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, KERNEL_WARP_FUSED_128_64, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    for (int l = 0; l < 3; l++) {
        for (int half = 0; half < 2; half++) {
            if (lists[l][half] < 0) continue;
            for (int32_t row = 0; row < (half ? 1 : 4);
                 row++) { /* head-major rows cannot cross heads: one each */
                const int32_t request = lists[l][half];
                const struct item item = {.group = request,
                                          .row_begin = row,
                                          .row_end = half ? 4 : row + 1,
                                          .kv_end = w.kv_len[request],
                                          .partial = -1,
                                          .kernel = (uint16_t)(half ? k->fused_decode : k->fused_prefill)};
                assert_int_equal(plan_add_item(&p, &item), STATUS_OK);
            }
        }
        assert_int_equal(plan_end_list(&p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
    plan_finish(&p, &w.batch);
    struct why why = {""};
    if (plan_check(&p, &w.batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    struct sim_result r = simulate(&w, &m, &p);
    /* a prefill half is four items of one row, 2 ns apart; the others one item of four rows */
    const double row160 = (512.0 * 160 + 512) / 10, row320 = (512.0 * 320 + 512) / 10;
    const double first = 4 * row160 + 3 * 2, third = 4 * row320 + 3 * 2;
    const double slow_half = first > decode_bytes(320) / 10 ? first : decode_bytes(320) / 10;
    const double other = first > decode_bytes(160) / 10 ? first : decode_bytes(160) / 10;
    assert_near(r.makespan_ns, 7 + (slow_half < other ? slow_half : other) + 3 + 7 + third + 3);
    double ideal;
    assert_int_equal(cost_imbalance(&p, &w.batch, &m.gpu, &m.kernels, &ideal), STATUS_OK);
    assert_true(ideal >= 1);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

/* stop_ns gives up once simulated time is past it. */
static void test_stop(void **state)
{
    struct workload w;
    struct plan p = {0};
    const struct machine m = toy();
    struct sim_result r;
    struct why why = {""};
    (void)state;
    decodes("40q1s160", &w);
    one_each(&w, &p);
    r = simulate(&w, &m, &p);
    const double whole = r.makespan_ns;
    assert_false(r.stopped);
    assert_int_equal(r.items_done, 40);
    sim_result_free(&r);
    const struct sim_options half = {.stop_ns = whole / 2}, past = {.stop_ns = whole * 1.01};
    assert_int_equal(sim_run(&w.batch, &m.gpu, &m.kernels, &p, &half, &r, &why), STATUS_OK);
    assert_true(r.stopped && r.makespan_ns > whole / 2 && r.makespan_ns < whole && r.items_done < 40);
    sim_result_free(&r);
    assert_int_equal(sim_run(&w.batch, &m.gpu, &m.kernels, &p, &past, &r, &why), STATUS_OK);
    assert_true(!r.stopped && r.makespan_ns == whole);
    sim_result_free(&r);
    plan_free(&p);
    workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_cta),
        cmocka_unit_test(test_saturated_bandwidth),
        cmocka_unit_test(test_bandwidth_is_shared_anew),
        cmocka_unit_test(test_waves_share_the_pipe),
        cmocka_unit_test(test_compute_bound_is_not_slowed),
        cmocka_unit_test(test_fixed_dispatch_order),
        cmocka_unit_test(test_queue_order),
        cmocka_unit_test(test_ticket_order),
        cmocka_unit_test(test_streams_and_leftovers),
        cmocka_unit_test(test_last_arriver),
        cmocka_unit_test(test_scale_invariance),
        cmocka_unit_test(test_spans_are_lanes),
        cmocka_unit_test(test_measured_order),
        cmocka_unit_test(test_virtual_ctas),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_unlaunchable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
