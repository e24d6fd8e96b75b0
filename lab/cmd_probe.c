#include "lab/commands.h"

#include "cuda/probe.h"
#include "lab/out_file.h"
#include "lab/profile.h"
#include "lab/profile_write.h"
#include "lab/record.h"
#include "sim/occupancy.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS = 9, MAX_READINGS = 512 };

/* One measured value, whatever it is of. x and spread: NaN = none. */
struct reading {
    const char *experiment, *x_unit, *unit;
    char detail[64]; /* of occupancy: the kernel */
    double x, value, spread;
};

struct readings {
    struct reading data[MAX_READINGS];
    int32_t n;
};

static struct reading *add(struct readings *r, const char *experiment, double value, const char *unit)
{
    struct reading *out = &r->data[r->n < MAX_READINGS - 1 ? r->n++ : MAX_READINGS - 1];
    *out = (struct reading){experiment, "", unit, "", NAN, value, NAN};
    return out;
}

static void add_figure(struct readings *r, const char *experiment, const struct probe_figure *f,
                       const char *unit)
{
    add(r, experiment, f->value, unit)->spread = f->spread;
}

static void add_curve(struct readings *r, const char *experiment, const struct probe_curve *c,
                      const char *x_unit, const char *unit)
{
    for (int32_t i = 0; i < c->n; i++) {
        struct reading *out = add(r, experiment, c->y[i].value, unit);
        out->x = c->x[i];
        out->x_unit = x_unit;
        out->spread = c->y[i].spread;
    }
}

static void add_list(struct readings *r, const char *experiment, const int32_t *values, int32_t n,
                     const char *x_unit, const char *unit)
{
    for (int32_t i = 0; i < n; i++) {
        struct reading *out = add(r, experiment, values[i], unit);
        out->x = i;
        out->x_unit = x_unit;
    }
}

static void add_all(struct readings *r, const struct probe *p)
{
    static const char *const turnarounds[3] = {"cta_turnaround_0kb", "cta_turnaround_16kb",
                                               "cta_turnaround_200kb"};
    add_list(r, "gpc_sms", p->gpc_sms, p->n_gpcs, "gpc", "SMs");
    add_list(r, "first_wave", p->first_wave, p->n_first, "cta", "SM");
    add_figure(r, "first_wave_ns", &p->first_wave_ns, "ns");
    for (int i = 0; i < 3; i++)
        add_figure(r, turnarounds[i], &p->turnaround_ns[i], "ns");
    add_figure(r, "launch_gap", &p->launch_gap_ns, "ns");
    add_figure(r, "graph_gap", &p->graph_gap_ns, "ns");
    add_figure(r, "two_streams", &p->overlap, "x one kernel");
    add_figure(r, "hbm_latency", &p->hbm_latency_ns, "ns");
    add_figure(r, "l2_latency", &p->l2_latency_ns, "ns");
    add_figure(r, "stream_latency", &p->stream_latency_ns, "ns");
    add_curve(r, "hbm_by_bytes_in_flight", &p->hbm_by_bytes, "bytes an SM", "bytes/ns");
    add_curve(r, "hbm_by_sms", &p->hbm_by_sms, "SMs", "bytes/ns");
    add(r, "hbm_fit_most", p->hbm_most, "bytes/ns");
    add(r, "hbm_fit_power", p->hbm_power, "");
    add_curve(r, "l2_by_footprint", &p->l2_by_bytes, "bytes", "bytes/ns");
    add_curve(r, "mma_sync_by_warps", &p->mma_by_warps, "warps an SM", "flop/ns");
    add_figure(r, "mma_sync_one_sm", &p->mma_one_sm, "flop/ns");
    add_figure(r, "fma_fp32", &p->fma, "flop/ns");
    add_figure(r, "ex2", &p->exp2, "ex2/ns");
}

/* CTAs an SM of every kernel row at head_dim 64, 128, 256: the driver's answer, x the simulator's on profile `gpu`. */
static enum status add_occupancies(struct readings *r, struct cuda_device *device, const struct args *a,
                                   const struct gpu *gpu, struct why *why)
{
    static const int32_t dims[] = {64, 128, 256};
    for (int d = 0; d < 3; d++) {
        struct shape shape = a->params.shape;
        struct kernels kernels;
        shape.head_dim_qk = shape.head_dim_vo = dims[d];
        kernels_resolve(gpu, &shape, &kernels);
        for (int row = 0; row < KERNEL_COUNT; row++) {
            struct cuda_row c;
            if (kernels.fit[row].ctas_per_sm == 0) continue; /* too large for this GPU at this head size */
            TRY(cuda_row(device, (enum kernel_id)row, &shape, &kernels, &c, why));
            struct reading *out = add(r, "occupancy", c.ctas_per_sm, "CTAs an SM");
            out->x = kernels.fit[row].ctas_per_sm;
            out->x_unit = "simulated";
            snprintf(out->detail, sizeof out->detail, "%s hd%d", kernel_row((enum kernel_id)row)->name,
                     dims[d]);
        }
    }
    return STATUS_OK;
}

/* ---- output -------------------------------------------------------------------------------------------------------- */

static void print_table(const struct readings *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        const struct reading *x = &r->data[i];
        char at[48] = "";
        if (!isnan(x->x)) snprintf(at, sizeof at, "%.6g %s", x->x, x->x_unit);
        printf("%-24s %-26s %-22s %10.6g %s", x->experiment, x->detail, at, x->value, x->unit);
        if (isnan(x->spread))
            putchar('\n');
        else
            printf(" (spread %.1f %%)\n", 100 * x->spread);
    }
}

static void print_csv(const struct readings *r, const char *context)
{
    puts("experiment,detail,x,x_unit,value,unit,spread,context");
    for (int32_t i = 0; i < r->n; i++) {
        const struct reading *x = &r->data[i];
        printf("%s,%s,", x->experiment, x->detail);
        if (!isnan(x->x)) printf("%.9g", x->x);
        printf(",%s,%.9g,%s,", x->x_unit, x->value, x->unit);
        if (!isnan(x->spread)) printf("%.4g", x->spread);
        putchar(',');
        record_write_csv_text(stdout, context);
        putchar('\n');
    }
}

static enum status print_json(const struct readings *r, const char *context, struct why *why)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < r->n; i++) {
        const struct reading *x = &r->data[i];
        json_t *one =
            json_pack("{s:s, s:s, s:s, s:f, s:s, s:s}", "experiment", x->experiment, "detail", x->detail,
                      "x_unit", x->x_unit, "value", x->value, "unit", x->unit, "context", context);
        json_object_set_new(one, "x", isnan(x->x) ? json_null() : json_real(x->x));
        json_object_set_new(one, "spread", isnan(x->spread) ? json_null() : json_real(x->spread));
        json_array_append_new(all, one);
    }
    const bool ok = all && json_dumpf(all, stdout, JSON_INDENT(1)) == 0;
    json_decref(all);
    putchar('\n');
    return ok ? STATUS_OK : status_fail(why, STATUS_IO, "stdout: cannot write JSON");
}

/* One line: where and when the readings were taken. */
static void describe(const struct probe *p, char *out, size_t size)
{
    char utc[RECORD_TIME_MAX];
    record_now(utc);
    snprintf(out, size, "%s; driver CUDA %d.%d; runtime %d.%d; SM %d MHz; memory %d MHz; git %s; %s",
             p->card.name, p->card.driver / 1000, p->card.driver % 1000 / 10, p->card.runtime / 1000,
             p->card.runtime % 1000 / 10, p->card.sm_mhz, p->card.memory_mhz, record_git(), utc);
}

static enum status print(const struct readings *r, const struct args *a, const char *context, struct why *why)
{
    if (a->format == FORMAT_JSON) return print_json(r, context, why);
    if (a->format == FORMAT_CSV) {
        print_csv(r, context);
        return STATUS_OK;
    }
    printf("%s\n", context);
    print_table(r);
    return STATUS_OK;
}

/* ---- the profile --------------------------------------------------------------------------------------------------- */

/* Writes the rewritten profile into *text (free it), which must load. */
static enum status profile_text(const struct args *a, const struct probe *p, const struct gpu *base,
                                const char *context, char **text, struct why *why)
{
    struct profile_value values[PROFILE_PROBED];
    const int32_t n = profile_of_probe(p, base, values);
    char path[PROFILE_PATH_MAX], header[768];
    size_t size = 0;
    FILE *file, *memory = open_memstream(text, &size);
    struct gpu check;
    if (!memory) return status_fail(why, STATUS_NO_MEMORY, "profile: out of memory");
    snprintf(
        header, sizeof header,
        "; Measured by tandem probe: %s.\n; Rates are per nanosecond: 1 GB/s = 1 byte/ns, 1 TFLOP/s = 1000 "
        "FLOP/ns. Values without [measured] of this line's date\n; are those of profile %s.\n",
        context, base->name);
    enum status status = profile_open(a->gpu, path, &file, why);
    if (status == STATUS_OK) {
        status = profile_rewrite(file, path, header, values, n, memory, why);
        fclose(file);
    }
    if (fclose(memory) != 0 && status == STATUS_OK)
        status = status_fail(why, STATUS_NO_MEMORY, "profile: out of memory");
    if (status != STATUS_OK) return status;
    file = fmemopen(*text, size, "r");
    if (!file) return status_fail(why, STATUS_NO_MEMORY, "profile: out of memory");
    status = profile_read(file, a->out, &check, why);
    fclose(file);
    return status;
}

static void tell(const char *name)
{
    fprintf(stderr, "\r\033[Kprobe: %s ", name);
}

static enum status check_base(const struct args *a, const struct gpu *base, const struct cuda_card *card,
                              struct why *why)
{
    if (!a->out || base->cc_major == card->cc_major) return STATUS_OK;
    return status_fail(
        why, STATUS_BAD_INPUT,
        "--gpu %.60s: a profile of compute capability %d.%d; %s has %d.%d: expected one of that "
        "kind",
        a->gpu, base->cc_major, base->cc_minor, card->name, card->cc_major, card->cc_minor);
}

static enum status measure(const struct args *a, struct cuda_device *device, const struct gpu *base,
                           struct out_file *out, struct why *why)
{
    static struct readings readings;
    struct probe p;
    char context[256], *text = NULL;
    const bool progress = isatty(2) && !a->quiet;
    TRY(probe_run(device, REPEATS, progress ? tell : NULL, &p, why));
    if (progress) fputs("\r\033[K", stderr);
    describe(&p, context, sizeof context);
    add_all(&readings, &p);
    if (base->cc_major == p.card.cc_major) TRY(add_occupancies(&readings, device, a, base, why));
    TRY(print(&readings, a, context, why));
    if (!a->out) return STATUS_OK;
    const enum status status = profile_text(a, &p, base, context, &text, why);
    if (status == STATUS_OK) fputs(text, out->stream);
    free(text);
    return status;
}

/* What can be refused is refused before half a minute of measuring. */
static enum status run(const struct args *a, struct cuda_device *device, struct why *why)
{
    struct gpu base;
    struct cuda_card card;
    struct out_file out = {0};
    TRY(profile_load(a->gpu, &base, why));
    TRY(cuda_card(device, &card, why));
    TRY(check_base(a, &base, &card, why));
    if (a->out) TRY(out_file_open(a->out, &out, why));
    const enum status status = measure(a, device, &base, &out, why);
    if (!a->out) return status;
    if (status == STATUS_OK) return out_file_commit(&out, why);
    out_file_abort(&out);
    return status;
}

int cmd_probe(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct cuda_device *device = NULL;
    enum status status = args_parse(COMMAND_PROBE, argc, argv, &a, &why);
    if (status == STATUS_OK) status = cuda_open(&device, &why);
    if (status == STATUS_OK) status = run(&a, device, &why);
    cuda_close(device);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
