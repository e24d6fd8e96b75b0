/* tensor: the numbers behind a batch: Q, paged K and V pools, and the outputs. Seeded, poisoned,
 * layout-aware.
 *
 * A batch (sched/batch.h) says which tokens; this says what is in them. Everything a run must not read (page
 * tails, pages nobody owns) and everything a run must write (O, LSE) starts as NaN. */
#ifndef TANDEM_REF_TENSOR_H
#define TANDEM_REF_TENSOR_H

#include "sched/batch.h"

#include <stddef.h>
#include <stdint.h>

/* One page of K or V: NHD = [page_size, num_kv_heads, head_dim], HND = [num_kv_heads, page_size, head_dim].
 */
enum layout { LAYOUT_NHD, LAYOUT_HND };

/* Where K and V are:
 *   SEPARATE     two pools, [num_pages, page] each
 *   INTERLEAVED  one pool [num_pages, 2, page]: a page's V follows its K
 *   RAGGED       no pages: [tokens, num_kv_heads, head_dim] (HND: heads first), a request's keys in a row. Its
 *                page table has one page a request, whose id is its first token, and num_pages = tokens
 * A latent cache (shape.kv_latent) has no V at all, whichever it is. */
enum kv_store { KV_SEPARATE, KV_INTERLEAVED, KV_RAGGED };

/* Elements from a token (head) of Q or O to the next; {0, 0} is packed: {num_qo_heads x dim, dim}. */
struct row_stride {
    int64_t token, head;
};

struct tensor_layout {
    enum layout order;
    enum kv_store store;
    struct row_stride q, o;
};

/* Elements from a page, a position, a kv head to the next. */
struct kv_stride {
    int64_t page, pos, head;
};

/* How a tensor is filled: independent normals times `value`, or `value` everywhere. */
struct fill {
    enum { FILL_NORMAL, FILL_CONSTANT } kind;
    double value;
};

struct tensors {
    void *q; /* [tokens, num_qo_heads, head_dim_qk] by q_stride, shape.q_dtype */
    void *k; /* [pages, positions, num_kv_heads, head_dim_qk] by k_stride, shape.kv_dtype */
    void *v; /* the same of head_dim_vo by v_stride; within k's memory where it shares a pool or a latent */
    struct row_stride q_stride;
    struct kv_stride k_stride, v_stride;
    size_t q_bytes, k_bytes, v_bytes; /* allocated; v_bytes is 0 where V is within k */
    bool same_dots,
        same_terms; /* values so alike that roundings of a dot, of a sum over keys, lean one way */
};

/* Results: O in fp32 [tokens, num_qo_heads, head_dim_vo] by o_stride and LSE in fp32, natural log [tokens,
 * num_qo_heads]. */
struct result {
    float *o;
    float *lse;
    size_t n_rows; /* tokens * num_qo_heads */
    int32_t num_qo_heads, head_dim_vo;
    struct row_stride o_stride;
    size_t o_elements; /* gaps between rows included */
};

/* What the size of a right answer's errors hangs on, for one row: sums over its keys, p the softmax weights,
 * |v| a key's largest element, e the error of its logit in units of the arithmetic's (ref/error_bound.h). */
struct row_sums {
    double value;       /* sum of p |v| */
    double value_sq;    /* sum of p^2 |v|^2 */
    double value_error; /* sum of p |v| e */
    double error;       /* sum of p e */
    double largest;     /* largest |v| */
    double max;         /* largest logit */
};

/* The same in double, from the oracle: packed [tokens, num_qo_heads, head_dim_vo]. */
struct oracle_result {
    double *o;
    double *lse;
    struct row_sums *sums;
    size_t n_rows;
    int32_t head_dim_vo;
};

/* Strides that do not overlap, a store that fits shape and page table. STATUS_BAD_INPUT with the reason. */
enum status tensors_check_layout(const struct batch *b, const struct tensor_layout *layout, struct why *why);

/* Allocates and fills q, k, v for a checked batch. fill[0..2] = q, k, v. Values are a pure function of (seed,
 * tensor, element index), so any thread count gives the same bytes; K and V are indexed by physical place, so
 * shared pages are equal by construction. Values are rounded to their dtype. */
enum status tensors_create(const struct batch *b, const struct tensor_layout *layout,
                           const struct fill fill[3], uint64_t seed, struct tensors *out, struct why *why);
void tensors_free(struct tensors *t);

/* The strides of Q or O, packed where the layout says so. */
struct row_stride tensor_row_stride(struct row_stride given, int32_t num_qo_heads, int32_t head_dim);

/* Strides of K and V for a layout, and the elements of the first and the second pool (the second has 0 where
 * V lies in the first); *v_offset = elements from K's beginning to V's, where that is so. */
void tensor_kv_strides(const struct batch *b, const struct tensor_layout *layout, struct kv_stride *k,
                       struct kv_stride *v, size_t elements[2], size_t *v_offset);

/* NaN-filled outputs for a batch, with guard words behind and between rows that result_guard_ok checks. */
enum status result_create(const struct batch *b, struct row_stride o_stride, struct result *out,
                          struct why *why);
bool result_guard_ok(const struct result *r);
void result_poison(struct result *r);
void result_free(struct result *r);
enum status oracle_result_create(const struct batch *b, struct oracle_result *out, struct why *why);

/* The same with room for n rows instead of all. */
enum status oracle_result_create_rows(const struct batch *b, size_t n, struct oracle_result *out,
                                      struct why *why);
void oracle_result_free(struct oracle_result *r);

/* Element offset of (physical page, position in page, kv head). */
static inline size_t tensor_kv_at(struct kv_stride s, int32_t page, int32_t pos, int32_t kv_head)
{
    return (size_t)(page * s.page + pos * s.pos + kv_head * s.head);
}

/* Element offset of a row of Q or O, row = token * num_qo_heads + head. */
static inline size_t tensor_row_at(struct row_stride s, int32_t num_qo_heads, size_t row)
{
    const size_t heads = (size_t)num_qo_heads;
    return row / heads * (size_t)s.token + row % heads * (size_t)s.head;
}

#endif
