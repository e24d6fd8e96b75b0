/* run: one workload under one plan through the executors, into a record. Shared by the commands. */
#ifndef TANDEM_LAB_RUN_H
#define TANDEM_LAB_RUN_H

#include "lab/record.h"
#include "lab/workload.h"
#include "ref/compare.h"
#include "ref/ref_exec.h"
#include "sched/policy.h"
#include "sim/sim.h"

/* A machine to plan for: the profile and, per workload, the kernel table made concrete. */
struct machine {
    struct gpu gpu;
    struct kernels kernels;
};

/* Tensors and the right answer of one workload; made once, used for every plan. And how plans are executed,
 * with the error that leaves room for. */
struct truth {
    struct tensors tensors;
    struct oracle_result oracle;
    struct exec_options exec;
    struct error_model model;
};

/* Tensors and oracle of a workload; executions in fp32. */
enum status truth_create(const struct workload *w, struct truth *t, struct why *why);

/* The same of tensors that are there already, which it takes over (also when it fails). */
enum status truth_adopt(const struct workload *w, struct tensors *tensors, struct truth *t, struct why *why);

/* Executes with other numerics from now on. */
void truth_set_numerics(const struct workload *w, struct numerics numerics, struct truth *t);
void truth_free(struct truth *t);

/* Plans (timed: the least of three) and proves the plan; fills the columns a plan has. When the policy
 * refuses or the proof fails, the record's status says so and the status is returned. */
enum status run_plan(const struct workload *w, const struct machine *m, const struct policy *policy,
                     const struct options *options, struct plan *plan, struct record *r, struct why *why);

/* The columns of a plan that came from elsewhere (already checked). */
enum status run_describe(const struct workload *w, const struct machine *m, const struct plan *plan,
                         struct record *r, struct why *why);

/* What holds whatever runs the batch: flops, limit_us. And of its time_us to those: limit_ratio, tensor_util. */
void run_note_limits(const struct workload *w, const struct machine *m, struct record *r);
void run_note_ratios(const struct machine *m, struct record *r);

/* Executes the plan on the CPU and compares with the oracle: max_err_*, status. STATUS_MISMATCH with the
 * first bad element in *why when it is wrong. */
enum status run_verify(const struct workload *w, const struct truth *truth, const struct plan *plan,
                       struct record *r, struct why *why);

/* A result from anywhere against the oracle: max_err_*, STATUS_MISMATCH as above. */
enum status run_compare(const struct workload *w, const struct truth *truth, const struct result *result,
                        struct record *r, struct why *why);

/* Simulates: time_us and what follows from it. result (optional) receives spans and samples when asked for.
 */
enum status run_simulate(const struct workload *w, const struct machine *m, const struct plan *plan,
                         bool spans, struct record *r, struct sim_result *result, struct why *why);

/* Sets the status column of a failed step: "invalid: why", "mismatch", "error: why". */
void run_note_failure(struct record *r, enum status status, const struct why *why);

#endif
