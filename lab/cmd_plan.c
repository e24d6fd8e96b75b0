#include "lab/auto.h"
#include "lab/commands.h"

#include <string.h>

static enum status the_policy(const struct args *a, const struct policy **policy, struct why *why)
{
    const struct policy *policies[64];
    int32_t n;
    TRY(args_policies(a, policies, &n, why));
    if (n != 1) return status_fail(why, STATUS_BAD_INPUT, "--policy %.60s: expected one policy", a->policy);
    *policy = policies[0];
    return args_check_options(a, policies, n, why);
}

static enum status plan_one(const struct args *a, const struct workload *w, struct why *why)
{
    const struct policy *policy = NULL;
    struct machine m;
    struct record r;
    struct plan plan = {0};
    struct policy_options options;
    TRY(the_policy(a, &policy, why));
    TRY(command_machine(a, w, &m, why));
    TRY(args_options(a, policy, &options, why));
    record_init(&r, w);
    enum status status = run_plan(w, &m, policy, &options.options, &plan, &r, why);
    if (status == STATUS_OK && policy == &policy_auto && !a->quiet)
        fprintf(stderr, "tandem: %s: auto: %s\n", r.workload, r.options);
    if (status == STATUS_OK) status = command_write_plan(a, &plan, &m, policy->name, why);
    plan_free(&plan);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_PLAN, argc, argv, &a, &why);
    if (status == STATUS_OK) status = command_one_workload(&a, "to plan", plan_one, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
