#include "lab/commands.h"
#include "lab/out_file.h"
#include "lab/profile.h"
#include "lab/serving.h"
#include "sched/cost.h"
#include "sched/plan_check.h"
#include "sim/occupancy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Steps are formed one after another; a chunk of them is then planned, proved and simulated in parallel, and
 * counted in order: the output does not depend on the number of threads. */
enum { CHUNK = 64, MAX_POLICIES = 64 };

/* Outcomes of one policy over all batches so far. */
struct tally {
    double *time_us, *limit_ratio; /* of the batches that succeeded */
    int64_t n, cap, failed, wins;
};

struct outcome {
    struct record record;
    enum status status;
    struct why why;
};

struct replay {
    const struct args *args;
    const struct policy *policies[MAX_POLICIES];
    struct policy_options options[MAX_POLICIES];
    int32_t n_policies;
    struct machine machine;
    struct tally tallies[MAX_POLICIES];
    struct workload chunk[CHUNK];
    int32_t n_chunk;
    int64_t batches;
    struct outcome *outcomes; /* [CHUNK][n_policies] */
    struct out_file out, rows;
    double *decodes; /* decodes of each mixed batch, for the summary */
    double *prefill_tokens;
    int64_t cap_batches;
};

static void evaluate(const struct replay *r, const struct workload *w, int32_t policy, struct outcome *o)
{
    const struct machine *m = &r->machine;
    struct plan plan = {0};
    o->why.text[0] = '\0';
    record_init(&o->record, w);
    record_set_text(o->record.policy, r->policies[policy]->name);
    o->status = policy_plan(r->policies[policy], &w->batch, &m->gpu, &m->kernels, &r->options[policy].options,
                            &plan, &o->why);
    if (o->status == STATUS_OK) o->status = plan_check(&plan, &w->batch, &o->why);
    if (o->status == STATUS_OK) o->status = run_describe(w, m, &plan, &o->record, &o->why);
    if (o->status == STATUS_OK) o->status = run_simulate(w, m, &plan, false, &o->record, NULL, &o->why);
    if (o->status != STATUS_OK) run_note_failure(&o->record, o->status, &o->why);
    plan_free(&plan);
}

static enum status tally_add(struct tally *t, const struct record *r)
{
    if (t->n == t->cap) {
        const int64_t cap = t->cap ? t->cap * 2 : 4096;
        double *time_us = realloc(t->time_us, (size_t)cap * sizeof *time_us);
        if (time_us) t->time_us = time_us;
        double *ratio = realloc(t->limit_ratio, (size_t)cap * sizeof *ratio);
        if (ratio) t->limit_ratio = ratio;
        if (!time_us || !ratio) return STATUS_NO_MEMORY;
        t->cap = cap;
    }
    t->time_us[t->n] = r->time_us;
    t->limit_ratio[t->n++] = r->limit_ratio;
    return STATUS_OK;
}

/* Counts one batch; the first failure of the whole replay is told on stderr. */
static enum status count_batch(struct replay *r, const struct outcome *outcomes)
{
    int32_t best = -1;
    for (int32_t p = 0; p < r->n_policies; p++) {
        const struct outcome *o = &outcomes[p];
        if (r->rows.stream) record_write_csv(r->rows.stream, &o->record);
        if (o->status == STATUS_OK) {
            TRY(tally_add(&r->tallies[p], &o->record));
            if (best < 0 || o->record.time_us < outcomes[best].record.time_us) best = p;
        } else if (r->tallies[p].failed++ == 0) {
            fprintf(stderr, "tandem: %s: %s: %s\n", o->record.workload, o->record.policy, o->why.text);
        }
    }
    if (best >= 0) r->tallies[best].wins++;
    return STATUS_OK;
}

static enum status flush_chunk(struct replay *r, struct why *why)
{
    const int32_t jobs = r->n_chunk * r->n_policies;
    enum status status = STATUS_OK;
#pragma omp parallel for schedule(dynamic)
    for (int32_t j = 0; j < jobs; j++)
        evaluate(r, &r->chunk[j / r->n_policies], j % r->n_policies, &r->outcomes[j]);
    for (int32_t i = 0; i < r->n_chunk; i++) {
        if (status == STATUS_OK && r->out.stream)
            status = workload_write_json(&r->chunk[i], r->out.stream, why);
        if (status == STATUS_OK && r->n_policies)
            status = count_batch(r, r->outcomes + (size_t)i * (size_t)r->n_policies);
        workload_free(&r->chunk[i]);
    }
    r->n_chunk = 0;
    return status == STATUS_NO_MEMORY ? status_fail(why, status, "out of memory") : status;
}

static enum status note_shape(struct replay *r, const struct workload *w)
{
    double decodes = 0, tokens = 0;
    if (r->batches == r->cap_batches) {
        const int64_t cap = r->cap_batches ? r->cap_batches * 2 : 4096;
        double *d = realloc(r->decodes, (size_t)cap * sizeof *d);
        if (d) r->decodes = d;
        double *t = realloc(r->prefill_tokens, (size_t)cap * sizeof *t);
        if (t) r->prefill_tokens = t;
        if (!d || !t) return STATUS_NO_MEMORY;
        r->cap_batches = cap;
    }
    for (int32_t i = 0; i < w->batch.n_requests; i++) {
        const int32_t qo_len = batch_qo_len(&w->batch, i);
        decodes += qo_len == 1;
        tokens += qo_len > 1 ? qo_len : 0;
    }
    r->decodes[r->batches] = decodes;
    r->prefill_tokens[r->batches++] = tokens;
    return STATUS_OK;
}

static int compare_doubles(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Nearest-rank quantile of sorted values; NaN of none. */
static double quantile(const double *sorted, int64_t n, double q)
{
    if (n == 0) return NAN;
    const int64_t rank = (int64_t)ceil(q * (double)n);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static void show_progress(const struct replay *r, const struct serving_counts *c, const struct trace *t,
                          bool end)
{
    if (r->args->quiet || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%lld steps, %lld batches, trace time %.0f of %.0f s%s", (long long)c->steps,
            (long long)r->batches, c->clock_s, t->requests[t->n - 1].arrival_s / r->args->rate,
            end ? "\n" : "   ");
}

/* Forms all steps and sends the chosen ones through the policies. */
static enum status run_steps(struct replay *r, struct serving *s, const struct trace *t, struct why *why)
{
    struct serving_counts counts = serving_counts(s);
    while (r->args->steps == 0 || counts.steps < r->args->steps) {
        struct workload *w = &r->chunk[r->n_chunk];
        bool mixed, done;
        TRY(serving_step(s, w, &mixed, &done, why));
        if (done) break;
        counts = serving_counts(s);
        if (mixed || r->args->all_steps) {
            if (note_shape(r, w) != STATUS_OK) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
            if (++r->n_chunk == CHUNK) {
                TRY(flush_chunk(r, why));
                show_progress(r, &counts, t, false);
            }
        } else {
            workload_free(w);
        }
    }
    TRY(flush_chunk(r, why));
    show_progress(r, &counts, t, true);
    return STATUS_OK;
}

static void print_summary(struct replay *r, const struct serving *s, const struct trace *t)
{
    const struct serving_counts c = serving_counts(s);
    if (r->args->quiet) return;
    if (r->batches) {
        qsort(r->decodes, (size_t)r->batches, sizeof(double), compare_doubles);
        qsort(r->prefill_tokens, (size_t)r->batches, sizeof(double), compare_doubles);
    }
    fprintf(stderr,
            "%d requests (%d without a prompt left out, %lld refused), %lld steps in %.0f s, %lld mixed "
            "(%.1f %%); %lld prompt "
            "tokens computed, %lld from the prefix cache, %lld decoded\n",
            t->n, t->skipped, (long long)c.refused, (long long)c.steps, c.clock_s, (long long)c.mixed_steps,
            c.steps ? 100.0 * (double)c.mixed_steps / (double)c.steps : 0, (long long)c.prefill_tokens,
            (long long)c.cached_tokens, (long long)c.decode_tokens);
    if (r->batches)
        fprintf(stderr,
                "batches: %lld; decodes p50 %.0f [p10 %.0f, p90 %.0f], prefill tokens p50 %.0f [p10 %.0f, "
                "p90 %.0f]\n",
                (long long)r->batches, quantile(r->decodes, r->batches, 0.5),
                quantile(r->decodes, r->batches, 0.1), quantile(r->decodes, r->batches, 0.9),
                quantile(r->prefill_tokens, r->batches, 0.5), quantile(r->prefill_tokens, r->batches, 0.1),
                quantile(r->prefill_tokens, r->batches, 0.9));
}

static void print_tally(const struct replay *r, int32_t p)
{
    static const char *const formats[] = {
        "%-12s %9lld %7lld %12.1f %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f %9lld\n",
        "%s,%lld,%lld,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%lld\n",
        "{\"policy\": \"%s\", \"batches\": %lld, \"failed\": %lld, \"total_ms\": %.6f, \"mean_us\": %.6f, "
        "\"p50_us\": %.6f, "
        "\"p90_us\": %.6f, \"p99_us\": %.6f, \"limit_ratio_p50\": %.6f, \"limit_ratio_p90\": %.6f, \"wins\": "
        "%lld}"};
    const struct tally *t = &r->tallies[p];
    double total = 0;
    for (int64_t i = 0; i < t->n; i++)
        total += t->time_us[i];
    if (t->n) {
        qsort(t->time_us, (size_t)t->n, sizeof(double), compare_doubles);
        qsort(t->limit_ratio, (size_t)t->n, sizeof(double), compare_doubles);
    }
    const double mean = t->n ? total / (double)t->n : 0, none = 0;
    const double *times = t->n ? t->time_us : &none, *ratios = t->n ? t->limit_ratio : &none;
    const int64_t n = t->n ? t->n : 1;
    printf(formats[r->args->format], r->policies[p]->name, (long long)t->n, (long long)t->failed, total / 1e3,
           mean, quantile(times, n, 0.5), quantile(times, n, 0.9), quantile(times, n, 0.99),
           quantile(ratios, n, 0.5), quantile(ratios, n, 0.9), (long long)t->wins);
}

static void print_tallies(const struct replay *r)
{
    static const char *const heads[] = {
        "policy         batches  failed     total ms    mean us     p50 us     p90 us     p99 us x floor50 x "
        "floor90      wins\n",
        "policy,batches,failed,total_ms,mean_us,p50_us,p90_us,p99_us,limit_ratio_p50,limit_ratio_p90,wins\n",
        "[\n"};
    if (r->n_policies == 0) return;
    fputs(heads[r->args->format], stdout);
    for (int32_t p = 0; p < r->n_policies; p++) {
        print_tally(r, p);
        if (r->args->format == FORMAT_JSON) fputs(p + 1 < r->n_policies ? ",\n" : "\n]\n", stdout);
    }
}

static enum status replay_trace(struct replay *r, const struct trace *t, struct why *why)
{
    const struct args *a = r->args;
    const struct serving_config config = {a->budget,       a->max_seqs,       a->rate,
                                          a->prefix_cache, SERVING_KV_TOKENS, a->params};
    struct serving *s;
    TRY(serving_create(t, &r->machine.gpu, &config, &s, why));
    const enum status status = run_steps(r, s, t, why);
    if (status == STATUS_OK) {
        print_summary(r, s, t);
        print_tallies(r);
    }
    serving_free(s);
    return status;
}

static enum status prepare(struct replay *r, struct why *why)
{
    const struct args *a = r->args;
    TRY(profile_load(a->gpu, &r->machine.gpu, why));
    kernels_resolve(&r->machine.gpu, &a->params.shape, &r->machine.kernels);
    if (a->policy) TRY(args_policies(a, r->policies, &r->n_policies, why));
    TRY(args_check_options(a, r->policies, r->n_policies, why));
    for (int32_t p = 0; p < r->n_policies; p++)
        TRY(args_options(a, r->policies[p], &r->options[p], why));
    r->outcomes = malloc(((size_t)CHUNK * (size_t)r->n_policies + 1) * sizeof *r->outcomes);
    if (!r->outcomes) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    if (a->out) TRY(out_file_open(a->out, &r->out, why));
    if (a->rows) {
        TRY(out_file_open(a->rows, &r->rows, why));
        record_write_csv_header(r->rows.stream);
    }
    return STATUS_OK;
}

static void release(struct replay *r)
{
    for (int32_t p = 0; p < r->n_policies; p++) {
        free(r->tallies[p].time_us);
        free(r->tallies[p].limit_ratio);
    }
    for (int32_t i = 0; i < r->n_chunk; i++)
        workload_free(&r->chunk[i]);
    free(r->outcomes);
    free(r->decodes);
    free(r->prefill_tokens);
    out_file_abort(&r->out);
    out_file_abort(&r->rows);
}

/* Any batch that a policy could not plan, prove or simulate. */
static bool any_failed(const struct replay *r)
{
    for (int32_t p = 0; p < r->n_policies; p++)
        if (r->tallies[p].failed) return true;
    return false;
}

int cmd_replay(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    struct trace trace = {0};
    enum status status = args_parse(COMMAND_REPLAY, argc, argv, &a, &why);
    struct replay *r = calloc(1, sizeof *r);
    if (!r) return command_fail(STATUS_NO_MEMORY, &why);
    r->args = &a;
    if (status == STATUS_OK) status = trace_read(a.trace, a.trace_format, &trace, &why);
    if (status == STATUS_OK) status = prepare(r, &why);
    if (status == STATUS_OK) status = replay_trace(r, &trace, &why);
    if (status == STATUS_OK && r->out.stream) status = out_file_commit(&r->out, &why);
    if (status == STATUS_OK && r->rows.stream) status = out_file_commit(&r->rows, &why);
    const bool failed = any_failed(r);
    release(r);
    free(r);
    trace_free(&trace);
    if (status != STATUS_OK) return command_fail(status, &why);
    return command_finish(failed ? 1 : 0);
}
