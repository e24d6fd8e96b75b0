/* The order of probe's experiments, and what they share. */
#include "cuda/probe_internal.h"
#include "cuda/quantile.h"

#include <string.h>

static const size_t MOST_BYTES = (size_t)4 << 30, LEAST_BYTES = (size_t)64 << 20;

enum status probe_figure_of(struct probe_bench *b, probe_once once, const void *args, struct probe_figure *out,
                            struct why *why)
{
    double values[PROBE_MAX_REPEATS], ignored;
    TRY(once(b, args, &ignored, why));
    for (int32_t i = 0; i < b->repeats; i++)
        TRY(once(b, args, &values[i], why));
    quantile_sort(values, b->repeats);
    out->value = quantile_of(values, b->repeats, 0.5);
    out->spread = (values[b->repeats - 1] - values[0]) / out->value;
    return STATUS_OK;
}

enum status probe_begin(struct probe_bench *b, struct why *why)
{
    CUDA_TRY(cudaEventRecord(b->begin, b->stream));
    return STATUS_OK;
}

enum status probe_end(struct probe_bench *b, double *ns, struct why *why)
{
    float ms = 0;
    CUDA_TRY(cudaEventRecord(b->end, b->stream));
    CUDA_TRY(cudaEventSynchronize(b->end));
    CUDA_TRY(cudaEventElapsedTime(&ms, b->begin, b->end));
    *ns = (double)ms * 1e6;
    return STATUS_OK;
}

static void describe(const struct cudaDeviceProp *p, struct probe *out)
{
    out->max_threads_per_sm = p->maxThreadsPerMultiProcessor;
    out->max_ctas_per_sm = p->maxBlocksPerMultiProcessor;
    out->registers_per_sm = p->regsPerMultiprocessor;
    out->smem_per_sm_bytes = (int32_t)p->sharedMemPerMultiprocessor;
    out->smem_optin_bytes = (int32_t)p->sharedMemPerBlockOptin;
    out->l2_bytes = p->l2CacheSize;
}

static enum status take(struct probe_bench *b, struct exec_pool *pool, struct why *why)
{
    size_t free_bytes = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    b->bytes = MOST_BYTES;
    while (b->bytes > LEAST_BYTES && b->bytes > free_bytes / 2)
        b->bytes /= 2;
    TRY(exec_take(pool, NULL, b->bytes, "probe", (void **)&b->memory, why));
    TRY(exec_take(pool, NULL, (size_t)1 << 20, "probe", (void **)&b->sink, why));
    CUDA_TRY(cudaMemset(b->memory, 0x5a, b->bytes));
    CUDA_TRY(cudaEventCreate(&b->begin));
    CUDA_TRY(cudaEventCreate(&b->end));
    return STATUS_OK;
}

static enum status run_all(struct probe_bench *b, void (*step)(const char *name), struct probe *out, struct why *why)
{
    static const struct {
        const char *name;
        enum status (*run)(struct probe_bench *, struct probe *, struct why *);
    } steps[] = {{"placement of CTAs", probe_placement},
                 {"launches", probe_launches},
                 {"memory", probe_memory},
                 {"arithmetic", probe_math}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (step) step(steps[i].name);
        TRY(steps[i].run(b, out, why));
    }
    return cuda_card(b->d, &out->card, why); /* clocks while the card is warm */
}

extern "C" enum status probe_run(struct cuda_device *d, int32_t repeats, void (*step)(const char *name),
                                 struct probe *out, struct why *why)
{
    struct exec_pool pool;
    struct probe_bench b;
    memset(&pool, 0, sizeof pool);
    memset(&b, 0, sizeof b);
    memset(out, 0, sizeof *out);
    b.d = d;
    b.stream = d->stream;
    b.repeats = repeats < 1 ? 1 : repeats > PROBE_MAX_REPEATS ? PROBE_MAX_REPEATS : repeats;
    b.sms = d->properties.multiProcessorCount;
    describe(&d->properties, out);
    enum status status = take(&b, &pool, why);
    if (status == STATUS_OK) status = run_all(&b, step, out, why);
    if (b.begin) cudaEventDestroy(b.begin);
    if (b.end) cudaEventDestroy(b.end);
    exec_release(&pool);
    return status;
}
