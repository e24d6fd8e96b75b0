/* ref_exec: obeys a plan on the CPU. Runs its items as cut, keeps partial rows with LSE, merges as listed; so
 * a plan that is wrong gives wrong numbers. OpenMP over items; vector.h does the arithmetic, OpenBLAS the
 * matrix products where that has none. */
#ifndef TANDEM_REF_REF_EXEC_H
#define TANDEM_REF_REF_EXEC_H

#include "ref/numerics.h"
#include "ref/tensor.h"
#include "ref/vector.h"
#include "sched/plan.h"

struct exec_options {
    struct numerics numerics;
    const struct vector_ops *ops; /* NULL: vector_best() */
};

/* Executes p (which must have passed plan_check for b) into out (from result_create, poisoned). options NULL:
 * fp32 with the best instruction set. The same bits on any thread count of one CPU type. Memory beyond inputs
 * and outputs: the plan's workspace, 64 bytes an item while tasks are formed, and O(threads x tile): below 2 MiB a
 * thread at head_dim 128. */
enum status ref_exec(const struct batch *b, const struct tensors *t, const struct plan *p,
                     const struct exec_options *options, struct result *out, struct why *why);

/* What does the arithmetic: "cpu=avx512", the instruction set of vector.h; "cpu=base blas=Haswell" where tall tiles
 * go to OpenBLAS, with its kernels' name. */
void ref_exec_describe(const struct exec_options *options, char *out, size_t size);

#endif
