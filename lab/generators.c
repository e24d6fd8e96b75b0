#include "lab/generators.h"

#include "lab/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A generator is a batch spec, or a function for what a spec cannot say. */
typedef enum status make_fn(const struct workload_params *p, struct workload *out, struct why *why);

/* Lengths of one mixed step of a replay: budget 8192, 256 sequences, step 367 of those that hold both roles.
 */
static const char mooncake_step[] =
    "q6482s6994_q1s1454_q1s23934_q1s5598_q1s13601_q1s2313_q1s1314_q1s2566_q1s11625_q1s15797_q1s"
    "1274_q1s8175_q1s1287_q1s3328_q1s1424_q1s13571_q1s41375_q1s24913_q1s1189_q1s5945_q1s5388_q1"
    "s10981_q1s9632_q1s2271_q1s2147_q1s1628_q1s1138_q1s11618_q1s2952_q1s18535_q1s21867_q1s1748_"
    "q1s11155_q1s12170_q1s1195_q1s7639_q1s1266_q1s14506_q1s103003_q1s75582_q1s15312_q1s10194_q1"
    "s4963_q1s4654_q1s970_q1s9995_q1s1250_q1s9343_q1s72000_q1s1403_q1s2164_q1s16610_q1s17080_q1"
    "s1678_q1s1588_q1s16944_q1s20009_q1s1608_q1s9573_q1s6540_q1s13557_q1s917_q1s6317_q1s8787_q1"
    "s38161_q1s5107";

static make_fn make_power_law, make_shared_prefix, make_ragged;

static const struct generator {
    const char *name, *brief, *spec;
    make_fn *make;
} generators[] = {
    {"demo", "one chunk of 2048 at 8k, 63 decodes at 1k and one at 128k", "q2ks8k_63q1s1k_1q1s128k", NULL},
    {"skew-131072", "one decode at 128k beside 127 at 1k", "1q1s128k_127q1s1k", NULL},
    {"skew-7", "one decode at 128k beside 7 at 1k", "1q1s128k_7q1s1k", NULL},
    {"two-giants", "two decodes at 32k beside 100 at 300", "2q1s32k_100q1s300", NULL},
    {"power-law-256", "256 decodes, lengths by a power law (exponent 1.2) from 128 to 131072", NULL,
     make_power_law},
    {"mooncake-step", "a step of the Mooncake conversation trace: a chunk of 6482 and 65 decodes to 103003",
     mooncake_step, NULL},
    {"shared-prefix-64", "64 decodes that share the pages of their first 8192 keys", NULL,
     make_shared_prefix},
    {"ragged", "a random mixed batch: up to 4 chunks and 64 decodes", NULL, make_ragged},
    {"flashinfer-mixed-1", "FlashInfer bench_mixed: chunk 512, 128 decodes at 2048", "q512_128q1s2k", NULL},
    {"flashinfer-mixed-2", "FlashInfer bench_mixed: chunk 1536, 128 decodes at 2048", "q1536_128q1s2k", NULL},
    {"flashinfer-mixed-3", "FlashInfer bench_mixed: two chunks of 2048, 128 decodes at 2048", "2q2k_128q1s2k",
     NULL},
    {"flashinfer-mixed-4", "FlashInfer bench_mixed: chunk 2048, 128 decodes at 2048", "q2k_128q1s2k", NULL},
    {"flashinfer-mixed-5", "FlashInfer bench_mixed: chunk 4096, 128 decodes at 4096", "q4k_128q1s4k", NULL},
    {"flashinfer-mixed-6", "FlashInfer bench_mixed: chunk 4096, 128 decodes at 8192", "q4k_128q1s8k", NULL},
    {"flashinfer-mixed-7", "FlashInfer bench_mixed: 6000 of 7000, 128 decodes at 8192", "q6000s7000_128q1s8k",
     NULL},
    {"pod-c0", "POD-Attention C0 (with --model llama3-8b-tp2): memory bound", "q1ks12k_80q1s12k", NULL},
    {"pod-c1", "POD-Attention C1: balanced", "q12k_220q1s12k", NULL},
    {"pod-c2", "POD-Attention C2: compute bound", "q16k_250q1s12k", NULL},
};

int32_t generator_count(void)
{
    return (int32_t)(sizeof generators / sizeof generators[0]);
}
const char *generator_name(int32_t i)
{
    return generators[i].name;
}
const char *generator_brief(int32_t i)
{
    return generators[i].brief;
}

enum { POWER_LAW_REQUESTS = 256, POWER_LAW_LOW = 128, POWER_LAW_HIGH = 131072 };

/* Inverse of the truncated Pareto distribution. */
static enum status make_power_law(const struct workload_params *p, struct workload *out, struct why *why)
{
    const double alpha = 1.2, tail = pow((double)POWER_LAW_LOW / POWER_LAW_HIGH, alpha);
    int32_t qo_len[POWER_LAW_REQUESTS], kv_len[POWER_LAW_REQUESTS];
    struct rng rng = {p->seed};
    for (int32_t r = 0; r < POWER_LAW_REQUESTS; r++) {
        qo_len[r] = 1;
        kv_len[r] = (int32_t)(POWER_LAW_LOW / pow(1 - rng_uniform(&rng) * (1 - tail), 1 / alpha));
    }
    return workload_from_lengths(qo_len, kv_len, POWER_LAW_REQUESTS, p, out, why);
}

enum { SHARED_REQUESTS = 64, SHARED_KEYS = 8192 };

/* Request r holds the 8192 shared keys and r + 1 of its own; pages that lie whole in the prefix are
 * everybody's. */
static enum status make_shared_prefix(const struct workload_params *p, struct workload *out, struct why *why)
{
    int32_t qo_len[SHARED_REQUESTS], kv_len[SHARED_REQUESTS];
    for (int32_t r = 0; r < SHARED_REQUESTS; r++) {
        qo_len[r] = 1;
        kv_len[r] = SHARED_KEYS + r + 1;
    }
    TRY(workload_from_lengths(qo_len, kv_len, SHARED_REQUESTS, p, out, why));
    const enum status status = workload_assign_pages(out, p->seed, why);
    if (status != STATUS_OK) {
        workload_free(out);
        return status;
    }
    for (int32_t r = 1; r < SHARED_REQUESTS; r++)
        memcpy(out->kv_indices + out->kv_indptr[r], out->kv_indices,
               (size_t)(SHARED_KEYS / p->page_size) * sizeof(int32_t));
    return STATUS_OK;
}

static enum status make_ragged(const struct workload_params *p, struct workload *out, struct why *why)
{
    enum { MAX_CHUNKS = 4, MAX_DECODES = 64 };
    int32_t qo_len[MAX_CHUNKS + MAX_DECODES], kv_len[MAX_CHUNKS + MAX_DECODES];
    struct rng rng = {p->seed};
    const int32_t chunks = 1 + (int32_t)rng_below(&rng, MAX_CHUNKS),
                  n = chunks + 1 + (int32_t)rng_below(&rng, MAX_DECODES);
    for (int32_t r = 0; r < n; r++) {
        qo_len[r] = r < chunks ? 1 + (int32_t)rng_below(&rng, 2048) : 1;
        kv_len[r] = qo_len[r] + (int32_t)exp2(13 * rng_uniform(&rng));
    }
    return workload_from_lengths(qo_len, kv_len, n, p, out, why);
}

static enum status make(const struct generator *g, const struct workload_params *p, struct workload *out,
                        struct why *why)
{
    if (g->spec) return workload_from_spec(g->spec, p, out, why);
    TRY(g->make(p, out, why));
    return workload_finish(out, why);
}

enum status workload_generate(const char *name, const struct workload_params *p, struct workload *out,
                              struct why *why)
{
    char known[240] = "";
    for (int32_t i = 0; i < generator_count(); i++) {
        if (strcmp(generators[i].name, name) == 0) {
            TRY(make(&generators[i], p, out, why));
            snprintf(out->name, sizeof out->name, "%s", name);
            return STATUS_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 generators[i].name);
    }
    return status_fail(why, STATUS_UNKNOWN_NAME, "workload '%.30s': expected one of: %s", name, known);
}
