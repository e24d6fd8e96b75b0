#include "tests/colocate_cpu.h"

#include "tests/cuda_shim.h"

#include "cuda/colocate_body.cuh"

#include <stdlib.h>

enum { GUARD = 64 };
static const float guard_value = -7;

static void *zeros(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    if (!p) abort();
    return p;
}

/* ---- counting ------------------------------------------------------------------------------------------ */

struct counts {
    int32_t *done[2]; /* by op */
    int64_t n[2], outside;
};

/* A thread's walk, barriers left out. */
static void count_team(struct colocate_team t, struct counts *k)
{
    for (int64_t j = colocate_first(t) + t.thread; j < k->n[t.op]; j += colocate_stride(t))
        if (j < 0)
            k->outside++;
        else
            k->done[t.op][j]++;
}

static void count_thread(int32_t shape, struct colocate_place p, int32_t entry, int32_t n_memory,
                         struct counts *k)
{
    switch (shape) {
    case COLOCATE_ONE_MEMORY:
        count_team(colocate_whole(p, COLOCATE_MEMORY), k);
        return;
    case COLOCATE_ONE_COMPUTE:
        count_team(colocate_whole(p, COLOCATE_COMPUTE), k);
        return;
    case COLOCATE_HALVES:
        count_team(colocate_halves(p), k);
        return;
    case COLOCATE_EVEN_ODD:
        count_team(colocate_even_odd(p), k);
        return;
    case COLOCATE_TICKETS:
        count_team(colocate_entry(p, entry, n_memory), k);
        return;
    case COLOCATE_WARPS:
        count_team(colocate_warps(p), k);
        return;
    default:
        count_team(colocate_whole(p, COLOCATE_MEMORY), k);
        count_team(colocate_whole(p, COLOCATE_COMPUTE), k);
    }
}

static bool works_on(int32_t shape, int32_t op)
{
    return shape != (op == COLOCATE_MEMORY ? COLOCATE_ONE_COMPUTE : COLOCATE_ONE_MEMORY);
}

/* Tickets with counters between guards, which come back as outside. */
struct drawing {
    struct view_launch l;
    int32_t list[3], *counters;
};

static void drawing_begin(const struct colocate_cpu *c, struct drawing *d)
{
    colocate_tickets(&d->l, c->ticket_kind, c->memory_ctas, c->ctas, c->sm_count);
    d->list[0] = 0;
    d->list[1] = c->memory_ctas;
    d->list[2] = c->ctas;
    d->counters = zeros((size_t)view_counters(&d->l.g) + 2, sizeof *d->counters);
    d->l.x.list_indptr = d->list;
    d->l.g.counters = d->counters + 1;
}

static int64_t drawing_end(const struct drawing *d)
{
    const int64_t touched = (d->counters[0] != 0) + (d->counters[1 + view_counters(&d->l.g)] != 0);
    free(d->counters);
    return touched;
}

int64_t colocate_cpu_count(const struct colocate_cpu *c, const uint32_t *sm)
{
    struct drawing d;
    struct counts k = {.n = {c->n_memory, c->n_compute}};
    for (int32_t op = 0; op < 2; op++)
        k.done[op] = zeros((size_t)k.n[op], sizeof *k.done[op]);
    drawing_begin(c, &d);
    for (int32_t cta = 0; cta < c->ctas; cta++) {
        const int32_t entry = sm ? colocate_draw(&d.l, sm[cta]) : 0;
        for (int32_t thread = 0; thread < c->threads && entry >= 0; thread++)
            count_thread(c->shape, (struct colocate_place){cta, c->ctas, thread, c->threads}, entry,
                         c->memory_ctas, &k);
    }
    int64_t wrong = k.outside + drawing_end(&d);
    for (int32_t op = 0; op < 2; op++) {
        for (int64_t j = 0; j < k.n[op]; j++)
            wrong += k.done[op][j] != works_on(c->shape, op);
        free(k.done[op]);
    }
    return wrong;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static const struct colocate_cpu *current;

static void kernel(void *args, void *shared)
{
    colocate_cta(args, current->shape, current->barrier, shared);
}

/* n floats between guards. */
static float *guarded(int64_t n)
{
    float *p = zeros((size_t)n + 2 * GUARD, sizeof *p);
    for (int64_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = guard_value;
    return p + GUARD;
}

static int64_t guarded_free(float *p, int64_t n)
{
    int64_t touched = 0;
    for (int64_t i = 0; i < GUARD; i++)
        touched += (p[i - GUARD] != guard_value) + (p[n + i] != guard_value);
    free(p - GUARD);
    return touched;
}

bool colocate_cpu_run(const struct colocate_cpu *c, int64_t *wrong)
{
    const int64_t n = c->n_memory > c->n_compute ? c->n_memory : c->n_compute;
    struct drawing d;
    float *a = guarded(n), *b = guarded(n), *x = guarded(n), *y = guarded(n);
    for (int64_t j = 0; j < n; j++) {
        a[j] = colocate_a(j);
        b[j] = colocate_b(j);
        x[j] = colocate_c(j, false);
        y[j] = colocate_d(j, false);
    }
    drawing_begin(c, &d);
    struct colocate_work work = {a, b, x, y, c->n_memory, c->n_compute, 2, c->ctas, d.l};
    const struct shim_launch launch = {kernel, &work, c->ctas, c->threads, sizeof(int32_t), SHIM_MAX_RESIDENT,
                                       c->seed};
    current = c;
    const bool met = shim_run(&launch);
    *wrong = drawing_end(&d);
    for (int64_t j = 0; j < n; j++)
        *wrong +=
            !colocate_right(x[j], colocate_c(j, works_on(c->shape, COLOCATE_MEMORY) && j < c->n_memory)) +
            !colocate_right(y[j], colocate_d(j, works_on(c->shape, COLOCATE_COMPUTE) && j < c->n_compute)) +
            (a[j] != colocate_a(j)) + (b[j] != colocate_b(j));
    *wrong += guarded_free(a, n) + guarded_free(b, n) + guarded_free(x, n) + guarded_free(y, n);
    return met;
}
