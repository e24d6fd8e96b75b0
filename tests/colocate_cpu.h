/* colocate_cpu: the kernels of the co-location micro-benchmark on the CPU: their arithmetic counted over
 * whole grids, and their bodies on fibers, barriers and tickets included. */
#ifndef TANDEM_TESTS_COLOCATE_CPU_H
#define TANDEM_TESTS_COLOCATE_CPU_H

#include "cuda/colocate_map.h"

#include <stddef.h>

struct colocate_cpu {
    int32_t shape; /* enum colocate_shape */
    int32_t ctas, threads;
    int64_t n_memory, n_compute;
    int32_t ticket_kind, memory_ctas, sm_count; /* COLOCATE_TICKETS; SM numbers go beyond sm_count */
    bool barrier;
    uint64_t seed; /* order of CTAs and warps, SMs */
};

/* Who does what, by counting: elements of either op that are not done exactly once, or not by their op's
 * teams. Tickets are drawn by CTAs whose SM numbers sm[] gives (NULL: for other shapes), in the order of
 * sm[]. */
int64_t colocate_cpu_count(const struct colocate_cpu *c, const uint32_t *sm);

/* The kernel's body on fibers over fresh arrays with guards on both sides: elements that do not hold what
 * they must, touched guards included. false, with the reason in shim_why (tests/cuda_shim.h): threads did
 * not meet. */
bool colocate_cpu_run(const struct colocate_cpu *c, int64_t *wrong);

#endif
