/* Occupancy: worked examples of the CUDA rules, each limit alone, and agreement of the mixed-residency model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/profile.h"
#include "sim/occupancy.h"
#include "sim/residency.h"

#include <string.h>

static struct gpu load(const char *name)
{
    struct gpu gpu;
    struct why why = {""};
    if (profile_load(name, &gpu, &why) != STATUS_OK) fail_msg("%s", why.text);
    return gpu;
}

static int32_t occupancy(const char *name, int32_t threads, int32_t registers, int32_t smem)
{
    const struct gpu gpu = load(name);
    const struct cta_shape cta = {threads, registers, 0, smem, smem, -1, 1};
    return occupancy_of(&gpu, &cta).ctas_per_sm;
}

/* FA3's 384 x 168 registers and 225 KB: 1. POD's modes at 255 registers: 2 of 128 threads and 80 KB, 4 of 64
 * threads and 40 KB (registers hold 8 warps), 1 of 256 threads and 144 KB; on 100 KB parts 1, 2 and none. */
static void test_published(void **state)
{
    (void)state;
    assert_int_equal(occupancy("h200", 384, 168, 225 * 1024), 1);
    assert_int_equal(occupancy("h200", 128, 128, 40 * 1024), 4);
    static const char *const parts[] = {"a100", "h100", "h200", "l40s", "rtx4090"};
    static const int32_t want[][3] = {{2, 4, 1}, {2, 4, 1}, {2, 4, 1}, {1, 2, 0}, {1, 2, 0}};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(occupancy(parts[i], 128, 255, 80 * 1024), want[i][0]);
        assert_int_equal(occupancy(parts[i], 64, 255, 40 * 1024), want[i][1]);
        assert_int_equal(occupancy(parts[i], 256, 255, 144 * 1024), want[i][2]);
    }
}

/* Each limit on both sides of its edge, sm_90. */
static void test_edges(void **state)
{
    (void)state;
    assert_int_equal(occupancy("h200", 1024, 64, 0), 1); /* 32 warps x 2048 = the whole file */
    assert_int_equal(occupancy("h200", 1024, 65, 0), 0); /* 72 x 32 x 32 registers do not fit */
    assert_int_equal(occupancy("h200", 1025, 16, 0), 0); /* too many threads */
    assert_int_equal(occupancy("h200", 0, 16, 0), 0);
    assert_int_equal(occupancy("h200", 32, 256, 0), 8); /* 8192 a warp: 2 a sub-partition */
    assert_int_equal(occupancy("h200", 32, 257, 0), 0); /* no such register */
    assert_int_equal(occupancy("h200", 256, 33, 0),
                     6); /* 1056 registers a warp count 1280: 12 a sub-partition */
    assert_int_equal(occupancy("h200", 32, 16, 0), 32);         /* slots */
    assert_int_equal(occupancy("h200", 32, 16, 227 * 1024), 1); /* opt-in limit */
    assert_int_equal(occupancy("h200", 32, 16, 227 * 1024 + 1), 0);
    assert_int_equal(occupancy("h200", 32, 16, 113 * 1024), 2); /* 2 x (113 + 1) = 228 KB */
    assert_int_equal(occupancy("h200", 32, 16, 113 * 1024 + 1), 1);
    assert_int_equal(occupancy("rtx4090", 1024, 32, 0), 1); /* 1536 threads an SM */
}

/* Named barriers bound sm_90 alone: 64 in all there, so 16 each allow 4 CTAs. */
static void test_barriers(void **state)
{
    (void)state;
    struct gpu gpu = load("h200");
    struct cta_shape cta = {32, 16, 0, 0, 0, -1, 16};
    assert_int_equal(occupancy_of(&gpu, &cta).ctas_per_sm, 4);
    gpu = load("a100");
    assert_int_equal(occupancy_of(&gpu, &cta).ctas_per_sm, 32);
    cta.carveout = 0; /* asks for nothing: the next size that holds the reserve, 8 KB, holds 8 CTAs */
    assert_int_equal(occupancy_of(&gpu, &cta).ctas_per_sm, 8);
}

/* Filling an SM with equal CTAs one by one ends exactly at the occupancy, for every kernel row on every
 * profile. */
static void test_residency_agrees(void **state)
{
    static const char *const parts[] = {"a100", "h100", "h200", "l40s", "rtx4090"};
    const struct shape shape = {32, 8, 128, 128, DTYPE_BF16, DTYPE_BF16};
    (void)state;
    for (int i = 0; i < 5; i++) {
        const struct gpu gpu = load(parts[i]);
        struct kernels kernels;
        kernels_resolve(&gpu, &shape, &kernels);
        for (int k = 0; k < KERNEL_COUNT; k++) {
            struct sm_use use = {0};
            const struct footprint f =
                residency_footprint(&gpu, kernel_row((enum kernel_id)k), &kernels.fit[k]);
            if (kernels.fit[k].ctas_per_sm == 0) continue; /* wrong architecture */
            while (residency_room(&gpu, &use, &f) > 0)
                residency_add(&use, &f);
            assert_int_equal(use.ctas, kernels.fit[k].ctas_per_sm);
        }
    }
}

/* FA3's kernel needs sm_90; head_dim 256 shrinks the K/V tile until it fits a 100 KB part. */
static void test_resolve(void **state)
{
    const struct shape wide = {8, 2, 256, 256, DTYPE_BF16, DTYPE_BF16};
    struct kernels kernels;
    struct gpu gpu = load("a100");
    (void)state;
    kernels_resolve(&gpu, &wide, &kernels);
    assert_int_equal(kernels.fit[KERNEL_FA3_PREFILL_128].ctas_per_sm, 0);
    gpu = load("l40s");
    kernels_resolve(&gpu, &wide, &kernels);
    assert_int_equal(kernels.fit[KERNEL_FA2_PREFILL_64].tile_kv, 64); /* 32 KB Q + 2 x 32 KB */
    assert_int_equal(kernels.fit[KERNEL_FA2_PREFILL_64].ctas_per_sm, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_barriers),  cmocka_unit_test(test_residency_agrees),
        cmocka_unit_test(test_resolve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
