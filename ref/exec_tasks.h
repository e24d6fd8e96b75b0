/* exec_tasks: which items ref_exec runs together. Rows of items over the same keys share the K and V that are
 * loaded, and short items of neighbouring kv heads read pages whose bytes are neighbours. What each row computes
 * does not hang on it. */
#ifndef TANDEM_REF_EXEC_TASKS_H
#define TANDEM_REF_EXEC_TASKS_H

#include "sched/plan.h"

enum { TASK_ROWS = 512, TASK_SHORT_ROWS = 24, TASK_MAX_HEADS = 16 };

/* Rows [row_begin, row_end) of an item. */
struct segment {
    int32_t item, row_begin, row_end;
};

/* Segments [begin, end) of one kv head that run as one block of rows. */
struct exec_block {
    int32_t begin, end;
};

/* Blocks [begin, end): over the same keys, of different kv heads. At most TASK_ROWS rows in all. */
struct exec_task {
    int32_t begin, end;
};

struct exec_tasks {
    struct segment *segments;
    struct exec_block *blocks;
    struct exec_task *tasks;
    int32_t n_segments, n_blocks, n_tasks;
};

/* `workers`: threads that will share the tasks; short blocks are only joined while enough tasks remain. */
bool exec_tasks_create(const struct plan *p, const struct batch *b, int32_t workers, struct exec_tasks *out);
void exec_tasks_free(struct exec_tasks *t);

#endif
