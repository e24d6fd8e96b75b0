/* worker: what a CTA does from start to end, whichever kernel it belongs to: draws work as the plan's dispatch says,
 * runs items, merges where it was the last to arrive, notes spans. In the common subset of C11 and CUDA C++.
 *
 * A kernel supplies a worker_attn: attention of one item by a team, some of the CTA's warps that share a named barrier
 * and a slice of shared memory. It is a constant where worker_loop is called, so the call is inlined.
 *
 *   one team            FIXED and QUEUE grids: the threads that the item's half needs; the rest wait
 *   a team a lane       SM_TICKET grids of rows with lanes: each takes one of the entries drawn (virtual CTAs)
 *   a team a half       BESIDE rows: prefill items on the first warps, decode items on the others, side by side */
#ifndef TANDEM_CUDA_WORKER_CUH
#define TANDEM_CUDA_WORKER_CUH

#include "cuda/draw.h"
#include "cuda/merge_rows.cuh"

struct team {
    int32_t thread, threads; /* this thread's place; whole warps */
    int32_t index;           /* its named barrier is 1 + index */
    char *smem;
};

/* Barrier numbers are constants, so that a kernel asks for no more of the SM's 64 than it has teams. */
static __device__ __forceinline__ void team_sync(const struct team *t)
{
#if defined(__CUDACC__)
    if (t->threads == 32)
        __syncwarp();
    else if (t->index == 0)
        asm volatile("bar.sync 1, %0;" ::"r"(t->threads) : "memory");
    else if (t->index == 1)
        asm volatile("bar.sync 2, %0;" ::"r"(t->threads) : "memory");
    else if (t->index == 2)
        asm volatile("bar.sync 3, %0;" ::"r"(t->threads) : "memory");
    else
        asm volatile("bar.sync 4, %0;" ::"r"(t->threads) : "memory");
#else
    team_sync_cpu(t);
#endif
}

static __device__ __forceinline__ uint64_t worker_now(void)
{
#if defined(__CUDACC__)
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#else
    return 0;
#endif
}

static __device__ __forceinline__ uint32_t worker_sm(void)
{
#if defined(__CUDACC__)
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
#else
    return worker_sm_cpu();
#endif
}

static __device__ __forceinline__ void worker_note(const struct view_launch *l, struct view_span *span, uint64_t begin,
                                                   int32_t lane)
{
    span->begin_ns = begin;
    span->end_ns = worker_now();
    span->sm = (int32_t)worker_sm();
    span->cta = (int32_t)blockIdx.x;
    span->lane = lane;
    span->grid = l->g.index;
}

/* The item's partial rows are written: does every merge that now has all its sources. The flag in shared memory is the
 * team's own. */
static __device__ void worker_arrive(const struct view_launch *l, int32_t item, const struct team *t, int32_t *flag)
{
    const struct view *x = &l->x;
    for (int32_t i = x->item_merge_indptr[item]; i < x->item_merge_indptr[item + 1]; i++) {
        __threadfence();
        team_sync(t);
        if (t->thread == 0) *flag = draw_arrive(x, x->item_merges[i]);
        team_sync(t);
        if (!*flag) continue;
        __threadfence();
        merge_rows(x, x->item_merges[i], t->thread / 32, t->threads / 32, t->thread % 32);
    }
}

typedef void (*worker_attn)(const struct view_launch *l, const struct item *item, int32_t role, const struct team *t);

static __device__ __forceinline__ int32_t worker_role(const struct view_grid *g, const struct item *item)
{
    return g->prefill_kernel >= 0 && item->kernel != g->prefill_kernel ? WORK_DECODE : WORK_PREFILL;
}

/* One item, start to end. flag: a word of shared memory that is the team's own. */
static __device__ __forceinline__ void worker_item(const struct view_launch *l, int32_t i, int32_t role,
                                                   const struct team *t, int32_t *flag, worker_attn attn)
{
    const uint64_t begin = l->x.item_spans ? worker_now() : 0;
    attn(l, &l->x.items[i], role, t);
    if (l->x.item_merge_indptr) worker_arrive(l, i, t, flag);
    if (!l->x.item_spans) return;
    team_sync(t);
    if (t->thread == 0) worker_note(l, &l->x.item_spans[i], begin, t->index);
}

/* What a thread works on: items [next, end) with a team of its own; or, where the whole CTA is one team, with the
 * threads that each item's half needs. */
struct worker_share {
    struct team team;
    int32_t next, end;
    bool whole;
};

/* The entries an SM ticket drew, one a lane. word: two words of shared memory. */
static __device__ __forceinline__ void worker_deal_ticket(const struct view_launch *l, const struct worker_halves *h,
                                                          char *smem, int32_t *word, struct worker_share *w)
{
    if (threadIdx.x == 0) {
        const struct range drawn = draw_ticket(&l->x, &l->g, worker_sm());
        word[0] = drawn.begin;
        word[1] = drawn.end;
    }
    __syncthreads();
    w->next = word[0];
    w->end = word[1];
    if (w->next == w->end) return;
    const int32_t role = worker_role(&l->g, &l->x.items[w->next]);
    if (l->g.lanes[role] == 1) return;
    const int32_t threads = h->threads[role], lane = (int32_t)threadIdx.x / threads;
    w->whole = false;
    w->team.thread = (int32_t)threadIdx.x % threads;
    w->team.threads = threads;
    w->team.index = lane;
    w->team.smem = smem + (int64_t)lane * h->smem_bytes[role];
    w->next += lane;
    if (w->end > w->next + 1) w->end = w->next + 1;
}

/* Prefill items on the first warps, decode items on the warps behind them. */
static __device__ __forceinline__ void worker_deal_beside(const struct view_launch *l, const struct worker_halves *h,
                                                          char *smem, struct range list, struct worker_share *w)
{
    const int32_t middle = draw_first_decode(&l->x, &l->g, list), first = h->threads[WORK_PREFILL];
    const int32_t role = (int32_t)threadIdx.x < first ? WORK_PREFILL : WORK_DECODE;
    w->whole = false;
    w->team.thread = (int32_t)threadIdx.x - (role == WORK_DECODE ? first : 0);
    w->team.threads = h->threads[role];
    w->team.index = role;
    w->team.smem = smem + (role == WORK_DECODE ? h->smem_bytes[WORK_PREFILL] : 0);
    w->next = role == WORK_DECODE ? middle : list.begin;
    w->end = role == WORK_DECODE ? list.end : middle;
}

/* Words of shared memory that worker_loop needs: two for what was drawn, a flag a team. */
enum { WORKER_WORDS = 2 + KERNEL_MAX_LANES };

/* A CTA's life. */
static __device__ __forceinline__ void worker_loop(const struct view_launch *l, const struct worker_halves *h,
                                                   char *smem, int32_t *word, worker_attn attn)
{
    struct worker_share w = {{(int32_t)threadIdx.x, 0, 0, smem}, 0, 0, true};
    int32_t tried = 0;
    if (l->g.dispatch == DISPATCH_SM_TICKET) {
        worker_deal_ticket(l, h, smem, word, &w);
    } else if (l->g.dispatch == DISPATCH_FIXED) {
        const struct range list = draw_list(&l->x, &l->g, (int32_t)blockIdx.x);
        w.next = list.begin;
        w.end = list.end;
        if (l->g.is_beside) worker_deal_beside(l, h, smem, list, &w);
    }
    for (;;) {
        int32_t i = w.next < w.end ? w.next++ : -1;
        if (l->g.dispatch == DISPATCH_QUEUE) {
            if (threadIdx.x == 0) word[0] = draw_queue(&l->x, &l->g, (int32_t)blockIdx.x, &tried);
            __syncthreads();
            i = word[0];
        }
        if (i < 0) break;
        const int32_t role = worker_role(&l->g, &l->x.items[i]);
        if (w.whole) w.team.threads = h->threads[role];
        if (w.team.thread < w.team.threads) worker_item(l, i, role, &w.team, word + 2 + w.team.index, attn);
        if (w.whole) __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x == 0) draw_done(&l->g);
}

/* A CTA of a merge grid. */
static __device__ void worker_merges(const struct view_launch *l)
{
    const struct range list = draw_list(&l->x, &l->g, (int32_t)blockIdx.x);
    for (int32_t m = list.begin; m < list.end; m++) {
        const uint64_t begin = l->x.merge_spans ? worker_now() : 0;
        merge_rows(&l->x, m, (int32_t)threadIdx.x / 32, (int32_t)blockDim.x / 32, (int32_t)threadIdx.x % 32);
        if (!l->x.merge_spans) continue;
        __syncthreads();
        if (threadIdx.x == 0) worker_note(l, &l->x.merge_spans[m], begin, 0);
    }
}

#endif
