#include "lab/baseline.h"
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
    /* of the workload that is under way, for its peers */
    const struct workload *w;
    struct machine m;
    enum status peers; /* the first failure of --baseline, over all workloads, and why */
    struct why peers_why;
};

/* Judges need a machine to plan for: the same that the policies get. */
static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    struct bench *b = e->user;
    TRY(command_machine(e->args, w, &b->m, why));
    b->w = w;
    if (isatty(2) && !e->args->quiet) fprintf(stderr, "\r%s: tensors and judges ", w->name);
    return device_run_begin(&b->run, w, &b->m, why);
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

/* A wrong peer does not keep later workloads from theirs; a machine that lacks something, or a broken child, would only
 * say the same again. */
static void run_peers(struct each_plan *e, struct bench *b)
{
    struct why why = {""};
    const struct baseline peers = {.w = b->w,
                                   .m = &b->m,
                                   .run = &b->run,
                                   .runs = e->args->runs,
                                   .timeout_s = BASELINE_TIMEOUT_S,
                                   .quiet = e->args->quiet};
    if (!e->args->baseline || !(b->peers == STATUS_OK || b->peers == STATUS_MISMATCH)) return;
    if (isatty(2) && !e->args->quiet) fprintf(stderr, "\r\033[K%s: peers ", b->w->name);
    const enum status status = baseline_run(&peers, &e->rows, &why);
    if (status == STATUS_OK || (b->peers != STATUS_OK && status == STATUS_MISMATCH)) return;
    b->peers = status;
    b->peers_why = why;
}

static void end(struct each_plan *e)
{
    struct bench *b = e->user;
    run_peers(e, b);
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
    if (status == STATUS_OK) {
        status = b.peers;
        why = b.peers_why;
    } else if (b.peers != STATUS_OK) {
        fprintf(stderr, "tandem: %s\n", b.peers_why.text);
    }
    if (e.rows.n) rows_print(&e.rows, a.format, stdout);
    rows_free(&e.rows);
    cuda_close(b.run.device);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
