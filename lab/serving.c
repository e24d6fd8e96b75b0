#include "lab/serving.h"

#include "lab/kv_pool.h"
#include "sched/cost.h"

#include <stdlib.h>
#include <string.h>

/* The model behind the clock: an 8B-class dense transformer in bf16. */
static const double model_parameters = 8.03e9, model_layers = 32;
static const double overhead_s = 300e-6; /* host work and small kernels of a step */

struct sequence {
    int32_t request; /* of the trace */
    int32_t prompt, output;
    int32_t computed; /* tokens whose K and V exist */
    int32_t generated;
    int32_t *pages; /* for prompt + output, taken at admission */
    int32_t n_pages;
    int32_t shared_blocks; /* first blocks that are held in the cache */
    uint8_t *owned;        /* of each prompt block: still private (1) or the cache's (0) */
    int32_t n_blocks;      /* full hash blocks of the prompt */
    int32_t chunk;         /* tokens in the step being formed */
};

struct serving {
    const struct trace *trace;
    const struct gpu *gpu;
    struct serving_config config;
    struct kv_pool pool;
    struct sequence *running; /* [max_seqs] */
    int32_t n_running;
    int32_t next; /* first request not admitted */
    struct serving_counts counts;
    bool share;
};

static int32_t pages_for(const struct serving *s, int64_t tokens)
{
    return (int32_t)((tokens + s->config.params.page_size - 1) / s->config.params.page_size);
}

enum status serving_create(const struct trace *trace, const struct gpu *gpu,
                           const struct serving_config *config, struct serving **out, struct why *why)
{
    struct serving *s = calloc(1, sizeof *s);
    const int32_t page_size = config->params.page_size;
    int32_t n_blocks = 0;
    if (!s) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    *s = (struct serving){.trace = trace, .gpu = gpu, .config = *config};
    /* a block is shared as whole pages, so the page size must divide it */
    s->share = config->prefix_cache && trace->n_hashes > 0 && TRACE_HASH_BLOCK_TOKENS % page_size == 0;
    for (int32_t i = 0; s->share && i < trace->n_hashes; i++)
        if (trace->hashes[i] >= n_blocks) n_blocks = trace->hashes[i] + 1;
    s->running = calloc((size_t)config->max_seqs, sizeof *s->running);
    const enum status status = kv_pool_create(pages_for(s, config->kv_tokens),
                                              TRACE_HASH_BLOCK_TOKENS / page_size, n_blocks, &s->pool);
    if (!s->running || status != STATUS_OK) {
        serving_free(s);
        return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    }
    *out = s;
    return STATUS_OK;
}

static void sequence_free(struct sequence *q)
{
    free(q->pages);
    free(q->owned);
}

void serving_free(struct serving *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->n_running; i++)
        sequence_free(&s->running[i]);
    kv_pool_free(&s->pool);
    free(s->running);
    free(s);
}

static const int32_t *hashes_of(const struct serving *s, const struct sequence *q)
{
    return s->trace->hashes + s->trace->requests[q->request].hash_begin;
}

/* Leading full blocks of the prompt that are in the cache. */
static int32_t cached_prefix(const struct serving *s, const struct sequence *q)
{
    int32_t n = 0;
    while (n < q->n_blocks && kv_pool_has(&s->pool, hashes_of(s, q)[n]))
        n++;
    return n;
}

/* Idle blocks about to be held cannot also be evicted for this request. */
static int64_t idle_in_prefix(const struct serving *s, const struct sequence *q)
{
    int64_t idle = 0;
    for (int32_t i = 0; i < q->shared_blocks; i++)
        idle += s->pool.blocks[hashes_of(s, q)[i]].holders == 0;
    return idle * s->pool.pages_per_block;
}

/* Takes all pages of the sequence: shared blocks from the cache, the rest from the pool. false: not enough
 * pages. */
static bool take_pages(struct serving *s, struct sequence *q)
{
    const int32_t shared_pages = q->shared_blocks * s->pool.pages_per_block;
    if (kv_pool_available(&s->pool) - idle_in_prefix(s, q) < q->n_pages - shared_pages) return false;
    for (int32_t i = 0; i < q->shared_blocks; i++)
        memcpy(q->pages + (size_t)i * (size_t)s->pool.pages_per_block,
               kv_pool_hold(&s->pool, hashes_of(s, q)[i]),
               (size_t)s->pool.pages_per_block * sizeof *q->pages);
    for (int32_t i = shared_pages; i < q->n_pages; i++)
        q->pages[i] = kv_pool_take(&s->pool);
    return true;
}

/* Admits the next waiting request into slot n_running. *admitted = false when it must wait. */
static enum status admit(struct serving *s, bool *admitted)
{
    const struct trace_request *request = &s->trace->requests[s->next];
    struct sequence q = {
        .request = s->next, .prompt = request->prompt_tokens, .output = request->output_tokens};
    *admitted = false;
    q.n_pages = pages_for(s, (int64_t)q.prompt + q.output);
    if (q.n_pages > s->pool.n_pages) { /* could never run: refused, as an engine would */
        s->counts.refused++;
        s->next++;
        *admitted = true;
        return STATUS_OK;
    }
    if (s->share) {
        const int32_t hashes = request->hash_end - request->hash_begin,
                      full = q.prompt / TRACE_HASH_BLOCK_TOKENS;
        q.n_blocks = hashes < full ? hashes : full;
    }
    q.shared_blocks = cached_prefix(s, &q);
    q.pages = malloc(((size_t)q.n_pages + 1) * sizeof *q.pages);
    q.owned = malloc((size_t)q.n_blocks + 1);
    if (!q.pages || !q.owned) {
        sequence_free(&q);
        return STATUS_NO_MEMORY;
    }
    if (!take_pages(s, &q)) {
        sequence_free(&q);
        return STATUS_OK;
    }
    for (int32_t i = 0; i < q.n_blocks; i++)
        q.owned[i] = i >= q.shared_blocks;
    /* at least the last prompt token is computed: its logits are needed */
    const int32_t cached = q.shared_blocks * TRACE_HASH_BLOCK_TOKENS;
    q.computed = cached < q.prompt ? cached : q.prompt - 1;
    s->counts.cached_tokens += q.computed;
    s->running[s->n_running++] = q;
    s->next++;
    *admitted = true;
    return STATUS_OK;
}

static bool is_decode(const struct sequence *q)
{
    return q->computed >= q->prompt;
}

/* Gives tokens to running sequences of one kind; returns what is left of the budget. */
static int32_t give_tokens(struct serving *s, bool decodes, int32_t budget)
{
    for (int32_t i = 0; i < s->n_running && budget > 0; i++) {
        struct sequence *q = &s->running[i];
        if (q->chunk > 0 || is_decode(q) != decodes) continue;
        const int32_t left = decodes ? 1 : q->prompt - q->computed;
        q->chunk = left < budget ? left : budget;
        budget -= q->chunk;
    }
    return budget;
}

/* Fills the chunks of the step. */
static enum status form_step(struct serving *s)
{
    int32_t budget = give_tokens(s, true, s->config.budget);
    budget = give_tokens(s, false, budget);
    while (budget > 0 && s->n_running < s->config.max_seqs && s->next < s->trace->n) {
        const double arrival = s->trace->requests[s->next].arrival_s / s->config.rate;
        bool admitted;
        /* with nothing running the clock jumps to the next arrival */
        if (arrival > s->counts.clock_s && s->n_running == 0) s->counts.clock_s = arrival;
        if (arrival > s->counts.clock_s) break;
        TRY(admit(s, &admitted));
        if (!admitted) break;
        budget = give_tokens(s, false, budget);
    }
    return STATUS_OK;
}

/* The batch of the step: prefill chunks first, then decodes; page tables as they are. */
static enum status make_batch(const struct serving *s, struct workload *out, bool *mixed, struct why *why)
{
    const struct sequence **order = malloc(((size_t)s->n_running + 1) * sizeof *order);
    int32_t *lens = malloc(2 * ((size_t)s->n_running + 1) * sizeof *lens), n = 0, prefills = 0;
    enum status status = order && lens ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (int pass = 0; status == STATUS_OK && pass < 2; pass++) {
        for (int32_t i = 0; i < s->n_running; i++)
            if (s->running[i].chunk > 0 && is_decode(&s->running[i]) == (pass == 1))
                order[n++] = &s->running[i];
        if (pass == 0) prefills = n;
    }
    if (status == STATUS_OK) {
        int32_t *kv_len = lens + n;
        for (int32_t i = 0; i < n; i++) {
            lens[i] = order[i]->chunk;
            kv_len[i] = order[i]->computed + order[i]->chunk;
        }
        status = workload_from_lengths(lens, kv_len, n, &s->config.params, out, why);
    }
    if (status == STATUS_OK) {
        int64_t pages = 0;
        out->kv_indptr = malloc(((size_t)n + 1) * sizeof(int32_t));
        for (int32_t i = 0; i < n; i++)
            pages += pages_for(s, out->kv_len[i]);
        out->kv_indices = malloc(((size_t)pages + 1) * sizeof(int32_t));
        if (out->kv_indptr && out->kv_indices) {
            out->kv_indptr[0] = 0;
            for (int32_t i = 0; i < n; i++) {
                const int32_t count = pages_for(s, out->kv_len[i]);
                memcpy(out->kv_indices + out->kv_indptr[i], order[i]->pages, (size_t)count * sizeof(int32_t));
                out->kv_indptr[i + 1] = out->kv_indptr[i] + count;
            }
            out->batch.kv.num_pages = s->pool.n_pages;
            workload_link(out);
            status = workload_finish(out, why);
        } else {
            workload_free(out);
            status = status_fail(why, STATUS_NO_MEMORY, "out of memory");
        }
    }
    *mixed = prefills > 0 && n > prefills;
    free(order);
    free(lens);
    return status;
}

/* Roofline of the step: weights and K/V of all layers over the memory, all FLOPs over what FA3-class code
 * reaches. */
static double step_seconds(const struct serving *s, const struct batch *b)
{
    double math = 0, kv_tokens = 0;
    for (int m = 0; m < MATH_COUNT; m++)
        if (s->gpu->flops_frac[m] > math) math = s->gpu->flops_frac[m];
    for (int32_t r = 0; r < b->n_requests; r++)
        kv_tokens += b->kv_len[r];
    const double tokens = b->qo_indptr[b->n_requests];
    const double kv_bytes =
        kv_tokens * b->shape.num_kv_heads * (double)shape_key_bytes(&b->shape) * model_layers;
    const double flops = 2 * model_parameters * tokens + cost_batch_flops(b) * model_layers;
    const double memory_ns = (2 * model_parameters + kv_bytes) / s->gpu->hbm_bytes_per_ns;
    const double math_ns = flops / (math * s->gpu->peak_flops_per_ns);
    return (memory_ns > math_ns ? memory_ns : math_ns) * 1e-9 + overhead_s;
}

/* Hands the prompt's new full blocks to the cache once they are computed. */
static void cache_blocks(struct serving *s, struct sequence *q)
{
    for (int32_t i = 0; i < q->n_blocks; i++)
        if (q->owned[i] && kv_pool_insert(&s->pool, hashes_of(s, q)[i],
                                          q->pages + (size_t)i * (size_t)s->pool.pages_per_block))
            q->owned[i] = 0;
}

static void retire(struct serving *s, struct sequence *q)
{
    for (int32_t i = 0; i < q->n_pages; i++) {
        const int32_t block = s->pool.pages_per_block > 0 ? i / s->pool.pages_per_block : 0;
        if (block >= q->n_blocks || q->owned[block]) kv_pool_give(&s->pool, q->pages[i]);
    }
    for (int32_t i = 0; i < q->n_blocks; i++)
        if (!q->owned[i]) kv_pool_release(&s->pool, hashes_of(s, q)[i]);
    sequence_free(q);
}

/* Applies the step: tokens computed, first and next tokens generated, finished sequences leave. */
static void end_step(struct serving *s)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sequence *q = &s->running[i];
        const bool decode = is_decode(q);
        if (decode)
            s->counts.decode_tokens += q->chunk;
        else
            s->counts.prefill_tokens += q->chunk;
        q->computed += q->chunk;
        if (q->chunk > 0 && is_decode(q)) q->generated++;
        if (!decode && is_decode(q)) cache_blocks(s, q);
        q->chunk = 0;
        if (is_decode(q) && q->generated >= q->output)
            retire(s, q);
        else
            s->running[kept++] = *q;
    }
    s->n_running = kept;
}

enum status serving_step(struct serving *s, struct workload *out, bool *mixed, bool *done, struct why *why)
{
    *done = s->n_running == 0 && s->next >= s->trace->n;
    if (*done) return STATUS_OK;
    if (form_step(s) != STATUS_OK) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    if (s->n_running == 0) { /* everything left was refused */
        *done = true;
        return STATUS_OK;
    }
    TRY(make_batch(s, out, mixed, why));
    s->counts.clock_s += step_seconds(s, &out->batch);
    s->counts.steps++;
    s->counts.mixed_steps += *mixed;
    snprintf(out->name, sizeof out->name, "step-%lld", (long long)s->counts.steps);
    end_step(s);
    return STATUS_OK;
}

struct serving_counts serving_counts(const struct serving *s)
{
    return s->counts;
}
