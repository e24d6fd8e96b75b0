#include "lab/each_plan.h"

#include "cuda/exec.h"

#include <stdio.h>
#include <string.h>

/* One oracle run a workload, however many plans are compared with it. */
static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    TRY(truth_create(w, e->user, why));
    truth_set_numerics(w, numerics_of(e->args->numerics, &w->batch), e->user);
    return STATUS_OK;
}

/* What did the arithmetic, behind the policy's options: "numerics=fp32 cpu=avx512 blas=SkylakeX". */
static void note_arithmetic(const struct truth *truth, struct record *r)
{
    char text[64];
    const size_t used = strlen(r->options);
    ref_exec_describe(&truth->exec, text, sizeof text);
    snprintf(r->options + used, sizeof r->options - used, "%snumerics=%s %s", used ? " " : "",
             numerics_names[truth->exec.numerics.kind], text);
}

static enum status verify(struct each_plan *e, const struct workload *w, const struct machine *m,
                          const struct plan *plan, struct record *r, struct why *why)
{
    (void)m;
    record_set_text(r->executor, "ref");
    note_arithmetic(e->user, r);
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
