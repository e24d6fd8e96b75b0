/* batch_check: each way a batch can be malformed is named, with its own status; limits are probed on both
 * sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/batch.h"

#include <math.h>
#include <string.h>

/* Two requests: 3 new tokens at kv_len 5 and 1 at kv_len 33; heads 8/2, pages of 16 in a pool of 4. */
struct fixture {
    struct batch b;
    int32_t qo_indptr[3], kv_len[2], kv_indptr[3], kv_indices[4];
    float sink[8];
};

static void make(struct fixture *f)
{
    *f = (struct fixture){
        .qo_indptr = {0, 3, 4}, .kv_len = {5, 33}, .kv_indptr = {0, 1, 4}, .kv_indices = {3, 0, 2, 1}};
    f->b = (struct batch){
        .shape = {8, 2, 128, 128, DTYPE_BF16, DTYPE_FP16},
        .mask = {.causal = true, .window_left = -1, .sink = f->sink},
        .n_requests = 2,
        .qo_indptr = f->qo_indptr,
        .kv_len = f->kv_len,
        .kv = {.page_size = 16, .num_pages = 4, .kv_indptr = f->kv_indptr, .kv_indices = f->kv_indices},
    };
}

static void expect(const struct fixture *f, enum status want, const char *fragment)
{
    struct why why = {""};
    const enum status got = batch_check(&f->b, &why);
    if (got != want || !strstr(why.text, fragment))
        fail_msg("got %d '%s', want %d '%s'", got, why.text, want, fragment);
    assert_int_equal(batch_check(&f->b, NULL), want);
}

#define EXPECT_BAD(change, status, fragment) \
    do {                                     \
        struct fixture f;                    \
        make(&f);                            \
        change;                              \
        expect(&f, status, fragment);        \
    } while (0)

static void test_good(void **state)
{
    (void)state;
    EXPECT_BAD((void)0, STATUS_OK, "");
    EXPECT_BAD(f.b.n_requests = 0, STATUS_OK, "");
    EXPECT_BAD(f.kv_indices[0] = 0, STATUS_OK, ""); /* shared pages are fine */
    EXPECT_BAD(f.qo_indptr[1] = 0, STATUS_OK, "");  /* so are requests without query rows */
    EXPECT_BAD((f.kv_len[1] = 48), STATUS_OK, "");  /* the last page may be full */
    EXPECT_BAD((f.kv_len[0] = 0, f.kv_indptr[1] = 0, f.kv_len[1] = 64), STATUS_OK, "");
}

static void test_bad_shapes(void **state)
{
    (void)state;
    EXPECT_BAD(f.b.shape.num_qo_heads = 0, STATUS_BAD_INPUT, "num_qo_heads 0: expected 1..4096");
    EXPECT_BAD(f.b.shape.num_qo_heads = 4104, STATUS_BAD_INPUT, "num_qo_heads 4104");
    EXPECT_BAD(f.b.shape.num_qo_heads = 9, STATUS_BAD_INPUT, "multiple of num_kv_heads 2");
    EXPECT_BAD(f.b.shape.num_kv_heads = -2, STATUS_BAD_INPUT, "num_kv_heads -2");
    EXPECT_BAD(f.b.shape.head_dim_qk = 1025, STATUS_BAD_INPUT, "head_dim_qk 1025");
    EXPECT_BAD(f.b.shape.head_dim_vo = INT32_MIN, STATUS_BAD_INPUT, "head_dim_vo");
    EXPECT_BAD(f.b.shape.q_dtype = DTYPE_COUNT, STATUS_BAD_INPUT, "dtype");
}

static void test_bad_masks(void **state)
{
    (void)state;
    EXPECT_BAD(f.b.mask.window_left = -2, STATUS_BAD_INPUT, "window_left -2");
    EXPECT_BAD(f.b.mask.logits_soft_cap = -1, STATUS_BAD_INPUT, "logits_soft_cap");
    EXPECT_BAD(f.b.mask.logits_soft_cap = NAN, STATUS_BAD_INPUT, "logits_soft_cap");
    EXPECT_BAD(f.b.mask.sm_scale = INFINITY, STATUS_BAD_INPUT, "sm_scale");
    EXPECT_BAD(f.sink[7] = NAN, STATUS_BAD_INPUT, "sink[7]");
}

static void test_bad_tables(void **state)
{
    (void)state;
    EXPECT_BAD(f.b.n_requests = -1, STATUS_BAD_INPUT, "n_requests -1");
    EXPECT_BAD(f.b.kv.page_size = 0, STATUS_BAD_INPUT, "page_size 0");
    EXPECT_BAD(f.b.kv.page_size = INT32_MAX, STATUS_BAD_INPUT, "page_size");
    EXPECT_BAD(f.b.kv.num_pages = -4, STATUS_BAD_INPUT, "num_pages -4");
    EXPECT_BAD(f.qo_indptr[0] = 1, STATUS_BAD_INPUT, "expected 0");
    EXPECT_BAD(f.qo_indptr[1] = 9, STATUS_BAD_INPUT, "request 1: qo_len -5");
    EXPECT_BAD((f.qo_indptr[1] = INT32_MAX, f.qo_indptr[2] = INT32_MIN), STATUS_BAD_INPUT,
               "request 1: qo_len -4294967295");
    EXPECT_BAD(f.kv_len[0] = -1, STATUS_BAD_INPUT, "request 0: kv_len -1");
    EXPECT_BAD(f.kv_len[0] = 17, STATUS_BAD_INPUT, "request 0: 1 pages: expected 2");
    EXPECT_BAD(f.kv_len[1] = 32, STATUS_BAD_INPUT, "request 1: 3 pages: expected 2");
    EXPECT_BAD(f.kv_len[1] = INT32_MAX, STATUS_BAD_INPUT, "expected 134217728 for kv_len 2147483647");
    EXPECT_BAD(f.kv_indptr[1] = INT32_MIN, STATUS_BAD_INPUT, "request 0: -2147483648 pages");
    EXPECT_BAD(f.kv_indices[3] = 4, STATUS_BAD_INPUT, "kv_indices[3] = 4: expected a page id in [0, 4)");
    EXPECT_BAD(f.kv_indices[0] = -1, STATUS_BAD_INPUT, "kv_indices[0] = -1");
}

/* 2^31 - 1 packed rows is the most: 4096 heads x 524287 tokens is 4096 short of 2^31, one token more is too
 * large. */
static void test_row_limit(void **state)
{
    (void)state;
    EXPECT_BAD((f.b.mask.sink = NULL, f.b.shape.num_qo_heads = 4096, f.qo_indptr[2] = 524287), STATUS_OK, "");
    EXPECT_BAD((f.b.mask.sink = NULL, f.b.shape.num_qo_heads = 4096, f.qo_indptr[2] = 524288),
               STATUS_TOO_LARGE, "2147483648 query rows x heads");
}

/* Names round-trip; unknown ones are told apart; statuses map to the documented exit codes. */
static void test_names(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++)
        assert_int_equal(dtype_from_name(dtype_name((enum dtype)t)), t);
    assert_int_equal(dtype_from_name("float"), DTYPE_COUNT);
    assert_int_equal(status_exit_code(STATUS_OK), 0);
    assert_int_equal(status_exit_code(STATUS_MISMATCH), 1);
    assert_int_equal(status_exit_code(STATUS_BAD_INPUT), 2);
    assert_int_equal(status_exit_code(STATUS_UNSUPPORTED), 3);
    assert_int_equal(status_exit_code(STATUS_NO_MEMORY), 3);
    assert_int_equal(status_exit_code((enum status)999), 4);
    assert_string_equal(status_text((enum status) - 1), "internal error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_bad_masks), cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_row_limit), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
