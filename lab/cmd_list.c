#include "lab/auto.h"
#include "lab/commands.h"
#include "lab/generators.h"
#include "lab/models.h"
#include "lab/profile.h"
#include "sim/occupancy.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A listing is rows of name and text, whatever is listed; the format decides how they are printed. */
static void print_entry(enum args_format format, const char *name, const char *text, bool first)
{
    if (format == FORMAT_JSON) {
        json_t *entry = json_pack("{s:s, s:s}", "name", name, "brief", text);
        printf("%s", first ? "[\n" : ",\n");
        json_dumpf(entry, stdout, JSON_COMPACT);
        json_decref(entry);
    } else if (format == FORMAT_CSV) {
        if (first) puts("name,brief");
        printf("%s,\"", name);
        for (const char *c = text; *c; c++)
            printf("%s%c", *c == '"' ? "\"" : "", *c);
        puts("\"");
    } else {
        printf("%-20s %s\n", name, text);
    }
}

static void list_policies(enum args_format format)
{
    for (int32_t i = 0; i <= policy_count(); i++) {
        const struct policy *p = i < policy_count() ? policy_at(i) : &policy_auto;
        char text[512];
        int n = snprintf(text, sizeof text, "%s", p->brief);
        for (const struct policy_option *o = p->options; o && o->name && n < (int)sizeof text; o++)
            n += snprintf(text + n, sizeof text - (size_t)n, "; %s=%s (%s)", o->name, o->values,
                          o->default_value);
        print_entry(format, p->name, text, i == 0);
    }
    for (const struct policy_option *o = policy_common_options(); format == FORMAT_TABLE && o->name; o++)
        printf("every policy also has %s=%s (%s): %s\n", o->name, o->values, o->default_value, o->brief);
}

/* Kernels as the chosen GPU would run them at 32/8 heads, head_dim 128, bf16. */
static enum status list_kernels(const struct args *a, struct why *why)
{
    struct gpu gpu;
    struct kernels kernels;
    TRY(profile_load(a->gpu, &gpu, why));
    kernels_resolve(&gpu, &a->params.shape, &kernels);
    for (int i = 0; i < KERNEL_COUNT; i++) {
        const struct kernel *k = kernel_row((enum kernel_id)i);
        char text[320];
        snprintf(text, sizeof text, "%s; %d threads x %d registers, %d KB smem, %d CTAs an SM on %s [%s]",
                 k->brief, k->threads, k->registers, kernels.fit[i].smem_bytes / 1024,
                 kernels.fit[i].ctas_per_sm, gpu.name, k->source);
        print_entry(a->format, k->name, text, i == 0);
    }
    return STATUS_OK;
}

static enum status list_gpus(enum args_format format, struct why *why)
{
    char **names;
    int32_t n;
    TRY(profile_names(&names, &n, why));
    enum status status = STATUS_OK;
    for (int32_t i = 0; i < n && status == STATUS_OK; i++) {
        struct gpu gpu;
        char text[160];
        status = profile_load(names[i], &gpu, why);
        if (status != STATUS_OK) break;
        snprintf(text, sizeof text, "sm_%d%d, %d SMs, %.0f TFLOP/s dense 16-bit, %.2f TB/s, %.0f MB L2",
                 gpu.cc_major, gpu.cc_minor, gpu.sm_count, gpu.peak_flops_per_ns / 1e3,
                 gpu.peak_hbm_bytes_per_ns / 1e3, gpu.l2_bytes / 1048576);
        print_entry(format, names[i], text, i == 0);
    }
    profile_names_free(names, n);
    return status;
}

static void list_models(enum args_format format)
{
    for (int32_t i = 0; i < model_count(); i++) {
        const struct model *m = model_at(i);
        char text[160];
        char vo[16] = "";
        if (m->head_dim_vo) snprintf(vo, sizeof vo, "/%d", m->head_dim_vo);
        snprintf(text, sizeof text, "heads %d/%d, head_dim %d%s (%s)", m->num_qo_heads, m->num_kv_heads,
                 m->head_dim, vo, m->source);
        print_entry(format, m->name, text, i == 0);
    }
}

static enum status list(const struct args *a, struct why *why)
{
    if (strcmp(a->what, "policies") == 0)
        list_policies(a->format);
    else if (strcmp(a->what, "gpus") == 0)
        TRY(list_gpus(a->format, why));
    else if (strcmp(a->what, "kernels") == 0)
        TRY(list_kernels(a, why));
    else if (strcmp(a->what, "models") == 0)
        list_models(a->format);
    else if (strcmp(a->what, "workloads") == 0)
        for (int32_t i = 0; i < generator_count(); i++)
            print_entry(a->format, generator_name(i), generator_brief(i), i == 0);
    else
        return status_fail(why, STATUS_UNKNOWN_NAME,
                           "list %.40s: expected policies, gpus, kernels, models or workloads", a->what);
    if (a->format == FORMAT_JSON) puts("\n]");
    return STATUS_OK;
}

int cmd_list(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    enum status status = args_parse(COMMAND_LIST, argc, argv, &a, &why);
    if (status == STATUS_OK) status = list(&a, &why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
