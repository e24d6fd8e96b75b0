/* batch: what one engine step asks for. Ragged requests over a paged KV cache, the head shape and the mask.
 *
 * A batch is a view: it owns nothing and never changes. It holds no tensor data (ref/tensor.h does). A
 * request with one query row is called a decode by people, but nothing here depends on that word: roles come
 * from the plan. */
#ifndef TANDEM_SCHED_BATCH_H
#define TANDEM_SCHED_BATCH_H

#include "sched/inline.h"
#include "sched/status.h"

#include <stdbool.h>
#include <stddef.h>
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
TANDEM_INLINE bool dtype_is_fp8(enum dtype t)
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
    bool kv_latent; /* MLA: a key's V is the first head_dim_vo elements of its K; there is no V pool */
};

/* Bytes of one key's K and V for one kv head. */
static inline int64_t shape_key_bytes(const struct shape *s)
{
    return (int64_t)(s->head_dim_qk + (s->kv_latent ? 0 : s->head_dim_vo)) * dtype_bytes(s->kv_dtype);
}

/* Which keys a query row sees and how scores become weights. Order: scale (+ alibi), soft cap, mask, sink. */
struct mask {
    bool causal;           /* bottom-right aligned: row i sees keys [0, kv_len - qo_len + i + 1) */
    bool alibi;            /* adds slope(head) * (key - (kv_len - qo_len + i)) */
    int32_t window_left;   /* -1: none; w: keeps key + qo_len + w >= kv_len + i */
    float logits_soft_cap; /* 0: none; c: c * tanh(score / c) */
    float sm_scale;        /* 0: 1 / sqrt(head_dim_qk) */
    const float *sink;     /* NULL, or one logit a q head that joins the softmax's denominator */
    /* NULL, or bits that take keys away from what causal and window leave: request r's row i sees key j only
     * if bit i * kv_len + j (little-endian within bytes) of custom + custom_indptr[r] is set. Plans need not
     * know: they cover the range of batch_visible, executors drop what the bits deny. */
    const uint8_t *custom;
    const int64_t *custom_indptr; /* [n_requests + 1], in bytes */
};

/* Rotary position embedding applied to Q and K on the way in (ref/semantics.h has formula and example). Keys
 * stand at their index, query row i of a request at kv_len - qo_len + i. */
enum rope_kind {
    ROPE_NONE,
    ROPE_LLAMA,      /* rotates pairs (j, j + dim / 2) */
    ROPE_INTERLEAVED /* rotates pairs (2 j, 2 j + 1) */
};

struct rope {
    enum rope_kind kind;
    int32_t dim;        /* leading elements that rotate, even; 0: all of head_dim_qk */
    float theta, scale; /* base of the frequencies (0: 10000); positions are divided by scale (0: 1) */
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
    struct rope rope;
    const float *k_scale, *v_scale; /* NULL, or [num_kv_heads]: the true K (V) is the stored one times this */
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
 * numbers, custom mask bytes as many as its bits need, an even rope dim, total rows x heads within 32 bits. STATUS_BAD_INPUT or STATUS_TOO_LARGE with the reason otherwise.
 */
enum status batch_check(const struct batch *b, struct why *why);

TANDEM_INLINE int32_t batch_group_size(const struct batch *b)
{
    return b->shape.num_qo_heads / b->shape.num_kv_heads;
}

TANDEM_INLINE int32_t batch_qo_len(const struct batch *b, int32_t request)
{
    return b->qo_indptr[request + 1] - b->qo_indptr[request];
}

/* One query row: token within its request, q head of all. */
struct row_ref {
    int32_t request, token, qo_head;
};

/* Its index among all rows, token * num_qo_heads + head: the place of its O and LSE. */
TANDEM_INLINE size_t batch_row(const struct batch *b, struct row_ref r)
{
    return ((size_t)b->qo_indptr[r.request] + (size_t)r.token) * (size_t)b->shape.num_qo_heads +
           (size_t)r.qo_head;
}

/* Half-open range of keys. */
struct range {
    int32_t begin, end;
};

TANDEM_INLINE int32_t clamp_i32(int64_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : (int32_t)x;
}

/* Keys that query token `token` (0-based within its request) sees. Empty is begin == end.
 * Example: qo_len 3, kv_len 5, causal -> token 0 sees [0,3), token 2 sees [0,5); with window_left 1: [1,3)
 * and [3,5). qo_len 3, kv_len 1, causal -> tokens 0 and 1 see nothing, token 2 sees [0,1). */
TANDEM_INLINE struct range batch_visible(const struct batch *b, int32_t request, int32_t token)
{
    const int32_t kv_len = b->kv_len[request];
    const int64_t aligned =
        (int64_t)kv_len - batch_qo_len(b, request) + token; /* key at the token's own position */
    struct range v = {0, kv_len};
    if (b->mask.causal) v.end = clamp_i32(aligned + 1, 0, kv_len);
    if (b->mask.window_left >= 0) v.begin = clamp_i32(aligned - b->mask.window_left, 0, v.end);
    return v;
}

/* What mask.custom says of one key; true without a custom mask. */
TANDEM_INLINE bool batch_custom_bit(const struct batch *b, int32_t request, int32_t token, int32_t key)
{
    if (!b->mask.custom) return true;
    const int64_t bit = (int64_t)token * b->kv_len[request] + key;
    return b->mask.custom[b->mask.custom_indptr[request] + bit / 8] >> (bit % 8) & 1;
}

/* Elements that rotate (0 without rope). */
TANDEM_INLINE int32_t batch_rope_dim(const struct batch *b)
{
    return b->rope.kind == ROPE_NONE ? 0 : b->rope.dim > 0 ? b->rope.dim : b->shape.head_dim_qk;
}

/* Softmax scale actually used: mask.sm_scale, or 1 / sqrt(head_dim_qk) where that is 0. */
double batch_sm_scale(const struct batch *b);

#endif
