/* cost: what one item costs alone on an SM. Policies balance with it, the simulator starts from it;
 * contention (several CTAs on an SM, all SMs on the memory) belongs to sim/. */
#ifndef TANDEM_SCHED_COST_H
#define TANDEM_SCHED_COST_H

#include "sched/plan.h"

/* Work of one item by kernel row k, alone on an SM:
 *   tiles         = ceil(keys its rows see / tile_kv), for each of ceil(rows / tile_q) row tiles
 *   issued_flops  = tiles x tile_q x tile_kv x 2 (head_dim_qk + head_dim_vo)   (padding included: what the pipe
 *                   does)
 *   kv_bytes      = K and V read, once a row tile
 *   row_bytes     = Q read + O (or fp32 partial + LSE) written
 *   ns            = max(issued_flops / cta_flops_per_ns, (kv_bytes + row_bytes) / cta_bytes_per_ns)
 * so ns excludes the CTA's start and end (gpu.cta_start_ns, cta_end_ns), which are paid by CTA, not by item. */
struct cost {
    double ns;
    double issued_flops;
    double kv_bytes;
    double row_bytes;
};

/* Cost of n_rows packed rows against n_keys keys (both >= 0) by kernel k, with causal and window cuts already
 * applied to n_keys. partial: rows leave as fp32 partials. Zero keys still cost the row_bytes. */
struct cost cost_rect(const struct shape *shape, const struct kernels *kernels, enum kernel_id k,
                      int64_t n_rows, int64_t n_keys, bool partial);

/* Cost of an item of a plan (plan_item_keys gives its keys). */
struct cost cost_item(const struct plan *p, const struct batch *b, const struct kernels *kernels,
                      const struct item *item);

/* Cost of merge m: reads every source row (fp32 + LSE), writes output rows. FLOPs are not counted. */
struct cost cost_merge(const struct plan *p, const struct batch *b, const struct kernels *kernels, int32_t m);

/* FLOPs the batch needs: over visible (row, key) pairs, 2 (head_dim_qk + head_dim_vo) each. */
double cost_batch_flops(const struct batch *b);

/* Bytes the batch must move: Q, O, and K/V of every distinct physical page's used tokens, once. */
double cost_batch_unique_bytes(const struct batch *b);

/* The floor nothing can beat: max(FLOPs / peak tensor rate, unique bytes / peak HBM bandwidth), ns. */
double cost_limit_ns(const struct batch *b, const struct gpu *gpu);

/* Makespan of the plan's CTAs (FIXED, SM_TICKET) or items (QUEUE) under list scheduling in issue order on the
 * grid's slots (sm_count x ctas_per_sm, QUEUE: n_ctas), over total work / slots; attention grids only, summed
 * over grids before dividing. 1 is perfect. A CTA with several
 * lanes (virtual CTAs, or two halves side by side) holds its slot as long as its longest lane and counts the
 * mean of its lanes as work. SM_TICKET's issue order is the order ticket_role gives with SMs
 * visited in turn. 1 for a plan without work. *imbalance is NaN if a kernel does not fit the GPU. */
enum status cost_imbalance(const struct plan *p, const struct batch *b, const struct gpu *gpu,
                           const struct kernels *kernels, double *imbalance);

#endif
