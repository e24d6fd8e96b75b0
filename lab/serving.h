/* serving: a decode-first token-budget scheduler over a trace, as vLLM V1 and Sarathi-Serve form steps: every
 * running decode takes one token, running prefills go on in chunks, then waiting requests are admitted while
 * tokens, sequences and pages last. Its clock is a roofline of the whole model, so that which requests meet
 * in a step does not depend on the attention policy under test. */
#ifndef TANDEM_LAB_SERVING_H
#define TANDEM_LAB_SERVING_H

#include "lab/trace.h"
#include "lab/workload.h"
#include "sched/gpu.h"

struct serving_config {
    int32_t budget;    /* tokens a step; vLLM's default on GPUs of 70 GiB and more: 8192 */
    int32_t max_seqs;  /* running requests; vLLM: 256 */
    double rate;       /* arrivals are this many times as fast as in the trace */
    bool prefix_cache; /* share pages of equal 512-token blocks (traces with hash ids) */
    int64_t kv_tokens; /* KV pool; SERVING_KV_TOKENS */
    struct workload_params params;
};

/* 96 GiB of bf16 K and V of an 8B-class model with 8 KV heads, 32 layers: what a 141 GB GPU has left. */
enum { SERVING_KV_TOKENS = 786432 };

struct serving;
enum status serving_create(const struct trace *trace, const struct gpu *gpu,
                           const struct serving_config *config, struct serving **out, struct why *why);
void serving_free(struct serving *s);

/* The next step's batch. *mixed: it holds decodes and prefill chunks. *done = true when all requests are
 * served (then *out is untouched). Prefill chunks come first in the batch. */
enum status serving_step(struct serving *s, struct workload *out, bool *mixed, bool *done, struct why *why);

/* What happened so far. */
struct serving_counts {
    int64_t steps, mixed_steps, prefill_tokens, decode_tokens, cached_tokens, refused;
    double clock_s;
};
struct serving_counts serving_counts(const struct serving *s);

#endif
