/* The launches, checks and times of the co-location micro-benchmark. */
#include "cuda/colocate.h"

#include "cuda/colocate_body.cuh"
#include "cuda/exec_internal.h"
#include "cuda/quantile.h"

#include <stdlib.h>

static_assert(COLOCATE_MAX_ROWS == COLOCATE_POINTS * 2 * COLOCATE_METHODS, "room for every row");
static_assert(COLOCATE_TICKETS < COLOCATE_SHAPES && sizeof(struct colocate_work) <= 4096,
              "a kernel's parameters");

static const int64_t LEAST_ELEMENTS = (int64_t)1 << 16;

/* Methods, then each op alone. */
enum { CASE_MEMORY = COLOCATE_METHODS, CASE_COMPUTE, CASES };

/* ---- kernels ------------------------------------------------------------------------------------------- */

template <int SHAPE, bool BARRIER>
__global__ void __launch_bounds__(COLOCATE_THREADS)
    colocate_kernel(const __grid_constant__ struct colocate_work w)
{
    __shared__ int32_t word;
    colocate_cta(&w, SHAPE, BARRIER, &word);
}

struct colocate_arrays {
    float *a, *b, *c, *d;
    int64_t n;
};

__global__ void colocate_fill_inputs(struct colocate_arrays x)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < x.n; j += stride) {
        x.a[j] = colocate_a(j);
        x.b[j] = colocate_b(j);
    }
}

__global__ void colocate_reset(struct colocate_arrays x)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < x.n; j += stride) {
        x.c[j] = colocate_c(j, false);
        x.d[j] = colocate_d(j, false);
    }
}

/* Adds the elements that are not what they must be: done below n_memory and n_compute, untouched beyond. */
__global__ void colocate_check(struct colocate_arrays x, int64_t n_memory, int64_t n_compute,
                               unsigned long long *wrong)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;
    for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < x.n; j += stride)
        mine += !colocate_right(x.c[j], colocate_c(j, j < n_memory)) +
                !colocate_right(x.d[j], colocate_d(j, j < n_compute));
    if (mine) atomicAdd(wrong, mine);
}

typedef void (*colocate_function)(const struct colocate_work);

template <int SHAPE> static colocate_function kernel_of(bool barrier)
{
    return barrier ? colocate_kernel<SHAPE, true> : colocate_kernel<SHAPE, false>;
}

static colocate_function kernel_of_shape(int32_t shape, bool barrier)
{
    switch (shape) {
    case COLOCATE_ONE_MEMORY:
        return kernel_of<COLOCATE_ONE_MEMORY>(barrier);
    case COLOCATE_ONE_COMPUTE:
        return kernel_of<COLOCATE_ONE_COMPUTE>(barrier);
    case COLOCATE_HALVES:
        return kernel_of<COLOCATE_HALVES>(barrier);
    case COLOCATE_EVEN_ODD:
        return kernel_of<COLOCATE_EVEN_ODD>(barrier);
    case COLOCATE_TICKETS:
        return kernel_of<COLOCATE_TICKETS>(barrier);
    case COLOCATE_WARPS:
        return kernel_of<COLOCATE_WARPS>(barrier);
    case COLOCATE_IN_TURN:
        return kernel_of<COLOCATE_IN_TURN>(barrier);
    default:
        return kernel_of<COLOCATE_INTERLEAVED>(barrier);
    }
}

/* ---- one run ------------------------------------------------------------------------------------------- */

struct bench {
    cudaStream_t stream, other;
    cudaEvent_t begin, end, fork, join;
    struct colocate_arrays x;
    struct colocate_work work; /* of the point; tickets of the case */
    int32_t *list_indptr, *counters;
    int32_t sms;
    unsigned long long *wrong;
    double *us; /* [CASES][runs] */
    int64_t wrongs[CASES];
    int32_t runs;
};

static enum status launch(struct bench *b, int32_t shape, bool barrier, cudaStream_t stream, struct why *why)
{
    kernel_of_shape(shape, barrier)<<<COLOCATE_CTAS, COLOCATE_THREADS, 0, stream>>>(b->work);
    CUDA_TRY(cudaGetLastError());
    return STATUS_OK;
}

static enum status launch_streams(struct bench *b, bool barrier, struct why *why)
{
    CUDA_TRY(cudaEventRecord(b->fork, b->stream));
    CUDA_TRY(cudaStreamWaitEvent(b->other, b->fork, 0));
    TRY(launch(b, COLOCATE_ONE_MEMORY, barrier, b->stream, why));
    TRY(launch(b, COLOCATE_ONE_COMPUTE, barrier, b->other, why));
    CUDA_TRY(cudaEventRecord(b->join, b->other));
    CUDA_TRY(cudaStreamWaitEvent(b->stream, b->join, 0));
    return STATUS_OK;
}

static enum status launch_case(struct bench *b, int32_t which, bool barrier, struct why *why)
{
    switch (which) {
    case CASE_MEMORY:
        return launch(b, COLOCATE_ONE_MEMORY, barrier, b->stream, why);
    case CASE_COMPUTE:
        return launch(b, COLOCATE_ONE_COMPUTE, barrier, b->stream, why);
    case COLOCATE_METHOD_SERIAL:
        TRY(launch(b, COLOCATE_ONE_MEMORY, barrier, b->stream, why));
        return launch(b, COLOCATE_ONE_COMPUTE, barrier, b->stream, why);
    case COLOCATE_METHOD_STREAMS:
        return launch_streams(b, barrier, why);
    case COLOCATE_METHOD_CTA_HALVES:
        return launch(b, COLOCATE_HALVES, barrier, b->stream, why);
    case COLOCATE_METHOD_CTA_EVEN_ODD:
        return launch(b, COLOCATE_EVEN_ODD, barrier, b->stream, why);
    case COLOCATE_METHOD_WARPS:
        return launch(b, COLOCATE_WARPS, barrier, b->stream, why);
    case COLOCATE_METHOD_THREAD_IN_TURN:
        return launch(b, COLOCATE_IN_TURN, barrier, b->stream, why);
    case COLOCATE_METHOD_THREAD_INTERLEAVED:
        return launch(b, COLOCATE_INTERLEAVED, barrier, b->stream, why);
    default: /* SM_HALF, SM_PROPORTIONAL, SM_EXACT */
        return launch(b, COLOCATE_TICKETS, barrier, b->stream, why);
    }
}

/* Tickets of an SM-aware case, counters at 0. share: the memory op's CTAs where they are in proportion. */
static enum status set_tickets(struct bench *b, int32_t which, int32_t share, struct why *why)
{
    const int32_t kind = which == COLOCATE_METHOD_SM_HALF    ? TICKET_HALF
                         : which == COLOCATE_METHOD_SM_EXACT ? TICKET_EXACT
                                                             : TICKET_PROPORTIONAL;
    const int32_t n_memory = which == COLOCATE_METHOD_SM_HALF ? COLOCATE_CTAS / 2 : share;
    const int32_t list[3] = {0, n_memory, COLOCATE_CTAS};
    struct view_launch *l = &b->work.tickets;
    colocate_tickets(l, kind, n_memory, COLOCATE_CTAS, b->sms);
    l->x.list_indptr = b->list_indptr;
    l->g.counters = b->counters;
    CUDA_TRY(cudaMemcpyAsync(b->list_indptr, list, sizeof list, cudaMemcpyHostToDevice, b->stream));
    CUDA_TRY(cudaMemsetAsync(b->counters, 0, (size_t)view_counters(&l->g) * sizeof *b->counters, b->stream));
    return STATUS_OK;
}

/* One run of a case, timed and checked. The host queues it behind the reset, so that no launch is waited
 * for; the reset also leaves nothing of use in L2. */
static enum status run_once(struct bench *b, int32_t which, bool barrier, int32_t share, double *us,
                            struct why *why)
{
    const unsigned blocks = (unsigned)b->sms * 8;
    const int64_t n_memory = which == CASE_COMPUTE ? 0 : b->work.n_memory,
                  n_compute = which == CASE_MEMORY ? 0 : b->work.n_compute;
    unsigned long long wrong = 0;
    float ms = 0;
    TRY(set_tickets(b, which, share, why));
    CUDA_TRY(cudaMemsetAsync(b->wrong, 0, sizeof *b->wrong, b->stream));
    colocate_reset<<<blocks, COLOCATE_THREADS, 0, b->stream>>>(b->x);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaEventRecord(b->begin, b->stream));
    TRY(launch_case(b, which, barrier, why));
    CUDA_TRY(cudaEventRecord(b->end, b->stream));
    colocate_check<<<blocks, COLOCATE_THREADS, 0, b->stream>>>(b->x, n_memory, n_compute, b->wrong);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaStreamSynchronize(b->stream));
    CUDA_TRY(cudaEventElapsedTime(&ms, b->begin, b->end));
    CUDA_TRY(cudaMemcpy(&wrong, b->wrong, sizeof wrong, cudaMemcpyDeviceToHost));
    b->wrongs[which] += (int64_t)wrong;
    *us = (double)ms * 1e3;
    return STATUS_OK;
}

/* ---- all rows ------------------------------------------------------------------------------------------ */

static struct colocate_time time_of(struct bench *b, int32_t which)
{
    double *us = b->us + (size_t)which * (size_t)b->runs;
    quantile_sort(us, b->runs);
    return {quantile_of(us, b->runs, 0.5), quantile_of(us, b->runs, 0.1), quantile_of(us, b->runs, 0.9)};
}

static void add_rows(struct bench *b, int32_t point, bool barrier, int32_t sm_mhz, struct colocate *out)
{
    const double memory_us = time_of(b, CASE_MEMORY).median_us,
                 compute_us = time_of(b, CASE_COMPUTE).median_us,
                 serial_us = time_of(b, COLOCATE_METHOD_SERIAL).median_us;
    /* an op that goes wrong alone is no yardstick for anybody */
    const int64_t alone = b->wrongs[CASE_MEMORY] + b->wrongs[CASE_COMPUTE];
    for (int32_t m = 0; m < COLOCATE_METHODS; m++) {
        struct colocate_row *r = &out->rows[out->n_rows++];
        r->method = (enum colocate_method)m;
        r->barrier = barrier;
        r->compute_iters = COLOCATE_ITERS * point / COLOCATE_POINTS;
        r->time = time_of(b, m);
        r->memory_us = memory_us;
        r->compute_us = compute_us;
        r->serial_us = serial_us;
        r->wrong = b->wrongs[m] + alone;
        r->sm_mhz = sm_mhz;
    }
}

/* The ops alone first: these times give the proportional tickets their ratio for all the runs. */
static enum status run_group(struct bench *b, struct cuda_device *d, int32_t point, bool barrier,
                             struct colocate *out, struct why *why)
{
    double alone[2], ignored;
    struct cuda_card card;
    memset(b->wrongs, 0, sizeof b->wrongs);
    b->work.n_compute = colocate_n_compute(b->x.n, point);
    for (int32_t i = 0; i < 4; i++) /* twice each: the first launch of a kernel loads it */
        TRY(run_once(b, CASE_MEMORY + i % 2, barrier, 1, &alone[i % 2], why));
    const int32_t share =
        colocate_memory_ctas(COLOCATE_CTAS, alone[COLOCATE_MEMORY], alone[COLOCATE_COMPUTE]);
    for (int32_t m = 0; m < COLOCATE_METHODS; m++)
        TRY(run_once(b, m, barrier, share, &ignored, why));
    for (int32_t run = 0; run < b->runs; run++)
        for (int32_t which = 0; which < CASES; which++)
            TRY(run_once(b, which, barrier, share, &b->us[(size_t)which * (size_t)b->runs + (size_t)run],
                         why));
    TRY(cuda_card(d, &card, why));
    add_rows(b, point, barrier, card.sm_mhz, out);
    return STATUS_OK;
}

static enum status take(struct bench *b, const struct colocate_options *o, struct exec_pool *pool,
                        struct why *why)
{
    size_t free_bytes = 0, total = 0;
    float **arrays[4] = {&b->x.a, &b->x.b, &b->x.c, &b->x.d};
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    b->x.n = LEAST_ELEMENTS;
    while (b->x.n * 2 <= o->most_elements && (size_t)b->x.n * 2 * 4 * sizeof(float) <= free_bytes / 2)
        b->x.n *= 2;
    if ((size_t)b->x.n * 4 * sizeof(float) > free_bytes / 2)
        return status_fail(why, STATUS_NO_MEMORY,
                           "colocate: four arrays of %lld floats do not fit half of the %.1f MB "
                           "that are free",
                           (long long)b->x.n, (double)free_bytes / 1e6);
    for (int i = 0; i < 4; i++)
        TRY(exec_take(pool, NULL, (size_t)b->x.n * sizeof(float), "colocate", (void **)arrays[i], why));
    colocate_tickets(&b->work.tickets, TICKET_HALF, COLOCATE_CTAS / 2, COLOCATE_CTAS, b->sms);
    TRY(exec_take(pool, NULL, (size_t)view_counters(&b->work.tickets.g) * sizeof *b->counters, "colocate",
                  (void **)&b->counters, why));
    TRY(exec_take(pool, NULL, 3 * sizeof *b->list_indptr, "colocate", (void **)&b->list_indptr, why));
    TRY(exec_take(pool, NULL, sizeof *b->wrong, "colocate", (void **)&b->wrong, why));
    b->us = (double *)malloc((size_t)CASES * (size_t)b->runs * sizeof *b->us);
    if (!b->us) return status_fail(why, STATUS_NO_MEMORY, "colocate: out of memory");
    CUDA_TRY(cudaStreamCreateWithFlags(&b->other, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreate(&b->begin));
    CUDA_TRY(cudaEventCreate(&b->end));
    CUDA_TRY(cudaEventCreateWithFlags(&b->fork, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&b->join, cudaEventDisableTiming));
    return STATUS_OK;
}

static enum status run_all(struct bench *b, struct cuda_device *d, const struct colocate_options *o,
                           struct colocate *out, struct why *why)
{
    struct colocate_work *w = &b->work;
    w->a = b->x.a;
    w->b = b->x.b;
    w->c = b->x.c;
    w->d = b->x.d;
    w->n_memory = b->x.n;
    w->factor = 2;
    w->ctas = COLOCATE_CTAS;
    colocate_fill_inputs<<<(unsigned)b->sms * 8, COLOCATE_THREADS, 0, b->stream>>>(b->x);
    CUDA_TRY(cudaGetLastError());
    out->n = b->x.n;
    out->runs = b->runs;
    for (int32_t point = 1; point <= COLOCATE_POINTS; point++)
        for (int32_t barrier = 0; barrier < 2; barrier++) {
            if (o->step) o->step(COLOCATE_ITERS * point / COLOCATE_POINTS, barrier != 0);
            TRY(run_group(b, d, point, barrier != 0, out, why));
        }
    return STATUS_OK;
}

extern "C" enum status colocate_run(struct cuda_device *d, const struct colocate_options *options,
                                    struct colocate *out, struct why *why)
{
    struct exec_pool pool;
    struct bench b;
    memset(&pool, 0, sizeof pool);
    memset(&b, 0, sizeof b);
    memset(out, 0, sizeof *out);
    b.stream = d->stream;
    b.sms = d->properties.multiProcessorCount;
    b.runs = options->runs < 1 ? 1 : options->runs;
    enum status status = cuda_card(d, &out->card, why);
    if (status == STATUS_OK) status = take(&b, options, &pool, why);
    if (status == STATUS_OK) status = run_all(&b, d, options, out, why);
    cudaEvent_t events[4] = {b.begin, b.end, b.fork, b.join};
    for (int i = 0; i < 4; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    if (b.other) cudaStreamDestroy(b.other);
    free(b.us);
    exec_release(&pool);
    return status;
}
