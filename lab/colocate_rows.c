#include "lab/colocate_rows.h"

#include "cuda/colocate_map.h"
#include "lab/record.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    double published; /* mean gain, per cent; NaN: none */
} methods[] = {
#define X(id, name, published) {name, published},
    COLOCATE_METHOD_LIST(X)
#undef X
};

double colocate_gain(const struct colocate_row *r)
{
    return r->serial_us / r->time.median_us - 1;
}

double colocate_ideal_us(const struct colocate_row *r)
{
    return r->memory_us > r->compute_us ? r->memory_us : r->compute_us;
}

static const struct colocate_row *find(const struct colocate *c, enum colocate_method method, bool barrier,
                                       int32_t compute_iters)
{
    for (int32_t i = 0; i < c->n_rows; i++) {
        const struct colocate_row *r = &c->rows[i];
        if (r->method == method && r->barrier == barrier && r->compute_iters == compute_iters) return r;
    }
    return NULL;
}

double colocate_mean_gain(const struct colocate *c, enum colocate_method method, bool barrier)
{
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_rows; i++) {
        const struct colocate_row *r = &c->rows[i];
        if (r->method != method || r->barrier != barrier) continue;
        if (r->wrong) return NAN;
        sum += colocate_gain(r);
        n++;
    }
    return n ? sum / n : NAN;
}

/* ---- csv and json -------------------------------------------------------------------------------------- */

/* A value of a row: text, or a number when text is NULL. */
struct value {
    const char *name, *text;
    double number;
};
enum { MAX_VALUES = 24 };

/* What a row says, in file order; who: an empty record, for git and clock. Returns how many values. */
static int32_t values_of(const struct colocate *c, const struct colocate_row *r, const struct record *who,
                         struct value *out)
{
    const struct value values[] = {
        {"method", methods[r->method].name, 0},
        {"barrier", NULL, r->barrier},
        {"compute_iters", NULL, r->compute_iters},
        {"time_us", NULL, r->time.median_us},
        {"p10_us", NULL, r->time.p10_us},
        {"p90_us", NULL, r->time.p90_us},
        {"runs", NULL, c->runs},
        {"memory_us", NULL, r->memory_us},
        {"compute_us", NULL, r->compute_us},
        {"ideal_us", NULL, colocate_ideal_us(r)},
        {"gain", NULL, colocate_gain(r)},
        {"n", NULL, (double)c->n},
        {"card", c->card.name, 0},
        {"driver", NULL, c->card.driver},
        {"sm_mhz", NULL, r->sm_mhz ? r->sm_mhz : NAN},
        {"git", who->git, 0},
        {"created_utc", who->created_utc, 0},
        {"status", r->wrong ? "mismatch" : "ok", 0},
    };
    enum { N = sizeof values / sizeof values[0] };
    _Static_assert((int)N <= (int)MAX_VALUES, "room for all");
    memcpy(out, values, sizeof values);
    return N;
}

static bool is_whole(double x)
{
    return x == floor(x) && fabs(x) < 0x1p53;
}

static void print_csv(const struct colocate *c, const struct record *who, FILE *out)
{
    struct value v[MAX_VALUES];
    const struct colocate_row none = {0};
    const int32_t n = values_of(c, &none, who, v);
    for (int32_t k = 0; k < n; k++)
        fprintf(out, "%s%s", k ? "," : "", v[k].name);
    fputc('\n', out);
    for (int32_t i = 0; i < c->n_rows; i++) {
        values_of(c, &c->rows[i], who, v);
        for (int32_t k = 0; k < n; k++) {
            if (k) fputc(',', out);
            if (v[k].text)
                record_write_csv_text(out, v[k].text);
            else if (!isnan(v[k].number))
                fprintf(out, "%.*g", is_whole(v[k].number) ? 17 : 9, v[k].number);
        }
        fputc('\n', out);
    }
}

static json_t *json_of(const struct value *v)
{
    if (v->text) return json_string(v->text);
    if (!isfinite(v->number)) return json_null();
    return is_whole(v->number) ? json_integer((json_int_t)v->number) : json_real(v->number);
}

static void print_json(const struct colocate *c, const struct record *who, FILE *out)
{
    struct value v[MAX_VALUES];
    fputs("[\n", out);
    for (int32_t i = 0; i < c->n_rows; i++) {
        const int32_t n = values_of(c, &c->rows[i], who, v);
        json_t *object = json_object();
        for (int32_t k = 0; object && k < n; k++)
            json_object_set_new(object, v[k].name, json_of(&v[k]));
        json_dumpf(object, out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputs(i + 1 < c->n_rows ? ",\n" : "\n", out);
        json_decref(object);
    }
    fputs("]\n", out);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

/* Shares that have rows. */
static int32_t shares(const struct colocate *c, bool barrier)
{
    int32_t n = 0;
    while (n < COLOCATE_POINTS &&
           find(c, COLOCATE_METHOD_SERIAL, barrier, COLOCATE_ITERS / COLOCATE_POINTS * (n + 1)))
        n++;
    return n;
}

static const struct colocate_row *at_share(const struct colocate *c, enum colocate_method method,
                                           bool barrier, int32_t share)
{
    return find(c, method, barrier, COLOCATE_ITERS / COLOCATE_POINTS * (share + 1));
}

/* A line of times, ms: of an op alone, of serial, or the ideal. */
static void print_times(const struct colocate *c, const char *name, bool barrier,
                        double (*us)(const struct colocate_row *), FILE *out)
{
    fprintf(out, "%-20s", name);
    for (int32_t s = 0; s < shares(c, barrier); s++)
        fprintf(out, " %6.2f", us(at_share(c, COLOCATE_METHOD_SERIAL, barrier, s)) / 1e3);
    fputc('\n', out);
}

static double memory_of(const struct colocate_row *r)
{
    return r->memory_us;
}

static double compute_of(const struct colocate_row *r)
{
    return r->compute_us;
}

static double time_of(const struct colocate_row *r)
{
    return r->time.median_us;
}

static void print_gains(const struct colocate *c, enum colocate_method method, bool barrier, FILE *out)
{
    const double mean = colocate_mean_gain(c, method, barrier);
    fprintf(out, "%-20s", methods[method].name);
    for (int32_t s = 0; s < shares(c, barrier); s++) {
        const struct colocate_row *r = at_share(c, method, barrier, s);
        if (r->wrong)
            fprintf(out, "  WRONG");
        else
            fprintf(out, " %6.1f", 100 * colocate_gain(r));
    }
    if (isnan(mean))
        fprintf(out, " | %6s", "");
    else
        fprintf(out, " | %+6.1f", 100 * mean);
    /* what was published had barriers */
    if (barrier && !isnan(methods[method].published)) fprintf(out, " %+6.0f", methods[method].published);
    fputc('\n', out);
}

static void print_group(const struct colocate *c, bool barrier, FILE *out)
{
    fprintf(out, "\n%s\n%-20s", barrier ? "a barrier after every element" : "no barriers",
            "compute iterations");
    for (int32_t s = 0; s < shares(c, barrier); s++)
        fprintf(out, " %6d", COLOCATE_ITERS / COLOCATE_POINTS * (s + 1));
    fprintf(out, " |   mean%s\n", barrier ? " POD" : "");
    print_times(c, "memory alone, ms", barrier, memory_of, out);
    print_times(c, "compute alone, ms", barrier, compute_of, out);
    print_times(c, "the longer, ms", barrier, colocate_ideal_us, out);
    print_times(c, "serial, ms", barrier, time_of, out);
    for (int m = COLOCATE_METHOD_SERIAL + 1; m < COLOCATE_METHODS; m++)
        print_gains(c, (enum colocate_method)m, barrier, out);
}

static void print_table(const struct colocate *c, FILE *out)
{
    fprintf(out,
            "%s, driver %d.%d: four arrays of %lld floats, medians of %d runs; gain over serial, per cent\n",
            c->card.name, c->card.driver / 1000, c->card.driver % 1000 / 10, (long long)c->n, c->runs);
    for (int barrier = 0; barrier < 2; barrier++)
        if (shares(c, barrier)) print_group(c, barrier, out);
}

void colocate_print(const struct colocate *c, enum args_format format, FILE *out)
{
    const struct workload nothing = {.name = ""};
    struct record who;
    record_init(&who, &nothing);
    if (format == FORMAT_TABLE)
        print_table(c, out);
    else if (format == FORMAT_JSON)
        print_json(c, &who, out);
    else
        print_csv(c, &who, out);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static void tell(int32_t compute_iters, bool barrier)
{
    fprintf(stderr, "\r\033[Kcompute iterations %d%s ", compute_iters, barrier ? ", barriers" : "");
}

static enum status first_wrong(const struct colocate *c, struct why *why)
{
    for (int32_t i = 0; i < c->n_rows; i++) {
        const struct colocate_row *r = &c->rows[i];
        if (r->wrong)
            return status_fail(why, STATUS_MISMATCH, "%s%s, compute iterations %d: %lld elements are wrong",
                               methods[r->method].name, r->barrier ? " with barriers" : "", r->compute_iters,
                               (long long)r->wrong);
    }
    return STATUS_OK;
}

enum status colocate_bench(const struct args *a, struct cuda_device *d, FILE *out, struct why *why)
{
    const bool progress = isatty(2) && !a->quiet;
    const struct colocate_options options = {a->runs, a->elements, progress ? tell : NULL};
    struct colocate *c = calloc(1, sizeof *c);
    if (!c) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    enum status status = colocate_run(d, &options, c, why);
    if (progress) fputs("\r\033[K", stderr);
    if (c->n_rows) colocate_print(c, a->format, out);
    if (status == STATUS_OK) status = first_wrong(c, why);
    free(c);
    return status;
}
