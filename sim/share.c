#include "sim/share.h"

#include <math.h>

enum { N_LIMITS = 3 }; /* tensor pipe, FMA pipe, bytes into the SM */

static double use_of(const struct demand *d, int limit, double sm_bytes_per_ns)
{
    switch (limit) {
    case 0:
        return d->pipe == PIPE_TENSOR ? d->pipe_frac : 0;
    case 1:
        return d->pipe == PIPE_FMA ? d->pipe_frac : 0;
    default:
        return d->sm_bytes_per_ns / sm_bytes_per_ns;
    }
}

/* Progressive filling. Each round raises the common level of the items not yet stopped until a limit binds,
 * stops its users there and goes on; at most one round a limit. */
void share_sm(const struct demand *const *demands, int32_t n, double sm_bytes_per_ns, double *local)
{
    for (int32_t i = 0; i < n; i++)
        local[i] = -1; /* not stopped */
    for (int round = 0; round < N_LIMITS; round++) {
        double level = 1;
        int binding = -1;
        for (int l = 0; l < N_LIMITS; l++) {
            double free_use = 0, stopped_use = 0;
            for (int32_t i = 0; i < n; i++) {
                const double use = use_of(demands[i], l, sm_bytes_per_ns);
                if (local[i] < 0)
                    free_use += use;
                else
                    stopped_use += use * local[i];
            }
            if (free_use > 0 && (1 - stopped_use) / free_use < level) {
                level = (1 - stopped_use) / free_use;
                binding = l;
            }
        }
        if (binding < 0) break;
        for (int32_t i = 0; i < n; i++)
            if (local[i] < 0 && use_of(demands[i], binding, sm_bytes_per_ns) > 0) local[i] = level;
    }
    for (int32_t i = 0; i < n; i++)
        if (local[i] < 0) local[i] = 1;
}

/* The level at which the bytes left over by satisfied items (those that ask no more than x * weight) are
 * shared by the others. *n_satisfied tells one set from another. INFINITY when all are satisfied at x. */
static double next_level(const struct consumers *c, double bytes, double x, int32_t *n_satisfied)
{
    double satisfied = 0, weight = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        const double asks = c->local[i] * c->hbm[i];
        const bool ok = asks <= x * c->weight[i];
        satisfied += ok ? asks : 0;
        weight += ok ? 0 : c->weight[i];
        n += ok;
    }
    *n_satisfied = n;
    return weight > 0 ? (bytes - satisfied) / weight : INFINITY;
}

/* The use of HBM is a concave, piecewise linear function of the level, and next_level is Newton's step on it:
 * from any start the second level is at or left of the root, and from there levels only rise, each with a
 * larger set of satisfied items. The same set twice: that is the root. A start right of every corner, where
 * nothing binds, gives no step: then from the level that would share all bytes out, which is left of the
 * root. An item exactly at its corner may flip by rounding; the count of steps ends that, and the levels then
 * differ in their last bits only. */
static double hbm_level(const struct consumers *c, double bytes, double start)
{
    double x = start;
    int32_t n_before = -1;
    for (int32_t step = 0; step < c->n + 64; step++) {
        int32_t n;
        double next = next_level(c, bytes, x, &n);
        if (n == n_before) return next;
        if (isinf(next)) {
            next = next_level(c, bytes, 0, &n); /* satisfies those that ask for nothing */
            n = -1;
        }
        x = next;
        n_before = n;
    }
    return x;
}

double share_hbm(struct consumers *c, double hbm_bytes_per_ns, double *level)
{
    double asked = 0;
    for (int32_t i = 0; i < c->n; i++)
        asked += c->local[i] * c->hbm[i];
    if (asked <= hbm_bytes_per_ns) {
        for (int32_t i = 0; i < c->n; i++)
            c->rate[i] = c->local[i];
        *level = INFINITY;
        return asked;
    }
    const double x = hbm_level(c, hbm_bytes_per_ns, isinf(*level) ? 1.0 : *level);
    for (int32_t i = 0; i < c->n; i++) {
        const double asks = c->local[i] * c->hbm[i], gets = x * c->weight[i];
        c->rate[i] = asks <= gets ? c->local[i] : gets / c->hbm[i];
    }
    *level = x;
    return hbm_bytes_per_ns;
}
