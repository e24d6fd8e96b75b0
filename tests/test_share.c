/* Sharing, judged by what a max-min share is and not by how share.c finds it:
 *   in an SM   no limit is exceeded; an item below full speed uses a full limit on which nobody is faster
 *   over HBM   everybody gets what it asks or level x weight, whichever is less; what is asked beyond the
 *              bandwidth leaves none of it unused
 * on seeded random demands over many orders of magnitude, with ties, zeros and huge uses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/rng.h"
#include "sim/share.h"

#include <math.h>
#include <stdbool.h>

enum { MAX_ITEMS = 32, N_LIMITS = 3, MAX_CONSUMERS = 300 };
static const double tolerance = 1e-9, sm_bytes_per_ns = 125;

static bool is_near(double got, double want)
{
    return fabs(got - want) <= tolerance * fabs(want);
}

/* 10^x with x even in [low, high). */
static double magnitude(struct rng *r, double low, double high)
{
    return pow(10, low + (high - low) * rng_uniform(r));
}

/* The share of a limit that an item uses at full speed, restated. */
static double use(const struct demand *d, int limit)
{
    if (limit == N_LIMITS - 1) return d->sm_bytes_per_ns / sm_bytes_per_ns;
    return d->pipe == (limit == 0 ? PIPE_TENSOR : PIPE_FMA) ? d->pipe_frac : 0;
}

static struct demand random_demand(struct rng *r)
{
    struct demand d = {.pipe = (enum pipe)rng_below(r, PIPE_COUNT), .alone_ns = 1};
    if (d.pipe != PIPE_NONE) d.pipe_frac = magnitude(r, -6, 0);
    if (rng_below(r, 5) > 0) d.sm_bytes_per_ns = sm_bytes_per_ns * magnitude(r, -9, 0);
    /* both limits are full at once: what the second leaves to others is all rounding */
    if (rng_below(r, 3) == 0) d.sm_bytes_per_ns = sm_bytes_per_ns * d.pipe_frac;
    return d;
}

static void check_sm(const struct demand *const *demands, int32_t n, const double *local, uint64_t seed)
{
    double used[N_LIMITS] = {0};
    for (int l = 0; l < N_LIMITS; l++) {
        for (int32_t i = 0; i < n; i++)
            used[l] += use(demands[i], l) * local[i];
        if (!(used[l] <= 1 + tolerance)) fail_msg("seed %d: limit %d used %.17g", (int)seed, l, used[l]);
    }
    for (int32_t i = 0; i < n; i++) {
        bool held = local[i] == 1;
        for (int l = 0; l < N_LIMITS && !held; l++) {
            held = use(demands[i], l) > 0 && used[l] >= 1 - tolerance;
            for (int32_t j = 0; j < n && held; j++)
                held = use(demands[j], l) == 0 || local[j] <= local[i] * (1 + tolerance);
        }
        if (!(local[i] > 0) || !held)
            fail_msg("seed %d: item %d of %d is at %.17g for no reason", (int)seed, i, n, local[i]);
    }
}

static void test_sm_is_max_min(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        struct rng r = {seed};
        struct demand d[MAX_ITEMS];
        const struct demand *demands[MAX_ITEMS];
        double local[MAX_ITEMS];
        const int32_t n = (int32_t)rng_below(&r, MAX_ITEMS + 1);
        for (int32_t i = 0; i < n; i++) {
            /* every other item is a copy of one before: kinds repeat on a real SM, and make ties */
            d[i] = i && rng_below(&r, 2) ? d[rng_below(&r, (uint64_t)i)] : random_demand(&r);
            demands[i] = &d[i];
        }
        share_sm(demands, n, sm_bytes_per_ns, local);
        check_sm(demands, n, local, seed);
    }
}

/* By hand. Pipe: two items of 0.8 share at 1/1.6. The third uses bytes alone, 40 % of the SM's: full speed.
 * With 75 % of the bytes itself and 20 % by each of the others, bytes bind later: (1 - 0.4 / 1.6) / 0.75 = 1.
 */
static void test_sm_by_hand(void **state)
{
    (void)state;
    struct demand pipe = {.pipe = PIPE_TENSOR, .pipe_frac = 0.8}, bytes = {.sm_bytes_per_ns = 50};
    const struct demand *const demands[] = {&pipe, &pipe, &bytes};
    double local[3];
    share_sm(demands, 3, sm_bytes_per_ns, local);
    assert_true(is_near(local[0], 0.625) && local[0] == local[1] && local[2] == 1);
    pipe.sm_bytes_per_ns = 25;
    bytes.sm_bytes_per_ns = 0.9 * sm_bytes_per_ns; /* (1 - 2 x 0.2 x 0.625) / 0.9 */
    share_sm(demands, 3, sm_bytes_per_ns, local);
    assert_true(is_near(local[0], 0.625) && is_near(local[2], 0.75 / 0.9));
}

static void random_consumers(struct rng *r, struct consumers *c)
{
    const double spread = rng_below(r, 2) ? 1 : 8;
    c->n = 1 + (int32_t)rng_below(r, MAX_CONSUMERS);
    for (int32_t i = 0; i < c->n; i++) {
        const int32_t copy = i && rng_below(r, 3) ? (int32_t)rng_below(r, (uint64_t)i) : -1;
        c->local[i] = copy >= 0 ? c->local[copy] : magnitude(r, -2, 0);
        c->hbm[i] = copy >= 0 ? c->hbm[copy] : rng_below(r, 6) ? magnitude(r, -spread, spread) : 0;
        c->weight[i] = copy >= 0 ? c->weight[copy] : magnitude(r, -spread, spread);
    }
}

static void check_hbm(const struct consumers *c, double bytes, double used, uint64_t seed)
{
    double asked = 0, taken = 0, level = INFINITY;
    for (int32_t i = 0; i < c->n; i++) {
        asked += c->local[i] * c->hbm[i];
        taken += c->rate[i] * c->hbm[i];
        if (!(c->rate[i] > 0 && c->rate[i] <= c->local[i])) fail_msg("seed %d: rate of %d", (int)seed, i);
        if (c->rate[i] < c->local[i]) level = fmin(level, c->rate[i] * c->hbm[i] / c->weight[i]);
    }
    if (!is_near(taken, fmin(asked, bytes)) || !is_near(used, taken))
        fail_msg("seed %d: asked %.12g, taken %.12g of %.12g", (int)seed, asked, taken, bytes);
    for (int32_t i = 0; i < c->n; i++) {
        const double share = c->rate[i] * c->hbm[i] / c->weight[i];
        if (!(share <= level * (1 + tolerance)) || (c->rate[i] < c->local[i] && !is_near(share, level)))
            fail_msg("seed %d: consumer %d is at level %.12g, others at %.12g", (int)seed, i, share, level);
    }
}

/* Whatever level the search starts from, the shares are the same. */
static void test_hbm_is_max_min(void **state)
{
    static const double starts[] = {INFINITY, 1, 1e-30, 1e-3, 1e6, 1e300};
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        double lanes[5][MAX_CONSUMERS];
        struct consumers c = {0, lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]};
        struct rng r = {seed};
        double asked = 0;
        random_consumers(&r, &c);
        for (int32_t i = 0; i < c.n; i++)
            asked += c.local[i] * c.hbm[i];
        const double bytes = (asked > 0 ? asked : 1) * magnitude(&r, -3, 0.5);
        for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
            double level = starts[s];
            const double used = share_hbm(&c, bytes, &level);
            check_hbm(&c, bytes, used, seed);
            assert_true(isinf(level) == (asked <= bytes));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sm_by_hand),
        cmocka_unit_test(test_sm_is_max_min),
        cmocka_unit_test(test_hbm_is_max_min),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
