#include "lab/each_plan.h"
#include "lab/out_file.h"
#include "lab/timeline.h"

#include <string.h>

static enum status write_spans(const char *path, const struct plan *plan, const struct sim_result *s,
                               bool trace, struct why *why)
{
    struct out_file file;
    TRY(out_file_open(path, &file, why));
    if (trace)
        timeline_write_trace(file.stream, plan, s);
    else
        timeline_write_csv(file.stream, plan, s->spans, s->n_spans);
    return out_file_commit(&file, why);
}

static enum status simulate(struct each_plan *e, const struct workload *w, const struct machine *m,
                            const struct plan *plan, struct record *r, struct why *why)
{
    struct sim_result s;
    const struct args *a = e->args;
    TRY(run_simulate(w, m, plan, a->timeline || a->spans, r, &s, why));
    enum status status = a->timeline ? write_spans(a->timeline, plan, &s, true, why) : STATUS_OK;
    if (status == STATUS_OK && a->spans) status = write_spans(a->spans, plan, &s, false, why);
    sim_result_free(&s);
    return status;
}

int cmd_sim(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct each_plan e = {.args = &a, .run = simulate};
    enum status status = args_parse(COMMAND_SIM, argc, argv, &a, &why);
    if (status == STATUS_OK) status = args_check_single_timeline(&a, &why);
    if (status == STATUS_OK) status = each_plan_run(&e, &why);
    /* "-" gives stdout to the timeline: then nothing else goes there */
    const bool stdout_taken =
        (a.timeline && strcmp(a.timeline, "-") == 0) || (a.spans && strcmp(a.spans, "-") == 0);
    if (e.rows.n && !stdout_taken) rows_print(&e.rows, a.format, stdout);
    rows_free(&e.rows);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
