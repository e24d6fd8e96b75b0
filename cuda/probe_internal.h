/* probe_internal: what the experiments of probe share. */
#ifndef TANDEM_CUDA_PROBE_INTERNAL_H
#define TANDEM_CUDA_PROBE_INTERNAL_H

#include "cuda/exec_internal.h"
#include "cuda/probe.h"

enum { PROBE_MAX_REPEATS = 32 };

struct probe_bench {
    struct cuda_device *d;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int32_t repeats, sms;
    char *memory; /* bytes of it, not zero */
    size_t bytes;
    uint32_t *sink; /* 1 MB */
};

/* An experiment once: its figure in *value. */
typedef enum status (*probe_once)(struct probe_bench *b, const void *args, double *value, struct why *why);

/* Median and spread of b->repeats runs, after one. */
enum status probe_figure_of(struct probe_bench *b, probe_once once, const void *args,
                            struct probe_figure *out, struct why *why);

/* Nanoseconds between two events around what `enqueue` puts on the stream. */
enum status probe_begin(struct probe_bench *b, struct why *why);
enum status probe_end(struct probe_bench *b, double *ns, struct why *why);

enum status probe_placement(struct probe_bench *b, struct probe *out, struct why *why);
enum status probe_launches(struct probe_bench *b, struct probe *out, struct why *why);
enum status probe_memory(struct probe_bench *b, struct probe *out, struct why *why);
enum status probe_math(struct probe_bench *b, struct probe *out, struct why *why);

#endif
