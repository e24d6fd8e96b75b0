/* The reference against hand-made tables: conversions over all codes, tiny attention worked out by hand,
 * OpenBLAS against a naive loop, and a comparison that cannot be fooled by NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/run.h"
#include "ref/convert.h"
#include "ref/oracle.h"
#include "ref/ref_exec.h"
#include "ref/semantics.h"
#include "tests/random_batch.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define assert_close(got, want, tolerance)                                     \
    do {                                                                       \
        const double got_ = (got), want_ = (want);                             \
        if (!(fabs(got_ - want_) <= (tolerance)))                              \
            fail_msg("line %d: got %.12g, want %.12g", __LINE__, got_, want_); \
    } while (0)

/* fp16 by its definition: sign, 5 exponent bits of bias 15, 10 fraction bits. */
static double fp16_by_definition(int32_t code)
{
    const int32_t exponent = (code >> 10) & 31, fraction = code & 1023;
    const double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return code & 0x8000 ? -magnitude : magnitude;
}

/* Every code converts to what its bits say, and back to itself. */
static void test_all_codes(void **state)
{
    (void)state;
    for (int32_t code = 0; code < 65536; code++) {
        const double want = fp16_by_definition(code);
        const float got = convert_fp16_to_float((uint16_t)code), wide = convert_bf16_to_float((uint16_t)code);
        if (isnan(want)) {
            assert_true(isnan(got) && isnan(convert_fp16_to_float(convert_float_to_fp16(got))));
        } else {
            assert_true(got == (float)want);
            assert_int_equal(convert_float_to_fp16(got), code);
        }
        if (isnan(wide))
            assert_true(isnan(convert_bf16_to_float(convert_float_to_bf16(wide))));
        else
            assert_int_equal(convert_float_to_bf16(wide), code);
    }
}

/* An 8-bit code by the OCP definition. */
static double fp8_by_definition(int32_t code, bool e4m3)
{
    const int32_t fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, magnitude = code & 0x7f;
    const int32_t exponent = magnitude >> fraction_bits, fraction = magnitude & ((1 << fraction_bits) - 1);
    double x = exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                             : ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
    if (e4m3 && magnitude == 0x7f) x = NAN;
    if (!e4m3 && exponent == 31) x = fraction ? NAN : INFINITY;
    return code & 0x80 ? -x : x;
}

/* All 256 codes of both: what their bits say, and back; between two neighbours the midpoint goes to the even
 * code and what lies a hair to either side of it to the nearer one; beyond the largest everything saturates.
 */
static void test_fp8(void **state)
{
    (void)state;
    for (int e4m3 = 0; e4m3 < 2; e4m3++)
        for (int32_t code = 0; code < 256; code++) {
            const double want = fp8_by_definition(code, e4m3);
            const float got =
                e4m3 ? convert_e4m3_to_float((uint8_t)code) : convert_e5m2_to_float((uint8_t)code);
            uint8_t (*back)(float) = e4m3 ? convert_float_to_e4m3 : convert_float_to_e5m2;
            const int32_t largest = e4m3 ? 0x7e : 0x7b;
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_int_equal(back(NAN) & 0x7f, e4m3 ? 0x7f : 0x7e);
                continue;
            }
            assert_true(got == (float)want);
            assert_int_equal(back(got), isinf(want) ? (code & 0x80) | largest : code);
            if ((code & 0x7f) >= largest) continue;
            const double next = fp8_by_definition(code + 1, e4m3);
            const float middle = (float)((want + next) / 2);
            assert_int_equal(back(middle), code & 1 ? code + 1 : code);
            assert_int_equal(back(nextafterf(middle, (float)next)), code + 1);
            assert_int_equal(back(nextafterf(middle, (float)want)), code);
        }
    assert_int_equal(convert_float_to_e4m3(1e9f), 0x7e);
    assert_int_equal(convert_float_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(convert_float_to_e5m2(61440.0f), 0x7b); /* halfway to what would be infinity */
    assert_int_equal(convert_float_to_e5m2(0x1p-17f), 0x00);
}

/* Halfway cases go to the even neighbour, just beyond to the nearer one; overflow rounds to infinity at
 * 65520. */
static void test_rounding(void **state)
{
    (void)state;
    assert_int_equal(convert_float_to_fp16(1 + 0x1p-11f), 0x3c00);     /* half an ulp above 1: down to even */
    assert_int_equal(convert_float_to_fp16(1 + 3 * 0x1p-11f), 0x3c02); /* up to even */
    assert_int_equal(convert_float_to_fp16(1 + 0x1p-11f + 0x1p-23f), 0x3c01); /* just above half */
    assert_int_equal(convert_float_to_fp16(65519.0f), 0x7bff);
    assert_int_equal(convert_float_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(convert_float_to_fp16(0x1p-25f), 0x0000); /* half the least subnormal: to even, zero */
    assert_int_equal(convert_float_to_fp16(0x1.8p-25f), 0x0001);
    assert_int_equal(convert_float_to_bf16(1 + 0x1p-8f), 0x3f80);
    assert_int_equal(convert_float_to_bf16(1 + 3 * 0x1p-8f), 0x3f82);
    assert_int_equal(convert_float_to_bf16(INFINITY), 0x7f80);
}

/* One head of dim 1, K and V by hand. */
struct tiny {
    struct workload w;
    struct tensors t;
    struct oracle_result o;
};

static void make_tiny(struct tiny *x, const char *spec, const float *q, const float *k, const float *v,
                      int32_t n_q, int32_t n_k)
{
    struct workload_params p = workload_default_params();
    struct why why = {""};
    p.shape = (struct shape){1, 1, 1, 1, DTYPE_FP32, DTYPE_FP32};
    p.page_size = 1;
    p.mask.sm_scale = 1;
    assert_int_equal(workload_from_spec(spec, &p, &x->w, &why), STATUS_OK);
    assert_int_equal(tensors_create(&x->w.batch, &x->w.layout, x->w.fill, 1, &x->t, &why), STATUS_OK);
    memcpy(x->t.q, q, (size_t)n_q * sizeof *q);
    for (int32_t i = 0; i < n_k; i++) { /* key i lives in page kv_indices[i] */
        ((float *)x->t.k)[x->w.kv_indices[i]] = k[i];
        ((float *)x->t.v)[x->w.kv_indices[i]] = v[i];
    }
    assert_int_equal(oracle_result_create(&x->w.batch, &x->o, &why), STATUS_OK);
}

static void run_tiny(struct tiny *x)
{
    struct why why = {""};
    assert_int_equal(oracle_run(&x->w.batch, &x->t, &x->o, &why), STATUS_OK);
}

static void free_tiny(struct tiny *x)
{
    oracle_result_free(&x->o);
    tensors_free(&x->t);
    workload_free(&x->w);
}

/* Two new tokens at kv_len 3, q = 1 and ln 2, k = 0, ln 2, ln 4, v = 1, 2, 4.
 * Row 0 sees keys 0, 1: weights 1, 2 -> O = (1 + 4) / 3, LSE = ln 3.
 * Row 1 sees all, scores ln2 * (0, ln2, ln4): weights 1, 2^ln2, 4^ln2. */
static void test_oracle_by_hand(void **state)
{
    const float l2 = logf(2), q[] = {1, l2}, k[] = {0, l2, logf(4)}, v[] = {1, 2, 4};
    struct tiny x;
    (void)state;
    make_tiny(&x, "q2s3", q, k, v, 2, 3);
    run_tiny(&x);
    assert_close(x.o.o[0], 5.0 / 3, 1e-7);
    assert_close(x.o.lse[0], log(3), 1e-7);
    const double a = pow(2, l2), b = pow(4, l2);
    assert_close(x.o.o[1], (1 + 2 * a + 4 * b) / (1 + a + b), 1e-6);
    assert_close(x.o.lse[1], log(1 + a + b), 1e-6);
    /* a window of 0 leaves each row its own position: keys 1 and 2 */
    x.w.batch.mask.window_left = 0;
    run_tiny(&x);
    assert_close(x.o.o[0], 2, 1e-12);
    assert_close(x.o.o[1], 4, 1e-12);
    /* a soft cap of 1 squashes row 0's score ln 2 to tanh(ln 2) = 0.6 */
    x.w.batch.mask.window_left = -1;
    x.w.batch.mask.logits_soft_cap = 1;
    run_tiny(&x);
    assert_close(x.o.lse[0], log(1 + exp(0.6)), 1e-6);
    free_tiny(&x);
}

/* Rows without keys: O = 0, LSE = -inf; with a sink the sink's logit. A sink of ln 3 beside weights 1, 2
 * halves O. */
static void test_empty_rows_and_sinks(void **state)
{
    const float q[] = {1, 1, 1}, k[] = {0}, v[] = {7}, two_k[] = {0, logf(2)}, two_v[] = {3, 3};
    struct tiny x;
    (void)state;
    make_tiny(&x, "q3s1", q, k, v, 3, 1);
    run_tiny(&x);
    assert_true(x.o.o[0] == 0 && x.o.lse[0] == -INFINITY && x.o.o[1] == 0);
    assert_close(x.o.o[2], 7, 0);
    x.w.sink = malloc(sizeof *x.w.sink);
    x.w.sink[0] = -2;
    workload_link(&x.w);
    run_tiny(&x);
    assert_close(x.o.lse[0], -2, 1e-12);
    assert_true(x.o.o[0] == 0);
    free_tiny(&x);
    make_tiny(&x, "q1s2", q, two_k, two_v, 1, 2);
    x.w.sink = malloc(sizeof *x.w.sink);
    x.w.sink[0] = logf(3);
    workload_link(&x.w);
    run_tiny(&x);
    assert_close(x.o.o[0], 1.5, 1e-6);
    assert_close(x.o.lse[0], log(6), 1e-6);
    free_tiny(&x);
}

/* One key with score -524288 still gets weight 1. */
static void test_huge_negative_score(void **state)
{
    const float q[] = {1}, k[] = {-524288}, v[] = {5};
    struct tiny x;
    (void)state;
    make_tiny(&x, "q1s1", q, k, v, 1, 1);
    run_tiny(&x);
    assert_close(x.o.o[0], 5, 0);
    assert_close(x.o.lse[0], -524288, 0);
    free_tiny(&x);
}

/* Slopes for 4 heads: 2^-2, 2^-4, 2^-6, 2^-8; for 3: those of 2 heads (2^-4, 2^-8), then 2^-2 of the 4-head
 * set. */
static void test_alibi_slopes(void **state)
{
    (void)state;
    for (int32_t h = 0; h < 4; h++)
        assert_close(semantics_alibi_slope(h, 4), exp2(-2.0 * (h + 1)), 0);
    assert_close(semantics_alibi_slope(0, 3), exp2(-4), 0);
    assert_close(semantics_alibi_slope(2, 3), exp2(-2), 0);
}

/* OpenBLAS of this machine multiplies right (old releases did not on new CPUs). */
static void test_blas(void **state)
{
    enum { M = 37, N = 61, D = 129 };
    static float a[M * D], b[N * D], c[M * N];
    (void)state;
    for (int i = 0; i < M * D; i++)
        a[i] = (float)((i * 7919) % 101 - 50) / 50;
    for (int i = 0; i < N * D; i++)
        b[i] = (float)((i * 104729) % 97 - 48) / 48;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, D, 1, a, D, b, D, 0, c, N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double want = 0;
            for (int d = 0; d < D; d++)
                want += (double)a[i * D + d] * b[j * D + d];
            assert_close(c[i * N + j], want, 1e-4);
        }
}

/* V = 1 everywhere: O = 1 for every row, whatever the weights; unread tails and pages hold NaN and must not
 * leak. */
static void test_ones(void **state)
{
    struct workload w;
    struct machine m;
    struct truth truth;
    struct why why = {""};
    (void)state;
    spec_batch("q37s500_5q1s77_q1s3000", 16, &w);
    w.fill[2] = (struct fill){FILL_CONSTANT, 1};
    test_machine(&w, &m);
    assert_int_equal(truth_create(&w, &truth, &why), STATUS_OK);
    for (size_t i = 0; i < truth.oracle.n_rows * (size_t)truth.oracle.head_dim_vo; i++)
        assert_close(truth.oracle.o[i], 1, 1e-12);
    truth_free(&truth);
    workload_free(&w);
}

/* A wrong element is found and named; so are NaN, a missing -inf, an unwritten row and a trampled guard. */
static void test_compare(void **state)
{
    struct workload w;
    struct result r;
    struct oracle_result o;
    struct why why = {""};
    const struct error_model model = {.o_unit = 0, .o_floor = 1e-3, .unit = 1e-4}; /* LSE within 1.2e-3 */
    (void)state;
    spec_batch("q2s9", 16, &w);
    assert_int_equal(result_create(&w.batch, w.layout.o, &r, &why), STATUS_OK);
    assert_int_equal(oracle_result_create(&w.batch, &o, &why), STATUS_OK);
    for (size_t i = 0; i < r.n_rows * 128; i++)
        r.o[i] = 0, o.o[i] = 0;
    for (size_t i = 0; i < r.n_rows; i++)
        r.lse[i] = 1, o.lse[i] = 1, o.sums[i] = (struct row_sums){0};
    assert_true(compare_result(&w.batch, &r, &o, &model).ok);
    r.o[5 * 128 + 7] = 0.5f;
    struct comparison c = compare_result(&w.batch, &r, &o, &model);
    assert_true(!c.ok && c.bad_row == 5 && c.bad_dim == 7 && c.max_err_o == 0.5);
    r.o[5 * 128 + 7] = NAN;
    c = compare_result(&w.batch, &r, &o, &model);
    assert_true(!c.ok && isinf(c.max_err_o)); /* NaN counts as infinitely wrong */
    r.o[5 * 128 + 7] = 0;
    o.lse[3] = -INFINITY;
    assert_false(compare_result(&w.batch, &r, &o, &model).ok);
    r.lse[3] = -INFINITY;
    assert_true(compare_result(&w.batch, &r, &o, &model).ok);
    r.lse[r.n_rows] = 0;
    assert_false(compare_result(&w.batch, &r, &o, &model).ok);
    result_poison(&r);
    assert_false(compare_result(&w.batch, &r, &o, &model).ok);
    oracle_result_free(&o);
    result_free(&r);
    workload_free(&w);
}

/* What nobody may read is NaN: tails of pages, pages without an owner, gaps between rows of Q; a write into a gap of O
 * is seen. */
static void test_poison(void **state)
{
    struct workload_params p = workload_default_params();
    struct workload w;
    struct tensors t;
    struct result r;
    struct why why = {""};
    (void)state;
    p.shape = (struct shape){2, 1, 8, 8, DTYPE_FP32, DTYPE_FP32};
    p.page_size = 4;
    p.layout.q = (struct row_stride){20, 9};
    p.layout.o = (struct row_stride){20, 9};
    assert_int_equal(workload_from_spec("q2s5", &p, &w, &why),
                     STATUS_OK); /* a page and one key of the second */
    assert_int_equal(tensors_create(&w.batch, &w.layout, w.fill, 1, &t, &why), STATUS_OK);
    for (int32_t key = 0; key < 8; key++)
        for (int32_t d = 0; d < 8; d++) {
            const size_t at = tensor_kv_at(t.k_stride, w.kv_indices[key / 4], key % 4, 0) + (size_t)d;
            assert_int_equal(isnan(((float *)t.k)[at]), key >= 5);
            assert_int_equal(isnan(((float *)t.v)[at]), key >= 5);
        }
    for (int32_t i = 0; i < 20 + 17; i++)
        assert_int_equal(isnan(((float *)t.q)[i]), i % 20 == 8 || i % 20 >= 17);
    assert_int_equal(result_create(&w.batch, w.layout.o, &r, &why), STATUS_OK);
    for (int32_t row = 0; row < 4; row++)
        for (size_t d = 0; d < 8; d++)
            r.o[tensor_row_at(r.o_stride, 2, (size_t)row) + d] = 1;
    assert_true(result_guard_ok(&r));
    r.o[8] = 1; /* between the heads of token 0 */
    assert_false(result_guard_ok(&r));
    result_poison(&r);
    assert_true(result_guard_ok(&r));
    r.o[18] = 1; /* between token 0 and token 1 */
    assert_false(result_guard_ok(&r));
    result_free(&r);
    tensors_free(&t);
    workload_free(&w);
}

/* A request that holds one page over and over has equal keys: sums of equal terms round the same way each time, beyond a
 * random walk. The bound knows; without repeats it stays the narrow one. */
static void test_repeated_pages(void **state)
{
    struct workload w;
    struct workload_params p = workload_default_params();
    struct why why = {""};
    (void)state;
    p.page_size = 1;
    p.shape = (struct shape){2, 1, 64, 64, DTYPE_FP32, DTYPE_FP32};
    for (int repeats = 0; repeats < 2; repeats++) {
        struct tensors t;
        struct oracle_result o;
        struct result r;
        struct plan plan = {0};
        assert_int_equal(workload_from_spec("q3s20000", &p, &w, &why), STATUS_OK);
        for (int32_t i = 0; repeats && i < 20000; i++)
            w.kv_indices[i] = 7;
        assert_int_equal(tensors_create(&w.batch, &w.layout, w.fill, 3, &t, &why), STATUS_OK);
        const struct error_model model = error_model(&w.batch, &t, numerics_of(NUMERICS_FP32, &w.batch));
        assert_int_equal(model.same_terms, repeats);
        plan_begin(&plan, &w.batch);
        assert_int_equal(plan_begin_grid(&plan, KERNEL_FA2_DECODE_16, DISPATCH_FIXED, 0, NULL), STATUS_OK);
        const struct item item = {
            .row_end = 6, .kv_end = 20000, .partial = -1, .kernel = KERNEL_FA2_DECODE_16};
        assert_int_equal(plan_add_item(&plan, &item), STATUS_OK);
        assert_int_equal(plan_end_list(&plan), STATUS_OK);
        assert_int_equal(plan_end_grid(&plan, 0), STATUS_OK);
        plan_finish(&plan, &w.batch);
        assert_int_equal(oracle_result_create(&w.batch, &o, &why), STATUS_OK);
        assert_int_equal(oracle_run(&w.batch, &t, &o, &why), STATUS_OK);
        assert_int_equal(result_create(&w.batch, w.layout.o, &r, &why), STATUS_OK);
        assert_int_equal(ref_exec(&w.batch, &t, &plan, NULL, &r, &why), STATUS_OK);
        assert_true(compare_result(&w.batch, &r, &o, &model).ok);
        result_free(&r);
        oracle_result_free(&o);
        plan_free(&plan);
        tensors_free(&t);
        workload_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_codes),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_oracle_by_hand),
        cmocka_unit_test(test_empty_rows_and_sinks),
        cmocka_unit_test(test_huge_negative_score),
        cmocka_unit_test(test_alibi_slopes),
        cmocka_unit_test(test_blas),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_ones),
        cmocka_unit_test(test_repeated_pages),
        cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
