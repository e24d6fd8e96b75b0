/* fa_splits: how many pieces FlashAttention cuts the KV of a call into. Sources: flash-attention at 0251105a,
 * csrc/flash_attn (FA2) and hopper/ (FA3); POD-Attention's planner uses the FA2 rule under a cap. */
#ifndef TANDEM_SCHED_FA_SPLITS_H
#define TANDEM_SCHED_FA_SPLITS_H

#include <stdint.h>

/* FA2. `work` CTAs without splits on `slots` CTA slots (2 x SMs), n_blocks KV blocks in the longest request.
 * 1 when work >= 0.8 slots. Else, over s = 1 .. min(cap, slots, n_blocks) for which ceil(n_blocks / s)
 * differs from that of s - 1: efficiency = w / ceil(w), w = work * s / slots; the smallest s within 0.85 of
 * the best. */
int32_t fa2_num_splits(int64_t work, int64_t slots, int64_t n_blocks, int64_t cap);

/* Most splits FA2 and FA3 consider. */
enum { FA_MAX_SPLITS = 128 };

#endif
