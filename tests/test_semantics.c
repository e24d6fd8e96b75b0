/* Every rule of ref/semantics.h with its worked example, numbers written out by hand: through the oracle, and
 * through ref_exec with every numerics and instruction set, whole and cut at every key and merged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/workload.h"
#include "ref/compare.h"
#include "ref/oracle.h"
#include "ref/ref_exec.h"
#include "sched/plan_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define assert_close(got, want, tolerance)                                     \
    do {                                                                       \
        const double got_ = (got), want_ = (want);                             \
        if (!(fabs(got_ - want_) <= (tolerance)))                              \
            fail_msg("line %d: got %.12g, want %.12g", __LINE__, got_, want_); \
    } while (0)

/* One request, one kv head, fp32, pages of one key in seeded order. */
struct tiny {
    struct workload w;
    struct tensors t;
};

static struct workload_params params(int32_t heads, int32_t dim)
{
    struct workload_params p = workload_default_params();
    p.shape = (struct shape){heads, 1, dim, 1, DTYPE_FP32, DTYPE_FP32};
    p.page_size = 1;
    p.mask.sm_scale = 1;
    return p;
}

/* q: [rows x heads][dim], k: [keys][dim], v: [keys]. */
static void make(struct tiny *x, const char *spec, const struct workload_params *p, const float *q,
                 const float *k, const float *v)
{
    struct why why = {""};
    const int32_t dim = p->shape.head_dim_qk;
    assert_int_equal(workload_from_spec(spec, p, &x->w, &why), STATUS_OK);
    assert_int_equal(tensors_create(&x->w.batch, &x->w.layout, x->w.fill, 1, &x->t, &why), STATUS_OK);
    const int32_t rows = x->w.qo_indptr[1] * p->shape.num_qo_heads;
    memcpy(x->t.q, q, (size_t)(rows * dim) * sizeof *q);
    for (int32_t key = 0; key < x->w.kv_len[0]; key++) {
        const int32_t page = x->w.kv_indices[key];
        memcpy((float *)x->t.k + page * dim, k + key * dim, (size_t)dim * sizeof *k);
        ((float *)x->t.v)[page] = v[key];
    }
}

static void destroy(struct tiny *x)
{
    tensors_free(&x->t);
    workload_free(&x->w);
}

/* All rows in one item a piece of keys: pieces = 1 is direct, more are merged. */
static void make_plan(const struct batch *b, int32_t pieces, struct plan *p)
{
    const int32_t rows = b->qo_indptr[1] * b->shape.num_qo_heads, keys = b->kv_len[0];
    struct why why = {""};
    int32_t src[16];
    plan_begin(p, b);
    assert_int_equal(plan_begin_grid(p, KERNEL_FA2_DECODE_16, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    for (int32_t i = 0; i < pieces; i++) {
        struct item item = {.row_end = rows,
                            .kv_begin = keys * i / pieces,
                            .kv_end = keys * (i + 1) / pieces,
                            .partial = -1,
                            .kernel = KERNEL_FA2_DECODE_16};
        if (pieces > 1) assert_int_equal(plan_take_partials(p, rows, &src[i]), STATUS_OK);
        if (pieces > 1) item.partial = src[i];
        assert_int_equal(plan_add_item(p, &item), STATUS_OK);
        assert_int_equal(plan_end_list(p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(p, 0), STATUS_OK);
    const struct merge m = {.row_end = rows, .row_order = ROWS_TOKEN_MAJOR};
    const int32_t after = 0;
    if (pieces > 1) {
        assert_int_equal(plan_add_merge(p, &m, src, pieces), STATUS_OK);
        assert_int_equal(plan_add_merge_grid(p, 0, 1, 0, &after, 1), STATUS_OK);
    }
    plan_finish(p, b);
    if (plan_check(p, b, &why) != STATUS_OK) fail_msg("plan: %s", why.text);
}

/* Rows' O and LSE as the hand says, within `tolerance` for fp32 (and what `device` rounds, in fp32 nothing). */
static void expect(const struct tiny *x, const double *o, const double *lse, double tolerance)
{
    static const char *const sets[] = {"base", "avx2", "avx512"};
    const struct batch *b = &x->w.batch;
    struct oracle_result want;
    struct why why = {""};
    assert_int_equal(oracle_result_create(b, &want, &why), STATUS_OK);
    assert_int_equal(oracle_run(b, &x->t, &want, &why), STATUS_OK);
    for (size_t i = 0; i < want.n_rows; i++) {
        assert_close(want.o[i], o[i], tolerance);
        if (!(isinf(lse[i]) && want.lse[i] == lse[i])) assert_close(want.lse[i], lse[i], tolerance);
    }
    for (int run = 0; run < NUMERICS_COUNT * 3 * 8; run++) {
        const int kind = run / 24, pieces = 1 + run / 3 % 8;
        struct exec_options options = {numerics_of((enum numerics_kind)kind, b), vector_find(sets[run % 3])};
        struct plan plan = {0};
        struct result got;
        if (!options.ops || pieces > (x->w.kv_len[0] < 2 ? 1 : x->w.kv_len[0])) continue;
        make_plan(b, pieces, &plan);
        assert_int_equal(result_create(b, x->w.layout.o, &got, &why), STATUS_OK);
        assert_int_equal(ref_exec(b, &x->t, &plan, &options, &got, &why), STATUS_OK);
        const struct error_model model = error_model(b, &x->t, options.numerics);
        const struct comparison c = compare_result(b, &got, &want, &model);
        if (!c.ok)
            fail_msg("%s, %s, %d pieces: row %d: got %.9g, want %.9g", numerics_names[kind], sets[run % 3],
                     pieces, (int)c.bad_row, c.got, c.want);
        result_free(&got);
        plan_free(&plan);
    }
    oracle_result_free(&want);
}

/* Rules 1 to 3, as tables: qo_len, kv_len, causal, window -> keys [begin, end) of each row. */
static void test_visible_keys(void **state)
{
    static const struct {
        int32_t qo_len, kv_len, causal, window;
        struct range want[3];
    } table[] = {
        {2, 5, 1, -1, {{0, 4}, {0, 5}}},         /* bottom-right */
        {2, 5, 0, -1, {{0, 5}, {0, 5}}},         /* all */
        {2, 5, 1, 1, {{2, 4}, {3, 5}}},          /* window 1: two keys */
        {2, 5, 1, 0, {{3, 4}, {4, 5}}},          /* itself only */
        {2, 5, 0, 1, {{2, 5}, {3, 5}}},          /* a window without causal is open to the right */
        {2, 5, 1, 100, {{0, 4}, {0, 5}}},        /* wider than all */
        {3, 1, 1, -1, {{0, 0}, {0, 0}, {0, 1}}}, /* rows before key 0 see nothing */
        {3, 1, 0, 0, {{0, 1}, {0, 1}, {0, 1}}},  /* ... unless all may be seen */
        {3, 3, 1, 1, {{0, 1}, {0, 2}, {1, 3}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const int32_t indptr[] = {0, table[i].qo_len};
        const struct batch b = {.mask = {.causal = table[i].causal, .window_left = table[i].window},
                                .n_requests = 1,
                                .qo_indptr = indptr,
                                .kv_len = &table[i].kv_len};
        for (int32_t row = 0; row < table[i].qo_len; row++) {
            const struct range got = batch_visible(&b, 0, row), want = table[i].want[row];
            if (got.end - got.begin != want.end - want.begin ||
                (want.end > want.begin && got.begin != want.begin))
                fail_msg("case %zu row %d: got [%d, %d), want [%d, %d)", i, row, got.begin, got.end,
                         want.begin, want.end);
        }
    }
    const int32_t indptr[] = {0, 3}, kv_len = 1;
    const struct batch b = {.n_requests = 1, .qo_indptr = indptr, .kv_len = &kv_len};
    for (int32_t row = 0; row < 3; row++)
        assert_int_equal(semantics_position(&b, 0, row), row - 2);
}

/* Rule 4: bytes 0xd7 0x02, row 0 sees 0, 1, 2 (4 is taken by causal), row 1 sees 1, 2, 4. All scores 0. */
static void test_custom_mask(void **state)
{
    const float q[] = {0, 0}, k[5] = {0}, v[] = {1, 2, 4, 8, 16};
    const double o[] = {7.0 / 3, 22.0 / 3}, lse[] = {log(3), log(3)};
    static const uint8_t bits[] = {0xd7, 0x02};
    static const int bit_rows[2][5] = {{1, 1, 1, 0, 1}, {0, 1, 1, 0, 1}};
    const struct workload_params p = params(1, 1);
    struct tiny x;
    (void)state;
    make(&x, "q2s5", &p, q, k, v);
    x.w.custom = malloc(2);
    memcpy(x.w.custom, bits, 2);
    x.w.custom_indptr = calloc(2, sizeof *x.w.custom_indptr);
    x.w.custom_indptr[1] = 2;
    workload_link(&x.w);
    for (int row = 0; row < 2; row++)
        for (int key = 0; key < 5; key++) {
            assert_int_equal(batch_custom_bit(&x.w.batch, 0, row, key), bit_rows[row][key]);
            assert_int_equal(semantics_sees(&x.w.batch, 0, row, key), bit_rows[row][key] && key <= 3 + row);
        }
    expect(&x, o, lse, 1e-6);
    memset(x.w.custom, 0, 2); /* nobody sees anything: rule 13 */
    const double zero[2] = {0}, none[] = {-INFINITY, -INFINITY};
    expect(&x, zero, none, 0);
    destroy(&x);
}

/* Rule 5: K stored ln 2 / 2 and scaled by 2, V stored 3 and scaled by 0.5. */
static void test_scales(void **state)
{
    const float q[] = {1}, k[] = {0, 0.34657359f}, v[] = {2, 8};
    const double o[] = {(1 * 1 + 2 * 4) / 3.0}, lse[] = {log(3)};
    const struct workload_params p = params(1, 1);
    struct tiny x;
    (void)state;
    make(&x, "q1s2", &p, q, k, v);
    x.w.k_scale = malloc(sizeof(float));
    x.w.v_scale = malloc(sizeof(float));
    x.w.k_scale[0] = 2;
    x.w.v_scale[0] = 0.5f;
    workload_link(&x.w);
    expect(&x, o, lse, 1e-6);
    destroy(&x);
}

/* Rule 6: a query (1, 0, 0, 0) at position 3, theta 100: angles 3 and 0.3. Keys 0 to 3 are chosen so that each dot
 * shows one number: key 0 does not turn, key 3 turns as the query does. */
static void test_rope(void **state)
{
    static const struct {
        enum rope_kind kind;
        float key0[4];
        double dot0;
    } table[] = {{ROPE_LLAMA, {0, 0, 1, 0}, 0.14112000805986721},  /* sin 3 */
                 {ROPE_LLAMA, {1, 0, 0, 0}, -0.98999249660044542}, /* cos 3 */
                 {ROPE_LLAMA, {0, 1, 0, 0}, 0},                    /* another pair */
                 {ROPE_INTERLEAVED, {0, 1, 0, 0}, 0.14112000805986721},
                 {ROPE_INTERLEAVED, {1, 0, 0, 0}, -0.98999249660044542},
                 {ROPE_INTERLEAVED, {0, 0, 1, 0}, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const float q[] = {1, 0, 0, 0}, v[] = {1, 1, 1, 1};
        float k[16] = {0};
        struct workload_params p = params(1, 4);
        struct tiny x;
        p.rope = (struct rope){.kind = table[i].kind, .theta = 100};
        memcpy(k, table[i].key0, sizeof table[i].key0);
        k[12] = 0.5f; /* key 3 = (0.5, 0, 0, 0): the same turn, dot 0.5 */
        make(&x, "q1s4", &p, q, k, v);
        const double o[] = {1}, lse[] = {log(exp(table[i].dot0) + 2 + exp(0.5))};
        expect(&x, o, lse, 1e-6);
        x.w.batch.rope.scale = 3; /* position 1 */
        const double turned = table[i].dot0 == 0 ? 0 : table[i].dot0 > 0 ? sin(1) : cos(1);
        const double scaled[] = {log(exp(turned) + 2 + exp(0.5))};
        expect(&x, o, scaled, 1e-6);
        destroy(&x);
    }
}

/* Rule 6: only the first 2 of 4 elements turn. */
static void test_partial_rope(void **state)
{
    const float q[] = {1, 0, 1, 0}, v[] = {1, 1}, k[] = {0, 1, 1, 0, 0, 0, 0, 0};
    struct workload_params p = params(1, 4);
    struct tiny x;
    (void)state;
    p.rope = (struct rope){.kind = ROPE_LLAMA, .dim = 2, .theta = 100};
    make(&x, "q1s2", &p, q, k, v);
    const double o[] = {1}, lse[] = {log(exp(sin(1) + 1) + 1)};
    expect(&x, o, lse, 1e-6);
    destroy(&x);
}

/* Rules 7 and 8: scale 1 / sqrt(4) = 0.5. Four heads, slopes 1/4 ... 1/256, q 0: score -slope at the left key. */
static void test_scale_and_alibi(void **state)
{
    const float q[] = {1, 1, 1, 1}, k[] = {1, 1, 1, 1, 0, 0, 0, 0}, v[] = {1, 1};
    struct workload_params p = params(1, 4);
    struct tiny x;
    (void)state;
    p.mask.sm_scale = 0;
    make(&x, "q1s2", &p, q, k, v);
    const double one[] = {1}, lse[] = {log(exp(2) + 1)};
    expect(&x, one, lse, 1e-6);
    destroy(&x);
    const float q4[4] = {0}, k2[2] = {0}, v2[] = {1, 0};
    p = params(4, 1);
    p.mask.alibi = true;
    make(&x, "q1s2", &p, q4, k2, v2);
    double o[4], lse4[4];
    for (int h = 0; h < 4; h++) {
        const double w = exp(-exp2(-2.0 * (h + 1)));
        assert_close(semantics_alibi_slope(h, 4), exp2(-2.0 * (h + 1)), 0);
        o[h] = w / (w + 1);
        lse4[h] = log(w + 1);
    }
    expect(&x, o, lse4, 1e-6);
    destroy(&x);
    assert_close(semantics_alibi_slope(0, 3), 1.0 / 16, 0);
    assert_close(semantics_alibi_slope(1, 3), 1.0 / 256, 0);
    assert_close(semantics_alibi_slope(2, 3), 1.0 / 4, 0);
}

/* Rule 9, after scale and ALiBi: c 2, s 2 -> 2 tanh 1. */
static void test_soft_cap(void **state)
{
    const float q[] = {1}, k[] = {2, 0}, v[] = {1, 0};
    struct workload_params p = params(1, 1);
    struct tiny x;
    (void)state;
    p.mask.logits_soft_cap = 2;
    make(&x, "q1s2", &p, q, k, v);
    const double w = exp(1.5231883119115297), o[] = {w / (w + 1)}, lse[] = {log(w + 1)};
    expect(&x, o, lse, 2e-6);
    x.w.batch.mask.alibi = true; /* one head: slope 2^-8 */
    const double a = exp(2 * tanh((2 - 1.0 / 256) / 2)), oa[] = {a / (a + 1)}, lse_a[] = {log(a + 1)};
    expect(&x, oa, lse_a, 2e-6);
    destroy(&x);
}

/* Rules 10 to 13: scores 0, ln 2 and V 1, 4; with a sink ln 3; and nothing to see at all. */
static void test_softmax_lse_sink(void **state)
{
    const float q[] = {1}, k[] = {0, 0.69314718f}, v[] = {1, 4};
    const double o[] = {3}, lse[] = {log(3)}, o_sink[] = {1.5}, lse_sink[] = {log(6)};
    const struct workload_params p = params(1, 1);
    struct tiny x;
    (void)state;
    make(&x, "q1s2", &p, q, k, v);
    expect(&x, o, lse, 1e-6);
    assert_close(semantics_lse_log2(log(3)), 1.5849625007211562, 1e-12);
    assert_true(semantics_lse_log2(-INFINITY) == -INFINITY);
    x.w.sink = malloc(sizeof(float));
    x.w.sink[0] = 1.09861229f;
    workload_link(&x.w);
    expect(&x, o_sink, lse_sink, 1e-6);
    destroy(&x);
    const float q3[] = {1, 1, 1}, k1[] = {0}, v1[] = {7};
    const double o3[] = {0, 0, 7}, lse3[] = {-INFINITY, -INFINITY, 0};
    make(&x, "q3s1", &p, q3, k1, v1);
    expect(&x, o3, lse3, 1e-6);
    x.w.sink = malloc(sizeof(float));
    x.w.sink[0] = -2;
    workload_link(&x.w);
    const double o_all[] = {0, 0, 7 / (1 + exp(-2))}, lse_all[] = {-2, -2, log(1 + exp(-2))};
    expect(&x, o_all, lse_all, 1e-6);
    destroy(&x);
}

/* Rule 14 is in every expect() above: all were cut and merged. Here the weights are far apart: 2^-149 is lost in
 * fp32, 2^149 rules. */
static void test_merge_far_apart(void **state)
{
    const float q[] = {1}, k[] = {-500, 500, 0}, v[] = {1, 2, 3};
    const double o[] = {2}, lse[] = {500};
    const struct workload_params p = params(1, 1);
    struct tiny x;
    (void)state;
    make(&x, "q1s3", &p, q, k, v);
    expect(&x, o, lse, 1e-4);
    destroy(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visible_keys),    cmocka_unit_test(test_custom_mask),
        cmocka_unit_test(test_scales),          cmocka_unit_test(test_rope),
        cmocka_unit_test(test_partial_rope),    cmocka_unit_test(test_scale_and_alibi),
        cmocka_unit_test(test_soft_cap),        cmocka_unit_test(test_softmax_lse_sink),
        cmocka_unit_test(test_merge_far_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
