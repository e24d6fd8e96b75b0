/* random_batch: seeded ragged batches over everything a batch can be, small enough for tests. */
#ifndef TANDEM_TESTS_RANDOM_BATCH_H
#define TANDEM_TESTS_RANDOM_BATCH_H

#include "lab/workload.h"

/* Heads and groups up to 71, pages 1 to 256, head_dim 8 to 128 (and MLA's 576), V of other dims, latents, every
 * store, strides, RoPE, scales, all types and masks, requests without rows or keys, more queries than keys, shared
 * prefix pages. Visible work is at most about max_pairs query-key pairs
 * x heads. */
void random_batch(uint64_t seed, double max_pairs, struct workload *out);

/* The same over what tensor-core kernels take: bf16 and fp16, some 8-bit caches, head_dim 40 to 256 in steps of 8,
 * aligned strides, no RoPE. */
void random_tensor_core_batch(uint64_t seed, double max_pairs, struct workload *out);

/* Large ones for planning only: 1 to 64 requests, q 1 to 13353, kv to 2^20, the same heads and pages. */
void random_large_batch(uint64_t seed, struct workload *out);

/* The workload of a spec under a page size, 32/8 heads; fails the test when it cannot be made. */
void spec_batch(const char *spec, int32_t page_size, struct workload *out);

struct machine;
/* The h200 profile and kernels for a workload's shape. */
void test_machine(const struct workload *w, struct machine *out);

#endif
