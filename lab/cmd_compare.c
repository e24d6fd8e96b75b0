#include "lab/each_plan.h"
#include "lab/plot.h"

#include <string.h>

struct comparison_run {
    struct truth truth;
    bool have_truth;
};

static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    struct comparison_run *c = e->user;
    c->have_truth = false;
    if (e->args->verify) {
        TRY(truth_create(w, &c->truth, why));
        c->have_truth = true;
    }
    return STATUS_OK;
}

static enum status compare(struct each_plan *e, const struct workload *w, const struct machine *m,
                           const struct plan *plan, struct record *r, struct why *why)
{
    struct comparison_run *c = e->user;
    struct sim_result s;
    TRY(run_simulate(w, m, plan, e->args->plot_dir != NULL, r, &s, why));
    enum status status = STATUS_OK;
    if (e->args->plot_dir) status = plot_write_plan(e->args->plot_dir, w, m, plan, r->policy, &s, why);
    sim_result_free(&s);
    if (status == STATUS_OK && c->have_truth) status = run_verify(w, &c->truth, plan, r, why);
    return status;
}

static void end(struct each_plan *e)
{
    struct comparison_run *c = e->user;
    if (c->have_truth) truth_free(&c->truth);
}

int cmd_compare(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct comparison_run c = {.have_truth = false};
    struct each_plan e = {.args = &a, .user = &c, .begin = begin, .run = compare, .end = end};
    enum status status = args_parse(COMMAND_COMPARE, argc, argv, &a, &why);
    if (status == STATUS_OK && a.plot_dir && a.batches)
        status = status_fail(&why, STATUS_BAD_INPUT, "--plot with --batches: expected one batch to draw");
    if (status == STATUS_OK && a.plot_dir) status = plot_prepare(a.plot_dir, &why);
    if (status == STATUS_OK) status = each_plan_run(&e, &why);
    if (e.rows.n) rows_print(&e.rows, a.format, stdout);
    if (status == STATUS_OK && a.plot_dir) status = plot_draw(a.plot_dir, &e.rows, a.quiet, &why);
    rows_free(&e.rows);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
