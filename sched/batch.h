/* batch: what one engine step asks for. Ragged requests over a paged KV cache, the head shape and the mask.
 *
 * A batch is a view: it owns nothing and never changes. It holds no tensor data (ref/tensor.h does). A
 * request with one query row is called a decode by people, but nothing here depends on that word: roles come
 * from the plan. */
#ifndef TANDEM_SCHED_BATCH_H
#define TANDEM_SCHED_BATCH_H

#include "sched/status.h"

#include <stdbool.h>
#include <stdint.h>

/*                 code      name        bytes */
#define DTYPE_LIST(X)          \
    X(FP32, "fp32", 4)         \
    X(FP16, "fp16", 2)         \
    X(BF16, "bf16", 2)         \
    X(FP8_E4M3, "fp8_e4m3", 1) \
    X(FP8_E5M2, "fp8_e5m2", 1)

enum dtype {
#define X(code, name, bytes) DTYPE_##code,
    DTYPE_LIST(X)
#undef X
        DTYPE_COUNT
};

/* Bytes of one element; name as in files; dtype of a name (DTYPE_COUNT when unknown). */
int32_t dtype_bytes(enum dtype t);
const char *dtype_name(enum dtype t);
enum dtype dtype_from_name(const char *name);

/* OCP 8-bit types hold K and V only. */
static inline bool dtype_is_fp8(enum dtype t)
{
    return t == DTYPE_FP8_E4M3 || t == DTYPE_FP8_E5M2;
}

/* Heads and types of one attention layer. group size = num_qo_heads / num_kv_heads (GQA; 1 = MHA, all = MQA).
 */
struct shape {
    int32_t num_qo_heads;
    int32_t num_kv_heads;
    int32_t head_dim_qk;
    int32_t head_dim_vo;
    enum dtype q_dtype; /* of Q and O: fp32, fp16 or bf16 */
    enum dtype kv_dtype;
};

/* Which keys a query row sees and how scores become weights. Order: scale (+ alibi), soft cap, mask, sink. */
struct mask {
    bool causal;           /* bottom-right aligned: row i sees keys [0, kv_len - qo_len + i + 1) */
    bool alibi;            /* adds slope(head) * (key - (kv_len - qo_len + i)) */
    int32_t window_left;   /* -1: none; w: keeps key + qo_len + w >= kv_len + i */
    float logits_soft_cap; /* 0: none; c: c * tanh(score / c) */
    float sm_scale;        /* 0: 1 / sqrt(head_dim_qk) */
    const float *sink;     /* NULL, or one logit a q head that joins the softmax's denominator */
};

/* The page table, CSR as FlashInfer and SGLang lay it out. Physical page ids are visible to policies, so that
 * pages shared between requests are visible too. Page p of request r is kv_indices[kv_indptr[r] + p] and
 * holds keys [p * page_size, min((p + 1) * page_size, kv_len[r])); the rest of its last page is undefined
 * memory (tests: NaN). */
struct kv_table {
    int32_t page_size;
    int32_t num_pages;         /* size of the pool: every id is in [0, num_pages) */
    const int32_t *kv_indptr;  /* [n_requests + 1], in pages */
    const int32_t *kv_indices; /* [kv_indptr[n_requests]] */
};

struct batch {
    struct shape shape;
    struct mask mask;
    int32_t n_requests;
    const int32_t *qo_indptr; /* [n_requests + 1], in tokens */
    const int32_t *kv_len;    /* [n_requests], counts the new tokens */
    struct kv_table kv;
};

/* Limits that keep every derived quantity in range: packed rows, page and row ids in 32 bits, byte offsets
 * in 64. */
enum { BATCH_MAX_HEADS = 4096, BATCH_MAX_HEAD_DIM = 1024, BATCH_MAX_PAGE_SIZE = 1 << 20 };

/* Proves that b is well formed: positive dims, num_qo_heads a multiple of num_kv_heads, monotone indptrs from
 * 0, kv_len >= 0 and matching its pages (ceil(kv_len / page_size)), page ids inside the pool, finite mask
 * numbers, total rows x heads within 32 bits. STATUS_BAD_INPUT or STATUS_TOO_LARGE with the reason otherwise.
 */
enum status batch_check(const struct batch *b, struct why *why);

static inline int32_t batch_group_size(const struct batch *b)
{
    return b->shape.num_qo_heads / b->shape.num_kv_heads;
}

static inline int32_t batch_qo_len(const struct batch *b, int32_t request)
{
    return b->qo_indptr[request + 1] - b->qo_indptr[request];
}

/* Half-open range of keys. */
struct range {
    int32_t begin, end;
};

static inline int32_t clamp_i32(int64_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : (int32_t)x;
}

/* Keys that query token `token` (0-based within its request) sees. Empty is begin == end.
 * Example: qo_len 3, kv_len 5, causal -> token 0 sees [0,3), token 2 sees [0,5); with window_left 1: [1,3)
 * and [3,5). qo_len 3, kv_len 1, causal -> tokens 0 and 1 see nothing, token 2 sees [0,1). */
static inline struct range batch_visible(const struct batch *b, int32_t request, int32_t token)
{
    const int32_t kv_len = b->kv_len[request];
    const int64_t aligned =
        (int64_t)kv_len - batch_qo_len(b, request) + token; /* key at the token's own position */
    struct range v = {0, kv_len};
    if (b->mask.causal) v.end = clamp_i32(aligned + 1, 0, kv_len);
    if (b->mask.window_left >= 0) v.begin = clamp_i32(aligned - b->mask.window_left, 0, v.end);
    return v;
}

/* Softmax scale actually used: mask.sm_scale, or 1 / sqrt(head_dim_qk) where that is 0. */
double batch_sm_scale(const struct batch *b);

#endif
