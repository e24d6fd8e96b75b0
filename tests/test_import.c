/* Plans from another planner's arrays: FlashInfer's FA2 plan is restated here in a few lines of its own,
 * written as arrays, imported, proved, executed and simulated, and must be the same work as policy `unified`
 * does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/import_arrays.h"
#include "lab/run.h"
#include "ref/ref_exec.h"
#include "sched/plan_check.h"
#include "tests/random_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORKS = 4096 };

struct arrays {
    int32_t request[MAX_WORKS], tile[MAX_WORKS], chunk[MAX_WORKS], valid[MAX_WORKS];
    int32_t o_indptr[512], merge_indptr[8192];
    struct import_arrays in;
};

/* Request-major, query tile, KV chunk; padded with `padding` invalid works. */
static void restate(const struct batch *b, int32_t tile_q, int32_t chunk, bool split, int32_t padding,
                    struct arrays *x)
{
    const int32_t group = b->shape.num_qo_heads / b->shape.num_kv_heads;
    int32_t n = 0, token = 0;
    memset(x, 0, sizeof *x);
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int32_t qo_len = b->qo_indptr[r + 1] - b->qo_indptr[r], kv_len = b->kv_len[r];
        const int32_t chunks = split && kv_len > 0 ? (kv_len + chunk - 1) / chunk : 1;
        for (int32_t t = 0; t * tile_q < qo_len * group; t++)
            for (int32_t c = 0; c < chunks; c++, n++) {
                assert_true(n + padding < MAX_WORKS);
                x->request[n] = r;
                x->tile[n] = t;
                x->chunk[n] = c;
                x->valid[n] = 1;
            }
        x->o_indptr[r + 1] = x->o_indptr[r] + qo_len * chunks;
        for (int32_t i = 0; i < qo_len; i++, token++)
            x->merge_indptr[token + 1] = x->merge_indptr[token] + chunks;
    }
    for (int32_t i = 0; i < padding; i++)
        x->request[n + i] = 1 << 30; /* padding holds anything */
    x->in = (struct import_arrays){
        tile_q,   chunk,    split,       n + padding,     x->request,        x->tile,
        x->chunk, x->valid, x->o_indptr, x->merge_indptr, b->n_requests + 1, token + 1};
}

static int compare_items(const void *x, const void *y)
{
    const struct item *a = x, *b = y;
    const int32_t ka[] = {a->group, a->kv_head, a->row_begin, a->kv_begin, a->row_end, a->kv_end, a->kernel};
    const int32_t kb[] = {b->group, b->kv_head, b->row_begin, b->kv_begin, b->row_end, b->kv_end, b->kernel};
    return memcmp(ka, kb, sizeof ka);
}

/* Proved, right, simulated. */
static void judge(const struct workload *w, const struct machine *m, const struct plan *p)
{
    struct why why = {""};
    struct truth truth;
    struct result r;
    struct sim_result s;
    const struct sim_options options = {.spans = false};
    if (plan_check(p, &w->batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    assert_int_equal(truth_create(w, &truth, &why), STATUS_OK);
    assert_int_equal(result_create(&w->batch, &r, &why), STATUS_OK);
    assert_int_equal(ref_exec(&w->batch, &truth.tensors, p, &r, &why), STATUS_OK);
    assert_true(compare_result(&r, &truth.oracle, truth.tolerance).ok);
    assert_int_equal(sim_run(&w->batch, &m->gpu, &m->kernels, p, &options, &s, &why), STATUS_OK);
    sim_result_free(&s);
    result_free(&r);
    truth_free(&truth);
}

static void check_same_work(struct plan *p, const struct workload *w, const struct machine *m)
{
    struct plan own = {0};
    struct why why = {""};
    assert_int_equal(policy_plan(policy_find("unified"), &w->batch, &m->gpu, &m->kernels, NULL, &own, &why),
                     STATUS_OK);
    assert_int_equal(p->n_items, own.n_items);
    assert_int_equal(p->partial_rows, own.partial_rows);
    qsort(p->items, (size_t)p->n_items, sizeof *p->items, compare_items);
    qsort(own.items, (size_t)own.n_items, sizeof *own.items, compare_items);
    for (int32_t i = 0; i < own.n_items; i++)
        assert_int_equal(compare_items(&p->items[i], &own.items[i]), 0);
    plan_free(&own);
}

/* Chunks as the FA2 plan chooses them at 33 works a head: 131072-like skew in small, a prefill, empties, no
 * split. */
static void test_round_trip(void **state)
{
    static const struct {
        const char *spec;
        int32_t tile, chunk;
        bool split;
    } cases[] = {{"q1s6000_7q1s100", 16, 240, true}, /* 25 + 7 = 32; 224 would give 34 */
                 {"2q100s900_q1s50", 128, 0, false}, /* 9 works: chunk chosen below */
                 {"40q1s300_q1s0", 16, 0, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct workload w;
        struct machine m;
        struct plan p = {0}, own = {0};
        struct why why = {""};
        static struct arrays x;
        spec_batch(cases[i].spec, 16, &w);
        test_machine(&w, &m);
        /* the chunk `unified` chose */
        assert_int_equal(policy_plan(policy_find("unified"), &w.batch, &m.gpu, &m.kernels, NULL, &own, &why),
                         STATUS_OK);
        int32_t chunk = 16, tile = kernel_row((enum kernel_id)own.items[0].kernel)->tile_q;
        for (int32_t k = 0; k < own.n_items; k++)
            if (own.items[k].kv_end - own.items[k].kv_begin > chunk)
                chunk = own.items[k].kv_end - own.items[k].kv_begin;
        assert_int_equal(tile, cases[i].tile);
        if (cases[i].chunk) assert_int_equal(chunk, cases[i].chunk);
        restate(&w.batch, tile, chunk, own.partial_rows > 0, 5, &x);
        if (import_arrays_plan(&x.in, &w.batch, &p, &why) != STATUS_OK) fail_msg("%s", why.text);
        judge(&w, &m, &p);
        check_same_work(&p, &w, &m);
        plan_free(&p);
        plan_free(&own);
        workload_free(&w);
    }
}

/* CTA order: work fastest, then KV head, in the arrays' order even where that is not sorted. */
static void test_order(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct why why = {""};
    int32_t request[] = {1, 0, 1}, tile[] = {0, 0, 0}, chunk[] = {1, 0, 0};
    const struct import_arrays a = {.cta_tile_q = 16,
                                    .kv_chunk_size = 64,
                                    .split_kv = true,
                                    .n_works = 3,
                                    .request_indices = request,
                                    .qo_tile_indices = tile,
                                    .kv_tile_indices = chunk};
    (void)state;
    spec_batch("q1s40_q1s100", 16, &w);
    assert_int_equal(import_arrays_plan(&a, &w.batch, &p, &why), STATUS_OK);
    assert_int_equal(plan_check(&p, &w.batch, &why), STATUS_OK);
    assert_int_equal(p.n_items, 3 * 8);
    for (int32_t i = 0; i < p.n_items; i++) {
        assert_int_equal(p.items[i].kv_head, i / 3);
        assert_int_equal(p.items[i].group, request[i % 3]);
        assert_int_equal(p.items[i].kv_begin, 64 * chunk[i % 3]);
    }
    plan_free(&p);
    workload_free(&w);
}

/* Nothing is repaired: a work that is missing or there twice is the proof's to refuse; an index outside the
 * batch and an indptr that contradicts the works are refused at once. */
static void test_wrong_arrays(void **state)
{
    struct workload w;
    (void)state;
    spec_batch("q20s100_q1s150", 16, &w);
    for (int fault = 0; fault < 9; fault++) {
        struct plan p = {0};
        struct why why = {""};
        static struct arrays x;
        restate(&w.batch, 16, 64, true, 0, &x);
        switch (fault) {
        case 0: /* the last work is missing */
            x.in.n_works--;
            x.in.o_indptr = x.in.merge_indptr = NULL;
            break;
        case 1: /* a work twice instead of its neighbour */
            x.chunk[1] = 0;
            x.in.o_indptr = x.in.merge_indptr = NULL;
            break;
        case 2:
            x.valid[3] = 0;
            break;
        case 3:
            x.request[0] = 2;
            break;
        case 4:
            x.tile[0] = 5; /* 80 packed rows are 5 tiles */
            break;
        case 5:
            x.chunk[0] = 2; /* 100 keys are 2 chunks */
            break;
        case 6:
            x.o_indptr[1]++;
            break;
        case 7:
            x.merge_indptr[3]--;
            break;
        default:
            x.in.n_o_indptr--;
        }
        enum status status = import_arrays_plan(&x.in, &w.batch, &p, &why);
        if (fault < 3) {
            assert_int_equal(status, STATUS_OK);
            status = plan_check(&p, &w.batch, &why);
        }
        assert_int_equal(status, fault < 3 ? STATUS_INVALID_PLAN : STATUS_BAD_INPUT);
        assert_true(why.text[0] != '\0');
        plan_free(&p);
    }
    workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_wrong_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
