#include "sched/fi_split.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t pages_of(const struct batch *b, int32_t request)
{
    return (int64_t)b->kv.kv_indptr[request + 1] - b->kv.kv_indptr[request];
}

int32_t fi_prefill_tile(const struct batch *b, const struct role_set *set)
{
    int64_t packed = 0;
    for (int32_t i = 0; i < set->n; i++)
        packed += packed_rows(b, set->requests[i]);
    const int64_t average = set->n ? packed / set->n : 0; /* integer division, as in the public code */
    if (average > 64 && b->shape.head_dim_vo < 256) return 128;
    return average > 16 ? 64 : 16;
}

enum kernel_id fi_tile_kernel(int32_t tile_q)
{
    return tile_q == 128  ? KERNEL_FA2_PREFILL_128
           : tile_q == 64 ? KERNEL_FA2_PREFILL_64
                          : KERNEL_FA2_DECODE_16;
}

/* Pages a tile of the request can touch. */
static int64_t effective_pages(const struct batch *b, int32_t request, int32_t tile_q)
{
    const int64_t pages = pages_of(b, request);
    if (b->mask.window_left < 0) return pages;
    const int64_t reach = ceil_div((int64_t)b->mask.window_left + tile_q, b->kv.page_size);
    return reach < pages ? reach : pages;
}

static int64_t count_works(const struct batch *b, const struct role_set *set, int32_t tile_q,
                           int64_t chunk_pages)
{
    int64_t works = 0;
    for (int32_t i = 0; i < set->n; i++) {
        const int64_t pages = effective_pages(b, set->requests[i], tile_q);
        works +=
            ceil_div(packed_rows(b, set->requests[i]), tile_q) * ceil_div(pages > 1 ? pages : 1, chunk_pages);
    }
    return works;
}

/* Smallest chunk in [low, high] whose works fit the budget; high if none does. */
static int64_t search_chunk(const struct batch *b, const struct role_set *set, int32_t tile_q, int64_t low,
                            int64_t high, int64_t budget)
{
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (count_works(b, set, tile_q, middle) > budget)
            low = middle + 1;
        else
            high = middle;
    }
    return high;
}

static int64_t longest_pages(const struct batch *b, const struct role_set *set, int32_t tile_q)
{
    int64_t longest = 1;
    for (int32_t i = 0; i < set->n; i++) {
        const int64_t pages = effective_pages(b, set->requests[i], tile_q);
        if (pages > longest) longest = pages;
    }
    return longest;
}

static int64_t min_chunk_pages(const struct batch *b)
{
    return b->kv.page_size >= 128 ? 1 : 128 / b->kv.page_size;
}

static struct fi_split decide(const struct batch *b, const struct role_set *set, int32_t tile_q,
                              int64_t budget)
{
    const int64_t longest = longest_pages(b, set, tile_q);
    const int64_t low = min_chunk_pages(b) < longest ? min_chunk_pages(b) : longest;
    const int64_t chunk = search_chunk(b, set, tile_q, low, longest, budget);
    return (struct fi_split){tile_q, (int32_t)chunk, chunk < longest, count_works(b, set, tile_q, chunk)};
}

struct fi_split fi_fixed_split(const struct batch *b, const struct role_set *set, int32_t tile_q,
                               int32_t chunk_pages)
{
    const int64_t longest = longest_pages(b, set, tile_q);
    const int64_t chunk = chunk_pages < longest ? chunk_pages : longest;
    return (struct fi_split){tile_q, (int32_t)chunk, chunk < longest, count_works(b, set, tile_q, chunk)};
}

struct fi_split fi_prefill_split(const struct batch *b, const struct gpu *gpu, const struct role_set *set,
                                 int32_t tile_q, int64_t colocated)
{
    const int64_t slots = 2 * (int64_t)gpu->sm_count - colocated;
    return decide(b, set, tile_q, (slots > 0 ? slots : 0) / b->shape.num_kv_heads);
}

struct fi_split fi_decode_split(const struct batch *b, const struct gpu *gpu, const struct role_set *set,
                                int32_t ctas_per_sm)
{
    const int64_t max_grid = (int64_t)ctas_per_sm * gpu->sm_count;
    const int32_t tile_q = kernel_row(KERNEL_FI_DECODE_CC)->tile_q;
    const bool full = (int64_t)set->n * b->shape.num_kv_heads >= max_grid;
    return decide(b, set, tile_q, full ? 0 : max_grid / b->shape.num_kv_heads);
}

enum status fi_cut(const struct batch *b, const struct role_set *set, const struct fi_split *split,
                   struct works *out)
{
    const int64_t chunk_keys = (int64_t)split->chunk_pages * b->kv.page_size;
    for (int32_t i = 0; i < set->n; i++) {
        const int32_t request = set->requests[i];
        const int64_t rows = packed_rows(b, request);
        for (int64_t row = 0; row < rows; row += split->tile_q) {
            const int32_t end = rows - row < split->tile_q ? (int32_t)rows : (int32_t)row + split->tile_q;
            struct range keys = {0, b->kv_len[request]};
            /* a window moves the chunks along with the tile; pages before it are skipped whole */
            if (b->mask.window_left >= 0) {
                keys = works_tile_keys(b, request, (int32_t)row, end);
                keys.begin -= keys.begin % b->kv.page_size;
            }
            TRY(works_add_tile(out, request, (int32_t)row, end, keys, chunk_keys));
        }
    }
    return STATUS_OK;
}

enum status fi_prefill_grids(const struct batch *b, const struct role_set *set, const struct fi_split *split,
                             struct plan *out)
{
    struct works works = {0};
    const struct works_emit emit = {
        .works = &works, .kernel = fi_tile_kernel(split->tile_q), .all_partial = split->split};
    enum status status = fi_cut(b, set, split, &works);
    if (status == STATUS_OK) status = works_emit_grids(&emit, 0, b, out);
    works_free(&works);
    return status;
}
