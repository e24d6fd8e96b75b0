/* workload: where batches come from. Batch specs, batch.json, JSONL files, named seeded generators; owned
 * memory. */
#ifndef TANDEM_LAB_WORKLOAD_H
#define TANDEM_LAB_WORKLOAD_H

#include "ref/tensor.h"
#include "sched/batch.h"

#include <stdio.h>

/* Pages of one pool: beyond this a size is a mistake, not a cache (of pages of 16 keys: 2^30 keys). */
enum { WORKLOAD_MAX_PAGES = 1 << 26 };

enum { WORKLOAD_NAME_MAX = 96, WORKLOAD_SPEC_MAX = 1024 };

/* A batch with the memory behind its view, and what names it in result rows. */
struct workload {
    struct batch batch;
    char name[WORKLOAD_NAME_MAX];
    char spec[WORKLOAD_SPEC_MAX]; /* canonical batch spec; "" for other sources */
    char model[32];               /* preset name; "" for none */
    uint64_t seed;
    struct tensor_layout layout;
    struct fill fill[3]; /* q, k, v */
    int32_t *qo_indptr, *kv_len, *kv_indptr, *kv_indices;
    float *sink, *k_scale, *v_scale;
    uint8_t *custom;
    int64_t *custom_indptr;
};
void workload_free(struct workload *w);

/* Shape flags of the command line: what a spec or a generator does not say itself. */
struct workload_params {
    char model[32];
    struct shape shape;
    struct mask mask;
    struct rope rope;
    int32_t page_size;
    struct tensor_layout layout;
    uint64_t seed;
};

/* heads 32/8, head_dim 128, page 16, bf16, causal, NHD, seed 1. */
struct workload_params workload_default_params(void);

/* Sets shape.num_*_heads and head_dim from a preset ("llama3-8b"); STATUS_UNKNOWN_NAME lists the known ones.
 */
enum status workload_set_model(struct workload_params *p, const char *model, struct why *why);

/* A workload without pages yet, of n requests; name and spec are left empty. Then workload_assign_pages or
 * pages given by hand, then workload_finish. */
enum status workload_from_lengths(const int32_t *qo_len, const int32_t *kv_len, int32_t n,
                                  const struct workload_params *p, struct workload *out, struct why *why);

/* Points the batch view at the owned arrays; call after changing them by hand. */
void workload_link(struct workload *w);

/* Assigns seeded pages if there are none and runs batch_check; frees *w on failure. */
enum status workload_finish(struct workload *w, struct why *why);

/* vLLM's batch-spec grammar: count? q<qo_len>[k] [s<kv_len>[k]] joined by '_'. Pages in seeded random order.
 */
enum status workload_from_spec(const char *spec, const struct workload_params *p, struct workload *out,
                               struct why *why);

/* A named generator of lab/generators.c. */
enum status workload_generate(const char *name, const struct workload_params *p, struct workload *out,
                              struct why *why);

/* Lays out pages for kv_len in a seeded random permutation of a pool that is exactly large enough. Used by
 * all. */
enum status workload_assign_pages(struct workload *w, uint64_t seed, struct why *why);

/* A file of batches: one batch.json, or JSONL with a batch a line (bare or as the "batch" member of a
 * wrapper). Reads one at a time; works on files of any length. */
struct workload_reader;
enum status workload_reader_open(const char *path, bool jsonl, struct workload_reader **out, struct why *why);
/* *done = true at the end (then *out is untouched). Reasons name file and line. */
enum status workload_reader_next(struct workload_reader *r, struct workload *out, bool *done,
                                 struct why *why);
void workload_reader_close(struct workload_reader *r);

/* Writes w's batch as one line of JSON (batch.json's keys) to an open stream. */
enum status workload_write_json(const struct workload *w, FILE *file, struct why *why);

#endif
