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

/* How a tensor is filled: independent normals times `value`, or `value` everywhere. */
struct fill {
    enum { FILL_NORMAL, FILL_CONSTANT } kind;
    double value;
};

struct tensors {
    enum layout layout;
    void *q; /* [tokens, num_qo_heads, head_dim_qk], shape.q_dtype */
    void *k; /* [num_pages, one page of head_dim_qk], shape.kv_dtype */
    void *v; /* [num_pages, one page of head_dim_vo], shape.kv_dtype */
    size_t q_bytes, k_bytes, v_bytes;
    struct fill fill[3]; /* what they were filled with, for error bounds */
};

/* Results: O in fp32 [tokens, num_qo_heads, head_dim_vo] and LSE in fp32, natural log [tokens, num_qo_heads].
 */
struct result {
    float *o;
    float *lse;
    size_t n_rows; /* tokens * num_qo_heads */
    int32_t head_dim_vo;
};

/* The same in double, from the oracle. */
struct oracle_result {
    double *o;
    double *lse;
    size_t n_rows;
    int32_t head_dim_vo;
};

/* Allocates and fills q, k, v for a checked batch. fill[0..2] = q, k, v. Values are a pure function of (seed,
 * tensor, element index), so any thread count gives the same bytes; K and V are indexed by physical page, so
 * shared pages are equal by construction. Values are rounded to their dtype. */
enum status tensors_create(const struct batch *b, enum layout layout, const struct fill fill[3],
                           uint64_t seed, struct tensors *out, struct why *why);
void tensors_free(struct tensors *t);

/* NaN-filled outputs for a batch, with guard words behind them that result_guard_ok checks. */
enum status result_create(const struct batch *b, struct result *out, struct why *why);
bool result_guard_ok(const struct result *r);
void result_poison(struct result *r);
void result_free(struct result *r);
enum status oracle_result_create(const struct batch *b, struct oracle_result *out, struct why *why);
void oracle_result_free(struct oracle_result *r);

/* Element offset of (physical page, position in page, kv head) in a pool of the given head_dim. */
static inline size_t tensor_kv_offset(const struct batch *b, enum layout layout, int32_t head_dim,
                                      int32_t page, int32_t pos, int32_t kv_head)
{
    const size_t page_size = (size_t)b->kv.page_size, heads = (size_t)b->shape.num_kv_heads;
    const size_t in_page = layout == LAYOUT_NHD ? (size_t)pos * heads + (size_t)kv_head
                                                : (size_t)kv_head * page_size + (size_t)pos;
    return ((size_t)page * page_size * heads + in_page) * (size_t)head_dim;
}

#endif
