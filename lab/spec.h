/* spec: vLLM's batch-spec grammar, verbatim: count? q<qo_len>[k] [s<kv_len>[k]] joined by '_'; k = 1024; no s
 * means kv_len = qo_len. "q2ks8k_64q1s8k" is one request of 2048 new tokens at kv_len 8192 and 64 decodes at
 * 8192. */
#ifndef TANDEM_LAB_SPEC_H
#define TANDEM_LAB_SPEC_H

#include "sched/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPEC_MAX_REQUESTS = 1 << 20 };

/* Parses into malloc'ed qo_len[n] and kv_len[n]. STATUS_BAD_INPUT names the position and what was expected
 * there. */
enum status spec_parse(const char *spec, int32_t **qo_len, int32_t **kv_len, int32_t *n, struct why *why);

/* Writes the canonical form: runs of equal requests counted, k where it divides, s left out where equal.
 * Truncated forms are not written: returns -1 when it does not fit, else 0. */
int spec_format(const int32_t *qo_len, const int32_t *kv_len, int32_t n, char *out, size_t size);

#endif
