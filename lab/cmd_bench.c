#include "lab/colocate_rows.h"
#include "lab/device_run.h"
#include "lab/each_plan.h"
#include "lab/out_file.h"
#include "lab/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bench {
    struct device_run run;
    int32_t done; /* plans, for progress */
};

/* Judges need a machine to plan for: the same that the policies get. */
static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    struct bench *b = e->user;
    struct machine m;
    TRY(command_machine(e->args, w, &m, why));
    if (isatty(2) && !e->args->quiet) fprintf(stderr, "\r%s: tensors and judges ", w->name);
    return device_run_begin(&b->run, w, &m, why);
}

static enum status write_spans(const struct args *a, const struct plan *plan, struct sim_result *s,
                               struct why *why)
{
    struct out_file file;
    if (a->spans) {
        TRY(out_file_open(a->spans, &file, why));
        timeline_write_csv(file.stream, plan, s->spans, s->n_spans);
        TRY(out_file_commit(&file, why));
    }
    if (!a->timeline) return STATUS_OK;
    TRY(out_file_open(a->timeline, &file, why));
    timeline_write_trace(file.stream, plan, s);
    return out_file_commit(&file, why);
}

static enum status measure(struct each_plan *e, const struct workload *w, const struct machine *m,
                           const struct plan *plan, struct record *r, struct why *why)
{
    struct bench *b = e->user;
    const struct args *a = e->args;
    const struct cuda_time_options options = {.runs = a->runs, .sustain_s = a->sustain_s};
    struct sim_result s = {0};
    if (isatty(2) && !a->quiet) fprintf(stderr, "\r%s: plan %d: %-20s ", w->name, ++b->done, r->policy);
    TRY(device_run_verify(&b->run, w, m, plan, r, why));
    TRY(device_run_time(&b->run, m, &options, r, why));
    if (!a->spans && !a->timeline) return STATUS_OK;
    enum status status = device_run_spans(&b->run, m, plan, r, &s.spans, &s.n_spans, why);
    if (status == STATUS_OK) status = write_spans(a, plan, &s, why);
    free(s.spans);
    return status;
}

static void end(struct each_plan *e)
{
    struct bench *b = e->user;
    device_run_end(&b->run);
    if (isatty(2) && !e->args->quiet) fputs("\r\033[K", stderr);
}

int cmd_bench(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct bench b = {{0}};
    struct each_plan e = {.args = &a, .user = &b, .begin = begin, .run = measure, .end = end};
    enum status status = args_parse(COMMAND_BENCH, argc, argv, &a, &why);
    if (status == STATUS_OK) status = args_check_single_timeline(&a, &why);
    if (status == STATUS_OK) status = cuda_open(&b.run.device, &why);
    if (status == STATUS_OK && a.colocate) {
        status = colocate_bench(&a, b.run.device, stdout, &why);
    } else if (status == STATUS_OK) {
        b.run.ladder = (enum cuda_ladder)a.ladder;
        status = each_plan_run(&e, &why);
    }
    if (e.rows.n) rows_print(&e.rows, a.format, stdout);
    rows_free(&e.rows);
    cuda_close(b.run.device);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
