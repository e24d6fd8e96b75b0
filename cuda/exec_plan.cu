/* exec_plan: a plan onto the device: its arrays, its workspace, the kernel of each grid, the graph of its launches. */
#include "cuda/exec_internal.h"
#include "cuda/lower.h"

extern "C" {
#include "sched/plan_check.h"
}

#include <chrono>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double now_us(void)
{
    return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
               .count() /
           1e3;
}

void exec_prepared_free(struct exec_prepared *p)
{
    if (p->graph) cudaGraphExecDestroy(p->graph);
    for (int32_t i = 0; i < p->n_streams; i++)
        if (p->streams[i]) cudaStreamDestroy(p->streams[i]);
    free(p->streams);
    free(p->launches);
    free(p->after);
    free(p->items);
    exec_release(&p->pool);
    memset(p, 0, sizeof *p);
}

/* ---- which kernel ------------------------------------------------------------------------------------------------ */

/* attn_2 reads rows of 16 bytes (8-bit types: 8) and writes pairs. */
static bool is_aligned(const struct cuda_tensors *t, const struct shape *s)
{
    const int64_t strides[] = {t->q_stride.token, t->q_stride.head, t->o_stride.token, t->o_stride.head,
                               t->k_stride.page,  t->k_stride.pos,  t->k_stride.head,  t->v_stride.page,
                               t->v_stride.pos,   t->v_stride.head, t->v_offset,       s->head_dim_qk,
                               s->head_dim_vo};
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++)
        if (strides[i] % 8) return false;
    return true;
}

/* Types and head sizes that attn_2 is built for. */
static bool find_attn_2(enum kernel_id row, const struct shape *s, bool plain, struct kernel_code *out)
{
    const int32_t dim = s->head_dim_qk > s->head_dim_vo ? s->head_dim_qk : s->head_dim_vo;
    const bool fp8 = dtype_is_fp8(s->kv_dtype), bf16 = s->q_dtype == DTYPE_BF16;
    if ((!bf16 && s->q_dtype != DTYPE_FP16) || (!fp8 && s->kv_dtype != s->q_dtype) || dim > 256) return false;
    if (dim <= 64) return bf16 ? kernels_attn_2_bf16_64(row, plain, out) : kernels_attn_2_fp16_64(row, plain, out);
    if (dim <= 128) return bf16 ? kernels_attn_2_bf16_128(row, plain, out) : kernels_attn_2_fp16_128(row, plain, out);
    return bf16 ? kernels_attn_2_bf16_256(row, plain, out) : kernels_attn_2_fp16_256(row, plain, out);
}

static int32_t smem_of(const struct kernel *k, const struct worker_halves *h)
{
    const int32_t p = h->smem_bytes[WORK_PREFILL] * kernel_role_lanes(k, false),
                  q = h->smem_bytes[WORK_DECODE] * kernel_role_lanes(k, true);
    if (k->role == ROLE_FUSED && k->fused_how == FUSED_BESIDE) return p + q;
    return p > q ? p : q;
}

static enum status allow_smem(const struct exec_choice *c, struct why *why)
{
    CUDA_TRY(cudaFuncSetAttribute(c->function, cudaFuncAttributeMaxDynamicSharedMemorySize, c->smem_bytes));
    /* all of the SM's memory: CTAs of two grids share an SM only when both ask for the same carve-out */
    CUDA_TRY(cudaFuncSetAttribute(c->function, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return STATUS_OK;
}

/* More CTAs would fit an SM than the row says: asks for more shared memory, so that the plan gets the machine it was
 * made for. */
static enum status hold_down(const struct cuda_device *d, int32_t ctas_per_sm, struct exec_choice *c, struct why *why)
{
    int fits = 0;
    TRY(allow_smem(c, why));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, c->function, c->threads, (size_t)c->smem_bytes));
    if (ctas_per_sm <= 0 || fits <= ctas_per_sm) return STATUS_OK;
    struct cudaFuncAttributes a;
    CUDA_TRY(cudaFuncGetAttributes(&a, c->function));
    const int32_t reserved = (int32_t)d->properties.reservedSharedMemPerBlock + (int32_t)a.sharedSizeBytes;
    int32_t most = (int32_t)(d->properties.sharedMemPerMultiprocessor / (size_t)ctas_per_sm) / 128 * 128 - reserved;
    const int32_t limit = (int32_t)d->properties.sharedMemPerBlockOptin - (int32_t)a.sharedSizeBytes;
    if (most > limit) most = limit / 128 * 128;
    if (most > c->smem_bytes) c->smem_bytes = most;
    return allow_smem(c, why);
}

enum status exec_choose(const struct cuda_device *d, enum kernel_id row, const struct shape *shape, bool plain,
                        bool aligned, enum cuda_ladder ladder, int32_t ctas_per_sm, struct exec_choice *out,
                        struct why *why)
{
    const struct kernel *k = kernel_row(row);
    struct kernel_code code;
    memset(out, 0, sizeof *out);
    out->threads = k->threads;
    if (k->role == ROLE_MERGE) {
        out->function = kernels_merge();
        return STATUS_OK;
    }
    const bool found = ladder != CUDA_LADDER_NAIVE && aligned && find_attn_2(row, shape, plain, &code);
    if (!found && ladder == CUDA_LADDER_MMA)
        return status_fail(why, STATUS_UNSUPPORTED, "attn_2_mma does not take this batch for kernel %s", k->name);
    if (!found) {
        out->function = kernels_attn_1(shape->head_dim_qk > shape->head_dim_vo ? shape->head_dim_qk
                                                                               : shape->head_dim_vo);
        out->h = lower_halves(k);
        return hold_down(d, ctas_per_sm, out, why);
    }
    out->mma = true;
    out->function = code.function;
    for (int role = 0; role < 2; role++) {
        out->h.threads[role] = code.half[role].threads;
        out->h.smem_bytes[role] = (code.half[role].smem_bytes + 127) / 128 * 128;
    }
    out->smem_bytes = smem_of(k, &out->h);
    if (out->smem_bytes > (int32_t)d->properties.sharedMemPerBlockOptin)
        return status_fail(why, STATUS_UNSUPPORTED, "kernel %s: %d bytes of shared memory: this GPU has %zu", k->name,
                           out->smem_bytes, d->properties.sharedMemPerBlockOptin);
    return hold_down(d, ctas_per_sm, out, why);
}

/* ---- arrays of the plan ------------------------------------------------------------------------------------------ */

/* Row groups, and merges by last arrivers. */
static enum status put_lowered(struct exec_prepared *e, const struct plan *p, const struct lowered *l, struct view *x,
                               struct why *why)
{
    const size_t merges_bytes = (size_t)p->n_merges * sizeof(int32_t);
    if (l->member_first) {
        TRY(exec_take(&e->pool, l->member_first, (size_t)p->n_members * sizeof(int32_t), "plan",
                      (void **)&x->member_first, why));
        TRY(exec_take(&e->pool, p->group_indptr, (size_t)p->n_group_indptr * sizeof(int32_t), "plan",
                      (void **)&x->group_indptr, why));
        TRY(exec_take(&e->pool, p->members, (size_t)p->n_members * sizeof *p->members, "plan", (void **)&x->members,
                      why));
    }
    if (!l->item_merge_indptr) return STATUS_OK;
    TRY(exec_take(&e->pool, l->item_merge_indptr, ((size_t)p->n_items + 1) * sizeof(int32_t), "plan",
                  (void **)&x->item_merge_indptr, why));
    TRY(exec_take(&e->pool, l->item_merges, (size_t)l->n_item_merges * sizeof(int32_t), "plan",
                  (void **)&x->item_merges, why));
    TRY(exec_take(&e->pool, l->merge_needs, merges_bytes, "plan", (void **)&x->merge_needs, why));
    TRY(exec_take(&e->pool, NULL, merges_bytes, "plan", (void **)&x->merge_arrived, why));
    CUDA_TRY(cudaMemset(x->merge_arrived, 0, merges_bytes));
    return STATUS_OK;
}

static enum status put_workspace(struct exec_prepared *e, const struct plan *p, const struct batch *b, struct view *x,
                                 struct why *why)
{
    e->partial_rows = (size_t)p->partial_rows;
    if (e->partial_rows == 0) return STATUS_OK;
    TRY(exec_take(&e->pool, NULL, e->partial_rows * (size_t)b->shape.head_dim_vo * sizeof(float), "workspace",
                  (void **)&x->partial_o, why));
    return exec_take(&e->pool, NULL, e->partial_rows * sizeof(float), "workspace", (void **)&x->partial_lse, why);
}

static enum status put_spans(struct exec_prepared *e, const struct plan *p, struct view *x, struct why *why)
{
    TRY(exec_take(&e->pool, NULL, (size_t)p->n_items * sizeof(struct view_span), "spans", (void **)&x->item_spans, why));
    TRY(exec_take(&e->pool, NULL, (size_t)p->n_merges * sizeof(struct view_span), "spans", (void **)&x->merge_spans,
                  why));
    e->item_spans = x->item_spans;
    e->merge_spans = x->merge_spans;
    return STATUS_OK;
}

static enum status put_plan(struct exec_prepared *e, const struct plan *p, const struct batch *b, bool spans,
                            struct view *x, struct why *why)
{
#define PUT(field, count)                                                                                          \
    TRY(exec_take(&e->pool, p->field, (size_t)(count) * sizeof *p->field, "plan", (void **)&x->field, why))
    PUT(items, p->n_items);
    PUT(list_indptr, p->n_list_indptr);
    PUT(home, p->n_home);
    PUT(steal, p->n_steal);
    PUT(merges, p->n_merges);
    PUT(merge_indptr, p->n_merge_indptr);
    PUT(merge_src, p->n_merge_src);
#undef PUT
    struct lowered lowered;
    TRY(lower_plan(p, &lowered, why));
    const enum status status = put_lowered(e, p, &lowered, x, why);
    lowered_free(&lowered);
    if (status != STATUS_OK) return status;
    TRY(put_workspace(e, p, b, x, why));
    if (spans) TRY(put_spans(e, p, x, why));
    e->n_items = p->n_items;
    e->n_merges = p->n_merges;
    e->items = (struct item *)malloc(((size_t)p->n_items + 1) * sizeof *e->items);
    e->after = (int32_t *)malloc(((size_t)p->n_after + 1) * sizeof *e->after);
    if (!e->items || !e->after) return status_fail(why, STATUS_NO_MEMORY, "cuda_prepare: out of memory");
    if (p->n_items) memcpy(e->items, p->items, (size_t)p->n_items * sizeof *e->items);
    if (p->n_after) memcpy(e->after, p->after, (size_t)p->n_after * sizeof *e->after);
    return STATUS_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void note_kernels(struct exec_prepared *e, bool mma)
{
    const char *name = mma ? "attn_2_mma" : "attn_1_naive";
    if (e->what.kernels[0] == 0)
        snprintf(e->what.kernels, sizeof e->what.kernels, "%s", name);
    else if (!strstr(e->what.kernels, name))
        snprintf(e->what.kernels, sizeof e->what.kernels, "attn_1_naive+attn_2_mma");
}

static enum status make_launch(struct cuda_device *d, const struct plan *p, int32_t index,
                               const struct cuda_options *options, const struct view *x, struct why *why)
{
    const struct grid *g = &p->grids[index];
    const struct kernel *k = kernel_row((enum kernel_id)g->kernel);
    struct exec_launch *launch = &d->p.launches[index];
    struct exec_choice c;
    const int32_t hold = options->kernels ? options->kernels->fit[g->kernel].ctas_per_sm : 0;
    const bool plain = x->plain && d->b.rope.kind == ROPE_NONE;
    TRY(exec_choose(d, (enum kernel_id)g->kernel, &d->b.shape, plain,
                    is_aligned(&d->t, &d->b.shape) && d->b.rope.kind == ROPE_NONE, options->ladder, hold, &c, why));
    launch->l.x = *x;
    launch->l.g = lower_grid(p, index, d->properties.multiProcessorCount);
    launch->h = c.h;
    launch->function = c.function;
    launch->n_ctas = g->n_ctas;
    launch->threads = c.threads;
    launch->smem_bytes = c.smem_bytes;
    launch->stream = g->stream;
    launch->after_begin = g->after_begin;
    launch->after_end = g->after_end;
    d->p.n_counters += view_counters(&launch->l.g);
    if (k->role != ROLE_MERGE) note_kernels(&d->p, c.mma);
    return STATUS_OK;
}

static enum status make_launches(struct cuda_device *d, const struct plan *p, const struct cuda_options *options,
                                 const struct view *x, struct why *why)
{
    struct exec_prepared *e = &d->p;
    e->launches = (struct exec_launch *)calloc((size_t)p->n_grids + 1, sizeof *e->launches);
    if (!e->launches) return status_fail(why, STATUS_NO_MEMORY, "cuda_prepare: out of memory");
    e->n_launches = p->n_grids;
    for (int32_t i = 0; i < p->n_grids; i++)
        TRY(make_launch(d, p, i, options, x, why));
    TRY(exec_take(&e->pool, NULL, (size_t)e->n_counters * sizeof(int32_t), "counters", (void **)&e->counters, why));
    if (e->n_counters) CUDA_TRY(cudaMemset(e->counters, 0, (size_t)e->n_counters * sizeof(int32_t)));
    int32_t *next = e->counters;
    for (int32_t i = 0; i < p->n_grids; i++) {
        e->launches[i].l.g.counters = next;
        next += view_counters(&e->launches[i].l.g);
    }
    return STATUS_OK;
}

/* ---- the graph --------------------------------------------------------------------------------------------------- */

static enum status make_streams(struct exec_prepared *e, struct why *why)
{
    int32_t most = 0;
    for (int32_t i = 0; i < e->n_launches; i++)
        if (e->launches[i].stream > most) most = e->launches[i].stream;
    e->streams = (cudaStream_t *)calloc((size_t)most + 1, sizeof *e->streams);
    if (!e->streams) return status_fail(why, STATUS_NO_MEMORY, "cuda_prepare: out of memory");
    e->n_streams = most + 1;
    for (int32_t i = 0; i < e->n_launches; i++) {
        cudaStream_t *s = &e->streams[e->launches[i].stream];
        if (!*s) CUDA_TRY(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    }
    return STATUS_OK;
}

static enum status enqueue(const struct exec_launch *launch, cudaStream_t stream, struct why *why)
{
    void *args[] = {(void *)&launch->l, (void *)&launch->h};
    CUDA_TRY(cudaLaunchKernel(launch->function, dim3((unsigned)launch->n_ctas), dim3((unsigned)launch->threads), args,
                              (size_t)launch->smem_bytes, stream));
    return STATUS_OK;
}

/* Launches in plan order, each on its stream, behind the grids it waits for; streams fork from and join `origin`. */
static enum status enqueue_all(struct exec_prepared *e, cudaStream_t origin, cudaEvent_t *done, bool *used,
                               struct why *why)
{
    cudaEvent_t *begin = &done[e->n_launches];
    CUDA_TRY(cudaEventRecord(*begin, origin));
    for (int32_t i = 0; i < e->n_launches; i++) {
        const struct exec_launch *launch = &e->launches[i];
        const cudaStream_t stream = e->streams[launch->stream];
        if (!used[launch->stream]) CUDA_TRY(cudaStreamWaitEvent(stream, *begin, 0));
        used[launch->stream] = true;
        for (int32_t a = launch->after_begin; a < launch->after_end; a++)
            CUDA_TRY(cudaStreamWaitEvent(stream, done[e->after[a]], 0));
        if (launch->n_ctas > 0) TRY(enqueue(launch, stream, why));
        CUDA_TRY(cudaEventRecord(done[i], stream));
    }
    for (int32_t i = 0; i < e->n_launches; i++)
        CUDA_TRY(cudaStreamWaitEvent(origin, done[i], 0));
    return STATUS_OK;
}

static enum status capture(struct cuda_device *d, struct why *why)
{
    struct exec_prepared *e = &d->p;
    cudaGraph_t graph = NULL;
    const size_t n = (size_t)e->n_launches + 1;
    if (e->n_launches == 0) return STATUS_OK;
    TRY(make_streams(e, why));
    cudaEvent_t *done = (cudaEvent_t *)calloc(n, sizeof *done);
    bool *used = (bool *)calloc((size_t)e->n_streams, sizeof *used);
    enum status status =
        done && used ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "cuda_prepare: out of memory");
    for (size_t i = 0; status == STATUS_OK && i < n; i++)
        if (cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming) != cudaSuccess)
            status = exec_fail(why, cudaGetLastError(), "cudaEventCreate");
    if (status == STATUS_OK) {
        cudaError_t error = cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal);
        if (error == cudaSuccess) {
            status = enqueue_all(e, d->stream, done, used, why);
            error = cudaStreamEndCapture(d->stream, &graph);
        }
        if (status == STATUS_OK && error != cudaSuccess) status = exec_fail(why, error, "capture of the plan");
    }
    if (status == STATUS_OK) {
        const cudaError_t error = cudaGraphInstantiate(&e->graph, graph, 0);
        if (error != cudaSuccess) status = exec_fail(why, error, "cudaGraphInstantiate");
    }
    if (graph) cudaGraphDestroy(graph);
    for (size_t i = 0; done && i < n; i++)
        if (done[i]) cudaEventDestroy(done[i]);
    free(done);
    free(used);
    return status;
}

extern "C" enum status cuda_prepare(struct cuda_device *d, const struct plan *p, const struct cuda_options *options,
                                    struct why *why)
{
    exec_prepared_free(&d->p);
    if (!d->has_batch) return status_fail(why, STATUS_INTERNAL, "cuda_prepare: no batch loaded");
    TRY(plan_check(p, &d->b, why));
    struct view x = d->x;
    const double begin = now_us();
    enum status status = put_plan(&d->p, p, &d->b, options->spans, &x, why);
    if (status == STATUS_OK) status = make_launches(d, p, options, &x, why);
    if (status == STATUS_OK && cudaDeviceSynchronize() != cudaSuccess)
        status = exec_fail(why, cudaGetLastError(), "upload of the plan");
    d->p.what.upload_us = now_us() - begin;
    if (status == STATUS_OK) status = capture(d, why);
    d->p.what.capture_us = now_us() - begin - d->p.what.upload_us;
    if (status == STATUS_OK)
        d->p.ready = true;
    else
        exec_prepared_free(&d->p);
    return status;
}

extern "C" void cuda_prepared(const struct cuda_device *d, struct cuda_prepared *out)
{
    *out = d->p.what;
}

extern "C" enum status cuda_row(struct cuda_device *d, enum kernel_id row, const struct shape *shape,
                                const struct kernels *kernels, struct cuda_row *out, struct why *why)
{
    struct exec_choice c;
    struct cudaFuncAttributes a;
    int fits = 0;
    memset(out, 0, sizeof *out);
    TRY(exec_choose(d, row, shape, true, true, CUDA_LADDER_BEST, kernels ? kernels->fit[row].ctas_per_sm : 0, &c, why));
    CUDA_TRY(cudaFuncGetAttributes(&a, c.function));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, c.function, c.threads, (size_t)c.smem_bytes));
    snprintf(out->kernel, sizeof out->kernel, "%s",
             c.mma ? "attn_2_mma" : kernel_row(row)->role == ROLE_MERGE ? "merge" : "attn_1_naive");
    out->ctas_per_sm = fits;
    out->threads = c.threads;
    out->registers = a.numRegs;
    out->spill_bytes = (int32_t)a.localSizeBytes;
    out->smem_bytes = c.smem_bytes + (int64_t)a.sharedSizeBytes;
    return STATUS_OK;
}
