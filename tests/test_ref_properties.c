/* Truths about attention that need no second implementation: weights sum to one, a shift of all scores changes nothing,
 * keys may be cut anywhere and merged, pages and stores are only places, bounds hold at the ends of the range, memory
 * does not grow with the context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/rng.h"
#include "lab/run.h"
#include "ref/convert.h"
#include "ref/oracle.h"
#include "tests/random_batch.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(enum status s, const struct why *why, const char *name)
{
    if (s != STATUS_OK) fail_msg("%s: %s", name, why->text);
}

static void create_truth(const struct workload *w, struct truth *t)
{
    struct why why = {""};
    must(truth_create(w, t, &why), &why, w->name);
}

/* All rows of every request and head in pieces of keys, cut at the places given (the same for all, clipped). */
static void make_plan(const struct batch *b, enum kernel_id kernel, const int32_t *cuts, int32_t n_cuts,
                      struct plan *p)
{
    struct why why = {""};
    const int32_t group = batch_group_size(b);
    plan_begin(p, b);
    must(plan_begin_grid(p, kernel, DISPATCH_FIXED, 0, NULL), &why, "grid");
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t head = 0; head < b->shape.num_kv_heads && batch_qo_len(b, r) > 0; head++) {
            const int32_t rows = batch_qo_len(b, r) * group;
            int32_t src[16];
            for (int32_t c = 0; c <= n_cuts; c++) {
                struct item item = {.group = r,
                                    .kv_head = (int16_t)head,
                                    .row_end = rows,
                                    .kv_begin = c ? clamp_i32(cuts[c - 1], 0, b->kv_len[r]) : 0,
                                    .kv_end = c < n_cuts ? clamp_i32(cuts[c], 0, b->kv_len[r]) : b->kv_len[r],
                                    .partial = -1,
                                    .kernel = (int16_t)kernel};
                if (n_cuts) must(plan_take_partials(p, rows, &src[c]), &why, "partials");
                if (n_cuts) item.partial = src[c];
                must(plan_add_item(p, &item), &why, "item");
                must(plan_end_list(p), &why, "list");
            }
            const struct merge m = {
                .request = r, .kv_head = head, .row_end = rows, .row_order = kernel_row(kernel)->row_order};
            if (n_cuts) must(plan_add_merge(p, &m, src, n_cuts + 1), &why, "merge");
        }
    must(plan_end_grid(p, 0), &why, "grid");
    plan_finish(p, b);
}

static void execute(const struct workload *w, const struct truth *t, const struct plan *p, struct result *r)
{
    struct why why = {""};
    must(result_create(&w->batch, w->layout.o, r, &why), &why, w->name);
    must(ref_exec(&w->batch, &t->tensors, p, &t->exec, r, &why), &why, w->name);
}

static void check_bound(const struct workload *w, const struct truth *t, const struct result *r,
                        const char *what)
{
    const struct comparison c = compare_result(&w->batch, r, &t->oracle, &t->model);
    if (!c.ok)
        fail_msg("%s, %s, %s: row %d dim %d: got %.9g, want %.9g (within %.2g)", w->name, what,
                 numerics_names[t->exec.numerics.kind], (int)c.bad_row, c.bad_dim, c.got, c.want, c.bound);
}

/* V = 1: O is the sum of the weights. With a sink it is what the sink leaves. */
static void test_weights_sum_to_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 15; seed++) {
        struct workload w;
        struct truth t;
        random_batch(seed, 1e6, &w);
        w.fill[2] = (struct fill){FILL_CONSTANT, 1};
        w.batch.mask.sink = NULL;
        w.batch.v_scale = NULL;
        if (w.batch.shape.kv_latent) w.batch.shape.kv_latent = false;
        create_truth(&w, &t);
        for (size_t row = 0; row < t.oracle.n_rows; row++)
            for (int32_t d = 0; d < t.oracle.head_dim_vo; d++) {
                const double o = t.oracle.o[row * (size_t)t.oracle.head_dim_vo + (size_t)d];
                if (!(fabs(o - (isinf(t.oracle.lse[row]) ? 0 : 1)) <= 1e-12))
                    fail_msg("%s: row %zu: weights sum to %.17g", w.name, row, o);
            }
        truth_free(&t);
        workload_free(&w);
    }
}

/* One more element of the head: 1 in Q, c in K. All scores rise by c: O stays, LSE rises by c. */
static void test_shifted_scores(void **state)
{
    static const float shifts[] = {0, -50, 80, 1000};
    struct workload_params p = workload_default_params();
    struct workload w;
    struct why why = {""};
    struct truth first;
    (void)state;
    p.shape = (struct shape){4, 2, 33, 16, DTYPE_FP32, DTYPE_FP32};
    p.mask.sm_scale = 1;
    must(workload_from_spec("q40s300_3q1s77", &p, &w, &why), &why, "spec");
    for (int i = 0; i < 4; i++) {
        struct truth t = {0};
        struct tensors x;
        must(tensors_create(&w.batch, &w.layout, w.fill, 3, &x, &why), &why, "tensors");
        for (size_t at = 32; at < x.q_bytes / 4; at += 33)
            ((float *)x.q)[at] = 1;
        for (size_t at = 32; at < x.k_bytes / 4; at += 33)
            ((float *)x.k)[at] = shifts[i];
        must(truth_adopt(&w, &x, &t, &why), &why, "truth");
        for (size_t row = 0; i && row < t.oracle.n_rows; row++) {
            assert_true(fabs(t.oracle.lse[row] - shifts[i] - first.oracle.lse[row]) < 1e-9);
            assert_true(fabs(t.oracle.o[row * 16 + 7] - first.oracle.o[row * 16 + 7]) < 1e-9);
        }
        for (int kind = 0; kind < NUMERICS_COUNT; kind++) {
            struct plan plan = {0};
            struct result r;
            truth_set_numerics(&w, numerics_of((enum numerics_kind)kind, &w.batch), &t);
            make_plan(&w.batch, KERNEL_FA2_PREFILL_64, NULL, 0, &plan);
            execute(&w, &t, &plan, &r);
            check_bound(&w, &t, &r, "shifted");
            result_free(&r);
            plan_free(&plan);
        }
        if (i)
            truth_free(&t);
        else
            first = t;
    }
    truth_free(&first);
    workload_free(&w);
}

/* Any cuts, equal ones and ones beyond the end included. */
static void test_cut_and_merge(void **state)
{
    struct rng r = {11};
    (void)state;
    for (uint64_t seed = 40; seed < 70; seed++) {
        struct workload w;
        struct truth t;
        random_batch(seed, 1e6, &w);
        create_truth(&w, &t);
        for (int kind = 0; kind < NUMERICS_COUNT; kind++) {
            struct plan plan = {0};
            struct result result;
            int32_t cuts[6];
            const int32_t n = (int32_t)rng_below(&r, 7);
            for (int32_t i = 0; i < n; i++)
                cuts[i] = (i ? cuts[i - 1] : 0) + (int32_t)rng_below(&r, 400);
            truth_set_numerics(&w, numerics_of((enum numerics_kind)kind, &w.batch), &t);
            make_plan(&w.batch, seed % 2 ? KERNEL_FA2_DECODE_16 : KERNEL_FA3_PREFILL_128, cuts, n, &plan);
            execute(&w, &t, &plan, &result);
            check_bound(&w, &t, &result, "cut");
            result_free(&result);
            plan_free(&plan);
        }
        truth_free(&t);
        workload_free(&w);
    }
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* Element d of K (V) of a key, the same whatever the store. */
static float value_of(int32_t tensor, int32_t request, int32_t key, int32_t head, int32_t d)
{
    struct rng r = {(uint64_t)tensor << 60 ^ (uint64_t)request << 48 ^ (uint64_t)key << 24 ^
                    (uint64_t)head << 16 ^ (uint64_t)d};
    return (float)(4 * rng_uniform(&r) - 2);
}

static void write_keys(const struct batch *b, struct tensors *t)
{
    const struct shape *s = &b->shape;
    for (int32_t r = 0; r < b->n_requests; r++)
        for (int32_t key = 0; key < b->kv_len[r]; key++)
            for (int32_t head = 0; head < s->num_kv_heads; head++) {
                const int32_t page = b->kv.kv_indices[b->kv.kv_indptr[r] + key / b->kv.page_size],
                              pos = key % b->kv.page_size;
                for (int32_t d = 0; d < s->head_dim_qk; d++)
                    convert_store(s->kv_dtype, value_of(0, r, key, head, d), t->k,
                                  tensor_kv_at(t->k_stride, page, pos, head) + (size_t)d);
                for (int32_t d = 0; d < s->head_dim_vo; d++)
                    convert_store(s->kv_dtype, value_of(1, r, key, head, d), t->v,
                                  tensor_kv_at(t->v_stride, page, pos, head) + (size_t)d);
            }
}

/* The same plan over the same numbers in other places gives the same bits: every page size, layout and store, every
 * type, numerics and instruction set. */
static void test_places_do_not_matter(void **state)
{
    static const struct {
        int32_t page_size;
        enum layout order;
        enum kv_store store;
    } places[] = {{16, LAYOUT_NHD, KV_SEPARATE},    {1, LAYOUT_NHD, KV_SEPARATE},
                  {5, LAYOUT_HND, KV_SEPARATE},     {64, LAYOUT_HND, KV_SEPARATE},
                  {16, LAYOUT_NHD, KV_INTERLEAVED}, {3, LAYOUT_HND, KV_INTERLEAVED},
                  {1, LAYOUT_NHD, KV_RAGGED},       {1, LAYOUT_HND, KV_RAGGED}};
    static const char *const sets[] = {"base", "avx2", "avx512"};
    static const int32_t cuts[] = {130, 300};
    struct why why = {""};
    (void)state;
    for (int type = 0; type < DTYPE_COUNT; type++) {
        struct result first[9] = {{0}};
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            struct workload_params p = workload_default_params();
            struct workload w;
            struct tensors t;
            p.shape = (struct shape){6, 2, 40, 24, DTYPE_FP16, (enum dtype)type};
            p.page_size = places[i].page_size;
            p.layout = (struct tensor_layout){.order = places[i].order, .store = places[i].store};
            must(workload_from_spec("q70s400_3q1s211_q3s3", &p, &w, &why), &why, "spec");
            must(tensors_create(&w.batch, &w.layout, w.fill, 9, &t, &why), &why, "tensors");
            write_keys(&w.batch, &t);
            for (int run = 0; run < 9; run++) {
                struct exec_options o = {numerics_of((enum numerics_kind)(run / 3), &w.batch),
                                         vector_find(sets[run % 3])};
                struct result r;
                struct plan plan = {0};
                if (!o.ops) continue;
                make_plan(&w.batch, KERNEL_FA2_PREFILL_64, cuts, run % 2 ? 2 : 0, &plan);
                must(result_create(&w.batch, w.layout.o, &r, &why), &why, "result");
                must(ref_exec(&w.batch, &t, &plan, &o, &r, &why), &why, "exec");
                if (i == 0) {
                    first[run] = r;
                } else {
                    if (memcmp(first[run].o, r.o, r.o_elements * sizeof *r.o) != 0 ||
                        memcmp(first[run].lse, r.lse, r.n_rows * sizeof *r.lse) != 0)
                        fail_msg("place %zu, %s, %s, %s: other bits", i, dtype_name((enum dtype)type),
                                 sets[run % 3], numerics_names[o.numerics.kind]);
                    result_free(&r);
                }
                plan_free(&plan);
            }
            tensors_free(&t);
            workload_free(&w);
        }
        for (int run = 0; run < 9; run++)
            result_free(&first[run]);
    }
}

/* ---- masks that say the same ------------------------------------------------------------------------------------ */

static void run_both(const struct workload *a, const struct workload *b, bool same_bits)
{
    struct truth ta, tb;
    create_truth(a, &ta);
    create_truth(b, &tb);
    assert_memory_equal(ta.oracle.lse, tb.oracle.lse, ta.oracle.n_rows * sizeof(double));
    assert_memory_equal(ta.oracle.o, tb.oracle.o,
                        ta.oracle.n_rows * (size_t)ta.oracle.head_dim_vo * sizeof(double));
    struct plan pa = {0}, pb = {0};
    struct result ra, rb;
    make_plan(&a->batch, KERNEL_FA2_PREFILL_64, NULL, 0, &pa);
    make_plan(&b->batch, KERNEL_FA2_PREFILL_64, NULL, 0, &pb);
    execute(a, &ta, &pa, &ra);
    execute(b, &tb, &pb, &rb);
    check_bound(a, &ta, &ra, "one way");
    check_bound(b, &tb, &rb, "the other way");
    if (same_bits) assert_memory_equal(ra.o, rb.o, ra.o_elements * sizeof(float));
    result_free(&ra);
    result_free(&rb);
    plan_free(&pa);
    plan_free(&pb);
    truth_free(&ta);
    truth_free(&tb);
}

static void set_bits(struct workload *w, bool causal)
{
    const int32_t n = w->batch.n_requests;
    int64_t bytes = 0;
    w->custom_indptr = calloc((size_t)n + 1, sizeof *w->custom_indptr);
    for (int32_t r = 0; r < n; r++) {
        bytes += ((int64_t)batch_qo_len(&w->batch, r) * w->kv_len[r] + 7) / 8;
        w->custom_indptr[r + 1] = bytes;
    }
    w->custom = calloc((size_t)bytes + 1, 1);
    for (int32_t r = 0; r < n; r++)
        for (int32_t row = 0; row < batch_qo_len(&w->batch, r); row++)
            for (int32_t key = 0; key < w->kv_len[r]; key++) {
                const int64_t bit = (int64_t)row * w->kv_len[r] + key;
                if (!causal || key <= semantics_position(&w->batch, r, row))
                    w->custom[w->custom_indptr[r] + bit / 8] |= (uint8_t)(1 << bit % 8);
            }
    workload_link(w);
}

/* A window wider than all is no window; all bits set is no mask; causal written in bits is causal. */
static void test_masks_that_say_the_same(void **state)
{
    struct workload a, b;
    (void)state;
    spec_batch("q70s400_5q1s211_q30s10", 16, &a);
    spec_batch("q70s400_5q1s211_q30s10", 16, &b);
    b.batch.mask.window_left = 100000;
    run_both(&a, &b, true);
    b.batch.mask.window_left = -1;
    set_bits(&b, false);
    run_both(&a, &b, false);
    workload_free(&b);
    spec_batch("q70s400_5q1s211_q30s10", 16, &b);
    set_bits(&b, true);
    b.batch.mask.causal = false;
    run_both(&a, &b, false);
    workload_free(&a);
    workload_free(&b);
}

/* ---- ends of the range ------------------------------------------------------------------------------------------- */

/* Tiny and huge numbers, equal ones, long contexts: never beyond the bound. */
static void test_bounds_at_the_ends(void **state)
{
    static const struct {
        const char *spec;
        struct fill q, k, v;
    } cases[] = {
        {"q9s300_4q1s500", {FILL_NORMAL, 1e-4}, {FILL_NORMAL, 1e-4}, {FILL_NORMAL, 1}},
        {"q9s300_4q1s500", {FILL_NORMAL, 10}, {FILL_NORMAL, 10}, {FILL_NORMAL, 1}},
        {"q9s300_4q1s500", {FILL_NORMAL, 100}, {FILL_NORMAL, 100}, {FILL_NORMAL, 100}},
        {"q9s300_4q1s500", {FILL_CONSTANT, 64}, {FILL_CONSTANT, -64}, {FILL_NORMAL, 1}},
        {"q9s300_4q1s500", {FILL_CONSTANT, 0}, {FILL_NORMAL, 1}, {FILL_CONSTANT, 1}},
        {"q9s300_4q1s500", {FILL_CONSTANT, 0.3}, {FILL_CONSTANT, 0.7}, {FILL_CONSTANT, 1.1}},
        {"2q1s100k", {FILL_NORMAL, 1}, {FILL_NORMAL, 1}, {FILL_NORMAL, 1}},
        {"2q1s100k", {FILL_CONSTANT, 0.3}, {FILL_CONSTANT, 0.7}, {FILL_CONSTANT, 1.1}},
        {"2q1s100k", {FILL_NORMAL, 1}, {FILL_NORMAL, 1}, {FILL_CONSTANT, 1}},
        {"q30s20k", {FILL_NORMAL, 3}, {FILL_NORMAL, 3}, {FILL_NORMAL, 1}},
    };
    struct why why = {""};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int type = 0; type < DTYPE_COUNT; type++) {
            struct workload_params p = workload_default_params();
            struct workload w;
            struct truth t;
            const enum dtype q = type <= DTYPE_BF16 ? (enum dtype)type : DTYPE_BF16;
            p.shape = (struct shape){4, 1, 64, 64, q, (enum dtype)type};
            must(workload_from_spec(cases[i].spec, &p, &w, &why), &why, "spec");
            w.fill[0] = cases[i].q, w.fill[1] = cases[i].k, w.fill[2] = cases[i].v;
            create_truth(&w, &t);
            for (int kind = 0; kind < NUMERICS_COUNT; kind++)
                for (int way = 0; way < (kind == NUMERICS_DEVICE ? 4 : 1); way++) {
                    struct plan plan = {0};
                    struct result r;
                    struct numerics n = numerics_of((enum numerics_kind)kind, &w.batch);
                    if (way >= 2) n.p_dtype = way == 2 ? DTYPE_FP8_E4M3 : DTYPE_FP8_E5M2;
                    if (way > 0) n.o_dtype = DTYPE_FP32; /* O's own rounding would hide that of P */
                    truth_set_numerics(&w, n, &t);
                    if (way == 1) t.exec.ops = vector_find("base");
                    make_plan(&w.batch, i % 2 ? KERNEL_FA2_DECODE_16 : KERNEL_FA2_PREFILL_128, NULL, 0,
                              &plan);
                    execute(&w, &t, &plan, &r);
                    check_bound(&w, &t, &r, cases[i].spec);
                    result_free(&r);
                    plan_free(&plan);
                }
            truth_free(&t);
            workload_free(&w);
        }
}

/* `device` really rounds: against the bound of fp32 it is out, against its own within. */
static void test_device_rounds(void **state)
{
    struct workload w;
    struct truth t;
    struct plan plan = {0};
    struct result r;
    (void)state;
    spec_batch("q64s500_4q1s900", 16, &w);
    create_truth(&w, &t);
    const struct error_model fp32 = t.model;
    truth_set_numerics(&w, numerics_of(NUMERICS_DEVICE, &w.batch), &t);
    make_plan(&w.batch, KERNEL_FA2_PREFILL_64, NULL, 0, &plan);
    execute(&w, &t, &plan, &r);
    check_bound(&w, &t, &r, "device");
    const struct comparison c = compare_result(&w.batch, &r, &t.oracle, &fp32);
    assert_false(c.ok);
    for (size_t i = 0; i < r.n_rows * 128; i++) /* O is what bf16 can hold */
        assert_true(convert_bf16_to_float(convert_float_to_bf16(r.o[i])) == r.o[i]);
    assert_true(c.max_err_o < 1e-2 && c.max_err_o > 1e-5);
    result_free(&r);
    plan_free(&plan);
    truth_free(&t);
    workload_free(&w);
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* A line of /proc/self/status in KiB; -1 where there is none. */
static long status_kib(const char *key)
{
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = atol(line + strlen(key));
    if (f) fclose(f);
    return kib;
}

/* Peak beyond inputs and outputs, MiB; runs in a process of its own. */
static int measure_memory(void)
{
    struct workload w;
    struct machine m;
    struct tensors t;
    struct plan plan = {0};
    struct result r;
    struct why why = {""};
    struct workload_params p = workload_default_params();
    if (workload_from_spec("q256s100k_q1s100k", &p, &w, &why) != STATUS_OK) return 250;
    test_machine(&w, &m);
    if (tensors_create(&w.batch, &w.layout, w.fill, 1, &t, &why) != STATUS_OK ||
        result_create(&w.batch, w.layout.o, &r, &why) != STATUS_OK ||
        policy_plan(policy_find("page_aware"), &w.batch, &m.gpu, &m.kernels, NULL, &plan, &why) != STATUS_OK)
        return 250;
    FILE *reset = fopen("/proc/self/clear_refs", "w"); /* 5: the peak counts from now */
    if (!reset || fputs("5", reset) < 0 || fclose(reset) != 0) return 251;
    const long before = status_kib("VmRSS:");
    if (ref_exec(&w.batch, &t, &plan, NULL, &r, &why) != STATUS_OK) return 250;
    const long peak = status_kib("VmHWM:") - before;
    return (int)(peak / 1024 < 249 ? peak / 1024 : 249);
}

/* 100k keys of K and V are 800 MiB; an execution adds tiles and the plan's partial rows. */
static void test_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
    skip(); /* (clang: its own names for sanitizers) */
#endif
    if (status_kib("VmHWM:") < 0 || access("/proc/self/clear_refs", W_OK) != 0) skip();
    fflush(NULL);
    const pid_t child = fork();
    int how = 0;
    if (child == 0) {
        omp_set_num_threads(1); /* no threads cross a fork */
        _exit(measure_memory());
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == 251) skip();
    if (WEXITSTATUS(how) >= 64) fail_msg("%d MiB beyond inputs and outputs", WEXITSTATUS(how));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory), /* first: before OpenMP has threads */
        cmocka_unit_test(test_weights_sum_to_one),
        cmocka_unit_test(test_shifted_scores),
        cmocka_unit_test(test_cut_and_merge),
        cmocka_unit_test(test_places_do_not_matter),
        cmocka_unit_test(test_masks_that_say_the_same),
        cmocka_unit_test(test_bounds_at_the_ends),
        cmocka_unit_test(test_device_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
