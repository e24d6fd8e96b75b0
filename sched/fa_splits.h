/* fa_splits: how FlashAttention cuts the KV of a call and packs its rows. Sources: flash-attention at
 * 0251105a, csrc/flash_attn (FA2) and hopper/ (FA3: heuristics.h, prepare_varlen_num_blocks); POD-Attention's
 * planner uses the FA2 rule under a cap. */
#ifndef TANDEM_SCHED_FA_SPLITS_H
#define TANDEM_SCHED_FA_SPLITS_H

#include "sched/works.h"

/* Most splits FA2 and FA3 consider; most sequences for which FA3's prepare kernel splits. */
enum { FA_MAX_SPLITS = 128, FA3_MAX_SPLIT_SEQUENCES = 992 };

/* FA2. `work` CTAs without splits on `slots` CTA slots (2 x SMs), n_blocks KV blocks in the longest request.
 * 1 when work >= 0.8 slots. Else, over s = 1 .. min(cap, slots, n_blocks) for which ceil(n_blocks / s)
 * differs from that of s - 1: efficiency = w / ceil(w), w = work * s / slots; the smallest s within 0.85 of
 * the best. */
int32_t fa2_num_splits(int64_t work, int64_t slots, int64_t n_blocks, int64_t cap);

/* FA3, fixed length. m_blocks query tiles over batch and KV heads on S = slots SMs. 1 when m_blocks >= 0.8 S,
 * except that a non-causal call whose one KV head is beyond L2 (kv_head_bytes > 50 MB) with m_blocks >= 2 S
 * is cut into pieces of 50 MB. 1 for at most 4 KV blocks. Else as FA2 over s = 1 .. min(128, S, n_blocks),
 * every s eligible. */
int32_t fa3_num_splits(int64_t m_blocks, int64_t slots, int64_t n_blocks, bool causal, double kv_head_bytes);

/* FA3's PackGQA rule. Packed: a tile holds all q heads of a KV head's group. `must`: lengths vary, KV is
 * split, or pages are read without TMA. Else not for a group of 1, and otherwise where packing fills tiles of
 * tile_m rows better by more than a tenth: eff(q) < 0.9 eff(q * group), eff(x) = x / roundup(x, tile_m). */
bool fa3_packs_gqa(bool must, int64_t qo_len, int32_t group_size, int32_t tile_m);

/* FA3 varlen: KV blocks an SM should do, ceil(1.1 * sum m_blocks * n_blocks * kv_heads / S), and what that
 * makes of one sequence: clamp(ceil(n_blocks / per_sm), 1, bound). */
int64_t fa3_varlen_blocks_per_sm(int64_t total_blocks, int64_t kv_heads, int64_t sms);
int32_t fa3_varlen_splits(int64_t n_blocks, int64_t per_sm, int32_t bound);

/* FA2's cut of a set: every request in pieces of ceil(ceil(longest kv_len of the set / block) / splits)
 * blocks from key 0, whatever a tile sees of them (pieces of a request beyond its keys, which FA2 launches
 * and finds empty, get no work); without splits every tile has the keys it sees. Order: q head of the group,
 * request, tile. */
enum status fa2_cut(const struct batch *b, const struct role_set *set, enum kernel_id kernel,
                    int32_t block_keys, int32_t splits, struct works *works);

#endif
