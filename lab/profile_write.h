/* profile_write: GPU profiles with measured values in the place of others, as text. */
#ifndef TANDEM_LAB_PROFILE_WRITE_H
#define TANDEM_LAB_PROFILE_WRITE_H

#include "cuda/probe.h"
#include "sched/gpu.h"

#include <stdio.h>

/* A value as it stands in the file, and where it comes from. */
struct profile_value {
    const char *section, *key;
    char text[160], note[96];
};

/* Copies the profile `base` (named `name` in messages) to `out`: the comment at its head becomes `header` (whole
 * lines), each of the n values replaces its key's line and is marked [measured]; all else stays as it is.
 * STATUS_BAD_INPUT when a value's key is not in the base. */
enum status profile_rewrite(FILE *base, const char *name, const char *header,
                            const struct profile_value *values, int32_t n, FILE *out, struct why *why);

enum { PROFILE_PROBED = 20 };

/* What a probe says about the keys of a profile that `base` loads as; returns how many. Rates are held to the base's
 * published peaks; what a probe cannot see (peaks, fractions of kernels, CTA ends) has no value here. */
int32_t profile_of_probe(const struct probe *p, const struct gpu *base,
                         struct profile_value values[PROFILE_PROBED]);

#endif
