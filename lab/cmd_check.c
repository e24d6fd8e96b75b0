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

static enum status run(const struct args *a, struct why *why)
{
    struct workload_stream stream;
    struct workload w;
    enum status status;
    if (a->batches)
        return status_fail(why, STATUS_BAD_INPUT, "--batches: expected the one batch that the plan is for");
    TRY(args_open_workloads(a, &stream, why));
    if (args_next_workload(&stream, &w, &status, why)) {
        status = check_one(a, &w, why);
        workload_free(&w);
    }
    args_close_workloads(&stream);
    return status;
}

int cmd_check(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_CHECK, argc, argv, &a, &why);
    if (status == STATUS_OK) status = run(&a, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
