#include "lab/each_plan.h"

#include "lab/auto.h"
#include "lab/plan_json.h"
#include "sched/plan_check.h"

#include <string.h>

/* Failures of one plan, after which the others still say something. */
static bool is_local(enum status s)
{
    return s == STATUS_MISMATCH || s == STATUS_INVALID_PLAN || s == STATUS_UNSUPPORTED;
}

static enum status note(struct each_plan *e, const struct record *r, enum status status,
                        const struct why *why)
{
    struct why ignored;
    if (is_local(status) && !e->args->quiet)
        fprintf(stderr, "tandem: %s: %s: %s\n", r->workload, r->policy, why->text);
    const enum status added = rows_add(&e->rows, r, &ignored);
    return added == STATUS_OK ? status : added;
}

static enum status run_policy(struct each_plan *e, const struct workload *w, const struct machine *m,
                              const struct policy *policy, struct why *why)
{
    struct policy_options options;
    struct plan plan = {0};
    struct record r;
    TRY(args_options(e->args, policy, &options, why));
    record_init(&r, w);
    enum status status = run_plan(w, m, policy, &options.options, &plan, &r, why);
    if (status == STATUS_OK && policy == &policy_auto && !e->args->quiet)
        fprintf(stderr, "tandem: %s: auto: %s\n", r.workload, r.options);
    if (status == STATUS_OK) status = e->run(e, w, m, &plan, &r, why);
    plan_free(&plan);
    return note(e, &r, status, why);
}

static enum status run_saved(struct each_plan *e, const struct workload *w, const struct machine *m,
                             struct why *why)
{
    struct plan plan;
    struct record r;
    TRY(plan_json_read(e->args->plan, &plan, why));
    record_init(&r, w);
    record_set_text(r.policy, "plan");
    enum status status = plan_check(&plan, &w->batch, why);
    if (status == STATUS_OK) status = run_describe(w, m, &plan, &r, why);
    if (status == STATUS_OK)
        status = e->run(e, w, m, &plan, &r, why);
    else
        run_note_failure(&r, status, why);
    plan_free(&plan);
    return note(e, &r, status, why);
}

/* --policy all means those that this GPU can run: the others get their row and remark, and are no failure. */
static bool is_excused(const struct each_plan *e, enum status s)
{
    return s == STATUS_UNSUPPORTED && !e->args->plan &&
           (!e->args->policy || strcmp(e->args->policy, "all") == 0);
}

/* Keeps the first failure, goes on after local ones. */
static enum status combine(enum status worst, enum status now)
{
    return worst == STATUS_OK ? now : worst;
}

static enum status run_workload(struct each_plan *e, const struct workload *w,
                                const struct policy *const *policies, int32_t n, struct why *why)
{
    struct machine m;
    enum status worst = STATUS_OK;
    TRY(command_machine(e->args, w, &m, why));
    if (e->begin) TRY(e->begin(e, w, why));
    if (e->args->plan) worst = run_saved(e, w, &m, why);
    for (int32_t i = 0; i < n && (worst == STATUS_OK || is_local(worst)); i++) {
        struct why local = {""};
        enum status status = run_policy(e, w, &m, policies[i], &local);
        if (is_excused(e, status)) status = STATUS_OK;
        if (worst == STATUS_OK || !(status == STATUS_OK || is_local(status))) *why = local;
        worst = status == STATUS_OK || is_local(status) ? combine(worst, status) : status;
    }
    if (e->end) e->end(e);
    return worst;
}

/* The policies that the arguments name: none with a saved plan, or where only tensors were asked for. */
static enum status find_policies(const struct each_plan *e, const struct policy **policies, int32_t *n,
                                 struct why *why)
{
    const struct args *a = e->args;
    *n = 0;
    if (a->plan || (a->command == COMMAND_VERIFY && !a->policy)) return STATUS_OK;
    TRY(args_policies(a, policies, n, why));
    return args_check_options(a, policies, *n, why);
}

enum status each_plan_run_one(struct each_plan *e, const struct workload *w, struct why *why)
{
    const struct policy *policies[64];
    int32_t n;
    TRY(find_policies(e, policies, &n, why));
    return run_workload(e, w, policies, n, why);
}

enum status each_plan_run(struct each_plan *e, struct why *why)
{
    const struct policy *policies[64];
    int32_t n = 0;
    struct workload_stream stream;
    struct workload w;
    enum status status, worst = STATUS_OK;
    if (e->args->plan && e->args->batches)
        return status_fail(why, STATUS_BAD_INPUT,
                           "--plan with --batches: expected the one batch that the plan is for");
    TRY(find_policies(e, policies, &n, why));
    TRY(args_open_workloads(e->args, &stream, why));
    while (args_next_workload(&stream, &w, &status, why)) {
        struct why local = {""};
        const enum status now = run_workload(e, &w, policies, n, &local);
        workload_free(&w);
        if (worst == STATUS_OK && now != STATUS_OK) *why = local;
        worst = combine(worst, now);
        if (now != STATUS_OK && !is_local(now)) break;
    }
    args_close_workloads(&stream);
    return status != STATUS_OK ? status : worst;
}
