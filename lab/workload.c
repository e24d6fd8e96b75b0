#include "lab/workload.h"

#include "lab/models.h"
#include "lab/rng.h"
#include "lab/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void workload_free(struct workload *w)
{
    free(w->qo_indptr);
    free(w->kv_len);
    free(w->kv_indptr);
    free(w->kv_indices);
    free(w->sink);
    free(w->k_scale);
    free(w->v_scale);
    free(w->custom);
    free(w->custom_indptr);
    memset(w, 0, sizeof *w);
}

struct workload_params workload_default_params(void)
{
    return (struct workload_params){
        .shape = {32, 8, 128, 128, DTYPE_BF16, DTYPE_BF16},
        .mask = {.causal = true, .window_left = -1},
        .page_size = 16,
        .layout = {.order = LAYOUT_NHD, .store = KV_SEPARATE},
        .seed = 1,
    };
}

enum status workload_set_model(struct workload_params *p, const char *model, struct why *why)
{
    const struct model *m = model_find(model);
    if (!m) {
        char known[200] = "";
        for (int32_t i = 0; i < model_count(); i++) {
            if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
            strncat(known, model_at(i)->name, sizeof known - strlen(known) - 1);
        }
        return status_fail(why, STATUS_UNKNOWN_NAME, "model '%.30s': expected one of: %s", model, known);
    }
    p->shape.num_qo_heads = m->num_qo_heads;
    p->shape.num_kv_heads = m->num_kv_heads;
    p->shape.head_dim_qk = m->head_dim;
    p->shape.head_dim_vo = m->head_dim_vo ? m->head_dim_vo : m->head_dim;
    p->shape.kv_latent = m->kv_latent;
    memcpy(p->model, m->name, strlen(m->name) + 1);
    return STATUS_OK;
}

void workload_link(struct workload *w)
{
    w->batch.qo_indptr = w->qo_indptr;
    w->batch.kv_len = w->kv_len;
    w->batch.kv.kv_indptr = w->kv_indptr;
    w->batch.kv.kv_indices = w->kv_indices;
    w->batch.mask.sink = w->sink;
    w->batch.mask.custom = w->custom;
    w->batch.mask.custom_indptr = w->custom_indptr;
    w->batch.k_scale = w->k_scale;
    w->batch.v_scale = w->v_scale;
}

enum status workload_from_lengths(const int32_t *qo_len, const int32_t *kv_len, int32_t n,
                                  const struct workload_params *p, struct workload *out, struct why *why)
{
    int64_t tokens = 0;
    memset(out, 0, sizeof *out);
    out->qo_indptr = malloc(((size_t)n + 1) * sizeof(int32_t));
    out->kv_len = malloc(((size_t)n + 1) * sizeof(int32_t));
    if (!out->qo_indptr || !out->kv_len) {
        workload_free(out);
        return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    }
    out->qo_indptr[0] = 0;
    for (int32_t r = 0; r < n; r++) {
        tokens += qo_len[r];
        if (qo_len[r] < 0 || kv_len[r] < 0 || tokens > INT32_MAX) {
            workload_free(out);
            return status_fail(why, STATUS_BAD_INPUT,
                               "request %d: qo_len %d, kv_len %d: expected lengths >= 0 and fewer than 2^31 "
                               "query tokens in all",
                               r, qo_len[r], kv_len[r]);
        }
        out->qo_indptr[r + 1] = (int32_t)tokens;
        out->kv_len[r] = kv_len[r];
    }
    out->batch.shape = p->shape;
    out->batch.mask = p->mask;
    out->batch.rope = p->rope;
    out->batch.n_requests = n;
    out->batch.kv.page_size = p->page_size;
    out->layout = p->layout;
    out->seed = p->seed;
    for (int i = 0; i < 3; i++)
        out->fill[i] = (struct fill){FILL_NORMAL, 1.0};
    memcpy(out->model, p->model, sizeof out->model);
    workload_link(out);
    return STATUS_OK;
}

/* Page counts per request; fewer than 2^31 in all. */
static enum status count_pages(struct workload *w, struct why *why)
{
    const int32_t n = w->batch.n_requests, page_size = w->batch.kv.page_size;
    int64_t pages = 0;
    if (page_size < 1 || page_size > BATCH_MAX_PAGE_SIZE)
        return status_fail(why, STATUS_BAD_INPUT, "page_size %d: expected 1..%d", page_size,
                           BATCH_MAX_PAGE_SIZE);
    free(w->kv_indptr);
    w->kv_indptr = malloc(((size_t)n + 1) * sizeof(int32_t));
    if (!w->kv_indptr) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    w->kv_indptr[0] = 0;
    for (int32_t r = 0; r < n; r++) {
        pages += ((int64_t)w->kv_len[r] + page_size - 1) / page_size;
        if (pages > WORKLOAD_MAX_PAGES)
            return status_fail(why, STATUS_TOO_LARGE, "request %d: more than %d pages in all", r,
                               WORKLOAD_MAX_PAGES);
        w->kv_indptr[r + 1] = (int32_t)pages;
    }
    return STATUS_OK;
}

/* One page a request, as long as the longest; its id is the request's first token. */
static enum status assign_ragged(struct workload *w, struct why *why)
{
    const int32_t n = w->batch.n_requests;
    int64_t tokens = 0;
    w->batch.kv.page_size = 1;
    for (int32_t r = 0; r < n; r++)
        if (w->kv_len[r] > w->batch.kv.page_size) w->batch.kv.page_size = w->kv_len[r];
    TRY(count_pages(w, why));
    free(w->kv_indices);
    w->kv_indices = malloc(((size_t)n + 1) * sizeof(int32_t));
    if (!w->kv_indices) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t r = 0; r < n; r++) {
        if (w->kv_len[r] > 0) w->kv_indices[w->kv_indptr[r]] = (int32_t)tokens;
        tokens += w->kv_len[r];
        if (tokens > INT32_MAX)
            return status_fail(why, STATUS_TOO_LARGE, "request %d: more than 2^31 keys in all", r);
    }
    w->batch.kv.num_pages = (int32_t)tokens;
    workload_link(w);
    return STATUS_OK;
}

enum status workload_assign_pages(struct workload *w, uint64_t seed, struct why *why)
{
    struct rng rng = {seed};
    if (w->layout.store == KV_RAGGED) return assign_ragged(w, why);
    TRY(count_pages(w, why));
    const int32_t pages = w->kv_indptr[w->batch.n_requests];
    free(w->kv_indices);
    w->kv_indices = malloc(((size_t)pages + 1) * sizeof(int32_t));
    if (!w->kv_indices) return status_fail(why, STATUS_NO_MEMORY, "%d pages: out of memory", pages);
    for (int32_t i = 0; i < pages; i++) { /* inside-out Fisher-Yates */
        const int32_t j = (int32_t)rng_below(&rng, (uint64_t)i + 1);
        w->kv_indices[i] = w->kv_indices[j];
        w->kv_indices[j] = i;
    }
    w->batch.kv.num_pages = pages;
    workload_link(w);
    return STATUS_OK;
}

enum status workload_finish(struct workload *w, struct why *why)
{
    enum status status = w->kv_indices ? STATUS_OK : workload_assign_pages(w, w->seed, why);
    if (status == STATUS_OK) status = batch_check(&w->batch, why);
    if (status == STATUS_OK) status = tensors_check_layout(&w->batch, &w->layout, why);
    if (status != STATUS_OK) workload_free(w);
    return status;
}

enum status workload_from_spec(const char *spec, const struct workload_params *p, struct workload *out,
                               struct why *why)
{
    int32_t *qo_len, *kv_len, n;
    TRY(spec_parse(spec, &qo_len, &kv_len, &n, why));
    enum status status = workload_from_lengths(qo_len, kv_len, n, p, out, why);
    if (status == STATUS_OK) {
        if (spec_format(qo_len, kv_len, n, out->spec, sizeof out->spec) != 0) out->spec[0] = '\0';
        snprintf(out->name, sizeof out->name, "%.*s", WORKLOAD_NAME_MAX - 1, out->spec[0] ? out->spec : spec);
        status = workload_finish(out, why);
    }
    free(qo_len);
    free(kv_len);
    return status;
}
