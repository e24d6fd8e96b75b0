/* exec_time: how long a prepared plan takes, and when its items ran. Clocks and energy come from the driver's
 * management library where it is there; it is looked up at run time, so nothing is linked. */
#include "cuda/exec_internal.h"
#include "cuda/quantile.h"

#include <chrono>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the driver's management library ------------------------------------------------------------------------------ */

struct nvml {
    void *library, *device;
    int (*clock)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
    int (*energy)(void *, unsigned long long *);
};

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2 };

static void nvml_open(struct nvml *n, const struct cudaDeviceProp *properties)
{
    char bus[32];
    memset(n, 0, sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!n->library) return;
    int (*init)(void) = (int (*)(void))dlsym(n->library, "nvmlInit_v2");
    int (*find)(const char *, void **) =
        (int (*)(const char *, void **))dlsym(n->library, "nvmlDeviceGetHandleByPciBusId_v2");
    snprintf(bus, sizeof bus, "%08x:%02x:%02x.0", (unsigned)properties->pciDomainID, (unsigned)properties->pciBusID,
             (unsigned)properties->pciDeviceID);
    if (!init || !find || init() != 0 || find(bus, &n->device) != 0) {
        n->device = NULL;
        return;
    }
    n->clock = (int (*)(void *, int, unsigned *))dlsym(n->library, "nvmlDeviceGetClockInfo");
    n->power = (int (*)(void *, unsigned *))dlsym(n->library, "nvmlDeviceGetPowerUsage");
    n->energy = (int (*)(void *, unsigned long long *))dlsym(n->library, "nvmlDeviceGetTotalEnergyConsumption");
}

static void nvml_close(struct nvml *n)
{
    if (n->library) dlclose(n->library);
}

static int32_t nvml_mhz(const struct nvml *n, int which)
{
    unsigned mhz = 0;
    return n->device && n->clock && n->clock(n->device, which, &mhz) == 0 ? (int32_t)mhz : 0;
}

static double nvml_watts(const struct nvml *n)
{
    unsigned milliwatts = 0;
    return n->device && n->power && n->power(n->device, &milliwatts) == 0 ? milliwatts / 1e3 : 0;
}

/* Joules since the driver was loaded; NaN where it does not say. */
static double nvml_joules(const struct nvml *n)
{
    unsigned long long millijoules = 0;
    return n->device && n->energy && n->energy(n->device, &millijoules) == 0 ? (double)millijoules / 1e3 : NAN;
}

extern "C" enum status cuda_card(struct cuda_device *d, struct cuda_card *out, struct why *why)
{
    struct nvml n;
    size_t free_bytes = 0, total = 0;
    memset(out, 0, sizeof *out);
    CUDA_TRY(cudaDriverGetVersion(&out->driver));
    CUDA_TRY(cudaRuntimeGetVersion(&out->runtime));
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    snprintf(out->name, sizeof out->name, "%.63s", d->properties.name);
    out->cc_major = d->properties.major;
    out->cc_minor = d->properties.minor;
    out->sm_count = d->properties.multiProcessorCount;
    out->memory_bytes = (int64_t)total;
    out->free_bytes = (int64_t)free_bytes;
    nvml_open(&n, &d->properties);
    out->sm_mhz = nvml_mhz(&n, NVML_CLOCK_SM);
    out->memory_mhz = nvml_mhz(&n, NVML_CLOCK_MEMORY);
    out->watts = nvml_watts(&n);
    nvml_close(&n);
    return STATUS_OK;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/* One replay behind a flush of L2. The flush takes long enough that the host has queued everything by its end. */
static enum status replay(struct cuda_device *d, int32_t run, cudaEvent_t begin, cudaEvent_t end, double *us,
                          struct why *why)
{
    float ms = 0;
    CUDA_TRY(cudaMemsetAsync(d->flush, run & 0x7f, d->flush_bytes, d->stream));
    CUDA_TRY(cudaEventRecord(begin, d->stream));
    CUDA_TRY(cudaGraphLaunch(d->p.graph, d->stream));
    CUDA_TRY(cudaEventRecord(end, d->stream));
    CUDA_TRY(cudaEventSynchronize(end));
    CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
    *us = (double)ms * 1e3;
    return STATUS_OK;
}

static enum status burst(struct cuda_device *d, const struct cuda_time_options *options, cudaEvent_t begin,
                         cudaEvent_t end, struct cuda_timing *out, struct why *why)
{
    const int32_t warm = options->runs / 10 > 3 ? options->runs / 10 : 3, n = options->runs;
    double *us = (double *)malloc((size_t)n * sizeof *us), ignored;
    enum status status = us ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "cuda_time: out of memory");
    for (int32_t i = 0; status == STATUS_OK && i < warm; i++)
        status = replay(d, i, begin, end, &ignored, why);
    for (int32_t i = 0; status == STATUS_OK && i < n; i++)
        status = replay(d, i, begin, end, &us[i], why);
    if (status == STATUS_OK) {
        quantile_sort(us, n);
        out->runs = n;
        out->median_us = quantile_of(us, n, 0.5);
        out->p10_us = quantile_of(us, n, 0.1);
        out->p90_us = quantile_of(us, n, 0.9);
    }
    free(us);
    return status;
}

/* Replays without a pause until the time is over, in blocks of about 20 ms between looks at the clock. */
static enum status sustained(struct cuda_device *d, double seconds, const struct nvml *n, cudaEvent_t begin,
                             cudaEvent_t end, struct cuda_timing *out, struct why *why)
{
    const int32_t block = out->median_us < 20000 ? (int32_t)(20000 / out->median_us) + 1 : 1;
    const auto start = std::chrono::steady_clock::now();
    int64_t replays = 0;
    float ms = 0;
    const double joules = nvml_joules(n);
    CUDA_TRY(cudaEventRecord(begin, d->stream));
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
        for (int32_t i = 0; i < block; i++)
            CUDA_TRY(cudaGraphLaunch(d->p.graph, d->stream));
        replays += block;
        out->watts = nvml_watts(n);
        out->sm_mhz = nvml_mhz(n, NVML_CLOCK_SM);
        CUDA_TRY(cudaStreamSynchronize(d->stream));
    }
    CUDA_TRY(cudaEventRecord(end, d->stream));
    CUDA_TRY(cudaEventSynchronize(end));
    CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
    out->sustained_us = ms * 1e3 / (double)replays;
    out->joules = (nvml_joules(n) - joules) / (double)replays;
    return STATUS_OK;
}

static enum status time_all(struct cuda_device *d, const struct cuda_time_options *options, const struct nvml *n,
                            cudaEvent_t begin, cudaEvent_t end, struct cuda_timing *out, struct why *why)
{
    TRY(burst(d, options, begin, end, out, why));
    out->sm_mhz = nvml_mhz(n, NVML_CLOCK_SM);
    out->memory_mhz = nvml_mhz(n, NVML_CLOCK_MEMORY);
    out->watts = nvml_watts(n);
    return options->sustain_s > 0 ? sustained(d, options->sustain_s, n, begin, end, out, why) : STATUS_OK;
}

extern "C" enum status cuda_time(struct cuda_device *d, const struct cuda_time_options *options,
                                 struct cuda_timing *out, struct why *why)
{
    struct nvml n;
    cudaEvent_t begin = NULL, end = NULL;
    memset(out, 0, sizeof *out);
    out->sustained_us = out->joules = NAN;
    if (!d->p.ready) return status_fail(why, STATUS_INTERNAL, "cuda_time: no plan prepared");
    if (!d->p.graph) return STATUS_OK; /* a plan without grids takes no time */
    nvml_open(&n, &d->properties);
    enum status status = STATUS_OK;
    if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess)
        status = exec_fail(why, cudaGetLastError(), "cudaEventCreate");
    if (status == STATUS_OK) status = time_all(d, options, &n, begin, end, out, why);
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    nvml_close(&n);
    return status;
}

/* ---- spans ------------------------------------------------------------------------------------------------------- */

/* A CTA in time: from its first item to its last. */
struct cta_time {
    int32_t sm, grid, cta, slot;
    uint64_t begin_ns, end_ns;
};

static int by_sm_then_begin(const void *a, const void *b)
{
    const struct cta_time *x = (const struct cta_time *)a, *y = (const struct cta_time *)b;
    if (x->sm != y->sm) return x->sm < y->sm ? -1 : 1;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static int by_grid_then_cta(const void *a, const void *b)
{
    const struct cta_time *x = (const struct cta_time *)a, *y = (const struct cta_time *)b;
    if (x->grid != y->grid) return x->grid < y->grid ? -1 : 1;
    return (x->cta > y->cta) - (x->cta < y->cta);
}

/* CTAs of all spans, in order of grid and CTA; their number. */
static int64_t gather_ctas(const struct view_span *raw, int64_t n, struct cta_time *ctas)
{
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct view_span *s = &raw[i];
        ctas[i] = {s->sm, s->grid, s->cta, 0, s->begin_ns, s->end_ns};
    }
    qsort(ctas, (size_t)n, sizeof *ctas, by_grid_then_cta);
    for (int64_t i = 0; i < n; i++) {
        if (m > 0 && ctas[m - 1].grid == ctas[i].grid && ctas[m - 1].cta == ctas[i].cta) {
            if (ctas[i].begin_ns < ctas[m - 1].begin_ns) ctas[m - 1].begin_ns = ctas[i].begin_ns;
            if (ctas[i].end_ns > ctas[m - 1].end_ns) ctas[m - 1].end_ns = ctas[i].end_ns;
        } else {
            ctas[m++] = ctas[i];
        }
    }
    return m;
}

/* The lowest slot of its SM that is free when a CTA begins. */
enum { MAX_SLOTS = 64 };
static void give_slots(struct cta_time *ctas, int64_t n)
{
    uint64_t free_at[MAX_SLOTS];
    qsort(ctas, (size_t)n, sizeof *ctas, by_sm_then_begin);
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || ctas[i].sm != ctas[i - 1].sm) memset(free_at, 0, sizeof free_at);
        int32_t slot = 0;
        while (slot < MAX_SLOTS - 1 && free_at[slot] > ctas[i].begin_ns)
            slot++;
        ctas[i].slot = slot;
        free_at[slot] = ctas[i].end_ns;
    }
    qsort(ctas, (size_t)n, sizeof *ctas, by_grid_then_cta);
}

static int by_begin(const void *a, const void *b)
{
    const struct span *x = (const struct span *)a, *y = (const struct span *)b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->sm != y->sm) return x->sm < y->sm ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static int32_t slot_of(const struct cta_time *ctas, int64_t n, const struct view_span *s)
{
    struct cta_time key;
    memset(&key, 0, sizeof key);
    key.grid = s->grid;
    key.cta = s->cta;
    return ((const struct cta_time *)bsearch(&key, ctas, (size_t)n, sizeof key, by_grid_then_cta))->slot;
}

/* Device clocks into spans from the first begin on. Merges of last arrivers are within their items' spans. */
static enum status build_spans(const struct exec_prepared *e, const struct view_span *raw, int32_t stride,
                               struct span **spans, int64_t *n, struct why *why)
{
    const int64_t all = (int64_t)e->n_items + e->n_merges;
    struct view_span *ran = (struct view_span *)malloc(((size_t)all + 1) * sizeof *ran);
    int32_t *index = (int32_t *)malloc(((size_t)all + 1) * sizeof *index);
    struct cta_time *ctas = (struct cta_time *)malloc(((size_t)all + 1) * sizeof *ctas);
    *spans = (struct span *)malloc(((size_t)all + 1) * sizeof **spans);
    *n = 0;
    if (ran && index && ctas && *spans) {
        uint64_t origin = UINT64_MAX;
        for (int64_t i = 0; i < all; i++) {
            if (raw[i].end_ns == 0) continue; /* never ran on its own */
            ran[*n] = raw[i];
            index[(*n)++] = (int32_t)i;
            if (raw[i].begin_ns < origin) origin = raw[i].begin_ns;
        }
        const int64_t n_ctas = gather_ctas(ran, *n, ctas);
        give_slots(ctas, n_ctas);
        for (int64_t i = 0; i < *n; i++) {
            const struct view_span *s = &ran[i];
            const bool is_merge = index[i] >= e->n_items;
            (*spans)[i] = {s->sm, slot_of(ctas, n_ctas, s) * stride + s->lane, s->grid, s->cta,
                           is_merge ? index[i] - e->n_items : index[i], is_merge, (double)(s->begin_ns - origin), (double)(s->end_ns - origin)};
        }
        qsort(*spans, (size_t)*n, sizeof **spans, by_begin);
    }
    const bool ok = ran && index && ctas && *spans;
    free(ran);
    free(index);
    free(ctas);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "cuda_spans: out of memory");
}

extern "C" enum status cuda_spans(struct cuda_device *d, struct span **spans, int64_t *n, struct why *why)
{
    const struct exec_prepared *e = &d->p;
    const size_t all = (size_t)e->n_items + (size_t)e->n_merges;
    int32_t stride = 1;
    *spans = NULL;
    *n = 0;
    if (!e->ready || !e->item_spans) return status_fail(why, STATUS_INTERNAL, "cuda_spans: spans were not asked for");
    struct view_span *raw = (struct view_span *)malloc((all + 1) * sizeof *raw);
    if (!raw) return status_fail(why, STATUS_NO_MEMORY, "cuda_spans: out of memory");
    for (int32_t i = 0; i < e->n_launches; i++)
        for (int role = 0; role < 2; role++) {
            const struct view_grid *g = &e->launches[i].l.g;
            const int32_t lanes = g->is_beside ? 2 : g->lanes[role];
            if (lanes > stride) stride = lanes;
        }
    cudaError_t error = cudaMemcpy(raw, e->item_spans, (size_t)e->n_items * sizeof *raw, cudaMemcpyDeviceToHost);
    if (error == cudaSuccess)
        error = cudaMemcpy(raw + e->n_items, e->merge_spans, (size_t)e->n_merges * sizeof *raw, cudaMemcpyDeviceToHost);
    const enum status status = error == cudaSuccess ? build_spans(e, raw, stride, spans, n, why)
                                                    : exec_fail(why, error, "download of the spans");
    free(raw);
    if (status != STATUS_OK) {
        free(*spans);
        *spans = NULL;
    }
    return status;
}
