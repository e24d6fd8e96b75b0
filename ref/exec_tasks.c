#include "ref/exec_tasks.h"

#include <stdlib.h>
#include <string.h>

/* A segment with what decides its neighbours. */
struct sort_entry {
    struct segment segment;
    int32_t group, kv_begin, kv_end, kernel_flags, kv_head, token;
};

static int compare_int(int32_t a, int32_t b)
{
    return (a > b) - (a < b);
}

/* Same keys and kernel first, then kv head, then the token of the first row: tiles of different q heads over the
 * same tokens see the same keys. */
static bool same_keys(const struct sort_entry *a, const struct sort_entry *b)
{
    return a->group == b->group && a->kv_begin == b->kv_begin && a->kv_end == b->kv_end &&
           a->kernel_flags == b->kernel_flags;
}

static int compare_entries(const void *x, const void *y)
{
    const struct sort_entry *a = x, *b = y;
    int c = compare_int(a->group, b->group);
    if (!c) c = compare_int(a->kv_begin, b->kv_begin);
    if (!c) c = compare_int(a->kv_end, b->kv_end);
    if (!c) c = compare_int(a->kernel_flags, b->kernel_flags);
    if (!c) c = compare_int(a->kv_head, b->kv_head);
    if (!c) c = compare_int(a->token, b->token);
    if (!c) c = compare_int(a->segment.row_begin, b->segment.row_begin);
    return c ? c : compare_int(a->segment.item, b->segment.item);
}

static int32_t rows_of(const struct segment *s)
{
    return s->row_end - s->row_begin;
}

static int64_t count_segments(const struct plan *p)
{
    int64_t n = 0;
    for (int32_t i = 0; i < p->n_items; i++)
        n += (p->items[i].row_end - p->items[i].row_begin + TASK_ROWS - 1) / TASK_ROWS;
    return n;
}

static void list_segments(const struct plan *p, const struct batch *b, struct sort_entry *out)
{
    int64_t n = 0;
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
        for (int32_t row = item->row_begin; row < item->row_end; row += TASK_ROWS) {
            const int32_t end = item->row_end - row < TASK_ROWS ? item->row_end : row + TASK_ROWS;
            out[n++] = (struct sort_entry){
                .segment = {i, row, end},
                .group = item->group,
                .kv_begin = item->kv_begin,
                .kv_end = item->kv_end,
                .kernel_flags = item->kernel * 256 + (item->flags & ITEM_KV_REVERSED),
                .kv_head = item->kv_head,
                .token = plan_row(p, b, item->group, item->kv_head, order, row).token,
            };
        }
    }
}

/* Neighbours of one kv head, up to TASK_ROWS rows. */
static void form_blocks(const struct sort_entry *entries, struct exec_tasks *t)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < t->n_segments; i++) {
        const int32_t n = rows_of(&entries[i].segment);
        const bool joins = i > 0 && rows + n <= TASK_ROWS && same_keys(&entries[i - 1], &entries[i]) &&
                           entries[i - 1].kv_head == entries[i].kv_head;
        if (!joins) {
            t->blocks[t->n_blocks++] = (struct exec_block){i, i};
            rows = 0;
        }
        t->blocks[t->n_blocks - 1].end = i + 1;
        rows += n;
    }
}

static int32_t block_rows(const struct exec_tasks *t, int32_t block)
{
    int32_t rows = 0;
    for (int32_t i = t->blocks[block].begin; i < t->blocks[block].end; i++)
        rows += rows_of(&t->segments[i]);
    return rows;
}

/* Short blocks over the same keys, of up to `most` kv heads, become one task; tall ones stay alone. */
static void form_tasks(const struct sort_entry *entries, int32_t most, struct exec_tasks *t)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < t->n_blocks; i++) {
        const int32_t n = block_rows(t, i);
        const struct exec_task *last = t->n_tasks ? &t->tasks[t->n_tasks - 1] : NULL;
        const bool joins = last && rows < TASK_SHORT_ROWS * TASK_MAX_HEADS && n < TASK_SHORT_ROWS &&
                           block_rows(t, i - 1) < TASK_SHORT_ROWS && last->end - last->begin < most &&
                           same_keys(&entries[t->blocks[i - 1].begin], &entries[t->blocks[i].begin]);
        if (!joins) {
            t->tasks[t->n_tasks++] = (struct exec_task){i, i};
            rows = 0;
        }
        t->tasks[t->n_tasks - 1].end = i + 1;
        rows += n;
    }
}

bool exec_tasks_create(const struct plan *p, const struct batch *b, int32_t workers, struct exec_tasks *out)
{
    memset(out, 0, sizeof *out);
    const size_t n = (size_t)count_segments(p);
    struct sort_entry *entries = malloc((n + 1) * sizeof *entries);
    out->segments = malloc((n + 1) * sizeof *out->segments);
    out->blocks = malloc((n + 1) * sizeof *out->blocks);
    out->tasks = malloc((n + 1) * sizeof *out->tasks);
    const bool ok = entries && out->segments && out->blocks && out->tasks && n <= INT32_MAX;
    if (ok) {
        out->n_segments = (int32_t)n;
        list_segments(p, b, entries);
        qsort(entries, n, sizeof *entries, compare_entries);
        for (size_t i = 0; i < n; i++)
            out->segments[i] = entries[i].segment;
        form_blocks(entries, out);
        const int32_t enough = out->n_blocks / (4 * (workers > 0 ? workers : 1));
        form_tasks(entries, enough < 1 ? 1 : enough < TASK_MAX_HEADS ? enough : TASK_MAX_HEADS, out);
    }
    free(entries);
    return ok;
}

void exec_tasks_free(struct exec_tasks *t)
{
    free(t->segments);
    free(t->blocks);
    free(t->tasks);
    memset(t, 0, sizeof *t);
}
