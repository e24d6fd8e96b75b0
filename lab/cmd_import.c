#include "lab/commands.h"
#include "lab/import_arrays.h"
#include "lab/out_file.h"
#include "lab/plan_json.h"

#include <string.h>

static enum status write_plan(const struct args *a, const struct plan *plan, struct why *why)
{
    struct out_file file;
    TRY(out_file_open(a->out ? a->out : "-", &file, why));
    const enum status status = plan_json_write(plan, a->gpu, "import", file.stream, why);
    if (status != STATUS_OK) {
        out_file_abort(&file);
        return status;
    }
    return out_file_commit(&file, why);
}

static enum status import_one(const struct args *a, const struct workload *w, struct why *why)
{
    struct import_arrays arrays;
    struct plan plan = {0};
    TRY(import_arrays_read(a->arrays, &arrays, why));
    enum status status = import_arrays_plan(&arrays, &w->batch, &plan, why);
    if (status == STATUS_OK) status = write_plan(a, &plan, why);
    plan_free(&plan);
    import_arrays_free(&arrays);
    return status;
}

static enum status run(const struct args *a, struct why *why)
{
    struct workload_stream stream;
    struct workload w;
    enum status status;
    if (a->batches)
        return status_fail(why, STATUS_BAD_INPUT,
                           "--batches: expected the one batch that the arrays are for");
    TRY(args_open_workloads(a, &stream, why));
    if (args_next_workload(&stream, &w, &status, why)) {
        status = import_one(a, &w, why);
        workload_free(&w);
    }
    args_close_workloads(&stream);
    return status;
}

int cmd_import(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_IMPORT, argc, argv, &a, &why);
    if (status == STATUS_OK) status = run(&a, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
