#include "lab/record.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#ifndef TANDEM_GIT
#define TANDEM_GIT "unknown"
#endif

enum column_type { TEXT, INT, REAL };

static const struct column {
    const char *name;
    enum column_type type;
    size_t offset;
} columns[] = {
#define X(name, type) {#name, type, offsetof(struct record, name)},
    RECORD_COLUMNS(X)
#undef X
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

void record_set_text(char *column, const char *text)
{
    const size_t n = strlen(text) < RECORD_TEXT_MAX - 1 ? strlen(text) : RECORD_TEXT_MAX - 1;
    memcpy(column, text, n);
    column[n] = '\0';
}

const char *record_git(void)
{
    return TANDEM_GIT;
}

void record_now(char utc[RECORD_TIME_MAX])
{
    const time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(utc, RECORD_TIME_MAX, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

void record_init(struct record *r, const struct workload *w)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < N_COLUMNS; i++) {
        char *at = (char *)r + columns[i].offset;
        if (columns[i].type == INT) *(int64_t *)at = RECORD_EMPTY;
        if (columns[i].type == REAL) *(double *)at = NAN;
    }
    record_set_text(r->workload, w->name);
    record_set_text(r->spec, w->spec);
    record_set_text(r->model, w->model);
    r->seed = (int64_t)w->seed;
    r->num_qo_heads = w->batch.shape.num_qo_heads;
    r->num_kv_heads = w->batch.shape.num_kv_heads;
    r->head_dim = w->batch.shape.head_dim_qk;
    r->page_size = w->batch.kv.page_size;
    record_set_text(r->dtype, dtype_name(w->batch.shape.q_dtype));
    record_set_text(r->kv_dtype, dtype_name(w->batch.shape.kv_dtype));
    record_set_text(r->git, record_git());
    record_now(r->created_utc);
}

void record_write_csv_header(FILE *out)
{
    for (int i = 0; i < N_COLUMNS; i++)
        fprintf(out, "%s%s", i ? "," : "", columns[i].name);
    fputc('\n', out);
}

void record_write_csv_text(FILE *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"') fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

void record_write_csv(FILE *out, const struct record *r)
{
    for (int i = 0; i < N_COLUMNS; i++) {
        const char *at = (const char *)r + columns[i].offset;
        if (i) fputc(',', out);
        if (columns[i].type == TEXT)
            record_write_csv_text(out, at);
        else if (columns[i].type == INT && *(const int64_t *)at != RECORD_EMPTY)
            fprintf(out, "%lld", (long long)*(const int64_t *)at);
        else if (columns[i].type == REAL && !isnan(*(const double *)at))
            fprintf(out, "%.9g", *(const double *)at);
    }
    fputc('\n', out);
}

static json_t *column_json(const struct record *r, const struct column *c)
{
    const char *at = (const char *)r + c->offset;
    if (c->type == TEXT) return json_string(at);
    if (c->type == INT)
        return *(const int64_t *)at == RECORD_EMPTY ? json_null() : json_integer(*(const int64_t *)at);
    return isfinite(*(const double *)at) ? json_real(*(const double *)at) : json_null();
}

void record_write_json(FILE *out, const struct record *rows, int32_t n)
{
    fputs("[\n", out);
    for (int32_t i = 0; i < n; i++) {
        json_t *object = json_object();
        for (int c = 0; object && c < N_COLUMNS; c++)
            json_object_set_new(object, columns[c].name, column_json(&rows[i], &columns[c]));
        json_dumpf(object, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputs(i + 1 < n ? ",\n" : "\n", out);
        json_decref(object);
    }
    fputs("]\n", out);
}
