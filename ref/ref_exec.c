#include "ref/ref_exec.h"

#include "ref/convert.h"
#include "ref/exact_exec.h"
#include "ref/exec_tasks.h"
#include "ref/semantics.h"

#include <cblas.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One task (exec_tasks.h) at a time on one thread: its blocks of packed rows against one tile of keys after
 * another, the tile's place in memory found once through the page table:
 *
 *   S = Q K^T -> mask, weights exp2(S - max) with running max and sum -> O = O * shrink + P V
 *
 *   tall    (prefill) TALL_KEYS a tile, K and V converted into panels once a tile, matrix products over STRIP
 *           rows at a time; where vector.h has no products (base), gathered as fp32 and given to sgemm
 *   short   (decode, below TASK_SHORT_ROWS rows) SHORT_BYTES of K a tile, read where they lie, as they are
 *           stored; while one tensor's rows are used the next one's are asked for: V of this kv head, then K of
 *           the next head, then K of the next tile. RoPE turns K on the way, so then they are gathered first
 *
 * Rows keep (O unnormalised, max, sum), max in base 2; a direct item writes O / sum and LSE, a split one O / sum
 * and LSE as a partial row. Nothing is repaired: keys that no item holds are missing from the result. Numerics
 * `device` takes the tile of the item's kernel row and rounds weights and O. */
enum {
    TALL_KEYS = 256,
    SHORT_BYTES = 16384,
    MAX_KEYS = 256,
    P_STRIDE = MAX_KEYS + 16,
    DEPTH = 128,
    STRIP = 96
};

static const double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;

struct row_state {
    struct row_ref ref;
    struct range seen; /* keys the row sees within the item */
    struct soften_row soften;
    float max, sum;
    int64_t partial; /* its partial row, or -1: direct */
};

struct scratch {
    float *q;                   /* [TASK_ROWS][head_dim_qk] */
    float *acc;                 /* [TASK_ROWS][head_dim_vo] */
    float *k, *v;               /* [MAX_KEYS][head_dim]: gathered tile */
    float *k_panels, *v_panels; /* the same in panels */
    float *p;                   /* [TASK_ROWS][P_STRIDE] */
    float *cosine, *sine;       /* [MAX_KEYS][rope dim / 2]: angles of the tile's keys */
    struct row_state *row;
    const char **k_at, **v_at; /* [2 * MAX_KEYS]: kv head 0 of each key of this tile and of the next */
    const char **gathered;     /* [2 * MAX_KEYS]: rows of k and v */
};

struct exec {
    const struct batch *b;
    const struct tensors *t;
    const struct plan *p;
    const struct vector_ops *ops;
    struct numerics numerics;
    struct rounding rounding;
    struct exec_tasks tasks;
    float *partial_o;   /* [partial_rows][head_dim_vo] */
    float *partial_lse; /* [partial_rows] */
    struct result *out;
};

/* A block while it runs: its rows in scratch, where K and V of its kv head lie from head 0's. */
struct running_block {
    int32_t first_row, n_rows, kv_head;
    struct range keys; /* union of what the rows see */
    ptrdiff_t k_shift, v_shift;
};

static int32_t pairs(const struct exec *e)
{
    return batch_rope_dim(e->b) / 2;
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

static struct soften_row soften_constants(const struct exec *e, struct row_ref ref, int32_t kv_head)
{
    const struct score_row s = semantics_score_row(e->b, ref.request, ref.token, ref.qo_head);
    const double unit = s.cap > 0 ? 1 / s.cap : log2_e;
    return (struct soften_row){
        .scale = (float)(s.scale * semantics_k_scale(e->b, kv_head) * unit),
        .slope = (float)(s.slope * unit),
        .cap = (float)(s.cap * log2_e),
        .position = s.position,
        .bits = e->b->mask.custom ? e->b->mask.custom + e->b->mask.custom_indptr[ref.request] : NULL,
    };
}

static void rotate(const struct exec *e, const float *cosine, const float *sine, float *x)
{
    for (int32_t pair = 0; pair < pairs(e); pair++) {
        int32_t i, j;
        semantics_rope_pair(e->b, pair, &i, &j);
        const float first = x[i] * cosine[pair] - x[j] * sine[pair];
        x[j] = x[i] * sine[pair] + x[j] * cosine[pair];
        x[i] = first;
    }
}

/* Angles in double, their cosines and sines rounded once: what caches of engines hold. */
static void angles(const struct exec *e, int64_t position, float *cosine, float *sine)
{
    for (int32_t pair = 0; pair < pairs(e); pair++) {
        const double angle = semantics_rope_angle(e->b, position, pair);
        cosine[pair] = (float)cos(angle);
        sine[pair] = (float)sin(angle);
    }
}

static void load_row(const struct exec *e, const struct item *item, int32_t row, struct scratch *s, int32_t i)
{
    const struct batch *b = e->b;
    const enum row_order order = kernel_row((enum kernel_id)item->kernel)->row_order;
    const struct row_ref ref = plan_row(e->p, b, item->group, item->kv_head, order, row);
    const struct range v = batch_visible(b, ref.request, ref.token);
    const int32_t begin = v.begin > item->kv_begin ? v.begin : item->kv_begin,
                  end = v.end < item->kv_end ? v.end : item->kv_end, dk = b->shape.head_dim_qk;
    float *q = s->q + (size_t)i * (size_t)dk;
    struct row_state *state = &s->row[i];
    *state = (struct row_state){
        .ref = ref,
        .seen = {begin, end > begin ? end : begin},
        .soften = soften_constants(e, ref, item->kv_head),
        .max = -INFINITY,
        .partial = item->partial >= 0 ? (int64_t)item->partial + row - item->row_begin : -1,
    };
    const size_t at = tensor_row_at(e->t->q_stride, b->shape.num_qo_heads, batch_row(b, ref));
    e->ops->convert(b->shape.q_dtype, (const char *)e->t->q + at * (size_t)dtype_bytes(b->shape.q_dtype),
                    (size_t)dk, q);
    if (b->rope.kind == ROPE_NONE) return;
    angles(e, state->soften.position, s->cosine, s->sine);
    rotate(e, s->cosine, s->sine, q);
}

/* Rows of a block from scratch row `first` on. */
static struct running_block load_block(const struct exec *e, const struct exec_block *block, int32_t first,
                                       struct scratch *s)
{
    const struct batch *b = e->b;
    const size_t dv = (size_t)b->shape.head_dim_vo;
    const struct item *head = &e->p->items[e->tasks.segments[block->begin].item];
    const ptrdiff_t size = dtype_bytes(b->shape.kv_dtype);
    struct running_block out = {.first_row = first,
                                .kv_head = head->kv_head,
                                .keys = {head->kv_end, head->kv_begin},
                                .k_shift = head->kv_head * e->t->k_stride.head * size,
                                .v_shift = head->kv_head * e->t->v_stride.head * size};
    for (int32_t k = block->begin; k < block->end; k++) {
        const struct segment *seg = &e->tasks.segments[k];
        for (int32_t row = seg->row_begin; row < seg->row_end; row++, out.n_rows++) {
            const int32_t i = first + out.n_rows;
            load_row(e, &e->p->items[seg->item], row, s, i);
            const struct range seen = s->row[i].seen;
            if (seen.begin == seen.end) continue;
            if (seen.begin < out.keys.begin) out.keys.begin = seen.begin;
            if (seen.end > out.keys.end) out.keys.end = seen.end;
        }
    }
    memset(s->acc + (size_t)first * dv, 0, (size_t)out.n_rows * dv * sizeof *s->acc);
    return out;
}

/* ---- keys ------------------------------------------------------------------------------------------------- */

/* Where K and V of keys [first, first + n) lie, for kv head 0. Members of a row group read the same pages: any
 * one's table will do. */
static void find_keys(const struct exec *e, int32_t request, int32_t first, int32_t n, const char **k_at,
                      const char **v_at)
{
    const struct batch *b = e->b;
    const int32_t page_size = b->kv.page_size, *pages = b->kv.kv_indices + b->kv.kv_indptr[request];
    const ptrdiff_t size = dtype_bytes(b->shape.kv_dtype);
    int32_t index = first / page_size, pos = first % page_size;
    for (int32_t j = 0; j < n; j++) {
        k_at[j] =
            (const char *)e->t->k + (ptrdiff_t)tensor_kv_at(e->t->k_stride, pages[index], pos, 0) * size;
        v_at[j] =
            (const char *)e->t->v + (ptrdiff_t)tensor_kv_at(e->t->v_stride, pages[index], pos, 0) * size;
        if (++pos == page_size) {
            pos = 0;
            index++;
        }
    }
}

static void gather(const struct exec *e, const struct running_block *x, int32_t n, struct scratch *s)
{
    const enum dtype type = e->b->shape.kv_dtype;
    const size_t dk = (size_t)e->b->shape.head_dim_qk, dv = (size_t)e->b->shape.head_dim_vo;
    for (int32_t j = 0; j < n; j++) {
        float *k = s->k + (size_t)j * dk, *v = s->v + (size_t)j * dv;
        e->ops->convert(type, s->k_at[j] + x->k_shift, dk, k);
        e->ops->convert(type, s->v_at[j] + x->v_shift, dv, v);
        if (e->b->rope.kind != ROPE_NONE) rotate(e, s->cosine + j * pairs(e), s->sine + j * pairs(e), k);
    }
}

/* ---- one block, one tile ------------------------------------------------------------------------------------ */

/* Turns the block's rows of dots into weights and shrinks what they have so far. */
static void soften_rows(const struct exec *e, int32_t first_row, int32_t n_rows, int32_t first_key, int32_t n,
                        float *p, struct scratch *s)
{
    const int32_t dv = e->b->shape.head_dim_vo;
    for (int32_t i = first_row; i < first_row + n_rows; i++, p += P_STRIDE) {
        struct row_state *row = &s->row[i];
        row->soften.first_key = first_key;
        row->soften.from = clamp_i32((int64_t)row->seen.begin - first_key, 0, n);
        row->soften.to = clamp_i32((int64_t)row->seen.end - first_key, row->soften.from, n);
        row->soften.bit = (int64_t)row->ref.token * e->b->kv_len[row->ref.request] + first_key;
        const float shrink = e->ops->soften(&row->soften, &e->rounding, p, n, &row->max, &row->sum);
        if (shrink != 1) e->ops->scale(s->acc + (size_t)i * (size_t)dv, dv, shrink);
    }
}

/* K and V of the tile in panels. RoPE turns K on the way, so that then it is gathered first. */
static void pack(const struct exec *e, const struct running_block *x, int32_t n, struct scratch *s)
{
    const struct shape *shape = &e->b->shape;
    const bool rope = e->b->rope.kind != ROPE_NONE;
    if (rope) gather(e, x, n, s);
    e->ops->pack_keys(rope ? DTYPE_FP32 : shape->kv_dtype, shape->head_dim_qk, rope ? s->gathered : s->k_at,
                      rope ? 0 : x->k_shift, n, s->k_panels);
    e->ops->pack_values(shape->kv_dtype, shape->head_dim_vo, s->v_at, x->v_shift, n, s->v_panels);
}

/* The products of a tall block by panels, STRIP rows at a time: their weights never leave the near caches, and the
 * panels pass by from the second level. P V in steps of DEPTH keys, whose panel the first level holds. */
static void panel_tile(const struct exec *e, const struct running_block *x, int32_t first_key, int32_t n,
                       struct scratch *s)
{
    const int32_t dk = e->b->shape.head_dim_qk, dv = e->b->shape.head_dim_vo;
    pack(e, x, n, s);
    for (int32_t i = 0; i < x->n_rows; i += STRIP) {
        const int32_t rows = x->n_rows - i < STRIP ? x->n_rows - i : STRIP;
        const size_t row = (size_t)(x->first_row + i);
        float *p = s->p, *acc = s->acc + row * (size_t)dv;
        e->ops->multiply(s->q + row * (size_t)dk, dk, rows, s->k_panels, dk, dk, n, p, P_STRIDE, false);
        soften_rows(e, x->first_row + i, rows, first_key, n, p, s);
        for (int32_t key = 0; key < n; key += DEPTH)
            e->ops->multiply(p + key, P_STRIDE, rows, s->v_panels + key * VECTOR_PANEL,
                             n - key < DEPTH ? n - key : DEPTH, n, dv, acc, dv, true);
    }
}

static void blas_tile(const struct exec *e, const struct running_block *x, int32_t first_key, int32_t n,
                      struct scratch *s)
{
    const int32_t dk = e->b->shape.head_dim_qk, dv = e->b->shape.head_dim_vo;
    const size_t row = (size_t)x->first_row;
    float *p = s->p;
    gather(e, x, n, s);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, x->n_rows, n, dk, 1, s->q + row * (size_t)dk, dk,
                s->k, dk, 0, p, P_STRIDE);
    soften_rows(e, x->first_row, x->n_rows, first_key, n, p, s);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, x->n_rows, dv, n, 1, p, P_STRIDE, s->v, dv, 1,
                s->acc + row * (size_t)dv, dv);
}

/* `next`, `next_shift`: K rows that will be read after this block's V. */
static void short_tile(const struct exec *e, const struct running_block *x, int32_t first_key, int32_t n,
                       const char *const *next, ptrdiff_t next_shift, struct scratch *s)
{
    const int32_t dk = e->b->shape.head_dim_qk, dv = e->b->shape.head_dim_vo;
    const size_t row = (size_t)x->first_row;
    const bool rope = e->b->rope.kind != ROPE_NONE;
    const enum dtype type = rope ? DTYPE_FP32 : e->b->shape.kv_dtype;
    const char *const *k = rope ? s->gathered : s->k_at, *const *v = rope ? s->gathered + MAX_KEYS : s->v_at;
    const ptrdiff_t k_shift = rope ? 0 : x->k_shift, v_shift = rope ? 0 : x->v_shift;
    float *p = s->p;
    if (rope) gather(e, x, n, s);
    e->ops->dots(type, dk, s->q + row * (size_t)dk, x->n_rows, k, k_shift, n, rope ? NULL : v, v_shift, p,
                 P_STRIDE);
    soften_rows(e, x->first_row, x->n_rows, first_key, n, p, s);
    e->ops->add_values(type, dv, p, P_STRIDE, x->n_rows, v, v_shift, n, rope ? NULL : next, next_shift,
                       s->acc + row * (size_t)dv);
}

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Normalises a row into o[], returns its LSE. The sink joins only where the whole row is known: in direct
 * items and in merges, not in partial rows. */
static float finish_row(const struct exec *e, const float *acc, float max, float sum, double v_scale,
                        const float *sink, float *o)
{
    const int32_t dv = e->b->shape.head_dim_vo;
    float scale = 1;
    if (sink) {
        const float logit = (float)(*sink * log2_e), top = max > logit ? max : logit;
        scale = sum > 0 ? exp2f(max - top) : 0;
        sum = sum * scale + exp2f(logit - top);
        max = top;
    }
    memset(o, 0, (size_t)dv * sizeof *o);
    if (sum == 0) return -INFINITY;
    e->ops->add_scaled(o, acc, dv, (float)(scale / (double)sum * v_scale));
    return (float)((max + log2((double)sum)) * ln_2);
}

static void store_output(const struct exec *e, struct row_ref ref, const float *o, float lse)
{
    const size_t row = batch_row(e->b, ref),
                 at = tensor_row_at(e->out->o_stride, e->b->shape.num_qo_heads, row);
    const enum dtype type = e->numerics.o_dtype;
    for (int32_t d = 0; d < e->b->shape.head_dim_vo; d++) {
        float rounded = o[d];
        if (type != DTYPE_FP32) {
            char stored[sizeof(float)];
            convert_store(type, o[d], stored, 0);
            convert_to_float(type, stored, 0, 1, &rounded);
        }
        e->out->o[at + (size_t)d] = rounded;
    }
    e->out->lse[row] = lse;
}

static const float *sink_of(const struct exec *e, struct row_ref ref)
{
    return e->b->mask.sink ? e->b->mask.sink + ref.qo_head : NULL;
}

/* Weights carry the rounding's offset: so does their sum, and the row's max does not know. */
static void store_block(const struct exec *e, const struct running_block *x, struct scratch *s)
{
    const size_t dv = (size_t)e->b->shape.head_dim_vo;
    const double v_scale = semantics_v_scale(e->b, x->kv_head);
    float *o = s->v; /* the tile is done with */
    for (int32_t i = x->first_row; i < x->first_row + x->n_rows; i++) {
        const struct row_state *row = &s->row[i];
        const float *acc = s->acc + (size_t)i * dv, max = row->max - e->rounding.offset;
        if (row->partial >= 0) {
            e->partial_lse[row->partial] =
                finish_row(e, acc, max, row->sum, v_scale, NULL, e->partial_o + (size_t)row->partial * dv);
        } else {
            const float lse = finish_row(e, acc, max, row->sum, v_scale, sink_of(e, row->ref), o);
            store_output(e, row->ref, o, lse);
        }
    }
}

/* ---- tasks -------------------------------------------------------------------------------------------------- */

/* The keys of a tile: tiles start at whole multiples from the items' first key, so that where a row's sums are
 * cut does not depend on which items run together. */
static int32_t tile_keys(const struct exec *e, const struct item *item, bool is_tall)
{
    const int32_t tile_kv = kernel_row((enum kernel_id)item->kernel)->tile_kv;
    const int32_t row_bytes = e->b->shape.head_dim_qk * dtype_bytes(e->b->shape.kv_dtype);
    if (e->numerics.kind == NUMERICS_DEVICE) return tile_kv > 0 && tile_kv < MAX_KEYS ? tile_kv : MAX_KEYS;
    return is_tall ? TALL_KEYS
                   : clamp_i32(SHORT_BYTES / row_bytes / VECTOR_PAD * VECTOR_PAD, VECTOR_PAD, 128);
}

struct tiling {
    int32_t begin, n_tiles, step, first; /* tile `first` + k * step is the k-th */
    struct range keys;
    int32_t size;
};

static struct tiling tile(const struct exec *e, const struct item *item, struct range keys, bool is_tall)
{
    const int32_t size = tile_keys(e, item, is_tall);
    struct tiling t = {.keys = keys, .size = size, .step = 1};
    if (keys.begin >= keys.end) return t;
    t.begin = item->kv_begin + (keys.begin - item->kv_begin) / size * size;
    t.n_tiles = (keys.end - t.begin + size - 1) / size;
    if (item->flags & ITEM_KV_REVERSED) {
        t.first = t.n_tiles - 1;
        t.step = -1;
    }
    return t;
}

/* Keys of the k-th tile that anybody sees. */
static struct range tile_range(const struct tiling *t, int32_t k)
{
    const int32_t begin = t->begin + (t->first + k * t->step) * t->size;
    return (struct range){begin > t->keys.begin ? begin : t->keys.begin,
                          begin + t->size < t->keys.end ? begin + t->size : t->keys.end};
}

static void run_tile(const struct exec *e, const struct running_block *blocks, int32_t n_blocks, bool is_tall,
                     struct range now, struct range next, int32_t request, struct scratch *s)
{
    const int32_t n = now.end - now.begin, n_next = next.end - next.begin;
    find_keys(e, request, now.begin, n, s->k_at, s->v_at);
    if (!is_tall && n_next > 0) { /* one address a key of this tile, however many the next one has */
        find_keys(e, request, next.begin, n_next, s->k_at + MAX_KEYS, s->v_at + MAX_KEYS);
        for (int32_t j = n_next; j < n; j++)
            s->k_at[MAX_KEYS + j] = s->k_at[MAX_KEYS + n_next - 1];
    }
    if (e->b->rope.kind != ROPE_NONE)
        for (int32_t j = 0; j < n; j++)
            angles(e, now.begin + j, s->cosine + j * pairs(e), s->sine + j * pairs(e));
    for (int32_t i = 0; i < n_blocks; i++) {
        const struct running_block *x = &blocks[i];
        if (is_tall && e->ops->multiply) {
            panel_tile(e, x, now.begin, n, s);
        } else if (is_tall) {
            blas_tile(e, x, now.begin, n, s);
        } else if (i + 1 < n_blocks) {
            short_tile(e, x, now.begin, n, s->k_at, blocks[i + 1].k_shift, s);
        } else {
            short_tile(e, x, now.begin, n, n_next > 0 ? s->k_at + MAX_KEYS : NULL, blocks[0].k_shift, s);
        }
    }
}

static void run_task(const struct exec *e, const struct exec_task *task, struct scratch *s)
{
    struct running_block blocks[TASK_MAX_HEADS];
    const int32_t n = task->end - task->begin;
    const struct exec_block *all = e->tasks.blocks + task->begin;
    const struct item *item = &e->p->items[e->tasks.segments[all[0].begin].item];
    struct range keys = {item->kv_end, item->kv_begin};
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++) {
        blocks[i] = load_block(e, &all[i], rows, s);
        rows += blocks[i].n_rows;
        if (blocks[i].keys.begin < keys.begin) keys.begin = blocks[i].keys.begin;
        if (blocks[i].keys.end > keys.end) keys.end = blocks[i].keys.end;
    }
    const bool is_tall = n == 1 && rows >= TASK_SHORT_ROWS;
    const struct tiling t = tile(e, item, keys, is_tall);
    for (int32_t k = 0; k < t.n_tiles; k++) {
        const struct range none = {0, 0}, next = k + 1 < t.n_tiles ? tile_range(&t, k + 1) : none;
        run_tile(e, blocks, n, is_tall, tile_range(&t, k), next, s->row[0].ref.request, s);
    }
    for (int32_t i = 0; i < n; i++)
        store_block(e, &blocks[i], s);
}

/* Weighs the partial rows of one output row by exp(LSE - max LSE), in list order. */
static void merge_row(const struct exec *e, const struct merge *m, const int32_t *src, int32_t n_src,
                      int32_t row, float *acc, float *o)
{
    const struct batch *b = e->b;
    const size_t dv = (size_t)b->shape.head_dim_vo, offset = (size_t)(row - m->row_begin);
    const struct row_ref ref = plan_row(e->p, b, m->request, m->kv_head, (enum row_order)m->row_order, row);
    float max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n_src; i++) {
        const float lse = e->partial_lse[(size_t)src[i] + offset];
        if (!(lse <= max)) max = lse; /* a NaN partial stays visible */
    }
    memset(acc, 0, dv * sizeof *acc);
    for (int32_t i = 0; i < n_src; i++) {
        const size_t at = (size_t)src[i] + offset;
        if (e->partial_lse[at] == -INFINITY) continue; /* an empty chunk has nothing to say */
        const float weight = exp2f((float)((e->partial_lse[at] - max) * log2_e));
        sum += weight;
        e->ops->add_scaled(acc, e->partial_o + at * dv, (int32_t)dv, weight);
    }
    const float lse = finish_row(e, acc, (float)(max * log2_e), sum, 1, sink_of(e, ref), o);
    store_output(e, ref, o, isnan(max) ? NAN : lse);
}

static void run_merge(const struct exec *e, int32_t index, struct scratch *s)
{
    const struct merge *m = &e->p->merges[index];
    const int32_t first = e->p->merge_indptr[index], n = e->p->merge_indptr[index + 1] - first;
    for (int32_t row = m->row_begin; row < m->row_end; row++)
        merge_row(e, m, e->p->merge_src + first, n, row, s->acc, s->v);
}

/* ---- memory and threads ------------------------------------------------------------------------------------- */

static bool scratch_create(const struct batch *b, struct scratch *s)
{
    const size_t dk = (size_t)b->shape.head_dim_qk, dv = (size_t)b->shape.head_dim_vo,
                 turns = (size_t)(batch_rope_dim(b) / 2) * MAX_KEYS,
                 floats =
                     TASK_ROWS * (dk + dv + P_STRIDE) + MAX_KEYS * (2 * (dk + dv) + VECTOR_PANEL) + 2 * turns;
    s->row = malloc(TASK_ROWS * sizeof *s->row);
    s->k_at = malloc(6 * MAX_KEYS * sizeof *s->k_at);
    s->p = aligned_alloc(64, (floats * sizeof *s->p + 63) / 64 * 64);
    if (!s->row || !s->k_at || !s->p) return false;
    s->v_at = s->k_at + 2 * MAX_KEYS;
    s->gathered = s->v_at + 2 * MAX_KEYS;
    s->q = s->p + (size_t)TASK_ROWS * P_STRIDE;
    s->acc = s->q + TASK_ROWS * dk;
    s->k = s->acc + TASK_ROWS * dv;
    s->v = s->k + MAX_KEYS * dk;
    s->k_panels = s->v + MAX_KEYS * dv;
    s->v_panels = s->k_panels + MAX_KEYS * dk;
    s->cosine = s->v_panels + MAX_KEYS * (dv + VECTOR_PANEL);
    s->sine = s->cosine + turns;
    for (size_t j = 0; j < MAX_KEYS; j++) {
        s->gathered[j] = (const char *)(s->k + j * dk);
        s->gathered[MAX_KEYS + j] = (const char *)(s->v + j * dv);
    }
    return true;
}

static void scratch_free(struct scratch *s)
{
    free(s->p);
    free(s->row);
    free(s->k_at);
}

static bool run_all(const struct exec *e)
{
    bool ok = true;
#pragma omp parallel reduction(&& : ok)
    {
        struct scratch s = {0};
        ok = scratch_create(e->b, &s);
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < e->tasks.n_tasks; i++)
            if (ok) run_task(e, &e->tasks.tasks[i], &s);
                /* the barrier above ends all items before the first merge, which is all a plan's dependencies ask */
#pragma omp for schedule(dynamic, 64)
        for (int32_t m = 0; m < e->p->n_merges; m++)
            if (ok) run_merge(e, m, &s);
        scratch_free(&s);
    }
    return ok;
}

/* BLAS must stay on the calling thread: parallelism is over tasks. In the OpenMP flavour
 * openblas_set_num_threads also sets OpenMP's own thread count, so that is put back. */
static void serial_blas(void)
{
    const int threads = omp_get_max_threads();
    openblas_set_num_threads(1);
    omp_set_num_threads(threads);
}

void ref_exec_describe(const struct exec_options *options, char *out, size_t size)
{
    const struct vector_ops *ops = options && options->ops ? options->ops : vector_best();
    if (options && options->numerics.kind == NUMERICS_EXACT)
        snprintf(out, size, "cpu=double");
    else if (ops->multiply)
        snprintf(out, size, "cpu=%s", ops->name);
    else
        snprintf(out, size, "cpu=%s blas=%s", ops->name, openblas_get_corename());
}

enum status ref_exec(const struct batch *b, const struct tensors *t, const struct plan *p,
                     const struct exec_options *options, struct result *out, struct why *why)
{
    const struct exec_options standard = {numerics_of(NUMERICS_FP32, b), NULL};
    const struct exec_options *o = options ? options : &standard;
    struct exec e = {.b = b, .t = t, .p = p, .out = out, .numerics = o->numerics};
    const size_t rows = (size_t)p->partial_rows, dv = (size_t)b->shape.head_dim_vo;
    if (o->numerics.kind == NUMERICS_EXACT) return exact_exec(b, t, p, out, why);
    e.ops = o->ops ? o->ops : vector_best();
    if (o->numerics.kind == NUMERICS_DEVICE) e.rounding = vector_rounding(o->numerics.p_dtype);
    e.partial_o = malloc((rows * dv + 1) * sizeof *e.partial_o);
    e.partial_lse = malloc((rows + 1) * sizeof *e.partial_lse);
    bool ok = exec_tasks_create(p, b, omp_get_max_threads(), &e.tasks) && e.partial_o && e.partial_lse;
    if (ok) {
        for (size_t i = 0; i < rows; i++)
            e.partial_lse[i] = NAN; /* a partial nobody wrote shows */
        serial_blas();
        ok = run_all(&e);
    }
    exec_tasks_free(&e.tasks);
    free(e.partial_o);
    free(e.partial_lse);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "ref_exec: out of memory");
}
