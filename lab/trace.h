/* trace: request traces of public data sets, read from files their users keep. Whole file into memory, sorted
 * by arrival. */
#ifndef TANDEM_LAB_TRACE_H
#define TANDEM_LAB_TRACE_H

#include "sched/status.h"

#include <stdint.h>

struct trace_request {
    double arrival_s; /* from the first request of the trace */
    int32_t prompt_tokens, output_tokens;
    int32_t hash_begin,
        hash_end; /* into trace.hashes: ids of the prompt's 512-token blocks; empty in most formats */
    int32_t row;  /* place in the file */
};

struct trace {
    struct trace_request *requests;
    int32_t n, cap;
    int32_t *hashes;
    int32_t n_hashes, cap_hashes;
    int32_t skipped; /* rows without prompt tokens (failed requests) */
};

enum { TRACE_HASH_BLOCK_TOKENS = 512 };

/* format: azure (TIMESTAMP,ContextTokens,GeneratedTokens), mooncake (JSONL: timestamp ms, input_length,
 * output_length, hash_ids), vidur (arrived_at,num_prefill_tokens,num_decode_tokens), burstgpt
 * (Timestamp,..,Request tokens,Response tokens,..). Columns are found by name. Reasons name file and line. */
enum status trace_read(const char *path, const char *format, struct trace *out, struct why *why);
void trace_free(struct trace *t);

#endif
