/* exec: runs plans on the GPU that is here. Plain C; builds without CUDA link exec_stub.c, which says so.
 *
 *   cuda_open -> cuda_load (a batch and its tensors) -> cuda_prepare (a plan) -> cuda_execute, cuda_time, cuda_spans
 *
 * A plan is checked on the host before anything is launched; what is launched is the plan: its grids with their
 * numbers of CTAs, lists, remaps, tickets, merges. All memory is taken up front; a run allocates nothing. */
#ifndef TANDEM_CUDA_EXEC_H
#define TANDEM_CUDA_EXEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "sched/plan.h"
#include "sched/span.h"

struct cuda_device;

/* STATUS_OK when this build has kernels and a usable GPU is here; else STATUS_UNSUPPORTED with the reason. */
enum status cuda_available(struct why *why);

enum status cuda_open(struct cuda_device **out, struct why *why);
void cuda_close(struct cuda_device *d); /* NULL is fine */

/* What ran: for records and the notes beside committed results. */
struct cuda_card {
    char name[64];
    int32_t driver, runtime; /* 1000 major + 10 minor */
    int32_t cc_major, cc_minor;
    int32_t sm_count;
    int64_t memory_bytes, free_bytes;
    int32_t sm_mhz, memory_mhz; /* now; 0: not known */
    double watts;               /* now; 0: not known */
};
enum status cuda_card(struct cuda_device *d, struct cuda_card *out, struct why *why);

/* Elements from a token (head) of Q or O to the next; from a page, a position, a kv head of K or V to the next. */
struct cuda_row_stride {
    int64_t token, head;
};
struct cuda_key_stride {
    int64_t page, pos, head;
};

/* The tensors of a batch in host memory (ref/tensor.h has their shapes). v NULL: V lies v_offset elements into k's
 * memory. */
struct cuda_tensors {
    const void *q, *k, *v;
    size_t q_bytes, k_bytes, v_bytes;
    int64_t v_offset;
    struct cuda_row_stride q_stride, o_stride;
    struct cuda_key_stride k_stride, v_stride;
    size_t o_elements; /* of O's memory, gaps between rows included */
};

/* Uploads a batch (which must have passed batch_check) and its tensors, replacing those before. STATUS_NO_MEMORY when
 * the device has too little, STATUS_BAD_INPUT when a page lies outside the tensors. */
enum status cuda_load(struct cuda_device *d, const struct batch *b, const struct cuda_tensors *t,
                      struct why *why);

/* Which step of the kernel ladder runs the items: the fastest that takes the batch, or one of them. */
enum cuda_ladder { CUDA_LADDER_BEST, CUDA_LADDER_NAIVE, CUDA_LADDER_MMA };

struct cuda_options {
    enum cuda_ladder ladder;
    bool spans; /* record when every item and merge ran; costs two clock reads and a barrier each */
    const struct kernels *kernels; /* not NULL: CTAs an SM are held down to what these say */
};

/* Checks plan p for the loaded batch (plan_check), takes its workspace, uploads it and captures its launches into a
 * graph. STATUS_INVALID_PLAN, STATUS_UNSUPPORTED (CUDA_LADDER_MMA and a batch it does not take), STATUS_NO_MEMORY. */
enum status cuda_prepare(struct cuda_device *d, const struct plan *p, const struct cuda_options *options,
                         struct why *why);

/* Names of the kernels that cuda_prepare chose, one of "attn_1_naive", "attn_2_mma", or "attn_1_naive+attn_2_mma";
 * and what it cost, microseconds: upload of the plan, capture of the graph. */
struct cuda_prepared {
    char kernels[64];
    double upload_us, capture_us;
};
void cuda_prepared(const struct cuda_device *d, struct cuda_prepared *out);

/* Runs the plan once over poisoned (NaN) outputs and workspace. o: fp32 [tokens, num_qo_heads, head_dim_vo] by
 * cuda_tensors.o_stride, widened from the type of Q; lse: [tokens, num_qo_heads]. Only rows are written, not the gaps
 * between them; STATUS_MISMATCH when the kernels wrote into gaps. */
enum status cuda_execute(struct cuda_device *d, float *o, float *lse, struct why *why);

/* A prepared plan's spans of the last cuda_execute, in the form of sched/span.h: free(*spans). Needs
 * cuda_options.spans. */
enum status cuda_spans(struct cuda_device *d, struct span **spans, int64_t *n, struct why *why);

struct cuda_time_options {
    int32_t runs;     /* timed, after a tenth as many (at least 3) to warm up */
    double sustain_s; /* > 0: replays back to back for this long as well */
};

struct cuda_timing {
    double median_us, p10_us, p90_us; /* graph replays, L2 flushed before each */
    int32_t runs;
    double sustained_us; /* a replay, back to back, L2 not flushed; NaN without */
    double joules;       /* a replay of the sustained ones; NaN where the driver does not say */
    int32_t sm_mhz, memory_mhz;
    double watts; /* at the end of the sustained replays, else after the burst; 0: not known */
};

/* Times the prepared plan. */
enum status cuda_time(struct cuda_device *d, const struct cuda_time_options *options, struct cuda_timing *out,
                      struct why *why);

/* Occupancy of a kernel row on this card by the driver's own answer, for a head shape; 0 when the row has no kernel of
 * its own (fused rows and merges included). smem_bytes and registers are what the kernel asks for. */
struct cuda_row {
    char kernel[32];
    int32_t ctas_per_sm, threads, registers, spill_bytes;
    int64_t smem_bytes;
};
enum status cuda_row(struct cuda_device *d, enum kernel_id row, const struct shape *shape,
                     const struct kernels *kernels, struct cuda_row *out, struct why *why);

#ifdef __cplusplus
}
#endif

#endif
