/* two_queues: one persistent grid with a queue a role. Workers begin at home, in the one or the other queue,
 * and help the other when theirs is dry. Shared by sm_partition and page_aware. */
#ifndef TANDEM_SCHED_TWO_QUEUES_H
#define TANDEM_SCHED_TWO_QUEUES_H

#include "sched/works.h"

struct two_queues {
    enum kernel_id grid_kernel;  /* a fused row, or one role's own row when the other has no works */
    struct works_emit roles[2];  /* by enum work_role; works, kernel, first; `order` is set here */
    int32_t n_workers, n_decode; /* CTAs, and those at home with the decodes */
    bool steal;
};

/* CTAs that begin with decodes, so that both roles would end together: n_workers * decode_ns / all, at least
 * one each where both have work, and no more than keep the HBM of the GPU busy (worker_bytes_per_ns each). */
int32_t two_queues_split(int32_t n_workers, double prefill_ns, double decode_ns, double worker_bytes_per_ns,
                         double hbm_bytes_per_ns);

/* Makespan of the queues under list scheduling: the worker that is free first draws from its home, or from
 * the other queue. work_ns[role][i] is the time of work i alone on an SM. */
enum status two_queues_makespan(const struct two_queues *q, const struct policy_input *in,
                                double *const work_ns[2], double *makespan_ns);

/* Adds the QUEUE grid, each queue longest work first, with its items' merges but without a merge grid. On an
 * SM with several CTAs the decode homes are those of the last round of a breadth-first launch, then of the
 * one before, so that an SM holds both roles. */
enum status two_queues_emit(const struct two_queues *q, const struct policy_input *in, struct plan *out);

#endif
