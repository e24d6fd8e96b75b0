#include "sched/fa_splits.h"

#include <stdbool.h>

static const double full_frac = 0.8, good_frac = 0.85;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static double efficiency(int64_t work, int64_t slots, int64_t splits)
{
    const double waves = (double)(work * splits) / (double)slots;
    return waves / (double)ceil_div(work * splits, slots);
}

/* A split count that gives the same block count a piece as the one before would only add empty pieces. */
static bool changes_blocks(int64_t n_blocks, int64_t splits)
{
    return splits == 1 || ceil_div(n_blocks, splits) != ceil_div(n_blocks, splits - 1);
}

int32_t fa2_num_splits(int64_t work, int64_t slots, int64_t n_blocks, int64_t cap)
{
    int64_t most = cap < slots ? cap : slots;
    double best = 0;
    if (n_blocks < most) most = n_blocks;
    if (work <= 0 || (double)work >= full_frac * (double)slots) return 1;
    for (int64_t s = 1; s <= most; s++)
        if (changes_blocks(n_blocks, s) && efficiency(work, slots, s) > best)
            best = efficiency(work, slots, s);
    for (int64_t s = 1; s <= most; s++)
        if (changes_blocks(n_blocks, s) && efficiency(work, slots, s) >= good_frac * best) return (int32_t)s;
    return 1;
}
