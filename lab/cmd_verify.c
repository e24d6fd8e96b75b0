#include "lab/each_plan.h"

#include "lab/device_run.h"
#include "lab/tensor_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What all workloads share: their truth, and the device where plans run there. */
struct verify {
    struct truth truth;
    struct device_run device; /* device NULL: plans run on the CPU */
};

/* Numerics and instruction set of the executions that follow. */
static void set_arithmetic(const struct each_plan *e, const struct workload *w, struct truth *truth)
{
    truth_set_numerics(w, numerics_of(e->args->numerics, &w->batch), truth);
    truth->exec.ops = e->args->ops;
}

/* One oracle run a workload, however many plans are compared with it. */
static enum status begin(struct each_plan *e, const struct workload *w, struct why *why)
{
    struct verify *v = e->user;
    struct truth *truth = &v->truth;
    enum status status = STATUS_OK;
    TRY(truth_create(w, truth, why));
    set_arithmetic(e, w, truth);
    if (v->device.device) status = device_run_adopt(&v->device, w, truth, why);
    if (status == STATUS_OK && e->args->save_tensors)
        status = tensor_file_write(e->args->save_tensors, w, &truth->tensors, &truth->oracle, why);
    if (status != STATUS_OK) truth_free(truth);
    return status;
}

/* What did the arithmetic, behind the policy's options: "numerics=fp32 cpu=avx512". */
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
    struct verify *v = e->user;
    if (v->device.device) return device_run_verify(&v->device, w, m, plan, r, why);
    record_set_text(r->executor, "ref");
    note_arithmetic(&v->truth, r);
    return run_verify(w, &v->truth, plan, r, why);
}

static void end(struct each_plan *e)
{
    struct verify *v = e->user;
    if (v->device.device) device_run_release(&v->device);
    truth_free(&v->truth);
}

/* ---- --tensors: a file's own results, then plans over its numbers --------------------------------------------- */

/* The file's o and lse against the oracle, as a row of a peer. An lse that is not there is not judged. */
static enum status check_given(struct each_plan *e, struct tensor_file *f, struct truth *truth,
                               struct why *why)
{
    struct record r;
    struct why ignored;
    const struct numerics guess = tensor_file_numerics(f);
    if (!f->result.o) return STATUS_OK;
    truth_set_numerics(&f->w, guess, truth);
    if (e->args->has_numerics) truth->exec.numerics.kind = e->args->numerics;
    truth_set_numerics(&f->w, truth->exec.numerics, truth);
    for (size_t i = 0; !f->has_lse && i < f->result.n_rows; i++)
        f->result.lse[i] = (float)truth->oracle.lse[i];
    record_init(&r, &f->w);
    record_set_text(r.policy, "peer:file");
    record_set_text(r.status, "ok");
    snprintf(r.options, sizeof r.options, "numerics=%s", numerics_names[truth->exec.numerics.kind]);
    const enum status status = run_compare(&f->w, truth, &f->result, &r, why);
    if (status != STATUS_OK) run_note_failure(&r, status, why);
    if (!f->has_lse) r.max_err_lse = NAN;
    const enum status added = rows_add(&e->rows, &r, &ignored);
    return added == STATUS_OK ? status : added;
}

/* The file's truth is made once, by the caller. */
static enum status keep(struct each_plan *e, const struct workload *w, struct why *why)
{
    (void)e;
    (void)w;
    (void)why;
    return STATUS_OK;
}

static enum status run_tensors(struct each_plan *e, struct why *why)
{
    struct tensor_file f;
    struct verify *v = e->user;
    struct truth *truth = &v->truth;
    struct why local = {""};
    TRY(tensor_file_read(e->args->tensors, &f, why));
    enum status status = STATUS_OK, plans = STATUS_OK;
    if (!f.result.o && !e->args->policy && !e->args->plan)
        status = status_fail(why, STATUS_BAD_INPUT, "%.150s: nothing to check: expected an o, or --policy",
                             e->args->tensors);
    if (status == STATUS_OK) status = truth_adopt(&f.w, &f.t, truth, why);
    if (status == STATUS_OK) {
        e->begin = keep;
        e->end = NULL;
        status = check_given(e, &f, truth, why);
        if (status == STATUS_MISMATCH && !e->args->quiet)
            fprintf(stderr, "tandem: %s: %s\n", f.w.name, why->text);
        set_arithmetic(e, &f.w, truth);
        enum status ready = v->device.device ? device_run_adopt(&v->device, &f.w, truth, &local) : STATUS_OK;
        if (ready != STATUS_OK)
            plans = ready;
        else if (e->args->policy || e->args->plan)
            plans = each_plan_run_one(e, &f.w, &local);
        if (v->device.device) device_run_release(&v->device);
        truth_free(truth);
    }
    tensor_file_free(&f);
    if (status == STATUS_OK && plans != STATUS_OK) *why = local;
    return status == STATUS_OK ? plans : status;
}

int cmd_verify(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct verify v = {0};
    struct each_plan e = {.args = &a, .user = &v, .begin = begin, .run = verify, .end = end};
    enum status status = args_parse(COMMAND_VERIFY, argc, argv, &a, &why);
    if (status == STATUS_OK && a.executor && strcmp(a.executor, "cuda") == 0) {
        v.device.ladder = (enum cuda_ladder)a.ladder;
        status = cuda_open(&v.device.device, &why);
    }
    if (status == STATUS_OK) status = a.tensors ? run_tensors(&e, &why) : each_plan_run(&e, &why);
    if (e.rows.n) rows_print(&e.rows, a.format, stdout);
    rows_free(&e.rows);
    cuda_close(v.device.device);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
