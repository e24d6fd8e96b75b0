#include "sched/fa_splits.h"

static const float full_frac = 0.8f, good_frac = 0.85f, margin = 1.1f;
static const double l2_bytes = 50.0 * 1024 * 1024;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* In single precision, as the sources compute it: ties at 0.85 come out the same. */
static float efficiency(int64_t work, int64_t slots, int64_t splits)
{
    const float waves = (float)(work * splits) / (float)slots;
    return waves / (float)ceil_div(work * splits, slots);
}

/* A split count that gives the same block count a piece as the one before would only add empty pieces. */
static bool changes_blocks(int64_t n_blocks, int64_t splits)
{
    return splits == 1 || ceil_div(n_blocks, splits) != ceil_div(n_blocks, splits - 1);
}

/* The smallest s <= most within good_frac of the best efficiency. */
static int32_t smallest_good(int64_t work, int64_t slots, int64_t n_blocks, int64_t most, bool only_changes)
{
    float best = 0;
    for (int64_t s = 1; s <= most; s++)
        if ((!only_changes || changes_blocks(n_blocks, s)) && efficiency(work, slots, s) > best)
            best = efficiency(work, slots, s);
    for (int64_t s = 1; s <= most; s++)
        if ((!only_changes || changes_blocks(n_blocks, s)) && efficiency(work, slots, s) >= good_frac * best)
            return (int32_t)s;
    return 1;
}

int32_t fa2_num_splits(int64_t work, int64_t slots, int64_t n_blocks, int64_t cap)
{
    if (work <= 0 || (float)work >= full_frac * (float)slots) return 1;
    return smallest_good(work, slots, n_blocks, min_i64(cap, min_i64(slots, n_blocks)), true);
}

int32_t fa3_num_splits(int64_t m_blocks, int64_t slots, int64_t n_blocks, bool causal, double kv_head_bytes)
{
    if (m_blocks <= 0) return 1;
    if ((float)m_blocks >= full_frac * (float)slots) {
        if (causal || !(kv_head_bytes > l2_bytes) || m_blocks < 2 * slots) return 1;
        const int64_t pieces = (int64_t)(kv_head_bytes / l2_bytes);
        return (int32_t)min_i64(pieces + ((double)pieces * l2_bytes < kv_head_bytes), FA_MAX_SPLITS);
    }
    if (n_blocks <= 4) return 1;
    return smallest_good(m_blocks, slots, n_blocks, min_i64(FA_MAX_SPLITS, min_i64(slots, n_blocks)), false);
}

static double tile_frac(int64_t rows, int32_t tile_m)
{
    return (double)rows / (double)(ceil_div(rows, tile_m) * tile_m);
}

bool fa3_packs_gqa(bool must, int64_t qo_len, int32_t group_size, int32_t tile_m)
{
    if (must) return true;
    if (group_size == 1 || qo_len < 1) return false;
    return tile_frac(qo_len, tile_m) < 0.9 * tile_frac(qo_len * group_size, tile_m);
}

/* In single precision, as the source does: 360 blocks on 132 SMs are 3 an SM, not 4. */
int64_t fa3_varlen_blocks_per_sm(int64_t total_blocks, int64_t kv_heads, int64_t sms)
{
    const float each = (float)total_blocks * margin * (float)kv_heads / (float)sms;
    const int64_t whole = (int64_t)each;
    return (float)whole < each ? whole + 1 : whole;
}

int32_t fa3_varlen_splits(int64_t n_blocks, int64_t per_sm, int32_t bound)
{
    const int64_t splits = per_sm > 0 ? ceil_div(n_blocks, per_sm) : 1;
    return splits < 1 ? 1 : splits > bound ? bound : (int32_t)splits;
}

enum status fa2_cut(const struct batch *b, const struct role_set *set, enum kernel_id kernel,
                    int32_t block_keys, int32_t splits, struct works *works)
{
    const int32_t heads = kernel_row(kernel)->row_order == ROWS_HEAD_MAJOR ? batch_group_size(b) : 1;
    int64_t longest = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (b->kv_len[set->requests[i]] > longest) longest = b->kv_len[set->requests[i]];
    const int64_t piece = ceil_div(ceil_div(longest, block_keys), splits) * block_keys;
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < set->n; i++) {
            const int32_t r = set->requests[i], per_head = works_n_tiles(b, kernel, r) / heads;
            for (int32_t t = h * per_head; t < (h + 1) * per_head; t++) {
                const struct tile tile = works_tile(b, kernel, r, t);
                const struct range keys = splits > 1 ? (struct range){0, b->kv_len[r]} : tile.keys;
                TRY(works_add_tile(works, r, tile.row_begin, tile.row_end, keys,
                                   splits > 1 && piece > 0 ? piece : INT32_MAX));
            }
        }
    return STATUS_OK;
}
