#include "lab/commands.h"
#include "lab/import_arrays.h"

/* The reader's reasons name the file; so do the converter's here. */
static enum status convert(const struct args *a, const struct workload *w, struct plan *plan, struct why *why)
{
    struct import_arrays arrays;
    struct why inner = {""};
    enum status status = import_arrays_read(a->arrays, &arrays, why);
    if (status == STATUS_OK) {
        status = import_arrays_plan(&arrays, &w->batch, plan, &inner);
        if (status != STATUS_OK)
            status_fail(why, status, "%.100s: %.150s", a->arrays,
                        inner.text[0] ? inner.text : status_text(status));
    }
    import_arrays_free(&arrays);
    return status;
}

static enum status import_one(const struct args *a, const struct workload *w, struct why *why)
{
    struct machine m;
    struct plan plan = {0};
    TRY(command_machine(a, w, &m, why));
    enum status status = convert(a, w, &plan, why);
    if (status == STATUS_OK) status = command_write_plan(a, &plan, &m, "import", why);
    plan_free(&plan);
    return status;
}

int cmd_import(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_IMPORT, argc, argv, &a, &why);
    if (status == STATUS_OK) status = command_one_workload(&a, "that the arrays are for", import_one, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
