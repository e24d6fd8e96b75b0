#include "lab/each_plan.h"

#include "cuda/exec.h"

#include <string.h>

/* One oracle run a workload, however many plans are compared with it. */
static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    return truth_create(w, e->user, why);
}

static enum status verify(struct each_plan *e, const struct workload *w, const struct machine *m,
                          const struct plan *plan, struct record *r, struct why *why)
{
    (void)m;
    record_set_text(r->executor, "ref");
    return run_verify(w, e->user, plan, r, why);
}

static void end(struct each_plan *e)
{
    truth_free(e->user);
}

int cmd_verify(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct truth truth;
    struct each_plan e = {.args = &a, .user = &truth, .begin = begin, .run = verify, .end = end};
    enum status status = args_parse(COMMAND_VERIFY, argc, argv, &a, &why);
    if (status == STATUS_OK && a.executor && strcmp(a.executor, "cuda") == 0) status = cuda_available(&why);
    if (status == STATUS_OK) status = each_plan_run(&e, &why);
    if (e.rows.n) rows_print(&e.rows, a.format, stdout);
    rows_free(&e.rows);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
