/* fi_sm90: FlashInfer's SM90 (FA3) prefill plan: persistent CTAs with precomputed lists, longest first.
 * Source: flashinfer scheduler.cuh PrefillSM90Plan (fb28d7242). */
#ifndef TANDEM_SCHED_FI_SM90_H
#define TANDEM_SCHED_FI_SM90_H

#include "sched/works.h"

/* Adds one FIXED grid of KERNEL_FA3_PREFILL_128 over the set: sm_count CTAs, each its own list. Requests
 * sorted by kv_len descending; for each q head, each request, q tiles last to first: to the CTA with the
 * least load, where a tile costs 2 * tile + keys up to its causal end. Above 4096 = ceil(rows / tile) +
 * requests - 1 works, one head's schedule serves all heads. No KV split, no GQA packing, so no merges. */
enum status fi_sm90_grid(const struct policy_input *in, const struct role_set *set, int32_t stream,
                         struct plan *out);

#endif
