/* demand: what each item and merge of a plan asks of the GPU per nanosecond of its alone time. */
#ifndef TANDEM_SIM_DEMAND_H
#define TANDEM_SIM_DEMAND_H

#include "sched/plan.h"

enum pipe { PIPE_NONE, PIPE_TENSOR, PIPE_FMA, PIPE_COUNT };

/* An item at full speed (rate 1) takes alone_ns and uses the resources below; at rate r it uses r times as
 * much. */
struct demand {
    double alone_ns;
    double pipe_frac;             /* of its SM's pipe */
    double sm_bytes_per_ns;       /* into the SM, from wherever */
    double hbm_bytes_per_ns;      /* of it from or to HBM, after L2 reuse */
    double inflight_bytes_per_ns; /* the most its CTA can pull: its weight when HBM is short */
    double issued_flops;
    enum pipe pipe;
};

struct demands {
    struct demand *items;  /* [n_items] */
    struct demand *merges; /* [n_merges] */
    double hbm_bytes;      /* of the whole plan */
};

/* Prices every item and merge. L2 reuse, by unique bytes: the items of one (row group, kv head) together read
 * each of its keys from HBM once, so each item's K/V bytes count by 1 / (sum of their keys / union of their
 * keys). Partial rows stay in L2 while the workspace is at most half of it. */
enum status demands_create(const struct batch *b, const struct gpu *gpu, const struct kernels *kernels,
                           const struct plan *p, struct demands *out);
void demands_free(struct demands *d);

#endif
