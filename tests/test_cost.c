/* cost.h, batch.h, plan_item_keys: closed forms against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* |got - want| <= 1e-12 |want|, and no NaN. */
#define assert_near(got, want) assert_true(fabs((got) - (want)) <= 1e-12 * fabs(want))

enum { MAX_REQUESTS = 8, MAX_PAGES = 64 };

struct fixture {
    struct batch batch;
    int32_t qo_indptr[MAX_REQUESTS + 1], kv_len[MAX_REQUESTS], kv_indptr[MAX_REQUESTS + 1],
        kv_indices[MAX_PAGES];
};

/* Heads 8/2 (group 4), head_dim 128, bf16, page 16, pages in order. */
static void make(struct fixture *f, int32_t n, const int32_t *qo_len, const int32_t *kv_len)
{
    memset(f, 0, sizeof *f);
    for (int32_t r = 0; r < n; r++) {
        f->qo_indptr[r + 1] = f->qo_indptr[r] + qo_len[r];
        f->kv_len[r] = kv_len[r];
        f->kv_indptr[r + 1] = f->kv_indptr[r] + (kv_len[r] + 15) / 16;
    }
    for (int32_t p = 0; p < f->kv_indptr[n]; p++)
        f->kv_indices[p] = p;
    f->batch = (struct batch){
        .shape = {8, 2, 128, 128, DTYPE_BF16, DTYPE_BF16},
        .mask = {.causal = true, .window_left = -1},
        .n_requests = n,
        .qo_indptr = f->qo_indptr,
        .kv_len = f->kv_len,
        .kv = {.page_size = 16,
               .num_pages = MAX_PAGES,
               .kv_indptr = f->kv_indptr,
               .kv_indices = f->kv_indices},
    };
    struct why why = {""};
    if (batch_check(&f->batch, &why) != STATUS_OK) fail_msg("%s", why.text);
}

/* qo_len 3, kv_len 5: causal rows see 3, 4, 5 keys; a window of 1 keeps the last two of them; qo_len 3,
 * kv_len 1: only the last row sees a key; kv_len 0: none. */
static void test_visible(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, 3, (int32_t[]){3, 3, 1}, (int32_t[]){5, 1, 0});
    const struct {
        int32_t window, request, token, begin, end;
    } want[] = {{-1, 0, 0, 0, 3}, {-1, 0, 2, 0, 5}, {1, 0, 0, 1, 3},  {1, 0, 2, 3, 5},  {0, 0, 1, 3, 4},
                {-1, 1, 0, 0, 0}, {-1, 1, 1, 0, 0}, {-1, 1, 2, 0, 1}, {-1, 2, 0, 0, 0}, {3, 2, 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        f.batch.mask.window_left = want[i].window;
        const struct range v = batch_visible(&f.batch, want[i].request, want[i].token);
        assert_int_equal(v.begin, want[i].begin);
        assert_int_equal(v.end, want[i].end);
    }
}

/* Pairs: 3+4+5 = 12, 0+0+1 = 1, 1 x 40 = 40; FLOPs = 53 pairs x 8 heads x 2 (128 + 128). */
static void test_batch_flops(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, 3, (int32_t[]){3, 3, 1}, (int32_t[]){5, 1, 40});
    assert_near(cost_batch_flops(&f.batch), 53.0 * 8 * 512);
    f.batch.mask.window_left = 1; /* 2+2+2, 0+0+1, 2 */
    assert_near(cost_batch_flops(&f.batch), 9.0 * 8 * 512);
    f.batch.mask.window_left = -1;
    f.batch.mask.causal = false; /* 15 + 3 + 40 */
    assert_near(cost_batch_flops(&f.batch), 58.0 * 8 * 512);
}

/* Unique K/V: 40 and 32 tokens of which the first page (16 tokens) is shared: 56 tokens x 2 heads x 512 B;
 * plus two rows of Q and O: 2 x 8 heads x 2 x 256 B. A window of 9 leaves keys 30..39 and 22..31, nothing
 * shared. */
static void test_unique_bytes_count_shared_pages_once(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, 2, (int32_t[]){1, 1}, (int32_t[]){40, 32});
    f.kv_indices[3] = f.kv_indices[0];
    assert_near(cost_batch_unique_bytes(&f.batch), 56.0 * 2 * 512 + 2 * 8 * 512);
    f.batch.mask.window_left = 9;
    assert_near(cost_batch_unique_bytes(&f.batch), 20.0 * 2 * 512 + 2 * 8 * 512);
}

/* Rates that make hand numbers easy: CTA 100 FLOP/ns and 10 byte/ns, tiles of 16 keys. */
static void easy_rates(struct kernels *k)
{
    memset(k, 0, sizeof *k);
    for (int i = 0; i < KERNEL_COUNT; i++)
        k->fit[i] = (struct kernel_fit){.tile_kv = 16,
                                        .ctas_per_sm = 1,
                                        .sm_flops_per_ns = 100,
                                        .cta_flops_per_ns = 100,
                                        .cta_bytes_per_ns = 10};
}

/* 4 rows x 40 keys in the 16-row decode kernel: 3 tiles of 16 keys x 16 rows x 512 FLOP = 393216; K/V 40 x
 * 512 B, rows 4 x 512 B (or 4 x (256 + 516) as partials). On CUDA cores only the 4 real rows are computed. */
static void test_rect(void **state)
{
    (void)state;
    struct fixture f;
    struct kernels k;
    make(&f, 1, (int32_t[]){1}, (int32_t[]){40});
    easy_rates(&k);
    struct cost c = cost_rect(&f.batch.shape, &k, KERNEL_FA2_DECODE_16, 4, 40, false);
    assert_near(c.issued_flops, 393216.0);
    assert_near(c.kv_bytes, 20480.0);
    assert_near(c.row_bytes, 2048.0);
    assert_near(c.ns, 3932.16);
    c = cost_rect(&f.batch.shape, &k, KERNEL_FA2_DECODE_16, 4, 40, true);
    assert_near(c.row_bytes, 4.0 * 772);
    c = cost_rect(&f.batch.shape, &k, KERNEL_FI_DECODE_CC, 4, 40, false);
    assert_near(c.issued_flops, 98304.0);
    assert_near(c.ns, 22528.0 / 10);
}

/* An item taller than its kernel's tile is the sum of its row tiles, each with its own causal end. qo_len 32
 * at kv_len 32, group 4: 128 packed rows = 8 tiles of 16 rows (4 tokens); tile t sees 4(t+1) keys = one or
 * two KV tiles. */
static void test_tall_items_are_sums_of_tiles(void **state)
{
    (void)state;
    struct fixture f;
    struct kernels k;
    struct plan p = {0};
    make(&f, 1, (int32_t[]){32}, (int32_t[]){32});
    easy_rates(&k);
    plan_begin(&p, &f.batch);
    const struct item item = {.row_end = 128, .kv_end = 32, .partial = -1, .kernel = KERNEL_FA2_DECODE_16};
    const struct cost c = cost_item(&p, &f.batch, &k, &item);
    assert_near(c.issued_flops, (4 * 1 + 4 * 2) * 16.0 * 16 * 512);
    assert_near(c.kv_bytes, (4 + 8 + 12 + 16 + 20 + 24 + 28 + 32) * 512.0);
    assert_near(c.row_bytes, 128 * 512.0);
}

/* Keys an item must load: token-major rows 8..15 are tokens 2 and 3 of qo_len 4 at kv_len 10 (ends 9 and 10);
 * a head-major range that crosses heads holds first and last tokens. */
static void test_item_keys(void **state)
{
    (void)state;
    struct fixture f;
    struct plan p = {0};
    make(&f, 1, (int32_t[]){4}, (int32_t[]){10});
    plan_begin(&p, &f.batch);
    struct item item = {
        .row_begin = 8, .row_end = 12, .kv_begin = 3, .kv_end = 10, .kernel = KERNEL_FA2_DECODE_16};
    struct range keys = plan_item_keys(&p, &f.batch, &item);
    assert_int_equal(keys.begin, 3);
    assert_int_equal(keys.end, 9);
    item = (struct item){.row_begin = 4, .row_end = 6, .kv_end = 10, .kernel = KERNEL_FA3_PREFILL_128};
    assert_int_equal(plan_item_keys(&p, &f.batch, &item).end, 8); /* head 1, tokens 0 and 1 */
    item.row_begin = 3;                                           /* head 0 token 3, head 1 tokens 0, 1 */
    assert_int_equal(plan_item_keys(&p, &f.batch, &item).end, 10);
}

/* Row groups: members (request 1, tokens 1..2) and (request 0, tokens 0..1); packed rows resolve across them.
 */
static void test_group_rows(void **state)
{
    (void)state;
    struct fixture f;
    struct plan p = {0};
    int32_t group;
    make(&f, 2, (int32_t[]){2, 3}, (int32_t[]){20, 20});
    plan_begin(&p, &f.batch);
    const struct member members[] = {{1, 1, 3}, {0, 0, 2}};
    assert_int_equal(plan_add_group(&p, members, 2, &group), STATUS_OK);
    assert_int_equal(group, 2);
    assert_int_equal(plan_group_tokens(&p, &f.batch, group), 4);
    struct row_ref ref =
        plan_row(&p, &f.batch, group, 1, ROWS_TOKEN_MAJOR, 9); /* token 2 of the group, head 1 */
    assert_int_equal(ref.request, 0);
    assert_int_equal(ref.token, 0);
    assert_int_equal(ref.qo_head, 5);
    ref = plan_row(&p, &f.batch, group, 0, ROWS_HEAD_MAJOR, 5); /* head 1, token 1 of the group */
    assert_int_equal(ref.request, 1);
    assert_int_equal(ref.token, 2);
    assert_int_equal(ref.qo_head, 1);
    plan_free(&p);
    plan_free(&p);
}

/* Adds a decode item of `keys` keys for request r, head 0, as a list of its own. */
static void add_list(struct plan *p, int32_t r, int32_t keys)
{
    const struct item item = {
        .group = r, .row_end = 4, .kv_end = keys, .partial = -1, .kernel = KERNEL_FA2_DECODE_16};
    assert_int_equal(plan_add_item(p, &item), STATUS_OK);
    assert_int_equal(plan_end_list(p), STATUS_OK);
}

/* One SM, two slots. Items of 1, 1 and 2 tiles in that order: slots end at 3 and 1 tiles -> makespan 3 over 4
 * / 2 = 1.5. With the long one first or second: 2 and 2 -> 1. As a queue of two workers the same holds. */
static void test_imbalance(void **state)
{
    (void)state;
    static const int32_t orders[3][3] = {{0, 1, 2}, {2, 0, 1}, {0, 2, 1}};
    static const double want[3] = {1.5, 1.0, 1.0};
    struct fixture f;
    struct kernels k;
    struct gpu gpu = {.sm_count = 1};
    make(&f, 3, (int32_t[]){1, 1, 1}, (int32_t[]){16, 16, 32});
    easy_rates(&k);
    k.fit[KERNEL_FA2_DECODE_16].ctas_per_sm = 2;
    for (int i = 0; i < 3; i++)
        for (int queue = 0; queue < 2; queue++) {
            struct plan p = {0};
            double imbalance;
            plan_begin(&p, &f.batch);
            assert_int_equal(
                plan_begin_grid(&p, KERNEL_FA2_DECODE_16, queue ? DISPATCH_QUEUE : DISPATCH_FIXED, 0, NULL),
                STATUS_OK);
            for (int j = 0; j < 3; j++)
                add_list(&p, orders[i][j], f.kv_len[orders[i][j]]);
            if (queue) { /* one queue of three items instead of three lists */
                p.list_indptr[1] = 3;
                p.n_list_indptr = 2;
                p.grids[0].n_lists = 1;
            }
            assert_int_equal(plan_end_grid(&p, 2), STATUS_OK);
            assert_int_equal(cost_imbalance(&p, &f.batch, &gpu, &k, &imbalance), STATUS_OK);
            assert_near(imbalance, want[i]);
            plan_free(&p);
        }
}

/* A plan without work is perfectly balanced; a kernel that cannot launch has no number. */
static void test_imbalance_edges(void **state)
{
    (void)state;
    struct fixture f;
    struct kernels k;
    struct gpu gpu = {.sm_count = 1};
    struct plan p = {0};
    double imbalance = 0;
    make(&f, 1, (int32_t[]){1}, (int32_t[]){16});
    easy_rates(&k);
    plan_begin(&p, &f.batch);
    assert_int_equal(cost_imbalance(&p, &f.batch, &gpu, &k, &imbalance), STATUS_OK);
    assert_near(imbalance, 1.0);
    assert_int_equal(plan_begin_grid(&p, KERNEL_FA2_DECODE_16, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    add_list(&p, 0, 16);
    assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
    k.fit[KERNEL_FA2_DECODE_16].ctas_per_sm = 0;
    assert_int_equal(cost_imbalance(&p, &f.batch, &gpu, &k, &imbalance), STATUS_OK);
    assert_true(isnan(imbalance));
    plan_free(&p);
}

/* The floor is the larger of the two bounds, on datasheet peaks; fp32 queries have half the tensor rate. */
static void test_limit(void **state)
{
    (void)state;
    struct fixture f;
    struct gpu gpu = {.peak_flops_per_ns = 1, .peak_hbm_bytes_per_ns = 1e9};
    make(&f, 1, (int32_t[]){1}, (int32_t[]){40});
    assert_near(cost_limit_ns(&f.batch, &gpu), 40.0 * 8 * 512);
    f.batch.shape.q_dtype = DTYPE_FP32;
    assert_near(cost_limit_ns(&f.batch, &gpu), 2 * 40.0 * 8 * 512);
    f.batch.shape.q_dtype = DTYPE_BF16;
    gpu = (struct gpu){.peak_flops_per_ns = 1e9, .peak_hbm_bytes_per_ns = 2};
    assert_near(cost_limit_ns(&f.batch, &gpu), (40.0 * 2 * 512 + 8 * 512) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_batch_flops),
        cmocka_unit_test(test_unique_bytes_count_shared_pages_once),
        cmocka_unit_test(test_rect),
        cmocka_unit_test(test_tall_items_are_sums_of_tiles),
        cmocka_unit_test(test_item_keys),
        cmocka_unit_test(test_group_rows),
        cmocka_unit_test(test_imbalance),
        cmocka_unit_test(test_imbalance_edges),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
