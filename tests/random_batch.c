#include "tests/random_batch.h"

#include "lab/profile.h"
#include "lab/rng.h"
#include "lab/run.h"
#include "sim/occupancy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum status status, const struct why *why, const char *what)
{
    if (status == STATUS_OK) return;
    fprintf(stderr, "%s: %s\n", what, why->text);
    abort();
}

static int32_t pick(struct rng *r, const int32_t *values, int32_t n)
{
    return values[rng_below(r, (uint64_t)n)];
}

static int32_t between(struct rng *r, int32_t low, int32_t high)
{
    return low + (int32_t)rng_below(r, (uint64_t)(high - low + 1));
}

static struct workload_params random_params(struct rng *r)
{
    static const int32_t groups[] = {1, 2, 3, 4, 7, 8, 16, 17, 71}, kv_heads[] = {1, 1, 2, 4},
                         dims[] = {8, 16, 64, 80, 96, 128}, pages[] = {1, 2, 5, 16, 64, 256};
    struct workload_params p = workload_default_params();
    p.shape.num_kv_heads = pick(r, kv_heads, 4);
    p.shape.num_qo_heads = p.shape.num_kv_heads * pick(r, groups, 9);
    p.shape.head_dim_qk = p.shape.head_dim_vo = pick(r, dims, 6);
    p.shape.q_dtype = (enum dtype)rng_below(r, 3); /* not the 8-bit ones */
    p.shape.kv_dtype = (enum dtype)rng_below(r, DTYPE_COUNT);
    p.page_size = pick(r, pages, 6);
    p.layout.order = (enum layout)rng_below(r, 2);
    p.mask.causal = rng_below(r, 4) > 0;
    p.mask.window_left = rng_below(r, 4) == 0 ? between(r, 0, 200) : -1;
    p.mask.logits_soft_cap = rng_below(r, 5) == 0 ? 5 : 0;
    p.mask.alibi = rng_below(r, 6) == 0;
    p.seed = rng_next(r) >> 1;
    return p;
}

/* What else engines do to K, V, Q and O: other dims for V, a latent, stores and strides, RoPE. */
static void random_features(struct rng *r, struct workload_params *p)
{
    struct shape *s = &p->shape;
    if (rng_below(r, 4) == 0) s->head_dim_vo = between(r, 1, 2 * s->head_dim_qk);
    if (rng_below(r, 8) == 0) {
        s->kv_latent = true;
        s->head_dim_vo = between(r, 1, s->head_dim_qk);
    }
    if (rng_below(r, 40) == 0) *s = (struct shape){16, 1, 576, 512, s->q_dtype, s->kv_dtype, true};
    if (rng_below(r, 4) == 0) p->layout.store = (enum kv_store)rng_below(r, 3);
    if (s->kv_latent && p->layout.store == KV_INTERLEAVED) p->layout.store = KV_SEPARATE;
    if (rng_below(r, 5) == 0) {
        p->rope = (struct rope){.kind = (enum rope_kind)between(r, 1, 2),
                                .dim = 2 * between(r, 0, s->head_dim_qk / 2)};
        if (rng_below(r, 2)) p->rope.theta = 500000;
        if (rng_below(r, 2)) p->rope.scale = 4;
    }
    if (rng_below(r, 5) == 0) {
        p->layout.q.head = s->head_dim_qk + between(r, 0, 3);
        p->layout.q.token = p->layout.q.head * s->num_qo_heads + between(r, 0, 50);
    }
    if (rng_below(r, 5) == 0) {
        p->layout.o.head = s->head_dim_vo + between(r, 0, 3);
        p->layout.o.token = p->layout.o.head * s->num_qo_heads + between(r, 0, 50);
    }
}

/* Brings a batch to what the tensor-core kernels take; half of them plain, so that the fastest are met. */
static void for_tensor_cores(struct rng *r, struct workload_params *p)
{
    static const int32_t dims[] = {40, 64, 64, 80, 128, 128, 128, 192, 256};
    struct shape *s = &p->shape;
    const struct workload_params d = workload_default_params();
    s->head_dim_qk = pick(r, dims, 9);
    s->head_dim_vo = rng_below(r, 4) ? s->head_dim_qk : pick(r, dims, 9);
    s->kv_latent = false;
    s->q_dtype = rng_below(r, 2) ? DTYPE_BF16 : DTYPE_FP16;
    if (rng_below(r, 4) || !dtype_is_fp8(s->kv_dtype)) s->kv_dtype = s->q_dtype;
    p->rope = d.rope;
    p->layout.q = d.layout.q;
    p->layout.o = d.layout.o;
    if (rng_below(r, 4) == 0) {
        p->layout.q.head = s->head_dim_qk + 8 * between(r, 0, 2);
        p->layout.q.token = p->layout.q.head * s->num_qo_heads + 8 * between(r, 0, 9);
    }
    if (rng_below(r, 2) == 0) return;
    p->mask.logits_soft_cap = 0;
    p->mask.alibi = false;
    s->kv_dtype = s->q_dtype;
}

static float *random_per_head(struct rng *r, int32_t heads, double low, double high)
{
    float *out = malloc((size_t)heads * sizeof *out);
    for (int32_t h = 0; out && h < heads; h++)
        out[h] = (float)(low + (high - low) * rng_uniform(r));
    return out;
}

/* Bits of every density from 1 in 8 to 7 in 8. */
static void random_custom_mask(struct rng *r, struct workload *w)
{
    const int32_t n = w->batch.n_requests;
    const uint64_t density = 1 + rng_below(r, 7);
    w->custom_indptr = malloc(((size_t)n + 1) * sizeof *w->custom_indptr);
    w->custom_indptr[0] = 0;
    for (int32_t i = 0; i < n; i++)
        w->custom_indptr[i + 1] =
            w->custom_indptr[i] + ((int64_t)batch_qo_len(&w->batch, i) * w->kv_len[i] + 7) / 8;
    w->custom = calloc((size_t)w->custom_indptr[n] + 1, 1);
    for (int64_t i = 0; i < 8 * w->custom_indptr[n]; i++)
        if (rng_below(r, 8) < density) w->custom[i / 8] |= (uint8_t)(1 << (i % 8));
}

/* One request's lengths: mostly decodes and chunks, now and then an edge. */
static void random_lengths(struct rng *r, int32_t *qo_len, int32_t *kv_len)
{
    switch (rng_below(r, 10)) {
    case 0: /* a padded row */
        *qo_len = 0;
        *kv_len = between(r, 0, 50);
        return;
    case 1: /* nothing to see */
        *qo_len = between(r, 1, 9);
        *kv_len = 0;
        return;
    case 2: /* more queries than keys */
        *kv_len = between(r, 1, 40);
        *qo_len = *kv_len + between(r, 1, 60);
        return;
    case 3:
    case 4:
    case 5: /* a chunk */
        *qo_len = between(r, 2, 300);
        *kv_len = *qo_len + between(r, 0, 900);
        return;
    case 6: /* a long decode */
        *qo_len = 1;
        *kv_len = between(r, 1000, 9000);
        return;
    default:
        *qo_len = 1;
        *kv_len = between(r, 1, 700);
        return;
    }
}

/* Makes the leading whole pages of some requests the same as request 0's. */
static void share_prefixes(struct rng *r, struct workload *w)
{
    for (int32_t i = 1; i < w->batch.n_requests; i++) {
        const int32_t own = w->kv_len[i] / w->batch.kv.page_size,
                      first = w->kv_len[0] / w->batch.kv.page_size;
        const int32_t most = own < first ? own : first;
        if (most > 0 && rng_below(r, 2))
            memcpy(w->kv_indices + w->kv_indptr[i], w->kv_indices,
                   (size_t)between(r, 0, most) * sizeof(int32_t));
    }
}

static void draw_batch(uint64_t seed, double max_pairs, bool tensor_cores, struct workload *out)
{
    struct rng r = {seed};
    struct why why = {""};
    struct workload_params p = random_params(&r);
    random_features(&r, &p);
    if (tensor_cores) for_tensor_cores(&r, &p);
    int32_t qo_len[24], kv_len[24], n = 0;
    const int32_t want = between(&r, 1, 24);
    double pairs = 0;
    for (int32_t i = 0; i < want; i++) {
        random_lengths(&r, &qo_len[n], &kv_len[n]);
        pairs += (double)qo_len[n] * kv_len[n] * p.shape.num_qo_heads;
        if (pairs > max_pairs && n > 0) break;
        n++;
    }
    must(workload_from_lengths(qo_len, kv_len, n, &p, out, &why), &why, "random_batch");
    if (rng_below(&r, 3) == 0) out->sink = random_per_head(&r, p.shape.num_qo_heads, -2, 2);
    if (rng_below(&r, 5) == 0) out->k_scale = random_per_head(&r, p.shape.num_kv_heads, 0.25, 2);
    if (rng_below(&r, 5) == 0) out->v_scale = random_per_head(&r, p.shape.num_kv_heads, 0.25, 2);
    if (rng_below(&r, 6) == 0) random_custom_mask(&r, out);
    must(workload_assign_pages(out, p.seed, &why), &why, "random_batch");
    if (p.layout.store != KV_RAGGED && rng_below(&r, 3) == 0) share_prefixes(&r, out);
    must(workload_finish(out, &why), &why, "random_batch");
    snprintf(out->name, sizeof out->name, "random-%llu", (unsigned long long)seed);
}

void random_batch(uint64_t seed, double max_pairs, struct workload *out)
{
    draw_batch(seed, max_pairs, false, out);
}

void random_tensor_core_batch(uint64_t seed, double max_pairs, struct workload *out)
{
    draw_batch(seed, max_pairs, true, out);
}

enum { MAX_LARGE = 64, MAX_LARGE_KEYS = 1 << 22 };

void random_large_batch(uint64_t seed, struct workload *out)
{
    struct rng r = {seed};
    struct why why = {""};
    const struct workload_params p = random_params(&r);
    int32_t qo_len[MAX_LARGE], kv_len[MAX_LARGE], n = 0;
    const int32_t want = between(&r, 1, MAX_LARGE);
    int64_t keys = 0, rows = 0;
    for (int32_t i = 0; i < want; i++) {
        const bool prefill = rng_below(&r, 4) == 0;
        qo_len[n] = prefill ? between(&r, 1, 1 << between(&r, 1, 13)) : 1;
        if (prefill && rng_below(&r, 20) == 0) qo_len[n] = between(&r, 8193, 13353);
        kv_len[n] = qo_len[n] + between(&r, 0, 1 << between(&r, 0, 20)) - 1;
        keys += kv_len[n];
        rows += (int64_t)qo_len[n] * p.shape.num_qo_heads;
        if ((keys > MAX_LARGE_KEYS || rows > 1 << 20) && n > 0) break;
        n++;
    }
    must(workload_from_lengths(qo_len, kv_len, n, &p, out, &why), &why, "random_large_batch");
    must(workload_assign_pages(out, p.seed, &why), &why, "random_large_batch");
    if (rng_below(&r, 3) == 0) share_prefixes(&r, out);
    must(workload_finish(out, &why), &why, "random_large_batch");
    snprintf(out->name, sizeof out->name, "large-%llu", (unsigned long long)seed);
}

void spec_batch(const char *spec, int32_t page_size, struct workload *out)
{
    struct workload_params p = workload_default_params();
    struct why why = {""};
    p.page_size = page_size;
    must(workload_from_spec(spec, &p, out, &why), &why, spec);
}

void test_machine(const struct workload *w, struct machine *out)
{
    struct why why = {""};
    must(profile_load("h200", &out->gpu, &why), &why, "profile");
    kernels_resolve(&out->gpu, &w->batch.shape, &out->kernels);
}
