#include "tests/cuda_cpu.h"

#include "tests/cuda_shim.h"

#include "cuda/lower.h"
#include "ref/convert.h"
#include "sched/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline float number_load(int type, const void *base, int64_t i)
{
    float x;
    convert_to_float((enum dtype)type, base, (size_t)i, 1, &x);
    return x;
}

static inline void number_store(int type, void *base, int64_t i, float value)
{
    convert_store((enum dtype)type, value, base, (size_t)i);
}

#include "cuda/attn_1_naive.cuh"

enum { POISON = 0xff, GUARD = 8 };
static const int32_t guard_word = 0x5afe5afe;

/* One launch, and what is counted about it. */
struct launch {
    struct view_launch l;
    struct worker_halves h;
    int32_t *ran; /* times each item ran */
};
static struct launch *current;

void team_sync_cpu(const struct team *t)
{
    if (t->threads == 32)
        shim_sync_warp();
    else
        shim_sync_named(1 + t->index, t->threads);
}

static void attn(const struct view_launch *l, const struct item *item, int32_t role, const struct team *t)
{
    const struct shape *s = &l->x.b.shape;
    if (t->thread == 0) current->ran[item - l->x.items]++;
    if (s->head_dim_qk <= 128 && s->head_dim_vo <= 128)
        attn_1_128(l, item, role, t);
    else
        attn_1_1024(l, item, role, t);
}

static void kernel(void *args, void *shared)
{
    const struct launch *x = args;
    if (x->l.g.is_merge)
        worker_merges(&x->l);
    else
        worker_loop(&x->l, &x->h, NULL, shared, attn);
}

/* ---- what the host gives the kernels -------------------------------------------------------------------------------- */

struct memory {
    struct view x;
    struct lowered lowered;
    float *alibi;
    void *o;
    size_t o_bytes;
    int32_t *ran, *counters; /* counters: a guard before and behind each grid's */
    size_t n_counters;
};

static void *poisoned(size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (!p) abort();
    memset(p, POISON, bytes);
    return p;
}

static void view_tensors(const struct cuda_cpu *c, const struct result *out, struct memory *m)
{
    const struct tensors *t = c->t;
    struct view *x = &m->x;
    x->b = *c->b;
    x->q = t->q;
    x->k = t->k;
    x->v = t->v;
    x->q_rows = (struct view_rows){t->q_stride.token, t->q_stride.head};
    x->o_rows = (struct view_rows){out->o_stride.token, out->o_stride.head};
    x->k_keys = (struct view_keys){t->k_stride.page, t->k_stride.pos, t->k_stride.head};
    x->v_keys = (struct view_keys){t->v_stride.page, t->v_stride.pos, t->v_stride.head};
    x->sm_scale = (float)batch_sm_scale(c->b);
    m->o_bytes = out->o_elements * (size_t)dtype_bytes(c->b->shape.q_dtype);
    x->o = m->o = poisoned(m->o_bytes);
    x->lse = out->lse;
    if (!c->b->mask.alibi) return;
    x->alibi = m->alibi = poisoned((size_t)c->b->shape.num_qo_heads * sizeof(float));
    for (int32_t h = 0; h < c->b->shape.num_qo_heads; h++)
        m->alibi[h] = lower_alibi_slope(h, c->b->shape.num_qo_heads);
}

static void view_plan(const struct plan *p, struct memory *m)
{
    struct why why = {""};
    struct view *x = &m->x;
    if (lower_plan(p, &m->lowered, &why) != STATUS_OK) abort();
    x->items = p->items;
    x->list_indptr = p->list_indptr;
    x->home = p->home;
    x->steal = p->steal;
    x->group_indptr = p->group_indptr;
    x->members = p->members;
    x->member_first = m->lowered.member_first;
    x->merges = p->merges;
    x->merge_indptr = p->merge_indptr;
    x->merge_src = p->merge_src;
    x->item_merge_indptr = m->lowered.item_merge_indptr;
    x->item_merges = m->lowered.item_merges;
    x->merge_needs = m->lowered.merge_needs;
    x->merge_arrived = calloc((size_t)p->n_merges + 1, sizeof(int32_t));
    x->partial_o = poisoned((size_t)p->partial_rows * (size_t)x->b.shape.head_dim_vo * sizeof(float));
    x->partial_lse = poisoned((size_t)p->partial_rows * sizeof(float));
    if (!x->merge_arrived) abort();
}

static void take_counters(const struct cuda_cpu *c, struct memory *m)
{
    m->n_counters = GUARD;
    for (int32_t i = 0; i < c->p->n_grids; i++) {
        const struct view_grid g = lower_grid(c->p, i, c->sm_count);
        m->n_counters += (size_t)view_counters(&g) + GUARD;
    }
    m->counters = malloc(m->n_counters * sizeof *m->counters);
    if (!m->counters) abort();
    for (size_t i = 0; i < m->n_counters; i++)
        m->counters[i] = guard_word;
    int32_t *next = m->counters + GUARD;
    for (int32_t i = 0; i < c->p->n_grids; i++) {
        const struct view_grid g = lower_grid(c->p, i, c->sm_count);
        memset(next, 0, (size_t)view_counters(&g) * sizeof *next);
        next += view_counters(&g) + GUARD;
    }
    m->ran = calloc((size_t)c->p->n_items + 1, sizeof *m->ran);
    if (!m->ran) abort();
}

static void forget(struct memory *m)
{
    lowered_free(&m->lowered);
    free(m->x.merge_arrived);
    free(m->x.partial_o);
    free(m->x.partial_lse);
    free(m->alibi);
    free(m->o);
    free(m->counters);
    free(m->ran);
}

/* ---- running and looking ---------------------------------------------------------------------------------------------- */

static bool run_grids(const struct cuda_cpu *c, struct memory *m, uint64_t seed)
{
    int32_t *next = m->counters + GUARD;
    for (int32_t i = 0; i < c->p->n_grids; i++) {
        const struct kernel *k = kernel_row((enum kernel_id)c->p->grids[i].kernel);
        struct launch x = {{m->x, lower_grid(c->p, i, c->sm_count)}, lower_halves(k), m->ran};
        x.l.g.counters = next;
        next += view_counters(&x.l.g) + GUARD;
        const struct shim_launch launch = {.kernel = kernel,
                                           .args = &x,
                                           .n_ctas = c->p->grids[i].n_ctas,
                                           .threads = k->threads,
                                           .shared_bytes = WORKER_WORDS * (int32_t)sizeof(int32_t),
                                           .resident =
                                               1 + (int32_t)((seed + (uint64_t)i) % SHIM_MAX_RESIDENT),
                                           .seed = seed * 1000 + (uint64_t)i};
        current = &x;
        if (!shim_run(&launch)) return false;
    }
    return true;
}

/* NULL, or what is wrong with the counters after whole runs. */
static const char *look_at_counters(const struct cuda_cpu *c, const struct memory *m)
{
    const int32_t *next = m->counters;
    for (int32_t i = 0; i <= c->p->n_grids; i++) {
        for (int k = 0; k < GUARD; k++)
            if (*next++ != guard_word) return "a kernel wrote past its counters";
        if (i == c->p->n_grids) break;
        const struct view_grid g = lower_grid(c->p, i, c->sm_count);
        for (int32_t k = 0; k < view_counters(&g); k++)
            if (*next++ != 0) return "a grid left counters that are not 0";
    }
    for (int32_t i = 0; i < c->p->n_merges; i++)
        if (m->x.merge_arrived[i] != 0) return "a merge was left with arrivals";
    for (int32_t i = 0; i < c->p->n_items; i++)
        if (m->ran[i] != c->replays) return "an item did not run exactly once";
    return NULL;
}

/* Rows to fp32; false: bytes between rows changed. */
static bool take_rows(const struct cuda_cpu *c, struct memory *m, struct result *out)
{
    const enum dtype type = c->b->shape.q_dtype;
    const size_t bytes = (size_t)dtype_bytes(type), dv = (size_t)out->head_dim_vo;
    unsigned char *raw = m->o;
    for (size_t row = 0; row < out->n_rows; row++) {
        const size_t at = tensor_row_at(out->o_stride, out->num_qo_heads, row);
        convert_to_float(type, raw, at, dv, out->o + at);
        memset(raw + at * bytes, POISON, dv * bytes);
    }
    for (size_t i = 0; i < m->o_bytes; i++)
        if (raw[i] != POISON) return false;
    return true;
}

bool cuda_cpu_run(const struct cuda_cpu *c, struct result *out, char *why, size_t why_size)
{
    struct memory m = {0};
    const char *wrong = NULL;
    view_tensors(c, out, &m);
    view_plan(c->p, &m);
    take_counters(c, &m);
    for (int32_t i = 0; i < c->replays && !wrong; i++) {
        memset(m.o, POISON, m.o_bytes);
        memset(out->lse, POISON, out->n_rows * sizeof *out->lse);
        memset(m.x.partial_o, POISON, (size_t)c->p->partial_rows * (size_t)out->head_dim_vo * sizeof(float));
        memset(m.x.partial_lse, POISON, (size_t)c->p->partial_rows * sizeof(float));
        if (!run_grids(c, &m, c->seed + (uint64_t)i)) wrong = shim_why;
    }
    if (!wrong) wrong = look_at_counters(c, &m);
    if (!wrong && !take_rows(c, &m, out)) wrong = "a kernel wrote outside the rows of O";
    if (wrong) snprintf(why, why_size, "%s", wrong);
    forget(&m);
    return wrong == NULL;
}
