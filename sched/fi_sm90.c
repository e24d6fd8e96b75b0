#include "sched/fi_sm90.h"

#include "sched/heap.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WORKS_PER_HEAD = 4096 };

struct by_length {
    int32_t kv_len, request;
};

/* kv_len descending, then request ascending, so that the order is total. */
static int compare_length(const void *x, const void *y)
{
    const struct by_length *a = x, *b = y;
    if (a->kv_len != b->kv_len) return a->kv_len > b->kv_len ? -1 : 1;
    return a->request < b->request ? -1 : a->request > b->request;
}

struct schedule {
    struct works works;
    struct heap_slot *heap; /* CTAs by load */
    int32_t n_ctas;
};

/* Tiles of one q head of one request, last to first. n_copies > 1: the same schedule for heads head .. head +
 * n_copies. */
static enum status assign_tiles(const struct batch *b, int32_t request, int32_t head, int32_t n_copies,
                                struct schedule *s)
{
    const int32_t tile = kernel_row(KERNEL_FA3_PREFILL_128)->tile_q, qo_len = batch_qo_len(b, request);
    const int32_t group_size = batch_group_size(b);
    for (int32_t begin = (qo_len - 1) / tile * tile; begin >= 0; begin -= tile) {
        const int32_t end = qo_len - begin < tile ? qo_len : begin + tile;
        const int32_t kv_end = batch_visible(b, request, end - 1).end;
        const int32_t cta = s->heap[0].index;
        heap_add_to_root(s->heap, s->n_ctas, 2.0 * tile + kv_end);
        for (int32_t h = head; h < head + n_copies; h++) {
            const int32_t first_row = h % group_size * qo_len; /* head-major packed rows */
            const struct work work = {.request = request,
                                      .row_begin = first_row + begin,
                                      .row_end = first_row + end,
                                      .kv_end = kv_end,
                                      .n_chunks = 1,
                                      .kv_head = h / group_size,
                                      .list = cta};
            TRY(works_add(&s->works, &work));
        }
    }
    return STATUS_OK;
}

static enum status assign_all(const struct batch *b, const struct role_set *set,
                              const struct by_length *sorted, struct schedule *s)
{
    const int32_t tile = kernel_row(KERNEL_FA3_PREFILL_128)->tile_q, heads = b->shape.num_qo_heads;
    const bool one_for_all = (set->rows + tile - 1) / tile + set->n - 1 > MAX_WORKS_PER_HEAD;
    for (int32_t head = 0; head < (one_for_all ? 1 : heads); head++)
        for (int32_t i = 0; i < set->n; i++)
            TRY(assign_tiles(b, sorted[i].request, head, one_for_all ? heads : 1, s));
    return STATUS_OK;
}

enum status fi_sm90_grid(const struct policy_input *in, const struct role_set *set, int32_t stream,
                         struct plan *out)
{
    struct schedule s = {.n_ctas = in->gpu->sm_count};
    struct by_length *sorted = malloc(((size_t)set->n + 1) * sizeof *sorted);
    s.heap = malloc((size_t)s.n_ctas * sizeof *s.heap);
    enum status status = sorted && s.heap ? STATUS_OK : STATUS_NO_MEMORY;
    if (status == STATUS_OK) {
        heap_reset(s.heap, s.n_ctas);
        for (int32_t i = 0; i < set->n; i++)
            sorted[i] = (struct by_length){in->batch->kv_len[set->requests[i]], set->requests[i]};
        qsort(sorted, (size_t)set->n, sizeof *sorted, compare_length);
        status = assign_all(in->batch, set, sorted, &s);
    }
    if (status == STATUS_OK)
        status = plan_begin_grid(out, KERNEL_FA3_PREFILL_128, DISPATCH_FIXED, stream, NULL);
    const struct works_emit emit = {.works = &s.works, .kernel = KERNEL_FA3_PREFILL_128};
    if (status == STATUS_OK) status = works_emit_lists(&emit, 1, s.n_ctas, in->batch, out);
    if (status == STATUS_OK) status = plan_end_grid(out, 0);
    free(s.heap);
    works_free(&s.works);
    free(sorted);
    return status;
}
