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

/* HBM use at water level x: sum of min(local hbm, x weight), and its slope there. Both concave in x, so
 * Newton's steps never pass the root from the left and reach it exactly (the function is piecewise linear).
 */
static double use_at(const struct consumers *c, double x, double *slope)
{
    double use = 0, rising = 0;
    for (int32_t i = 0; i < c->n; i++) {
        const double asks = c->local[i] * c->hbm[i], gets = x * c->weight[i];
        use += asks <= gets ? asks : gets;
        rising += asks <= gets ? 0 : c->weight[i];
    }
    *slope = rising;
    return use;
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
    double x = isinf(*level) ? 1.0 : *level;
    for (;;) {
        double slope;
        const double use = use_at(c, x, &slope);
        if (slope == 0) { /* right of every corner: step back to where something binds */
            x /= 2;
            continue;
        }
        const double next = x + (hbm_bytes_per_ns - use) / slope;
        /* the last steps only move by rounding */
        const double move = next - x;
        x = next;
        if (fabs(move) <= 1e-14 * x) break;
    }
    for (int32_t i = 0; i < c->n; i++) {
        const double asks = c->local[i] * c->hbm[i], gets = x * c->weight[i];
        c->rate[i] = asks <= gets ? c->local[i] : gets / c->hbm[i];
    }
    *level = x;
    return hbm_bytes_per_ns;
}
