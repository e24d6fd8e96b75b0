#include "lab/commands.h"

#include "lab/out_file.h"
#include "lab/plan_json.h"
#include "lab/profile.h"
#include "sim/occupancy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int command_fail(enum status status, const struct why *why)
{
    fflush(stdout);
    fprintf(stderr, "tandem: %s\n", why->text[0] ? why->text : status_text(status));
    return status_exit_code(status);
}

int command_finish(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return exit_code;
    fprintf(stderr, "tandem: stdout: %s\n", strerror(errno));
    return 2;
}

enum status command_machine(const struct args *a, const struct workload *w, struct machine *m,
                            struct why *why)
{
    TRY(profile_load(a->gpu, &m->gpu, why));
    kernels_resolve(&m->gpu, &w->batch.shape, &m->kernels);
    return STATUS_OK;
}

enum status command_write_plan(const struct args *a, const struct plan *plan, const struct machine *m,
                               const char *policy, struct why *why)
{
    struct out_file file;
    TRY(out_file_open(a->out ? a->out : "-", &file, why));
    const enum status status = plan_json_write(plan, m->gpu.name, policy, file.stream, why);
    if (status != STATUS_OK) {
        out_file_abort(&file);
        return status;
    }
    return out_file_commit(&file, why);
}

enum status rows_add(struct rows *rows, const struct record *r, struct why *why)
{
    if (rows->n == rows->cap) {
        const int32_t cap = rows->cap ? rows->cap * 2 : 16;
        struct record *data = realloc(rows->data, (size_t)cap * sizeof *data);
        if (!data) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
        rows->data = data;
        rows->cap = cap;
    }
    rows->data[rows->n++] = *r;
    return STATUS_OK;
}

void rows_free(struct rows *rows)
{
    free(rows->data);
    memset(rows, 0, sizeof *rows);
}

/* Right-aligned number of `digits` decimals, or blank. */
static void cell(FILE *out, int width, double x, int decimals)
{
    if (isnan(x))
        fprintf(out, " %*s", width, "");
    else
        fprintf(out, " %*.*f", width, decimals, x);
}

static void count_cell(FILE *out, int width, int64_t x)
{
    if (x == RECORD_EMPTY)
        fprintf(out, " %*s", width, "");
    else
        fprintf(out, " %*lld", width, (long long)x);
}

static void error_cell(FILE *out, double x)
{
    if (isnan(x))
        fprintf(out, " %8s", "");
    else
        fprintf(out, " %8.1e", x);
}

static void print_row(const struct record *r, bool fastest, FILE *out)
{
    fprintf(out, "%-12s", r->policy);
    cell(out, 10, r->time_us, 1);
    fputc(fastest ? '*' : ' ', out);
    cell(out, 6, r->limit_ratio, 2);
    cell(out, 9, r->prefill_end_us, 1);
    cell(out, 9, r->decode_end_us, 1);
    cell(out, 9, r->imbalance, 3);
    cell(out, 7, 100 * r->tensor_util, 1);
    cell(out, 6, 100 * r->hbm_util, 1);
    count_cell(out, 5, r->grids);
    count_cell(out, 6, r->ctas);
    count_cell(out, 6, r->items);
    count_cell(out, 6, r->merges);
    cell(out, 8, r->workspace_bytes == RECORD_EMPTY ? NAN : (double)r->workspace_bytes / 1048576, 2);
    cell(out, 7, r->plan_us, 0);
    error_cell(out, r->max_err_o);
    error_cell(out, r->max_err_lse);
    fprintf(out, "  %s\n", r->status);
}

/* Fastest among rows [begin, end) of one workload, -1 when no row has a time. */
static int32_t fastest_row(const struct rows *rows, int32_t begin, int32_t end)
{
    int32_t best = -1;
    for (int32_t i = begin; i < end; i++)
        if (!isnan(rows->data[i].time_us) && (best < 0 || rows->data[i].time_us < rows->data[best].time_us))
            best = i;
    return best;
}

static void print_table(const struct rows *rows, FILE *out)
{
    for (int32_t begin = 0, end; begin < rows->n; begin = end) {
        const struct record *first = &rows->data[begin];
        end = begin + 1;
        while (end < rows->n && strcmp(rows->data[end].workload, first->workload) == 0)
            end++;
        const int32_t fastest = fastest_row(rows, begin, end);
        fprintf(out, "%s%s  heads %lld/%lld  head_dim %lld  page %lld  %s  seed %lld\n", begin ? "\n" : "",
                first->workload, (long long)first->num_qo_heads, (long long)first->num_kv_heads,
                (long long)first->head_dim, (long long)first->page_size, first->kv_dtype,
                (long long)first->seed);
        if (!isnan(first->limit_us))
            fprintf(out, "%s: no schedule can beat %.1f us (datasheet peaks; %.1f GFLOP)\n", first->gpu,
                    first->limit_us, first->flops / 1e9);
        fputs("policy          time us   x floor prefill   decode imbalance tensor%  HBM% grids   CTAs  "
              "items merges  work MiB plan us"
              "    err O  err LSE  status\n",
              out);
        for (int32_t i = begin; i < end; i++)
            print_row(&rows->data[i], i == fastest, out);
    }
}

void rows_print(const struct rows *rows, enum args_format format, FILE *out)
{
    if (format == FORMAT_TABLE) {
        print_table(rows, out);
    } else if (format == FORMAT_JSON) {
        record_write_json(out, rows->data, rows->n);
    } else {
        record_write_csv_header(out);
        for (int32_t i = 0; i < rows->n; i++)
            record_write_csv(out, &rows->data[i]);
    }
}

enum status command_one_workload(const struct args *a, const char *what,
                                 enum status (*step)(const struct args *a, const struct workload *w,
                                                     struct why *why),
                                 struct why *why)
{
    struct workload_stream stream;
    struct workload w;
    enum status status;
    if (a->batches) return status_fail(why, STATUS_BAD_INPUT, "--batches: expected the one batch %s", what);
    TRY(args_open_workloads(a, &stream, why));
    if (args_next_workload(&stream, &w, &status, why)) {
        status = step(a, &w, why);
        workload_free(&w);
    }
    args_close_workloads(&stream);
    return status;
}
