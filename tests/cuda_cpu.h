/* cuda_cpu: a plan through the kernels' own code on the CPU: attn_1_naive, every dispatch kind, both ways to merge. */
#ifndef TANDEM_TESTS_CUDA_CPU_H
#define TANDEM_TESTS_CUDA_CPU_H

#include "ref/tensor.h"
#include "sched/plan.h"

struct cuda_cpu {
    const struct batch *b;
    const struct tensors *t;
    const struct plan *p;
    uint64_t seed;    /* order of CTAs, warps, SMs */
    int32_t sm_count; /* counters for as many; SM numbers go beyond */
    int32_t replays;  /* of the whole plan, counters as the run before left them */
};

/* Runs all grids over poisoned outputs and workspace; out as cuda_execute gives it. false, with the reason: threads that
 * did not meet, an item that did not run exactly once a replay, counters that are not 0 again, writes outside rows. */
bool cuda_cpu_run(const struct cuda_cpu *c, struct result *out, char *why, size_t why_size);

#endif
