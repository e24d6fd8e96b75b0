/* remap.h: every remap is a bijection, and every ticket rule gives the published patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/remap.h"

#include <stdlib.h>
#include <string.h>

/* Every (kind, P, D) up to 13 x 13: each entry is visited once, and its role is prefill exactly when entry <
 * P. */
static void test_remaps_are_bijections(void **state)
{
    (void)state;
    for (int32_t kind = 0; kind < REMAP_KIND_COUNT; kind++)
        for (int32_t p = 0; p <= 13; p++)
            for (int32_t d = p == 0; d <= 13; d++) {
                int seen[32] = {0};
                for (int32_t bid = 0; bid < p + d; bid++) {
                    const struct remap_entry e = remap_linear_bid((struct remap){kind, p, d}, bid);
                    assert_in_range(e.entry, 0, p + d - 1);
                    assert_int_equal(seen[e.entry]++, 0);
                    assert_int_equal(e.role, e.entry < p ? WORK_PREFILL : WORK_DECODE);
                }
            }
}

/* P = 3, D = 5: what CTA 0..7 gets, written out. Interleaved: floor(k * 3 / 8) steps at k = 3, 6, 8. */
static void test_remap_orders_by_hand(void **state)
{
    (void)state;
    static const int32_t want[REMAP_KIND_COUNT][8] = {
        [REMAP_PREFILL_FIRST] = {0, 1, 2, 3, 4, 5, 6, 7},
        [REMAP_DECODE_FIRST] = {3, 4, 5, 6, 7, 0, 1, 2},
        [REMAP_INTERLEAVED] = {3, 4, 0, 5, 6, 1, 7, 2},
        [REMAP_PREFILL_REVERSED] = {2, 1, 0, 3, 4, 5, 6, 7},
    };
    for (int32_t kind = 0; kind < REMAP_KIND_COUNT; kind++)
        for (int32_t bid = 0; bid < 8; bid++)
            assert_int_equal(remap_linear_bid((struct remap){kind, 3, 5}, bid).entry, want[kind][bid]);
}

static void expect_pattern(int32_t kind, int32_t p, int32_t d, const char *want)
{
    for (int32_t k = 0; want[k]; k++)
        assert_int_equal(ticket_role((struct ticket){kind, p, d}, k),
                         want[k] == 'P' ? WORK_PREFILL : WORK_DECODE);
}

/* FlashInfer's published rule on its own benchmark shapes: 128:1024 is one prefill then 8 decodes, 384:1024
 * and 512:1024 are P D D, 1504:1024 truncates to strict alternation ending in D. POD 6:1 from 1536:220. */
static void test_proportional_tickets(void **state)
{
    (void)state;
    expect_pattern(TICKET_PROPORTIONAL, 128, 1024, "PDDDDDDDDPDDDDDDDDP");
    expect_pattern(TICKET_PROPORTIONAL, 384, 1024, "PDDPDDPDD");
    expect_pattern(TICKET_PROPORTIONAL, 512, 1024, "PDDPDDPDD");
    expect_pattern(TICKET_PROPORTIONAL, 1024, 1024, "PDPDPD");
    expect_pattern(TICKET_PROPORTIONAL, 1504, 1024, "PDPDPD");
    expect_pattern(TICKET_PROPORTIONAL, 1536, 220, "PPPPPPDPPPPPPD");
    expect_pattern(TICKET_HALF, 1536, 220, "PDPDPD");
}

/* An exact ratio gives every prefix of the tickets its share to within one, and starts with a prefill. */
static void test_exact_tickets(void **state)
{
    (void)state;
    expect_pattern(TICKET_EXACT, 2, 3, "PDPDDPDPDD");
    for (int32_t p = 1; p <= 20; p++)
        for (int32_t d = 1; d <= 20; d++) {
            int32_t prefills = 0;
            for (int32_t k = 0; k < 3 * (p + d); k++) {
                prefills += ticket_role((struct ticket){TICKET_EXACT, p, d}, k) == WORK_PREFILL;
                assert_true(abs(prefills * (p + d) - (k + 1) * p) < p + d);
            }
            assert_int_equal(prefills, 3 * p);
        }
}

/* The public rule divides by zero when a side is empty; ours names the other side. */
static void test_one_sided_tickets(void **state)
{
    (void)state;
    for (int32_t kind = 0; kind < TICKET_KIND_COUNT; kind++)
        for (int32_t k = 0; k < 5; k++) {
            assert_int_equal(ticket_role((struct ticket){kind, 0, 7}, k), WORK_DECODE);
            assert_int_equal(ticket_role((struct ticket){kind, 7, 0}, k), WORK_PREFILL);
        }
}

/* Counts near 2^31 stay in range. */
static void test_large_counts(void **state)
{
    (void)state;
    const int32_t half = INT32_MAX / 2;
    assert_int_equal(remap_even_share(INT32_MAX - 1, half, half), half);
    assert_int_equal(remap_linear_bid((struct remap){REMAP_INTERLEAVED, half, half}, INT32_MAX - 2).role,
                     WORK_PREFILL);
    assert_int_equal(ticket_role((struct ticket){TICKET_EXACT, half, half}, INT32_MAX - 1), WORK_PREFILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remaps_are_bijections), cmocka_unit_test(test_remap_orders_by_hand),
        cmocka_unit_test(test_proportional_tickets),  cmocka_unit_test(test_exact_tickets),
        cmocka_unit_test(test_one_sided_tickets),     cmocka_unit_test(test_large_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
