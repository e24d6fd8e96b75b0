/* tensor_file: one batch with its numbers in an .npz: Q, K, V, the page table, and results to check or to pass on.
 * README, "Tensors in and out", lists the members. */
#ifndef TANDEM_LAB_TENSOR_FILE_H
#define TANDEM_LAB_TENSOR_FILE_H

#include "lab/workload.h"
#include "ref/numerics.h"
#include "ref/tensor.h"

struct tensor_file {
    struct workload w;
    struct tensors t;     /* K and V stay as they were read: nothing is copied */
    struct result result; /* o and lse of the file, in fp32; o NULL where the file has none */
    bool has_lse;
    enum dtype o_dtype; /* type of o in the file; DTYPE_FP32 for wider ones */
    bool o_is_wide;     /* o was fp64 */
    int32_t n_given;    /* results in the file: o, lse */
};

/* Reads and checks all: shapes that fit each other, batch_check, finite Q and finite K and V wherever a request's keys
 * are. STATUS_BAD_INPUT with file and member otherwise. */
enum status tensor_file_read(const char *path, struct tensor_file *out, struct why *why);
void tensor_file_free(struct tensor_file *f);

/* Which numerics a file's o was made with, as far as its types tell: fp64 exact, fp32 of fp32 inputs fp32, all else
 * device with weights in the type of Q. */
struct numerics tensor_file_numerics(const struct tensor_file *f);

/* Writes a workload's tensors and the right answer (o and lse in fp64; NULL: without), whole or not at all. */
enum status tensor_file_write(const char *path, const struct workload *w, const struct tensors *t,
                              const struct oracle_result *answer, struct why *why);

#endif
