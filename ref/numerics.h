/* numerics: which arithmetic an execution uses.
 *
 *   EXACT   double throughout: what is left is the plan
 *   FP32    fp32 throughout: the CPU's own
 *   DEVICE  rounds where GPU kernels round: fp32 dots of the stored types, scores in base 2, weights exp2(s - running
 *           max) taken over key tiles of the item's kernel row, summed in fp32 and then rounded to p_dtype
 *           for P V, fp32 accumulators normalised only at the item's end, O rounded to the type of Q. With an
 *           8-bit p_dtype weights are scaled by 2^8 first, as FlashAttention-3's fp8 kernels do
 *           (hopper/softmax.h, max_offset), so that e4m3's range is used. */
#ifndef TANDEM_REF_NUMERICS_H
#define TANDEM_REF_NUMERICS_H

#include "sched/batch.h"

enum numerics_kind { NUMERICS_EXACT, NUMERICS_FP32, NUMERICS_DEVICE, NUMERICS_COUNT };

struct numerics {
    enum numerics_kind kind;
    enum dtype p_dtype; /* DEVICE: type of P */
    enum dtype o_dtype; /* DEVICE: type of O */
};

static const char *const numerics_names[] = {"exact", "fp32", "device"};

/* The numerics of a kind for a batch: P and O in the type of Q. */
static inline struct numerics numerics_of(enum numerics_kind kind, const struct batch *b)
{
    const bool device = kind == NUMERICS_DEVICE;
    return (struct numerics){kind, device ? b->shape.q_dtype : DTYPE_FP32,
                             device ? b->shape.q_dtype : DTYPE_FP32};
}

#endif
