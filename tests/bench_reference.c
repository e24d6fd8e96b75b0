/* bench_reference: how fast ref_exec is, beside what bounds it on this machine, in one run.
 *
 *   bench_reference                                                        the table of ref/NOTES.md
 *   bench_reference THREADS decode|prefill KV NQ BATCH f32|f16|bf16 nhd|hnd COLD [POLICY]     one line of it
 *
 * 32/8 heads, head_dim 128, pages of 16 in random order. prefill: NQ new tokens, beside OpenBLAS' sgemm of 512^3
 * on every thread at once. decode: beside a bare read of the same K and V rows in the same order by the same
 * tasks. COLD 1: rounds go over copies of the cache of 1 GiB in all, so that nothing is in a cache. Rounds
 * of ours and of the bound alternate; medians. */
#include "lab/run.h"
#include "ref/exec_tasks.h"
#include "tests/random_batch.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 400, MIN_ROUNDS = 7, GEMM = 512 };

struct bench_case {
    bool prefill;
    int32_t kv, nq, batch, cold;
    enum dtype type;
    enum layout order;
    const char *policy;
};

struct bench {
    struct workload w; /* all copies' requests, one pool */
    struct tensors t;
    struct batch *view; /* [n_copies] */
    int32_t n_copies;
    struct plan plan;
    struct result out;
    struct exec_tasks tasks;
    float *gemm; /* 3 matrices a thread */
};

static void must(enum status s, const struct why *why)
{
    if (s == STATUS_OK) return;
    fprintf(stderr, "bench_reference: %s\n", why->text);
    exit(4);
}

static int compare_doubles(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Copy i's requests are [i * batch, (i + 1) * batch) of all; every copy has the same lengths, so one plan. */
static void make_views(const struct bench_case *c, struct bench *x)
{
    x->view = malloc((size_t)x->n_copies * sizeof *x->view);
    for (int32_t i = 0; i < x->n_copies; i++) {
        const int32_t first = i * c->batch;
        int32_t *indptr = malloc(((size_t)c->batch + 1) * sizeof *indptr);
        for (int32_t r = 0; r <= c->batch; r++)
            indptr[r] = x->w.kv_indptr[first + r] - x->w.kv_indptr[first];
        x->view[i] = x->w.batch;
        x->view[i].n_requests = c->batch;
        x->view[i].kv.kv_indptr = indptr;
        x->view[i].kv.kv_indices = x->w.kv_indices + x->w.kv_indptr[first];
    }
}

static void create(const struct bench_case *c, struct bench *x)
{
    struct workload_params p = workload_default_params();
    struct machine m;
    struct why why = {""};
    char spec[64];
    memset(x, 0, sizeof *x);
    p.layout.order = c->order;
    p.shape.kv_dtype = c->type;
    p.shape.q_dtype = c->type == DTYPE_FP32 ? DTYPE_FP32 : c->type;
    const double bytes = (double)c->batch * c->kv * p.shape.num_kv_heads * (double)shape_key_bytes(&p.shape);
    x->n_copies = c->cold ? (int32_t)(0x1p30 / bytes) + 1 : 1;
    snprintf(spec, sizeof spec, "%dq%ds%d", c->batch * x->n_copies, c->nq, c->kv);
    must(workload_from_spec(spec, &p, &x->w, &why), &why);
    must(tensors_create(&x->w.batch, &x->w.layout, x->w.fill, 1, &x->t, &why), &why);
    make_views(c, x);
    test_machine(&x->w, &m);
    const struct policy *policy = policy_find(c->policy);
    if (!policy) exit(2);
    must(policy_plan(policy, &x->view[0], &m.gpu, &m.kernels, NULL, &x->plan, &why), &why);
    must(result_create(&x->view[0], x->w.layout.o, &x->out, &why), &why);
    exec_tasks_create(&x->plan, &x->view[0], omp_get_max_threads(), &x->tasks);
    x->gemm = calloc((size_t)omp_get_max_threads() * 3 * GEMM * GEMM, sizeof *x->gemm);
}

static void destroy(struct bench *x)
{
    for (int32_t i = 0; i < x->n_copies; i++)
        free((void *)(uintptr_t)x->view[i].kv.kv_indptr);
    free(x->view);
    free(x->gemm);
    exec_tasks_free(&x->tasks);
    result_free(&x->out);
    plan_free(&x->plan);
    tensors_free(&x->t);
    workload_free(&x->w);
}

static double run_ours(struct bench *x, int32_t copy)
{
    struct why why = {""};
    const double begin = omp_get_wtime();
    must(ref_exec(&x->view[copy], &x->t, &x->plan, NULL, &x->out, &why), &why);
    return omp_get_wtime() - begin;
}

static uint64_t read_row(const char *p, size_t bytes)
{
    uint64_t sum = 0;
    const uint64_t *words = (const uint64_t *)(const void *)p;
#pragma omp simd reduction(^ : sum)
    for (size_t i = 0; i < bytes / 8; i++)
        sum ^= words[i];
    return sum;
}

/* Reads what a task reads: tile by tile, K then V of each of its kv heads, asking for rows AHEAD. */
static uint64_t read_task(const struct bench *x, const struct batch *b, const struct exec_task *task)
{
    enum { TILE = 64, AHEAD = 16 };
    const size_t size = (size_t)dtype_bytes(b->shape.kv_dtype), bytes = (size_t)b->shape.head_dim_qk * size;
    const struct item *first = &x->plan.items[x->tasks.segments[x->tasks.blocks[task->begin].begin].item];
    const int32_t *pages = b->kv.kv_indices + b->kv.kv_indptr[first->group];
    uint64_t sum = 0;
    for (int32_t key = first->kv_begin; key < first->kv_end; key += TILE)
        for (int32_t k = task->begin; k < task->end; k++)
            for (int32_t v = 0; v < 2; v++) {
                const int32_t head = x->plan.items[x->tasks.segments[x->tasks.blocks[k].begin].item].kv_head;
                const char *pool = v ? x->t.v : x->t.k;
                for (int32_t j = key; j < key + TILE && j < first->kv_end; j++) {
                    const int32_t far = j + AHEAD < first->kv_end ? j + AHEAD : j;
                    const char *next =
                        pool + size * tensor_kv_at(x->t.k_stride, pages[far / 16], far % 16, head);
                    for (size_t line = 0; line < bytes; line += 64)
                        __builtin_prefetch(next + line, 0, 3);
                    sum ^= read_row(pool + size * tensor_kv_at(x->t.k_stride, pages[j / 16], j % 16, head),
                                    bytes);
                }
            }
    return sum;
}

static double run_read(struct bench *x, int32_t copy)
{
    uint64_t sum = 0;
    const double begin = omp_get_wtime();
#pragma omp parallel for schedule(dynamic) reduction(^ : sum)
    for (int32_t i = 0; i < x->tasks.n_tasks; i++)
        sum ^= read_task(x, &x->view[copy], &x->tasks.tasks[i]);
    const double seconds = omp_get_wtime() - begin;
    return sum == 1 ? -seconds : seconds; /* keeps the reads */
}

/* One sgemm a thread, all at once; seconds of 2 GEMM^3 FLOPs on each. */
static double run_gemm(struct bench *x, int32_t copy)
{
    (void)copy;
    const double begin = omp_get_wtime();
#pragma omp parallel
    {
        float *a = x->gemm + (size_t)omp_get_thread_num() * 3 * GEMM * GEMM;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, GEMM, GEMM, GEMM, 1, a, GEMM, a + GEMM * GEMM,
                    GEMM, 0, a + 2 * GEMM * GEMM, GEMM);
    }
    return omp_get_wtime() - begin;
}

static double median(double *x, int32_t n)
{
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[n / 2];
}

static void report(const struct bench_case *c, const struct bench *x, double ours, double bound, int32_t n)
{
    const struct shape *s = &x->w.batch.shape;
    const double key_bytes = (double)c->batch * c->kv * s->num_kv_heads * (double)shape_key_bytes(s);
    double pairs = 0;
    for (int32_t i = 0; i < c->nq; i++)
        pairs += c->kv - c->nq + i + 1;
    const double flops = pairs * 4 * s->head_dim_qk * s->num_qo_heads * c->batch;
    const double gemm = 2.0 * GEMM * GEMM * GEMM * omp_get_max_threads() / bound;
    printf("tandem %-7s threads=%d kv=%-5d nq=%-3d batch=%d %s %s cold=%d n=%d median_ms=%.3f ",
           c->prefill ? "prefill" : "decode", omp_get_max_threads(), c->kv, c->nq, c->batch,
           dtype_name(c->type), c->order == LAYOUT_NHD ? "nhd" : "hnd", c->cold, n, ours * 1e3);
    if (c->prefill)
        printf("GF/s=%.1f sgemm=%.1f of_bound=%.2f\n", flops / ours * 1e-9, gemm * 1e-9, flops / ours / gemm);
    else
        printf("GB/s=%.2f read=%.2f of_bound=%.2f\n", key_bytes / ours * 1e-9, key_bytes / bound * 1e-9,
               bound / ours);
    fflush(stdout);
}

static void bench(const struct bench_case *c)
{
    static double ours[MAX_ROUNDS], bound[MAX_ROUNDS];
    struct bench x;
    int32_t n = 0;
    create(c, &x);
    run_ours(&x, 0);
    const double end = omp_get_wtime() + 2;
    while (n < MIN_ROUNDS || (n < MAX_ROUNDS && omp_get_wtime() < end)) {
        /* different copies, half of all apart: what one read is not in a cache for the other */
        ours[n] = run_ours(&x, n % x.n_copies);
        bound[n] = c->prefill ? run_gemm(&x, 0) : run_read(&x, (n + x.n_copies / 2) % x.n_copies);
        n++;
    }
    report(c, &x, median(ours, n), median(bound, n), n);
    destroy(&x);
}

int main(int argc, char **argv)
{
    if (argc >= 9) {
        const struct bench_case c = {
            .prefill = strcmp(argv[2], "prefill") == 0,
            .kv = atoi(argv[3]),
            .nq = atoi(argv[4]),
            .batch = atoi(argv[5]),
            .type = strcmp(argv[6], "f32") == 0    ? DTYPE_FP32
                    : strcmp(argv[6], "bf16") == 0 ? DTYPE_BF16
                                                   : DTYPE_FP16,
            .order = strcmp(argv[7], "hnd") == 0 ? LAYOUT_HND : LAYOUT_NHD,
            .cold = atoi(argv[8]),
            .policy = argc > 9 ? argv[9] : "fi_batch_pod",
        };
        omp_set_num_threads(atoi(argv[1]));
        bench(&c);
        return 0;
    }
    for (int32_t kv = 4096; kv <= 16384; kv *= 4)
        for (int type = DTYPE_FP32; type <= DTYPE_FP16; type++) {
            const struct bench_case prefill = {true,          kv, 512, 1, 0, (enum dtype)type, LAYOUT_NHD,
                                               "fi_batch_pod"};
            bench(&prefill);
            for (int32_t batch = 1; batch <= 8; batch *= 8)
                for (int order = 0; order < 2; order++) {
                    const struct bench_case c = {
                        false, kv, 1, batch, 1, (enum dtype)type, (enum layout)order, "fi_batch_pod"};
                    bench(&c);
                }
        }
    return 0;
}
