/* attn_1_row: attention of one query row by one warp; compiled once for each size of head (ATTN_1_REGS registers of
 * 32 elements). Included by attn_1_naive.cuh only.
 *
 * Lane l owns elements l, l + 32, ... of Q, K, V and O. Keys come one at a time, softmax online in fp32. */

static __device__ void ATTN_1_ROW(const struct view *x, const struct item *item, const struct walk_row *r,
                                  int32_t lane, int32_t partial)
{
    const struct shape *s = &x->b.shape;
    const int32_t dk = s->head_dim_qk, dv = s->head_dim_vo, pages_of = walk_pages_of(x, item->group);
    const float k_scale = walk_k_scale(x, item->kv_head), v_scale = walk_v_scale(x, item->kv_head);
    float q[ATTN_1_REGS], acc[ATTN_1_REGS], max = -INFINITY, sum = 0;
    for (int32_t j = 0; j < ATTN_1_REGS; j++) {
        const int32_t d = lane + 32 * j;
        q[j] = d < dk ? attn_1_element(x, s->q_dtype, x->q, walk_row_offset(x->q_rows, r->token, r->head), d,
                                       r->position)
                      : 0.0f;
        acc[j] = 0;
    }
    for (int32_t i = 0; i < r->end - r->begin; i++) {
        const int32_t key = item->flags & ITEM_KV_REVERSED ? r->end - 1 - i : r->begin + i;
        const int64_t at = walk_key(x, x->k_keys, pages_of, key, item->kv_head);
        float dot = 0;
        if (!walk_sees(x, r, key)) continue;
        for (int32_t j = 0; j < ATTN_1_REGS; j++) {
            const int32_t d = lane + 32 * j;
            if (d < dk) dot += q[j] * attn_1_element(x, s->kv_dtype, x->k, at, d, key);
        }
        const float logit = walk_logit(x, r, attn_1_sum(dot) * (x->sm_scale * k_scale), key);
        const float most = logit > max ? logit : max;
        const float scale = max == -INFINITY ? 0.0f : expf(max - most), p = expf(logit - most);
        const int64_t v_at = walk_key(x, x->v_keys, pages_of, key, item->kv_head);
        sum = sum * scale + p;
        max = most;
        for (int32_t j = 0; j < ATTN_1_REGS; j++) {
            const int32_t d = lane + 32 * j;
            if (d < dv) acc[j] = acc[j] * scale + p * number_load(s->kv_dtype, x->v, v_at + d);
        }
    }
    const bool direct = partial < 0;
    const float *sink = direct && x->b.mask.sink ? x->b.mask.sink + r->head : NULL;
    const int64_t row = (int64_t)r->token * s->num_qo_heads + r->head;
    float factor;
    const float lse = merge_finish(max, sum, sink, &factor);
    for (int32_t j = 0; j < ATTN_1_REGS; j++) {
        const int32_t d = lane + 32 * j;
        const float o = acc[j] * factor * v_scale;
        if (d >= dv) continue;
        if (direct)
            number_store(s->q_dtype, x->o, walk_row_offset(x->o_rows, r->token, r->head) + d, o);
        else
            x->partial_o[(int64_t)partial * dv + d] = o;
    }
    if (lane == 0) *(direct ? x->lse + row : x->partial_lse + partial) = lse;
}

/* Rows of an item, dealt to the warps of a team of `warps`. */
static __device__ void ATTN_1_ITEM(const struct view *x, const struct item *item, int32_t order, int32_t warp,
                                   int32_t warps, int32_t lane)
{
    for (int32_t row = item->row_begin + warp; row < item->row_end; row += warps) {
        const struct walk_row r = walk_item_row(x, item, order, row);
        ATTN_1_ROW(x, item, &r, lane, item->partial < 0 ? -1 : item->partial + (row - item->row_begin));
    }
}
