#define _GNU_SOURCE /* timegm */
#include "lab/trace.h"

#include "lab/json_read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FIELDS = 32, MAX_TOKENS = 1 << 24, MAX_HASH = 1 << 26 };

static const double max_time_s = 1e12; /* 30,000 years: sums and differences stay exact enough */

struct trace_reader {
    FILE *file;
    const char *path;
    char *line;
    size_t capacity;
    int number;
    struct why *why;
};

static enum status bad_line(const struct trace_reader *r, const char *expected)
{
    return status_fail(r->why, STATUS_BAD_INPUT, "%.120s:%d: expected %s", r->path, r->number, expected);
}

/* Next line without its end (\n or \r\n; the last may have none); false at the end of the file. */
static bool next_line(struct trace_reader *r)
{
    const ssize_t n = getline(&r->line, &r->capacity, r->file);
    if (n < 0) return false;
    r->number++;
    r->line[strcspn(r->line, "\r\n")] = '\0';
    return true;
}

/* Splits in place at commas outside double quotes; returns the number of fields. */
static int split(char *line, char *fields[MAX_FIELDS])
{
    int n = 0;
    bool quoted = false;
    char *out = line;
    fields[n++] = line;
    for (char *in = line; *in; in++) {
        if (*in == '"') {
            quoted = !quoted;
        } else if (*in == ',' && !quoted) {
            *out++ = '\0';
            if (n == MAX_FIELDS) return n;
            fields[n++] = out;
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
    return n;
}

static bool parse_tokens(const char *text, int32_t *out)
{
    char *end;
    errno = 0;
    const double x = strtod(text, &end); /* some sets write 12.0 */
    if (end == text || *end != '\0' || !(x >= 0) || x > MAX_TOKENS || x != floor(x)) return false;
    *out = (int32_t)x;
    return true;
}

/* Seconds: a plain number, or "2023-11-16 18:15:46.6805900" in UTC. */
static bool parse_time(const char *text, double *out)
{
    struct tm tm = {0};
    char *end;
    double seconds;
    int used = 0;
    if (sscanf(text, "%d-%d-%d %d:%d:%lf%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &seconds, &used) == 6 &&
        text[used] == '\0') {
        tm.tm_year -= 1900;
        tm.tm_mon -= 1;
        *out = (double)timegm(&tm) + seconds;
        return true;
    }
    *out = strtod(text, &end);
    return end != text && *end == '\0' && fabs(*out) <= max_time_s;
}

static enum status add_request(struct trace *t, const struct trace_request *request)
{
    if (request->prompt_tokens < 1) {
        t->skipped++;
        return STATUS_OK;
    }
    if (t->n == t->cap) {
        if (t->cap > INT32_MAX / 2) return STATUS_TOO_LARGE;
        const int32_t cap = t->cap ? t->cap * 2 : 4096;
        struct trace_request *grown = realloc(t->requests, (size_t)cap * sizeof *grown);
        if (!grown) return STATUS_NO_MEMORY;
        t->requests = grown;
        t->cap = cap;
    }
    t->requests[t->n++] = *request;
    return STATUS_OK;
}

/* ---- CSV formats
 * ---------------------------------------------------------------------------------------------------- */

static const struct csv_format {
    const char *name, *arrival, *prompt, *output;
} csv_formats[] = {
    {"azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    {"vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    {"burstgpt", "Timestamp", "Request tokens", "Response tokens"},
};

static int find_column(char *fields[], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(fields[i], name) == 0) return i;
    return -1;
}

static enum status read_csv(struct trace_reader *r, const struct csv_format *f, struct trace *out)
{
    char *fields[MAX_FIELDS], expected[120];
    snprintf(expected, sizeof expected, "a header with %s, %s and %s", f->arrival, f->prompt, f->output);
    if (!next_line(r)) return bad_line(r, expected);
    if (strncmp(r->line, "\xef\xbb\xbf", 3) == 0) memmove(r->line, r->line + 3, strlen(r->line + 3) + 1);
    int n = split(r->line, fields);
    const int arrival = find_column(fields, n, f->arrival), prompt = find_column(fields, n, f->prompt),
              output = find_column(fields, n, f->output);
    if (arrival < 0 || prompt < 0 || output < 0) return bad_line(r, expected);
    while (next_line(r)) {
        struct trace_request request = {0};
        if (r->line[0] == '\0') continue;
        n = split(r->line, fields);
        if (n <= arrival || n <= prompt || n <= output)
            return bad_line(r, "as many fields as the header has");
        if (!parse_time(fields[arrival], &request.arrival_s)) return bad_line(r, "a time");
        if (!parse_tokens(fields[prompt], &request.prompt_tokens) ||
            !parse_tokens(fields[output], &request.output_tokens))
            return bad_line(r, "whole numbers of tokens, at most 2^24");
        TRY(add_request(out, &request));
    }
    return STATUS_OK;
}

/* ---- Mooncake
 * ------------------------------------------------------------------------------------------------------- */

static enum status add_hashes(struct trace *t, const int32_t *ids, int32_t n)
{
    if ((int64_t)t->n_hashes + n > INT32_MAX / 2) return STATUS_TOO_LARGE;
    while (t->n_hashes + n > t->cap_hashes) {
        const int32_t cap = t->cap_hashes ? t->cap_hashes * 2 : 65536;
        int32_t *grown = realloc(t->hashes, (size_t)cap * sizeof *grown);
        if (!grown) return STATUS_NO_MEMORY;
        t->hashes = grown;
        t->cap_hashes = cap;
    }
    if (n) memcpy(t->hashes + t->n_hashes, ids, (size_t)n * sizeof *ids);
    t->n_hashes += n;
    return STATUS_OK;
}

static enum status read_mooncake_line(struct trace_reader *r, const json_t *object, struct trace *out)
{
    const struct json_place at = {r->path, r->number};
    const json_t *stamp = json_object_get(object, "timestamp");
    int64_t prompt = 0, output = 0;
    int32_t *ids, n;
    if (!json_is_object(object)) return bad_line(r, "a JSON object");
    if (!json_is_number(stamp) || !(fabs(json_number_value(stamp)) <= 1e3 * max_time_s))
        return json_fail(&at, "timestamp", "milliseconds", r->why);
    TRY(json_read_int(&at, object, "input_length", true, 0, MAX_TOKENS, &prompt, r->why));
    TRY(json_read_int(&at, object, "output_length", true, 0, MAX_TOKENS, &output, r->why));
    TRY(json_read_ints(&at, object, "hash_ids", false, 0, MAX_HASH, &ids, &n, r->why));
    struct trace_request request = {.arrival_s = json_number_value(stamp) / 1e3,
                                    .prompt_tokens = (int32_t)prompt,
                                    .output_tokens = (int32_t)output,
                                    .hash_begin = out->n_hashes};
    enum status status = n > 0 ? add_hashes(out, ids, n) : STATUS_OK;
    free(ids);
    request.hash_end = out->n_hashes;
    return status == STATUS_OK ? add_request(out, &request) : status;
}

static enum status read_mooncake(struct trace_reader *r, struct trace *out)
{
    while (next_line(r)) {
        json_error_t error;
        if (r->line[0] == '\0') continue;
        json_t *object = json_loads(r->line, JSON_REJECT_DUPLICATES, &error);
        if (!object)
            return status_fail(r->why, STATUS_BAD_INPUT, "%.100s:%d: %.120s", r->path, r->number, error.text);
        const enum status status = read_mooncake_line(r, object, out);
        json_decref(object);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- common
 * ---------------------------------------------------------------------------------------------------------
 */

static int compare_arrival(const void *x, const void *y)
{
    const struct trace_request *a = x, *b = y;
    if (a->arrival_s != b->arrival_s) return a->arrival_s < b->arrival_s ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

/* By arrival, rows of equal arrival in the file's order; times from the first request on. */
static void sort_by_arrival(struct trace *t)
{
    for (int32_t i = 0; i < t->n; i++)
        t->requests[i].row = i;
    qsort(t->requests, (size_t)t->n, sizeof *t->requests, compare_arrival);
    for (int32_t i = t->n; i-- > 0;)
        t->requests[i].arrival_s -= t->requests[0].arrival_s;
}

static enum status read_format(struct trace_reader *r, const char *format, struct trace *out)
{
    if (strcmp(format, "mooncake") == 0) return read_mooncake(r, out);
    for (size_t i = 0; i < sizeof csv_formats / sizeof csv_formats[0]; i++)
        if (strcmp(format, csv_formats[i].name) == 0) return read_csv(r, &csv_formats[i], out);
    return status_fail(r->why, STATUS_UNKNOWN_NAME,
                       "--trace-format %.40s: expected azure, mooncake, vidur or burstgpt", format);
}

enum status trace_read(const char *path, const char *format, struct trace *out, struct why *why)
{
    struct trace_reader r = {.file = fopen(path, "r"), .path = path, .why = why};
    memset(out, 0, sizeof *out);
    if (!r.file) return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
    errno = 0;
    enum status status = read_format(&r, format, out);
    if (ferror(r.file)) status = status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
    if (status == STATUS_OK && out->n == 0)
        status = status_fail(why, STATUS_BAD_INPUT, "%.180s: no requests", path);
    if (status == STATUS_NO_MEMORY || status == STATUS_TOO_LARGE)
        status_fail(why, status, "%.180s: too many requests", path);
    fclose(r.file);
    free(r.line);
    if (status == STATUS_OK)
        sort_by_arrival(out);
    else
        trace_free(out);
    return status;
}

void trace_free(struct trace *t)
{
    free(t->requests);
    free(t->hashes);
    memset(t, 0, sizeof *t);
}
