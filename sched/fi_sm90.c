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

/* One tile of one q head, and who got it. */
struct assigned {
    struct item item;
    int32_t cta;
};

struct schedule {
    struct assigned *data;
    int32_t n, cap;
    struct heap_slot *heap; /* CTAs by load */
    int32_t n_ctas;
};

static enum status push(struct schedule *s, const struct item *item, int32_t cta)
{
    if (s->n == s->cap) {
        if (s->cap > INT32_MAX / 2) return STATUS_TOO_LARGE;
        s->cap = s->cap ? s->cap * 2 : 256;
        struct assigned *data = realloc(s->data, (size_t)s->cap * sizeof *data);
        if (!data) return STATUS_NO_MEMORY;
        s->data = data;
    }
    s->data[s->n++] = (struct assigned){*item, cta};
    return STATUS_OK;
}

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
            const struct item item = {.group = request,
                                      .kv_head = h / group_size,
                                      .row_begin = first_row + begin,
                                      .row_end = first_row + end,
                                      .kv_begin = 0,
                                      .kv_end = kv_end,
                                      .partial = -1,
                                      .kernel = KERNEL_FA3_PREFILL_128};
            TRY(push(s, &item, cta));
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

/* Lists by CTA, each in the order of assignment: a counting sort. */
static enum status emit_lists(const struct schedule *s, struct plan *out)
{
    struct item *items;
    int32_t *next = calloc((size_t)s->n_ctas + 1, sizeof *next);
    const int32_t base = out->n_items;
    enum status status = next ? plan_add_items(out, s->n, &items) : STATUS_NO_MEMORY;
    if (status == STATUS_OK) {
        for (int32_t i = 0; i < s->n; i++)
            next[s->data[i].cta + 1]++;
        for (int32_t c = 0; c < s->n_ctas; c++)
            next[c + 1] += next[c];
        for (int32_t i = 0; i < s->n; i++)
            items[next[s->data[i].cta]++] = s->data[i].item;
        /* next[c] is now the end of CTA c's list; plan_end_list takes "all items so far" */
        for (int32_t c = 0; status == STATUS_OK && c < s->n_ctas; c++) {
            out->n_items = base + next[c];
            status = plan_end_list(out);
        }
    }
    free(next);
    return status;
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
    if (status == STATUS_OK) status = emit_lists(&s, out);
    if (status == STATUS_OK) status = plan_end_grid(out, 0);
    free(s.heap);
    free(s.data);
    free(sorted);
    return status;
}
