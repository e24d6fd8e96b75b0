#include "lab/commands.h"
#include "lab/plan_json.h"
#include "sched/plan_check.h"

#include <string.h>

static enum status check_one(const struct args *a, const struct workload *w, struct why *why)
{
    struct plan plan;
    TRY(plan_json_read(a->plan, &plan, why));
    const enum status status = plan_check(&plan, &w->batch, why);
    if (status == STATUS_OK && a->format == FORMAT_TABLE)
        printf("valid: %d grids, %d items, %d merges, %d partial rows cover the batch exactly once\n",
               plan.n_grids, plan.n_items, plan.n_merges, plan.partial_rows);
    if (status == STATUS_OK && a->format == FORMAT_CSV)
        printf("workload,plan,status\n%s,%s,ok\n", w->name, a->plan);
    if (status == STATUS_OK && a->format == FORMAT_JSON) puts("{\"status\": \"ok\"}");
    plan_free(&plan);
    return status;
}

int cmd_check(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_CHECK, argc, argv, &a, &why);
    if (status == STATUS_OK) status = command_one_workload(&a, "that the plan is for", check_one, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
