/* walk: from packed rows and key indices to places: which row of Q an item's row is, what it sees, where a key
 * lies. The device's form of plan_row, batch_visible and the page table; tests hold them to those. */
#ifndef TANDEM_CUDA_WALK_H
#define TANDEM_CUDA_WALK_H

#include "cuda/view.h"

#include <math.h>

/* One query row. begin == end: sees nothing. */
struct walk_row {
    int32_t begin, end;     /* keys it sees, of the item's */
    int32_t token;          /* among all tokens of the batch */
    int32_t head;           /* q head of all */
    int32_t request, local; /* its request, token there */
    int32_t position;       /* where it stands among the keys: kv_len - qo_len + local */
    int32_t pad;
};

/* Token t of a row group: request, and token within it. Groups of members are searched by halves. */
TANDEM_INLINE void walk_token(const struct view *x, int32_t group, int32_t t, int32_t *request,
                              int32_t *local)
{
    *request = group;
    *local = t;
    if (group < x->b.n_requests) return;
    int32_t low = x->group_indptr[group - x->b.n_requests],
            high = x->group_indptr[group - x->b.n_requests + 1];
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (x->member_first[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    *request = x->members[low].request;
    *local = x->members[low].token_begin + t - x->member_first[low];
}

TANDEM_INLINE int32_t walk_group_tokens(const struct view *x, int32_t group)
{
    if (group < x->b.n_requests) return batch_qo_len(&x->b, group);
    const int32_t last = x->group_indptr[group - x->b.n_requests + 1] - 1;
    return x->member_first[last] + x->members[last].token_end - x->members[last].token_begin;
}

/* Row of a request's token under a q head, and what it sees of keys [begin, end). */
TANDEM_INLINE struct walk_row walk_row_at(const struct view *x, int32_t request, int32_t local, int32_t head,
                                          int32_t begin, int32_t end)
{
    const struct range seen = batch_visible(&x->b, request, local);
    struct walk_row r;
    r.begin = seen.begin > begin ? seen.begin : begin;
    r.end = seen.end < end ? seen.end : end;
    if (r.end < r.begin) r.end = r.begin;
    r.token = x->b.qo_indptr[request] + local;
    r.head = head;
    r.request = request;
    r.local = local;
    r.position = x->b.kv_len[request] - batch_qo_len(&x->b, request) + local;
    r.pad = 0;
    return r;
}

/* Packed row `row` of an item, by the order of its kernel row. */
TANDEM_INLINE struct walk_row walk_item_row(const struct view *x, const struct item *item, int32_t order,
                                            int32_t row)
{
    const int32_t group_size = batch_group_size(&x->b);
    int32_t t, head, request, local;
    if (order == ROWS_TOKEN_MAJOR) {
        t = row / group_size;
        head = row % group_size;
    } else {
        const int32_t tokens = walk_group_tokens(x, item->group);
        t = row % tokens;
        head = row / tokens;
    }
    walk_token(x, item->group, t, &request, &local);
    return walk_row_at(x, request, local, item->kv_head * group_size + head, item->kv_begin, item->kv_end);
}

/* The request whose pages an item's keys are read through: a group's members agree on them. */
TANDEM_INLINE int32_t walk_pages_of(const struct view *x, int32_t group)
{
    return group < x->b.n_requests ? group : x->members[x->group_indptr[group - x->b.n_requests]].request;
}

/* Element offset of (page, position, kv head). */
TANDEM_INLINE int64_t walk_key_at(struct view_keys s, int32_t page, int32_t pos, int32_t kv_head)
{
    return page * s.page + pos * s.pos + kv_head * s.head;
}

TANDEM_INLINE int64_t walk_row_offset(struct view_rows s, int32_t token, int32_t head)
{
    return token * s.token + head * s.head;
}

/* Element offset of one of a request's keys for a kv head. */
TANDEM_INLINE int64_t walk_key(const struct view *x, struct view_keys s, int32_t request, int32_t key,
                               int32_t kv_head)
{
    const struct kv_table *kv = &x->b.kv;
    return walk_key_at(s, kv->kv_indices[kv->kv_indptr[request] + key / kv->page_size], key % kv->page_size,
                       kv_head);
}

TANDEM_INLINE float walk_k_scale(const struct view *x, int32_t kv_head)
{
    return x->b.k_scale ? x->b.k_scale[kv_head] : 1.0f;
}

TANDEM_INLINE float walk_v_scale(const struct view *x, int32_t kv_head)
{
    return x->b.v_scale ? x->b.v_scale[kv_head] : 1.0f;
}

/* Does the row see the key, bit mask included? */
TANDEM_INLINE bool walk_sees(const struct view *x, const struct walk_row *r, int32_t key)
{
    return key >= r->begin && key < r->end && batch_custom_bit(&x->b, r->request, r->local, key);
}

/* A scaled dot becomes a logit: ALiBi, then the soft cap. Natural units. */
TANDEM_INLINE float walk_logit(const struct view *x, const struct walk_row *r, float scaled, int32_t key)
{
    if (x->alibi) scaled += x->alibi[r->head] * (float)(key - r->position);
    if (x->b.mask.logits_soft_cap > 0)
        scaled = x->b.mask.logits_soft_cap * tanhf(scaled / x->b.mask.logits_soft_cap);
    return scaled;
}

#endif
