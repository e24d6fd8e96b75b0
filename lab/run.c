#include "lab/run.h"

#include "lab/auto.h"
#include "ref/oracle.h"
#include "ref/ref_exec.h"
#include "sched/cost.h"
#include "sched/plan_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PLAN_TIMINGS = 3 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

enum status truth_create(const struct workload *w, struct truth *t, struct why *why)
{
    struct tensors tensors;
    TRY(tensors_create(&w->batch, &w->layout, w->fill, w->seed, &tensors, why));
    return truth_adopt(w, &tensors, t, why);
}

enum status truth_adopt(const struct workload *w, struct tensors *tensors, struct truth *t, struct why *why)
{
    *t = (struct truth){.tensors = *tensors};
    memset(tensors, 0, sizeof *tensors);
    enum status status = oracle_result_create(&w->batch, &t->oracle, why);
    if (status == STATUS_OK) status = oracle_run(&w->batch, &t->tensors, &t->oracle, why);
    if (status == STATUS_OK)
        truth_set_numerics(w, numerics_of(NUMERICS_FP32, &w->batch), t);
    else
        truth_free(t);
    return status;
}

void truth_set_numerics(const struct workload *w, struct numerics numerics, struct truth *t)
{
    t->exec = (struct exec_options){numerics, NULL};
    t->model = error_model(&w->batch, &t->tensors, numerics);
}

void truth_free(struct truth *t)
{
    tensors_free(&t->tensors);
    oracle_result_free(&t->oracle);
}

void run_note_failure(struct record *r, enum status status, const struct why *why)
{
    char text[RECORD_TEXT_MAX];
    if (status == STATUS_MISMATCH)
        snprintf(text, sizeof text, "mismatch");
    else
        snprintf(text, sizeof text, "%s: %.300s", status == STATUS_INVALID_PLAN ? "invalid" : "error",
                 why->text);
    record_set_text(r->status, text);
}

static void note_options(const struct options *options, struct record *r)
{
    for (int32_t i = 0; options && i < options->n; i++) {
        const size_t used = strlen(r->options);
        snprintf(r->options + used, sizeof r->options - used, "%s%s=%s", i ? " " : "", options->names[i],
                 options->values[i]);
    }
}

/* What auto chose, in the options column. */
static void note_choice(const struct auto_choice *c, struct record *r)
{
    const size_t used = strlen(r->options);
    int n = snprintf(r->options + used, sizeof r->options - used,
                     "%schose=%s time_us=%.1f planned=%d simulated=%d", used ? " " : "", c->policy->name,
                     c->time_us, c->planned, c->simulated);
    if (c->next && n > 0 && used + (size_t)n < sizeof r->options)
        snprintf(r->options + used + n, sizeof r->options - used - (size_t)n, " next=%s behind=%.1f%%",
                 c->next->name, 100 * (c->next_us / c->time_us - 1));
}

void run_note_limits(const struct workload *w, const struct machine *m, struct record *r)
{
    r->flops = cost_batch_flops(&w->batch);
    r->limit_us = cost_limit_ns(&w->batch, &m->gpu) / 1e3;
}

void run_note_ratios(const struct machine *m, struct record *r)
{
    r->limit_ratio = r->limit_us > 0 ? r->time_us / r->limit_us : NAN;
    r->tensor_util = r->flops / (r->time_us * 1e3 * m->gpu.peak_flops_per_ns);
}

enum status run_describe(const struct workload *w, const struct machine *m, const struct plan *plan,
                         struct record *r, struct why *why)
{
    record_set_text(r->gpu, m->gpu.name);
    r->grids = plan->n_grids;
    r->items = plan->n_items;
    r->merges = plan->n_merges;
    r->partial_rows = plan->partial_rows;
    r->workspace_bytes = plan->workspace_bytes;
    r->ctas = 0;
    for (int32_t g = 0; g < plan->n_grids; g++)
        r->ctas += plan->grids[g].n_ctas;
    run_note_limits(w, m, r);
    record_set_text(r->status, "ok");
    return cost_imbalance(plan, &w->batch, &m->gpu, &m->kernels, &r->imbalance) == STATUS_OK
               ? STATUS_OK
               : status_fail(why, STATUS_NO_MEMORY, "imbalance: out of memory");
}

enum status run_plan(const struct workload *w, const struct machine *m, const struct policy *policy,
                     const struct options *options, struct plan *plan, struct record *r, struct why *why)
{
    enum status status = STATUS_OK;
    struct auto_choice choice = {0};
    const bool is_auto = policy == &policy_auto;
    record_set_text(r->policy, policy->name);
    record_set_text(r->gpu, m->gpu.name);
    note_options(options, r);
    for (int i = 0; i < PLAN_TIMINGS && status == STATUS_OK; i++) {
        const double begin = now_us();
        status = is_auto ? auto_plan(&w->batch, &m->gpu, &m->kernels, options, plan, &choice, why)
                         : policy_plan(policy, &w->batch, &m->gpu, &m->kernels, options, plan, why);
        const double us = now_us() - begin;
        if (isnan(r->plan_us) || us < r->plan_us) r->plan_us = us;
    }
    if (status == STATUS_OK && is_auto) note_choice(&choice, r);
    if (status == STATUS_OK) status = plan_check(plan, &w->batch, why);
    if (status == STATUS_OK) status = run_describe(w, m, plan, r, why);
    if (status != STATUS_OK) run_note_failure(r, status, why);
    return status;
}

enum status run_compare(const struct workload *w, const struct truth *truth, const struct result *result,
                        struct record *r, struct why *why)
{
    const struct comparison c = compare_result(&w->batch, result, &truth->oracle, &truth->model);
    const int32_t heads = w->batch.shape.num_qo_heads;
    r->max_err_o = c.max_err_o;
    r->max_err_lse = c.max_err_lse;
    if (c.ok) return STATUS_OK;
    if (c.bad_row < 0)
        return status_fail(why, STATUS_MISMATCH, "%s, seed %lld: wrote outside its output", r->policy,
                           (long long)r->seed);
    return status_fail(
        why, STATUS_MISMATCH, "%s, seed %lld: token %lld head %lld %s%d: got %.9g, want %.9g (within %.2g)",
        r->policy, (long long)r->seed, (long long)(c.bad_row / heads), (long long)(c.bad_row % heads),
        c.bad_dim < 0 ? "LSE " : "dim ", c.bad_dim < 0 ? 0 : c.bad_dim, c.got, c.want, c.bound);
}

enum status run_verify(const struct workload *w, const struct truth *truth, const struct plan *plan,
                       struct record *r, struct why *why)
{
    struct result result;
    enum status status = result_create(&w->batch, w->layout.o, &result, why);
    if (status == STATUS_OK) status = ref_exec(&w->batch, &truth->tensors, plan, &truth->exec, &result, why);
    if (status == STATUS_OK) status = run_compare(w, truth, &result, r, why);
    if (status != STATUS_OK) run_note_failure(r, status, why);
    result_free(&result);
    return status;
}

static double us_or_nan(double ns)
{
    return ns / 1e3;
}

enum status run_simulate(const struct workload *w, const struct machine *m, const struct plan *plan,
                         bool spans, struct record *r, struct sim_result *result, struct why *why)
{
    struct sim_result own;
    struct sim_result *s = result ? result : &own;
    const struct sim_options options = {.spans = spans};
    const enum status status = sim_run(&w->batch, &m->gpu, &m->kernels, plan, &options, s, why);
    record_set_text(r->executor, "sim");
    if (status != STATUS_OK) {
        run_note_failure(r, status, why);
        return status;
    }
    r->time_us = us_or_nan(s->makespan_ns);
    r->prefill_end_us = us_or_nan(s->prefill_end_ns);
    r->decode_end_us = us_or_nan(s->decode_end_ns);
    r->limit_ratio = r->limit_us > 0 ? r->time_us / r->limit_us : NAN;
    r->hbm_bytes = s->hbm_bytes;
    r->tensor_util = s->tensor_util;
    r->hbm_util = s->hbm_util;
    r->sm_busy_frac = s->sm_busy_frac;
    if (!result) sim_result_free(&own);
    return STATUS_OK;
}
