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
                         dims[] = {8, 16, 64, 80, 128}, pages[] = {1, 2, 5, 16, 64, 256};
    struct workload_params p = workload_default_params();
    p.shape.num_kv_heads = pick(r, kv_heads, 4);
    p.shape.num_qo_heads = p.shape.num_kv_heads * pick(r, groups, 9);
    p.shape.head_dim_qk = p.shape.head_dim_vo = pick(r, dims, 5);
    p.shape.q_dtype = (enum dtype)rng_below(r, 3); /* not the 8-bit ones */
    p.shape.kv_dtype = (enum dtype)rng_below(r, DTYPE_COUNT);
    p.page_size = pick(r, pages, 6);
    p.layout = (enum layout)rng_below(r, 2);
    p.mask.causal = rng_below(r, 4) > 0;
    p.mask.window_left = rng_below(r, 4) == 0 ? between(r, 0, 200) : -1;
    p.mask.logits_soft_cap = rng_below(r, 5) == 0 ? 5 : 0;
    p.mask.alibi = rng_below(r, 6) == 0;
    p.seed = rng_next(r) >> 1;
    return p;
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

void random_batch(uint64_t seed, double max_pairs, struct workload *out)
{
    struct rng r = {seed};
    struct why why = {""};
    const struct workload_params p = random_params(&r);
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
    if (rng_below(&r, 3) == 0) {
        out->sink = malloc((size_t)p.shape.num_qo_heads * sizeof *out->sink);
        for (int32_t h = 0; out->sink && h < p.shape.num_qo_heads; h++)
            out->sink[h] = (float)(4 * rng_uniform(&r) - 2);
    }
    must(workload_assign_pages(out, p.seed, &why), &why, "random_batch");
    if (rng_below(&r, 3) == 0) share_prefixes(&r, out);
    must(workload_finish(out, &why), &why, "random_batch");
    snprintf(out->name, sizeof out->name, "random-%llu", (unsigned long long)seed);
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
