#include "lab/device_run.h"

#include "lab/rng.h"
#include "lab/timeline.h"
#include "ref/oracle.h"
#include "sched/cost.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Query-key pairs x heads up to which the oracle does a batch whole: a second or two on 16 cores. */
static const double whole_pairs = 2e8;

static void note_option(struct record *r, const char *format, ...)
{
    const size_t used = strlen(r->options);
    va_list args;
    if (used + 2 >= sizeof r->options) return;
    if (used) strcat(r->options, " ");
    va_start(args, format);
    vsnprintf(r->options + strlen(r->options), sizeof r->options - strlen(r->options), format, args);
    va_end(args);
}

static enum status upload(struct device_run *r, const struct workload *w, struct why *why)
{
    const struct tensors *t = &r->truth.tensors;
    const int64_t kv_bytes = dtype_bytes(w->batch.shape.kv_dtype);
    const bool in_k = t->v_bytes == 0;
    struct cuda_tensors c = {
        .q = t->q,
        .k = t->k,
        .v = in_k ? NULL : t->v,
        .q_bytes = t->q_bytes,
        .k_bytes = t->k_bytes,
        .v_bytes = t->v_bytes,
        .v_offset = in_k ? ((const char *)t->v - (const char *)t->k) / kv_bytes : 0,
        .q_stride = {t->q_stride.token, t->q_stride.head},
        .k_stride = {t->k_stride.page, t->k_stride.pos, t->k_stride.head},
        .v_stride = {t->v_stride.page, t->v_stride.pos, t->v_stride.head},
    };
    TRY(result_create(&w->batch, w->layout.o, &r->got, why));
    c.o_stride = (struct cuda_row_stride){r->got.o_stride.token, r->got.o_stride.head};
    c.o_elements = r->got.o_elements;
    return cuda_load(r->device, &w->batch, &c, why);
}

/* A row of the batch by its number among all. */
static struct row_ref row_of(const struct batch *b, int64_t row)
{
    const int32_t heads = b->shape.num_qo_heads, token = (int32_t)(row / heads);
    int32_t low = 0, high = b->n_requests;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (b->qo_indptr[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return (struct row_ref){low, token - b->qo_indptr[low], (int32_t)(row % heads)};
}

enum status device_run_sample(struct device_run *r, const struct workload *w, struct why *why)
{
    const struct batch *b = &w->batch;
    if (r->rows) return STATUS_OK;
    const int64_t all = (int64_t)b->qo_indptr[b->n_requests] * b->shape.num_qo_heads;
    struct rng rng = {w->seed ^ 0x53414d504c45}; /* other numbers than those that filled the tensors */
    r->n_rows = all < DEVICE_SAMPLE_ROWS ? (int32_t)all : DEVICE_SAMPLE_ROWS;
    r->rows = malloc(((size_t)r->n_rows + 1) * sizeof *r->rows);
    if (!r->rows) return status_fail(why, STATUS_NO_MEMORY, "sample of rows: out of memory");
    for (int32_t i = 0; i < r->n_rows; i++)
        r->rows[i] = row_of(b, (int64_t)rng_below(&rng, (uint64_t)all));
    enum status status = oracle_result_create_rows(b, (size_t)r->n_rows, &r->sample, why);
    if (status == STATUS_OK)
        status = oracle_run_rows(b, &r->truth.tensors, r->rows, r->n_rows, &r->sample, why);
    if (status == STATUS_OK) return STATUS_OK;
    oracle_result_free(&r->sample);
    free(r->rows);
    r->rows = NULL;
    return status;
}

enum status device_run_report(const struct workload *w, const struct comparison *c, const char *who,
                              struct why *why)
{
    const int32_t heads = w->batch.shape.num_qo_heads;
    if (c->ok) return STATUS_OK;
    if (c->bad_row < 0) return status_fail(why, STATUS_MISMATCH, "%s: wrote outside its output", who);
    return status_fail(
        why, STATUS_MISMATCH, "%s, seed %lld: token %lld head %lld %s%d: got %.9g, want %.9g (within %.2g)",
        who, (long long)w->seed, (long long)(c->bad_row / heads), (long long)(c->bad_row % heads),
        c->bad_dim < 0 ? "LSE " : "dim ", c->bad_dim < 0 ? 0 : c->bad_dim, c->got, c->want, c->bound);
}

/* attn_1_naive over a plain plan, held to the oracle's sample: from then on it judges whole results. */
static enum status make_judge(struct device_run *r, const struct workload *w, const struct machine *m,
                              struct why *why)
{
    struct plan plan = {0};
    const struct cuda_options options = {.ladder = CUDA_LADDER_NAIVE};
    enum status status = result_create(&w->batch, w->layout.o, &r->judge, why);
    if (status == STATUS_OK)
        status = policy_plan(policy_find("unified"), &w->batch, &m->gpu, &m->kernels, NULL, &plan, why);
    if (status == STATUS_OK) status = cuda_prepare(r->device, &plan, &options, why);
    if (status == STATUS_OK) status = cuda_execute(r->device, r->judge.o, r->judge.lse, why);
    plan_free(&plan);
    if (status != STATUS_OK) return status;
    const struct comparison c =
        compare_rows(&w->batch, &r->judge, r->rows, r->n_rows, &r->sample, &r->truth.model);
    return device_run_report(w, &c, "attn_1_naive", why);
}

static double pairs_of(const struct batch *b)
{
    return cost_batch_flops(b) / (2.0 * (b->shape.head_dim_qk + b->shape.head_dim_vo));
}

enum status device_run_begin(struct device_run *r, const struct workload *w, const struct machine *m,
                             struct why *why)
{
    r->whole = pairs_of(&w->batch) <= whole_pairs;
    enum status status = STATUS_OK;
    if (r->whole)
        status = truth_create(w, &r->truth, why);
    else
        status = tensors_create(&w->batch, &w->layout, w->fill, w->seed, &r->truth.tensors, why);
    if (status == STATUS_OK) truth_set_numerics(w, numerics_of(NUMERICS_DEVICE, &w->batch), &r->truth);
    if (status == STATUS_OK) status = upload(r, w, why);
    if (status == STATUS_OK && !r->whole) status = device_run_sample(r, w, why);
    if (status == STATUS_OK && !r->whole) status = make_judge(r, w, m, why);
    if (status != STATUS_OK) device_run_end(r);
    return status;
}

enum status device_run_adopt(struct device_run *r, const struct workload *w, const struct truth *truth,
                             struct why *why)
{
    r->whole = true;
    r->truth = *truth;
    truth_set_numerics(w, numerics_of(NUMERICS_DEVICE, &w->batch), &r->truth);
    return upload(r, w, why);
}

void device_run_release(struct device_run *r)
{
    r->truth = (struct truth){{0}};
    device_run_end(r);
}

void device_run_end(struct device_run *r)
{
    free(r->rows);
    oracle_result_free(&r->sample);
    result_free(&r->judge);
    result_free(&r->got);
    truth_free(&r->truth);
    *r = (struct device_run){.device = r->device, .ladder = r->ladder};
}

/* Row by row against attn_1_naive: the norm of the difference over the row's, 8 units of rounding of O's type; the LSE
 * by the error model's units of fp32 alone. Rows that cancel to nothing are held to the batch's largest. */
static enum status compare_with_judge(const struct device_run *r, const struct workload *w, const char *who,
                                      struct why *why)
{
    const struct result *got = &r->got, *want = &r->judge;
    const double unit = 8 * (r->truth.model.o_unit + r->truth.model.p_unit);
    for (size_t row = 0; row < got->n_rows; row++) {
        const size_t at = tensor_row_at(got->o_stride, got->num_qo_heads, row);
        double difference = 0, norm = 0;
        for (size_t d = 0; d < (size_t)got->head_dim_vo; d++) {
            const double x = got->o[at + d], y = want->o[at + d];
            difference += (x - y) * (x - y);
            norm += y * y;
        }
        const double lse = got->lse[row], lse_want = want->lse[row];
        const bool lse_ok = lse == lse_want || fabs(lse - lse_want) <= 1e-4 * (1 + fabs(lse_want));
        if (!(sqrt(difference) <= unit * sqrt(norm)) || !lse_ok)
            return status_fail(
                why, STATUS_MISMATCH,
                "%s, seed %lld: token %zu head %zu: differs from attn_1_naive by %.2g of its norm "
                "(within %.2g), LSE %.9g, want %.9g",
                who, (long long)w->seed, row / (size_t)got->num_qo_heads, row % (size_t)got->num_qo_heads,
                sqrt(difference / norm), unit, lse, lse_want);
    }
    return STATUS_OK;
}

/* The same plan again: the same bits. */
static enum status compare_repeat(struct device_run *r, const struct workload *w, const char *who,
                                  struct why *why)
{
    struct result again;
    TRY(result_create(&w->batch, w->layout.o, &again, why));
    enum status status = cuda_execute(r->device, again.o, again.lse, why);
    if (status == STATUS_OK && (memcmp(again.lse, r->got.lse, again.n_rows * sizeof *again.lse) != 0 ||
                                memcmp(again.o, r->got.o, again.o_elements * sizeof *again.o) != 0))
        status = status_fail(why, STATUS_MISMATCH, "%s, seed %lld: two runs of one plan differ", who,
                             (long long)w->seed);
    result_free(&again);
    return status;
}

static enum status judge(struct device_run *r, const struct workload *w, struct record *record,
                         struct why *why)
{
    const struct comparison c =
        r->whole ? compare_result(&w->batch, &r->got, &r->truth.oracle, &r->truth.model)
                 : compare_rows(&w->batch, &r->got, r->rows, r->n_rows, &r->sample, &r->truth.model);
    record->max_err_o = c.max_err_o;
    record->max_err_lse = c.max_err_lse;
    note_option(record, "of_bound=%.2f", c.of_bound);
    TRY(device_run_report(w, &c, record->policy, why));
    if (!r->whole) TRY(compare_with_judge(r, w, record->policy, why));
    return compare_repeat(r, w, record->policy, why);
}

enum status device_run_verify(struct device_run *r, const struct workload *w, const struct machine *m,
                              const struct plan *plan, struct record *record, struct why *why)
{
    const struct cuda_options options = {.ladder = r->ladder, .kernels = &m->kernels};
    struct cuda_prepared prepared;
    record_set_text(record->executor, "cuda");
    enum status status = cuda_prepare(r->device, plan, &options, why);
    if (status == STATUS_OK) {
        cuda_prepared(r->device, &prepared);
        note_option(record, "kernels=%s upload_us=%.0f capture_us=%.0f", prepared.kernels, prepared.upload_us,
                    prepared.capture_us);
        result_poison(&r->got);
        status = cuda_execute(r->device, r->got.o, r->got.lse, why);
    }
    if (status == STATUS_OK) status = judge(r, w, record, why);
    if (status != STATUS_OK) run_note_failure(record, status, why);
    return status;
}

enum status device_run_time(struct device_run *r, const struct machine *m,
                            const struct cuda_time_options *options, struct record *record, struct why *why)
{
    struct cuda_timing t;
    const enum status status = cuda_time(r->device, options, &t, why);
    if (status != STATUS_OK) {
        run_note_failure(record, status, why);
        return status;
    }
    record->time_us = t.median_us;
    record->time_p10_us = t.p10_us;
    record->time_p90_us = t.p90_us;
    record->runs = t.runs;
    record->joules = t.joules;
    run_note_ratios(m, record);
    if (!isnan(t.sustained_us)) note_option(record, "sustained_us=%.2f watts=%.0f", t.sustained_us, t.watts);
    note_option(record, "sm_mhz=%d mem_mhz=%d", t.sm_mhz, t.memory_mhz);
    return STATUS_OK;
}

enum status device_run_spans(struct device_run *r, const struct machine *m, const struct plan *plan,
                             struct record *record, struct span **spans, int64_t *n, struct why *why)
{
    const struct cuda_options options = {.ladder = r->ladder, .spans = true, .kernels = &m->kernels};
    TRY(cuda_prepare(r->device, plan, &options, why));
    for (int i = 0; i < 2; i++) /* the first run is cold */
        TRY(cuda_execute(r->device, r->got.o, r->got.lse, why));
    TRY(cuda_spans(r->device, spans, n, why));
    double ends[2] = {NAN, NAN};
    for (int64_t i = 0; i < *n; i++) {
        const char *role = timeline_role(plan, &(*spans)[i]);
        double *end = role[0] == 'p' ? &ends[0] : role[0] == 'd' ? &ends[1] : NULL;
        if (end && !((*spans)[i].end_ns <= *end)) *end = (*spans)[i].end_ns;
    }
    record->prefill_end_us = ends[0] / 1e3;
    record->decode_end_us = ends[1] / 1e3;
    return STATUS_OK;
}
