/* Golden values of the published planners, recomputed from their rules. Every number here is the rule's own:
 * the comment says how it comes about. Batches are written in the batch-spec grammar; 32/8 heads and 132 SMs
 * where not said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/profile.h"
#include "lab/run.h"
#include "sched/fa_splits.h"
#include "sim/occupancy.h"
#include "tests/random_batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct planned {
    struct workload w;
    struct machine m;
    struct plan p;
};

static void plan_on(const char *gpu, const char *policy, int32_t q_heads, int32_t kv_heads, int32_t page_size,
                    const char *spec, struct planned *x)
{
    struct why why = {""};
    struct workload_params params = workload_default_params();
    memset(x, 0, sizeof *x);
    params.shape.num_qo_heads = q_heads;
    params.shape.num_kv_heads = kv_heads;
    params.page_size = page_size;
    if (workload_from_spec(spec, &params, &x->w, &why) != STATUS_OK ||
        profile_load(gpu, &x->m.gpu, &why) != STATUS_OK)
        fail_msg("%s: %s", spec, why.text);
    kernels_resolve(&x->m.gpu, &x->w.batch.shape, &x->m.kernels);
    if (policy_plan(policy_find(policy), &x->w.batch, &x->m.gpu, &x->m.kernels, NULL, &x->p, &why) !=
        STATUS_OK)
        fail_msg("%s, %s: %s", policy, spec, why.text);
}

static void planned_free(struct planned *x)
{
    plan_free(&x->p);
    workload_free(&x->w);
}

/* ---- FlashInfer */

/* FA2 plan. Budget 2 * 132 / 8 = 33 works a kv head, so 128 decodes of a FlashInfer bench are never split:
 *   131072 + 7 x 1024     chunk 5042: ceil(131072 / 5042) = 26, + 7 = 33; 5041 gives 34
 *   pages [256,256,1,0]   page 16: chunk 18: 15 + 15 + 1 + 1 (an empty request counts one)
 *   28/4 heads            122 x (600, q 1) + 8 x (10000, q 17): average packed length (122 * 7 + 8 * 119) /
 * 130 = 13, so tile 16; works 122 + 8 * ceil(119 / 16) = 186; budget 264 / 4 = 66: no split */
static void test_fi_prefill(void **state)
{
    static const struct {
        const char *spec;
        int32_t q_heads, kv_heads, page, works, longest_chunk;
    } want[] = {
        {"q1s131072_127q1s1024", 32, 8, 1, 128, 131072}, {"q1s131072_7q1s1024", 32, 8, 1, 33, 5042},
        {"4q1s65536_60q1s512", 32, 8, 1, 64, 65536},     {"2q1s4096_q1s16_q1s0", 32, 8, 16, 32, 18 * 16},
        {"122q1s600_8q17s10000", 28, 4, 1, 186, 10000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct planned x;
        int32_t longest = 0;
        plan_on("h200", "fi_prefill", want[i].q_heads, want[i].kv_heads, want[i].page, want[i].spec, &x);
        for (int32_t k = 0; k < x.p.n_items; k++)
            if (x.p.items[k].kv_end - x.p.items[k].kv_begin > longest)
                longest = x.p.items[k].kv_end - x.p.items[k].kv_begin;
        assert_int_equal(x.p.n_items, want[i].works * want[i].kv_heads);
        assert_int_equal(longest, want[i].longest_chunk);
        assert_int_equal(x.p.items[0].kernel, KERNEL_FA2_DECODE_16);
        planned_free(&x);
    }
}

/* TwoStageHolisticPlan, 264 CTAs. limit = roundup(ceil(sum of keys * kv heads / 264), 256); a tile of 16
 * costs 32 + keys, one of 128 256 + keys. The least and the most loaded CTA are what the heap makes of it.
 *   131072 + 127 x 1024   261120 * 8 / 264 = 7912.7 -> 7936; 17 + 127 works a head; partial rows 4 x 17
 *   131072 + 7 x 1024     138240 * 8 / 264 = 4189.1 -> 4352; 31 + 7
 *   4 x 65536 + 60 x 512  292864 * 8 / 264 = 8874.7 -> 8960; 4 x 8 + 60
 *   28/4 heads, 122 x (600, q 1) + 8 x (10000, q 17): 153200 * 4 / 264 = 2321.2 -> 2560, tiles of 128: 1280;
 * 8 x 8 tall works and 122 short ones a head; partial rows 8 x 119 x 8 */
static void test_fi_holistic(void **state)
{
    static const struct {
        const char *spec;
        int32_t q_heads, kv_heads, tall, short_, limit, least, most, partial_rows;
    } want[] = {
        {"q1s131072_127q1s1024", 32, 8, 0, 1152, 7936, 7392, 8448, 4 * 17},
        {"q1s131072_7q1s1024", 32, 8, 0, 304, 4352, 2112, 4384, 4 * 31},
        {"4q1s65536_60q1s512", 32, 8, 0, 736, 8960, 8704, 8992, 4 * 4 * 8},
        {"122q1s600_8q17s10000", 28, 4, 256, 488, 1280, 2168, 2800, 7616},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct planned x;
        int32_t n[2] = {0, 0}, longest = 0, least = INT32_MAX, most = 0;
        plan_on("h200", "fi_holistic", want[i].q_heads, want[i].kv_heads, 1, want[i].spec, &x);
        assert_int_equal(x.p.grids[0].n_ctas, 264);
        for (int32_t cta = 0; cta < 264; cta++) {
            int32_t cost = 0;
            for (int32_t k = x.p.list_indptr[cta]; k < x.p.list_indptr[cta + 1]; k++) {
                const int32_t keys = x.p.items[k].kv_end - x.p.items[k].kv_begin;
                const bool tall = x.p.items[k].kernel == KERNEL_FA2_PREFILL_128;
                n[tall]++;
                cost += keys + (tall ? 256 : 32);
                if (keys > longest) longest = keys;
            }
            if (cost < least) least = cost;
            if (cost > most) most = cost;
        }
        assert_int_equal(n[1], want[i].tall);
        assert_int_equal(n[0], want[i].short_);
        assert_int_equal(longest, want[i].limit);
        assert_int_equal(least, want[i].least);
        assert_int_equal(most, want[i].most);
        assert_int_equal(x.p.partial_rows, want[i].partial_rows * want[i].kv_heads);
        planned_free(&x);
    }
}

/* None of FlashInfer's seven mixed shapes splits anywhere: 128 decodes are above the FA2 budget of 33, and
 * the longest holistic tile (8192 keys at most) is below its limit. */
static void test_bench_mixed_never_splits(void **state)
{
    static const char *const specs[] = {"q512_128q1s2k",      "q1536_128q1s2k", "2q2k_128q1s2k",
                                        "q2k_128q1s2k",       "q4k_128q1s4k",   "q4k_128q1s8k",
                                        "q6000s7000_128q1s8k"};
    static const char *const policies[] = {"fi_prefill", "fi_batch_pod", "fi_holistic"};
    (void)state;
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++)
        for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
            struct planned x;
            plan_on("h200", policies[i], 32, 8, 1, specs[s], &x);
            if (x.p.partial_rows != 0) fail_msg("%s, %s: split", policies[i], specs[s]);
            planned_free(&x);
        }
}

/* ---- FlashAttention */

/* Split counts for q = 1, group <= tile, so one query tile a (request, KV head): FA2 with 2 SMs slots and
 * blocks of 128 keys, FA3 with SMs slots and blocks of 128 too (blocks of 176, for unpaged K/V, give the
 * same). FA2's rule asks for a change of ceil(blocks / s), FA3's does not. Worked: 8 heads, 1 request, 131072
 * keys at 132 SMs, FA2: 1024 blocks; s = 33 would fill 264 slots but cuts no finer than 32 (32 blocks a
 * piece), so the best is s = 32, 256 / 264 = 0.970, and 0.85 of it is 0.824: 8 s / 264 gets there at 28. */
static void test_fa_splits(void **state)
{
    static const struct {
        int32_t kv_heads, requests, kv_len, fa2, fa3, fa2_108;
    } want[] = {
        {8, 1, 131072, 28, 15, 23}, {8, 4, 131072, 7, 4, 6},  {8, 8, 131072, 4, 2, 3},
        {8, 16, 131072, 2, 1, 3},   {8, 1, 4096, 32, 14, 16}, {2, 1, 65536, 128, 57, 103},
        {2, 4, 16384, 32, 15, 26},  {2, 8, 8192, 16, 8, 13},  {2, 32, 2048, 4, 2, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const int64_t work = (int64_t)want[i].kv_heads * want[i].requests, kv_len = want[i].kv_len;
        const int32_t fa2 = fa2_num_splits(work, 264, (kv_len + 127) / 128, 128),
                      fa3 = fa3_num_splits(work, 132, (kv_len + 127) / 128, false, 0),
                      fa2_108 = fa2_num_splits(work, 216, (kv_len + 127) / 128, 128);
        if (fa2 != want[i].fa2 || fa3 != want[i].fa3 || fa2_108 != want[i].fa2_108)
            fail_msg("%d heads, %d x %d: FA2 %d, FA3 %d, FA2 at 108 SMs %d: want %d, %d, %d",
                     want[i].kv_heads, want[i].requests, want[i].kv_len, fa2, fa3, fa2_108, want[i].fa2,
                     want[i].fa3, want[i].fa2_108);
    }
}

/* The policies use these rules: splits show as chunks of a request. */
static int32_t chunks_of(const struct planned *x, int32_t request)
{
    int32_t n = 0;
    for (int32_t k = 0; k < x->p.n_items; k++)
        n += x->p.items[k].group == request && x->p.items[k].kv_head == 0;
    return n;
}

/* FA3 varlen, 65536 + 31 x 1024, 8 KV heads: sum of m n = 512 + 31 * 8 = 760; 760 * 1.1 * 8 / 132 = 50.7 ->
 * 51 blocks an SM; bound: 8 tiles on 132 SMs, s = 33 fills them, 15 reaches 0.85 of that; splits ceil(512 /
 * 51) = 11, and 1. */
static void test_fa3_varlen(void **state)
{
    struct planned x;
    (void)state;
    assert_int_equal(fa3_num_splits(8, 132, 512, true, 0), 15);
    assert_int_equal(fa3_varlen_blocks_per_sm(760, 8, 132), 51);
    assert_int_equal(fa3_varlen_blocks_per_sm(360, 1, 132), 3); /* 396 / 132 in single precision */
    assert_int_equal(fa3_varlen_splits(512, 51, 15), 11);
    assert_int_equal(fa3_varlen_splits(8, 51, 15), 1);
    assert_int_equal(fa3_varlen_splits(0, 51, 15), 1);
    assert_int_equal(fa3_varlen_splits(2000, 51, 15), 15);
    plan_on("h200", "fa3_varlen", 32, 8, 16, "31q1s1024_q1s65536", &x);
    assert_int_equal(chunks_of(&x, 31), 11);
    for (int32_t r = 0; r < 31; r++)
        assert_int_equal(chunks_of(&x, r), 1);
    assert_int_equal(x.p.items[0].group, 31); /* sorted: the long one first */
    assert_int_equal(x.p.grids[0].n_ctas, 132);
    planned_free(&x);
    plan_on("h200", "fa2_splits", 32, 8, 16, "q1s128k", &x);
    assert_int_equal(chunks_of(&x, 0), 28);
    planned_free(&x);
    plan_on("h200", "fa3_splits", 32, 8, 16, "q1s128k", &x);
    assert_int_equal(chunks_of(&x, 0), 15);
    planned_free(&x);
}

/* Above 992 sequences the prepare kernel splits nothing: probed on both sides. */
static void test_fa3_varlen_many(void **state)
{
    struct planned x;
    (void)state;
    plan_on("h200", "fa3_varlen", 8, 1, 16, "q1s128k_991q1s16", &x);
    assert_true(chunks_of(&x, 0) > 1);
    planned_free(&x);
    plan_on("h200", "fa3_varlen", 8, 1, 16, "q1s128k_992q1s16", &x);
    assert_int_equal(chunks_of(&x, 0), 1);
    planned_free(&x);
}

/* PackGQA at tile 128: q 64, group 4: 64 / 128 = 0.5 against 256 / 256 = 1: packed. q 128: both full: not. q
 * 115, group 2: 115 / 128 = 0.898 against 230 / 256 = 0.898: not. q 100, group 5: 0.781 < 0.9 * 500 / 512 =
 * 0.879. */
static void test_packs_gqa(void **state)
{
    (void)state;
    assert_true(fa3_packs_gqa(false, 64, 4, 128));
    assert_false(fa3_packs_gqa(false, 128, 4, 128));
    assert_false(fa3_packs_gqa(false, 115, 2, 128));
    assert_true(fa3_packs_gqa(false, 100, 5, 128));
    assert_false(fa3_packs_gqa(false, 1, 1, 128));
    assert_true(fa3_packs_gqa(true, 128, 1, 128));
}

/* A non-causal KV head beyond L2: 32768 keys of 4 KB = 128 MB in pieces of 50 MB: 3, once there are two tiles
 * an SM. */
static void test_fa3_beyond_l2(void **state)
{
    const double head = 32768.0 * 4096;
    (void)state;
    assert_int_equal(fa3_num_splits(264, 132, 256, false, head), 3);
    assert_int_equal(fa3_num_splits(263, 132, 256, false, head), 1);
    assert_int_equal(fa3_num_splits(264, 132, 256, true, head), 1);
    assert_int_equal(fa3_num_splits(264, 132, 256, false, 50.0 * 1048576), 1);
    assert_int_equal(fa3_num_splits(264, 132, 256, false, 100.0 * 1048576), 2);
}

/* ---- POD-Attention */

/* Plans for the paper's shapes: kernel (which says mode and splits) and CTAs of each role. Lengths: C0 a
 * chunk of 1k of 12k and 80 decodes of 12k, C1 12k and 220, C2 16k and 250 of 12k, all 16/4 heads; figure 6 a
 * chunk of 1k and 54 decodes of 16k; table 8 a chunk of 512 and 64 decodes of 16k; figure 14 a chunk of 8k of
 * 8k and 32 or 192 decodes of 8k (Llama 32/8, Yi 32/4). On an H200 the slots are 264, not 216, so the same
 * shapes get other plans: D = 256 is within [0.8 slots, slots) there (2 splits), and full on an A100. */
static void test_pod(void **state)
{
    static const struct {
        const char *gpu, *spec;
        int32_t q_heads, kv_heads, kernel, n_prefill, n_decode;
    } want[] = {
        {"a100", "q1ks12k_80q1s12k", 16, 4, KERNEL_POD_4, 256, 160},
        {"h200", "q1ks12k_80q1s12k", 16, 4, KERNEL_POD_4, 256, 160},
        {"a100", "q12k_220q1s12k", 16, 4, KERNEL_POD_2, 1536, 220},
        {"h200", "q12k_220q1s12k", 16, 4, KERNEL_POD_2, 1536, 220},
        {"a100", "q16k_250q1s12k", 16, 4, KERNEL_POD_2, 2048, 250},
        {"h200", "q16k_250q1s12k", 16, 4, KERNEL_POD_2, 2048, 250},
        {"a100", "q1ks16k_54q1s16k", 16, 4, KERNEL_POD_4, 256, 108},
        {"h200", "q1ks16k_55q1s16k", 16, 4, KERNEL_POD_4, 256, 110},
        {"a100", "q512s16k_64q1s16k", 16, 4, KERNEL_POD_4, 128, 128},
        {"h200", "q512s16k_64q1s16k", 16, 4, KERNEL_POD_2_BOTH_SPLIT, 256, 512},
        {"a100", "q8k_32q1s8k", 32, 8, KERNEL_POD_2, 2048, 64},
        {"a100", "q8k_192q1s8k", 32, 8, KERNEL_POD_2, 2048, 384},
        {"h200", "q8k_32q1s8k", 32, 8, KERNEL_POD_2_DECODE_SPLIT, 2048, 512},
        {"h200", "q8k_192q1s8k", 32, 8, KERNEL_POD_2, 2048, 384},
        {"a100", "q8k_32q1s8k", 32, 4, KERNEL_POD_2_DECODE_SPLIT, 2048, 384},
        {"a100", "q8k_192q1s8k", 32, 4, KERNEL_POD_2, 2048, 192},
        {"h200", "q8k_32q1s8k", 32, 4, KERNEL_POD_2_DECODE_SPLIT, 2048, 256},
        {"h200", "q8k_192q1s8k", 32, 4, KERNEL_POD_2, 2048, 192},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct planned x;
        plan_on(want[i].gpu, "pod", want[i].q_heads, want[i].kv_heads, 16, want[i].spec, &x);
        const struct grid *g = &x.p.grids[0];
        if (g->kernel != want[i].kernel || g->ticket.n_prefill != want[i].n_prefill ||
            g->ticket.n_decode != want[i].n_decode)
            fail_msg("%s on %s: %s, %d + %d CTAs: want %s, %d + %d", want[i].spec, want[i].gpu,
                     kernel_row((enum kernel_id)g->kernel)->name, g->ticket.n_prefill, g->ticket.n_decode,
                     kernel_row((enum kernel_id)want[i].kernel)->name, want[i].n_prefill, want[i].n_decode);
        planned_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fi_prefill),
        cmocka_unit_test(test_fi_holistic),
        cmocka_unit_test(test_bench_mixed_never_splits),
        cmocka_unit_test(test_fa_splits),
        cmocka_unit_test(test_fa3_varlen),
        cmocka_unit_test(test_fa3_varlen_many),
        cmocka_unit_test(test_packs_gqa),
        cmocka_unit_test(test_fa3_beyond_l2),
        cmocka_unit_test(test_pod),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
