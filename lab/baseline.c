#include "lab/baseline.h"

#include "lab/child.h"
#include "lab/data_dir.h"
#include "lab/json_read.h"
#include "lab/npy.h"
#include "lab/scratch_dir.h"
#include "lab/tensor_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char script_name[] = "baseline.py";

/* ---- lines of the child ---------------------------------------------------------------------------------------- */

static const char *const known_members[] = {"peer", "time_us", "p10_us", "p90_us",
                                            "runs", "options", "error",  NULL};

static const struct json_place place = {script_name, 0};

/* The peer's name becomes part of a file name and of a column. */
static enum status read_name(const json_t *object, char *out, struct why *why)
{
    const char *name = json_string_value(json_object_get(object, "peer"));
    const size_t n = name ? strlen(name) : 0;
    if (n == 0 || n >= BASELINE_NAME_MAX || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != n)
        return json_fail(&place, "peer", "1..39 of a-z, 0-9, _", why);
    memcpy(out, name, n + 1);
    return STATUS_OK;
}

/* Texts go into one line of a table: control characters become blanks. */
static enum status read_text(const json_t *object, const char *member, char out[RECORD_TEXT_MAX],
                             struct why *why)
{
    const json_t *value = json_object_get(object, member);
    if (value && !json_is_string(value)) return json_fail(&place, member, "text", why);
    record_set_text(out, value ? json_string_value(value) : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    return STATUS_OK;
}

static enum status read_time(const json_t *object, const char *member, double low, double *out,
                             struct why *why)
{
    const json_t *value = json_object_get(object, member);
    *out = json_is_number(value) ? json_number_value(value) : NAN;
    if (*out > 0 && *out >= low && isfinite(*out)) return STATUS_OK;
    return json_fail(&place, member, "microseconds, 0 < p10_us <= time_us <= p90_us", why);
}

static enum status read_members(const json_t *object, struct baseline_line *out, struct why *why)
{
    TRY(json_check_members(&place, object, known_members, why));
    TRY(read_name(object, out->peer, why));
    TRY(read_text(object, "options", out->options, why));
    TRY(read_text(object, "error", out->error, why));
    if (json_object_get(object, "error")) {
        if (!out->error[0]) return json_fail(&place, "error", "a reason", why);
        if (json_object_get(object, "time_us"))
            return json_fail(&place, "time_us", "none beside an error", why);
        return STATUS_OK;
    }
    TRY(read_time(object, "p10_us", 0, &out->p10_us, why));
    TRY(read_time(object, "time_us", out->p10_us, &out->time_us, why));
    TRY(read_time(object, "p90_us", out->time_us, &out->p90_us, why));
    return json_read_int(&place, object, "runs", true, 1, 1000000000, &out->runs, why);
}

enum status baseline_read_line(const char *text, struct baseline_line *out, struct why *why)
{
    json_error_t error;
    *out = (struct baseline_line){.time_us = NAN, .p10_us = NAN, .p90_us = NAN, .runs = RECORD_EMPTY};
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    const enum status status =
        json_is_object(object)
            ? read_members(object, out, why)
            : status_fail(why, STATUS_BAD_INPUT, "%s: expected a JSON object a line, found '%.60s'",
                          script_name, text);
    json_decref(object);
    return status;
}

/* ---- files for the child --------------------------------------------------------------------------------------- */

static enum status write_sample(const struct baseline *b, const char *path, struct why *why)
{
    const struct device_run *run = b->run;
    const int64_t n = run->n_rows, dv = b->w->batch.shape.head_dim_vo;
    struct npz_writer *writer = NULL;
    int64_t *row = calloc((size_t)n + 1, sizeof *row);
    if (!row) return status_fail(why, STATUS_NO_MEMORY, "sample of rows: out of memory");
    for (int64_t i = 0; i < n; i++)
        row[i] = (int64_t)batch_row(&b->w->batch, run->rows[i]);
    const struct npy_array arrays[] = {
        {"row", 'i', 8, 1, {n}, row, (size_t)n, 8 * (size_t)n},
        {"o", 'f', 8, 2, {n, dv}, run->sample.o, (size_t)(n * dv), 8 * (size_t)(n * dv)},
        {"lse", 'f', 8, 1, {n}, run->sample.lse, (size_t)n, 8 * (size_t)n},
    };
    enum status status = npz_writer_open(path, &writer, why);
    for (int i = 0; i < 3 && status == STATUS_OK; i++)
        status = npz_writer_add(writer, &arrays[i], why);
    const enum status closed = npz_writer_close(writer, status == STATUS_OK, why);
    free(row);
    return status == STATUS_OK ? closed : status;
}

enum status baseline_write(const struct baseline *b, const char *tensors, const char *sample, struct why *why)
{
    TRY(device_run_sample(b->run, b->w, why));
    TRY(tensor_file_write(tensors, b->w, &b->run->truth.tensors, NULL, why));
    return write_sample(b, sample, why);
}

/* ---- a peer's row ---------------------------------------------------------------------------------------------- */

static double element(const struct npy_array *a, size_t i)
{
    return a->item_bytes == 8 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}

static bool is_floats(const struct npy_array *a, int32_t n_dims, const int64_t *dim)
{
    return a && a->kind == 'f' && a->item_bytes >= 4 && a->n_dims == n_dims &&
           memcmp(a->dim, dim, (size_t)n_dims * sizeof *dim) == 0;
}

/* The sampled rows, from a peer's file into a whole result. An LSE that the peer does not give is the oracle's. */
static enum status take_rows(const struct baseline *b, const char *peer, const struct npy_file *f,
                             struct result *got, struct why *why)
{
    const struct device_run *run = b->run;
    const struct npy_array *o = npy_find(f, "o"), *lse = npy_find(f, "lse");
    const int64_t dim[] = {run->n_rows, b->w->batch.shape.head_dim_vo};
    if (!is_floats(o, 2, dim) || (lse && !is_floats(lse, 1, dim)))
        return status_fail(why, STATUS_INTERNAL, "%s: %s: expected floats o [%lld, %lld] and lse [%lld]",
                           script_name, peer, (long long)dim[0], (long long)dim[1], (long long)dim[0]);
    for (int32_t i = 0; i < run->n_rows; i++) {
        const size_t row = batch_row(&b->w->batch, run->rows[i]);
        const size_t at = tensor_row_at(got->o_stride, got->num_qo_heads, row);
        got->lse[row] = (float)(lse ? element(lse, (size_t)i) : run->sample.lse[i]);
        for (size_t d = 0; d < (size_t)dim[1]; d++)
            got->o[at + d] = (float)element(o, (size_t)i * (size_t)dim[1] + d);
    }
    return STATUS_OK;
}

static enum status judge(const struct baseline *b, const struct npy_file *f, struct record *r,
                         struct why *why)
{
    struct result got;
    const struct device_run *run = b->run;
    TRY(result_create(&b->w->batch, (struct row_stride){0, 0}, &got, why));
    enum status status = take_rows(b, r->policy, f, &got, why);
    if (status == STATUS_OK) {
        const struct comparison c =
            compare_rows(&b->w->batch, &got, run->rows, run->n_rows, &run->sample, &run->truth.model);
        r->max_err_o = c.max_err_o;
        if (npy_find(f, "lse")) r->max_err_lse = c.max_err_lse;
        status = device_run_report(b->w, &c, r->policy, why);
    }
    result_free(&got);
    return status;
}

static enum status judge_file(const struct baseline *b, const struct scratch_dir *dir, const char *peer,
                              struct record *r, struct why *why)
{
    char path[PATH_MAX], name[BASELINE_NAME_MAX + 8];
    struct npy_file f;
    snprintf(name, sizeof name, "%s.npz", peer);
    TRY(scratch_dir_file(dir, name, path, why));
    if (npz_read(path, &f, why) != STATUS_OK)
        return STATUS_INTERNAL; /* the child's mistake, not the user's */
    const enum status status = judge(b, &f, r, why);
    npy_file_free(&f);
    return status;
}

static void remark(const struct baseline *b, const struct record *r, const char *text)
{
    if (!b->quiet) fprintf(stderr, "tandem: %s: %s: %s\n", r->workload, r->policy, text);
}

/* A timed peer's columns, once its numbers are right. */
static void note_times(const struct baseline *b, const struct baseline_line *line, struct record *r)
{
    r->time_us = line->time_us;
    r->time_p10_us = line->p10_us;
    r->time_p90_us = line->p90_us;
    r->runs = line->runs;
    run_note_ratios(b->m, r);
}

/* STATUS_OK also for a peer that said why it cannot: its row and a remark say so. */
static enum status add_peer(const struct baseline *b, const struct scratch_dir *dir,
                            const struct baseline_line *line, struct rows *rows, struct why *why)
{
    struct record r;
    struct why local = {""}, ignored;
    record_init(&r, b->w);
    snprintf(r.policy, sizeof r.policy, "peer:%s", line->peer);
    record_set_text(r.options, line->options);
    record_set_text(r.gpu, b->m->gpu.name);
    record_set_text(r.executor, "cuda");
    record_set_text(r.status, "ok");
    run_note_limits(b->w, b->m, &r);
    enum status status = STATUS_OK;
    if (line->error[0]) {
        status_fail(&local, STATUS_UNSUPPORTED, "%s", line->error);
        run_note_failure(&r, STATUS_UNSUPPORTED, &local);
    } else {
        status = judge_file(b, dir, line->peer, &r, &local);
        if (status == STATUS_OK)
            note_times(b, line, &r);
        else
            run_note_failure(&r, status, &local);
    }
    if (local.text[0]) remark(b, &r, local.text);
    if (status != STATUS_OK) *why = local;
    const enum status added = rows_add(rows, &r, &ignored);
    return status == STATUS_OK ? added : status;
}

/* ---- the child -------------------------------------------------------------------------------------------------- */

/* What the child wrote to stderr: its remarks, lines that begin with its name, are passed on; the last line of all, which
 * in Python is the reason of a failure, goes to `last`. */
static void read_errors(const struct baseline *b, const char *path, char *last, size_t size)
{
    char line[512];
    const size_t prefix = sizeof script_name - 1;
    FILE *file = fopen(path, "r");
    last[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[strspn(line, " \t")] == '\0') continue;
        const bool own = strncmp(line, script_name, prefix) == 0 && line[prefix] == ':';
        snprintf(last, size, "%s", own ? line + prefix + 2 : line);
        if (own && !b->quiet) fprintf(stderr, "tandem: %s\n", line);
    }
    if (file) fclose(file);
}

/* Exit status 3 is the child's word for a machine that lacks something, with the reason on its last line. */
static enum status explain(const struct child_end *end, const char *last, struct why *why)
{
    if (end->signal)
        return status_fail(why, STATUS_INTERNAL, "%s: killed by signal %d (%s)%s%.300s", script_name,
                           end->signal, strsignal(end->signal), last[0] ? ": " : "", last);
    if (end->exit_code == 3) return status_fail(why, STATUS_UNSUPPORTED, "--baseline torch: %.400s", last);
    if (end->exit_code != 0)
        return status_fail(why, STATUS_INTERNAL, "%s: exit status %d%s%.400s", script_name, end->exit_code,
                           last[0] ? ": " : "", last);
    return STATUS_OK;
}

/* A row for every line up to the first that is none. */
static enum status add_peers(const struct baseline *b, const struct scratch_dir *dir, struct child_end *end,
                             struct rows *rows, struct why *why)
{
    enum status worst = STATUS_OK;
    char seen[BASELINE_MAX_PEERS][BASELINE_NAME_MAX];
    int n = 0;
    if (strlen(end->output) != end->n)
        return status_fail(why, STATUS_INTERNAL, "%s: printed a zero byte: expected text", script_name);
    for (char *text = end->output, *next; *text; text = next) {
        struct baseline_line line;
        struct why local = {""};
        next = strchr(text, '\n');
        if (!next)
            return status_fail(why, STATUS_INTERNAL, "%s: its last line ends early: '%.60s'", script_name,
                               text);
        *next++ = '\0';
        if (baseline_read_line(text, &line, why) != STATUS_OK) return STATUS_INTERNAL;
        for (int i = 0; i < n; i++)
            if (strcmp(seen[i], line.peer) == 0)
                return status_fail(why, STATUS_INTERNAL, "%s: %s: twice", script_name, line.peer);
        if (n == BASELINE_MAX_PEERS)
            return status_fail(why, STATUS_INTERNAL, "%s: more than %d peers", script_name, n);
        memcpy(seen[n++], line.peer, sizeof line.peer);
        const enum status now = add_peer(b, dir, &line, rows, &local);
        if (worst == STATUS_OK && now != STATUS_OK) {
            worst = now;
            *why = local;
        }
    }
    return worst;
}

static const char *python(void)
{
    const char *set = getenv("TANDEM_PYTHON");
    return set && *set ? set : "python3";
}

/* Its own failure first: what it printed before, however broken, is then a consequence. */
static enum status run_child(const struct baseline *b, const struct scratch_dir *dir, const char *script,
                             const char *tensors, const char *sample, struct rows *rows, struct why *why)
{
    char errors[PATH_MAX], runs[16], last[512];
    struct child_end end;
    struct why local = {""};
    TRY(scratch_dir_file(dir, "stderr", errors, why));
    snprintf(runs, sizeof runs, "%d", (int)b->runs);
    const char *const argv[] = {python(), script,    "--in",   tensors, "--sample", sample,
                                "--out",  dir->path, "--runs", runs,    NULL};
    const struct child c = {.argv = argv, .errors = errors, .timeout_s = b->timeout_s};
    enum status status = child_run(&c, &end, why);
    read_errors(b, errors, last, sizeof last);
    if (status == STATUS_OK) status = explain(&end, last, why);
    const enum status peers = end.output ? add_peers(b, dir, &end, rows, &local) : STATUS_OK;
    free(end.output);
    if (status == STATUS_OK && peers != STATUS_OK) *why = local;
    return status == STATUS_OK ? peers : status;
}

static enum status find_script(char *out, struct why *why)
{
    if (data_file("TANDEM_LAB_DIR", "lab", script_name, out, PATH_MAX) == 0 && access(out, R_OK) == 0)
        return STATUS_OK;
    return status_fail(why, STATUS_UNSUPPORTED,
                       "--baseline torch: no %s in lab/ beside the program or here (TANDEM_LAB_DIR)",
                       script_name);
}

enum status baseline_run(const struct baseline *b, struct rows *rows, struct why *why)
{
    struct scratch_dir dir = {""};
    char script[PATH_MAX], tensors[PATH_MAX], sample[PATH_MAX];
    if (b->w->batch.qo_indptr[b->w->batch.n_requests] == 0) return STATUS_OK; /* no rows, nothing to time */
    TRY(find_script(script, why));
    TRY(scratch_dir_open(&dir, why));
    enum status status = scratch_dir_file(&dir, "tensors.npz", tensors, why);
    if (status == STATUS_OK) status = scratch_dir_file(&dir, "sample.npz", sample, why);
    if (status == STATUS_OK) status = baseline_write(b, tensors, sample, why);
    if (status == STATUS_OK) status = run_child(b, &dir, script, tensors, sample, rows, why);
    scratch_dir_close(&dir);
    return status;
}
