/* rng: the one random generator of lab/: SplitMix64 (Steele, Lea, Flood 2014). Small, seedable, the same
 * everywhere. */
#ifndef TANDEM_LAB_RNG_H
#define TANDEM_LAB_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0: the high half of a 128-bit product, so no modulo bias worth naming. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}

/* Uniform in [0, 1). */
static inline double rng_uniform(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

#endif
