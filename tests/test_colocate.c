/* The co-location micro-benchmark without a GPU: every method does every element of either op exactly
 * once, whatever the grid, the ratio, the SM numbers and the order of CTAs; its check sees what goes
 * wrong; its rows say what they should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/colocate_rows.h"
#include "lab/rng.h"
#include "tests/colocate_cpu.h"
#include "tests/cuda_shim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- who does what ------------------------------------------------------------------------------------- */

/* Elements of each op: none, one, less than a tile, several rounds, the sweep's extremes. */
static const int64_t sizes[][2] = {{0, 0},      {1, 0},       {0, 1},       {1, 1},
                                   {63, 64},    {65, 63},     {1000, 100},  {100, 1000},
                                   {4096, 409}, {4096, 4096}, {5000, 4999}, {20011, 2001}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void expect_once(const struct colocate_cpu *c, const uint32_t *sm, const char *what)
{
    const int64_t wrong = colocate_cpu_count(c, sm);
    if (wrong != 0)
        fail_msg(
            "shape %d, %d CTAs of %d, n %lld %lld, tickets %d %d: %s: %lld elements not done exactly once",
            c->shape, c->ctas, c->threads, (long long)c->n_memory, (long long)c->n_compute, c->ticket_kind,
            c->memory_ctas, what, (long long)wrong);
}

static void test_fixed_shapes(void **state)
{
    static const int32_t ctas[] = {2, 3, 4, 5, 7, 16, 131, 264}, threads[] = {64, 96, 128, 256};
    (void)state;
    for (int32_t shape = 0; shape < COLOCATE_SHAPES; shape++)
        for (size_t g = 0; g < sizeof ctas / sizeof ctas[0] && shape != COLOCATE_TICKETS; g++)
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++)
                for (size_t i = 0; i < N_SIZES; i++)
                    expect_once(
                        &(struct colocate_cpu){shape, ctas[g], threads[t], sizes[i][0], sizes[i][1], 0, 1, 1},
                        NULL, "fixed");
}

/* The grid that is measured, over more than two rounds of its tiles. */
static void test_measured_grid(void **state)
{
    const int64_t n = 1200 * 1024 + 77;
    uint32_t sm[COLOCATE_CTAS];
    (void)state;
    for (int32_t i = 0; i < COLOCATE_CTAS; i++)
        sm[i] = (uint32_t)i % 132;
    for (int32_t shape = 0; shape < COLOCATE_SHAPES; shape++)
        for (int32_t point = 1; point <= COLOCATE_POINTS; point += 3)
            expect_once(&(struct colocate_cpu){shape, COLOCATE_CTAS, COLOCATE_THREADS, n,
                                               colocate_n_compute(n, point), TICKET_EXACT,
                                               COLOCATE_CTAS * 2 / 3, 132},
                        shape == COLOCATE_TICKETS ? sm : NULL, "measured");
}

/* SM numbers that a draw must survive, for a GPU of sm_count SMs. */
enum { SM_ALL_ONE, SM_IN_ORDER, SM_PAST_THE_END, SM_LARGEST, SM_RANDOM, SM_KINDS };

static uint32_t sm_of(int32_t kind, int32_t cta, int32_t sm_count, struct rng *rng)
{
    switch (kind) {
    case SM_ALL_ONE:
        return 0;
    case SM_IN_ORDER:
        return (uint32_t)(cta % sm_count);
    case SM_PAST_THE_END: /* %smid is not contiguous on parts with SMs fused off */
        return (uint32_t)(sm_count + cta);
    case SM_LARGEST:
        return UINT32_MAX - (uint32_t)cta;
    default:
        return (uint32_t)rng_below(rng, (uint64_t)1 << 32);
    }
}

static void test_tickets(void **state)
{
    static const int32_t grids[][3] = {/* CTAs, of them memory, SMs */
                                       {2, 1, 1},    {2, 1, 132},     {3, 1, 2},     {3, 2, 2},
                                       {64, 1, 5},   {64, 63, 5},     {64, 32, 64},  {100, 33, 7},
                                       {100, 67, 7}, {264, 200, 132}, {264, 64, 132}};
    struct rng rng = {11};
    uint32_t sm[264];
    (void)state;
    for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++)
        for (int32_t kind = 0; kind < TICKET_KIND_COUNT; kind++)
            for (int32_t sms = 0; sms < SM_KINDS; sms++)
                for (size_t i = 0; i < N_SIZES; i++) {
                    for (int32_t cta = 0; cta < grids[g][0]; cta++)
                        sm[cta] = sm_of(sms, cta, grids[g][2], &rng);
                    expect_once(&(struct colocate_cpu){COLOCATE_TICKETS, grids[g][0], 64, sizes[i][0],
                                                       sizes[i][1], kind, grids[g][1], grids[g][2]},
                                sm, "tickets");
                }
}

/* CTAs of the memory op by hand: times 1 : 1, 3 : 1; an op without time, or no sense at all, still gets
 * one CTA. */
static void test_memory_ctas(void **state)
{
    (void)state;
    assert_int_equal(colocate_memory_ctas(2048, 5, 5), 1024);
    assert_int_equal(colocate_memory_ctas(2048, 3, 1), 1536);
    assert_int_equal(colocate_memory_ctas(2048, 1, 3), 512);
    assert_int_equal(colocate_memory_ctas(2048, 0, 3), 1);
    assert_int_equal(colocate_memory_ctas(2048, 3, 0), 2047);
    assert_int_equal(colocate_memory_ctas(2048, 0, 0), 1);
    assert_int_equal(colocate_memory_ctas(2048, INFINITY, 1), 1);
    assert_int_equal(colocate_memory_ctas(2, 1e9, 1), 1);
}

/* ---- the kernels' bodies ------------------------------------------------------------------------------- */

/* Fibers: any order of CTAs and warps, SM numbers to 2^20; with barriers every thread of a team must come
 * to each. */
static void test_bodies(void **state)
{
    static const int64_t n[][2] = {{0, 0}, {1, 1}, {700, 70}, {700, 699}, {1500, 1500}, {300, 1100}};
    static const int32_t grids[][3] = {
        {2, 64, 1}, {5, 64, 2}, {5, 128, 3}, {8, 96, 1}, {8, 256, 7}}; /* , memory */
    (void)state;
    for (int32_t shape = 0; shape < COLOCATE_SHAPES; shape++)
        for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++)
            for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
                for (int32_t barrier = 0; barrier < 2; barrier++) {
                    const struct colocate_cpu c = {shape,       grids[g][0],
                                                   grids[g][1], n[i][0],
                                                   n[i][1],     (int32_t)(i % TICKET_KIND_COUNT),
                                                   grids[g][2], 1 + (int32_t)g,
                                                   barrier,     17 * g + i};
                    int64_t wrong = 0;
                    if (!colocate_cpu_run(&c, &wrong) || wrong != 0)
                        fail_msg("shape %d barrier %d, grid %zu, n %lld %lld: %s%lld elements are wrong",
                                 shape, barrier, g, (long long)n[i][0], (long long)n[i][1], shim_why,
                                 (long long)wrong);
                }
}

/* ---- the check ----------------------------------------------------------------------------------------- */

static float doubled(float x, int32_t times)
{
    for (int32_t i = 0; i < times; i++)
        x *= 2;
    return x;
}

/* Left out, done twice, once too few or too often, with a neighbour's data, never written: none passes for
 * right. */
static void test_check_sees_faults(void **state)
{
    const int64_t grid = (int64_t)COLOCATE_CTAS * COLOCATE_THREADS, tile = COLOCATE_THREADS;
    (void)state;
    for (int64_t j = 0; j < (int64_t)1 << 32; j += 104729 * 37) {
        const float c0 = colocate_c(j, false), c = colocate_c(j, true), d0 = colocate_d(j, false),
                    d = colocate_d(j, true), sum = colocate_a(j) + colocate_b(j);
        assert_true(colocate_right(c0 + sum, c));
        assert_true(colocate_right(doubled(d0, COLOCATE_ITERS), d));
        assert_true(d < INFINITY && d0 >= 0x1p-126f);
        assert_false(colocate_right(c0, c));
        assert_false(colocate_right(c0 + sum + sum, c));
        assert_false(colocate_right(d0, d));
        assert_false(colocate_right(doubled(d0, COLOCATE_ITERS - 1), d));
        assert_false(colocate_right(doubled(d0, COLOCATE_ITERS + 1), d));
        assert_false(colocate_right(doubled(d0, 2 * COLOCATE_ITERS), d));
        assert_false(colocate_right(c0 + colocate_a(j + 1) + colocate_b(j + 1), c));
        assert_false(colocate_right(colocate_c(j + 1, true), c) &&
                     colocate_right(colocate_d(j + 1, true), d));
        assert_false(colocate_right(colocate_c(j + tile, true), c) &&
                     colocate_right(colocate_d(j + tile, true), d));
        assert_false(colocate_right(colocate_c(j + grid, true), c) &&
                     colocate_right(colocate_d(j + grid, true), d));
        assert_false(colocate_right(NAN, c));
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Two shares with barriers, every method as fast as serial but streams: 1000 us in 800 (+25 %), 1100 in
 * 1000 (+10 %). */
static void make_rows(struct colocate *c)
{
    memset(c, 0, sizeof *c);
    strcpy(c->card.name, "A \"card\", made up");
    c->card.driver = 12040;
    c->n = 1 << 30;
    c->runs = 5;
    for (int share = 0; share < 2; share++)
        for (int m = 0; m < COLOCATE_METHODS; m++) {
            const double serial = share ? 1100 : 1000, time = m != COLOCATE_METHOD_STREAMS ? serial
                                                              : share                      ? 1000
                                                                                           : 800;
            c->rows[c->n_rows++] = (struct colocate_row){(enum colocate_method)m,
                                                         true,
                                                         20 * (share + 1),
                                                         {time, time - 1, time + 1},
                                                         700.5,
                                                         90,
                                                         serial,
                                                         0,
                                                         1980};
        }
}

static void print_to(const struct colocate *c, enum args_format format, char *text, size_t size)
{
    FILE *out = fmemopen(text, size, "w");
    assert_non_null(out);
    colocate_print(c, format, out);
    fclose(out);
}

static void expect_in(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no '%s' in:\n%s", part, text);
}

static void test_rows(void **state)
{
    static char text[1 << 16];
    struct colocate c;
    (void)state;
    make_rows(&c);
    assert_true(fabs(colocate_mean_gain(&c, COLOCATE_METHOD_STREAMS, true) - 0.175) < 1e-12);
    assert_true(isnan(colocate_mean_gain(&c, COLOCATE_METHOD_STREAMS, false)));
    assert_true(colocate_ideal_us(&c.rows[0]) == 700.5);
    print_to(&c, FORMAT_CSV, text, sizeof text);
    expect_in(
        text,
        "method,barrier,compute_iters,time_us,p10_us,p90_us,runs,memory_us,compute_us,ideal_us,gain,n,card,"
        "driver,sm_mhz,git,created_utc,status\nserial,1,20,1000,999,1001,5,700.5,90,700.5,0,1073741824,"
        "\"A \"\"card\"\", made up\",12040,1980,");
    expect_in(text, "\nstreams,1,40,1000,999,1001,5,700.5,90,700.5,0.1,1073741824,");
    expect_in(text, "Z,ok\n");
    print_to(&c, FORMAT_JSON, text, sizeof text);
    expect_in(text, "{\"method\":\"streams\",\"barrier\":1,\"compute_iters\":20,\"time_us\":800,");
    print_to(&c, FORMAT_TABLE, text, sizeof text);
    expect_in(text, "\nstreams                25.0   10.0 |  +17.5     +7\n");
    expect_in(text, "driver 12.4");
    assert_null(strstr(text, "no barriers"));
}

/* A wrong element: the row says so, and its method has no mean. */
static void test_wrong_rows(void **state)
{
    static char text[1 << 16];
    struct colocate c;
    (void)state;
    make_rows(&c);
    c.rows[COLOCATE_METHODS + COLOCATE_METHOD_STREAMS].wrong = 1;
    assert_true(isnan(colocate_mean_gain(&c, COLOCATE_METHOD_STREAMS, true)));
    print_to(&c, FORMAT_CSV, text, sizeof text);
    expect_in(text, "Z,mismatch\n");
    print_to(&c, FORMAT_TABLE, text, sizeof text);
    expect_in(text, "\nstreams                25.0  WRONG |            +7\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed_shapes), cmocka_unit_test(test_measured_grid),
        cmocka_unit_test(test_tickets),      cmocka_unit_test(test_memory_ctas),
        cmocka_unit_test(test_bodies),       cmocka_unit_test(test_check_sees_faults),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_wrong_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
