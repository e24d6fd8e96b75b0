/* device_run: one workload on the GPU that is here: tensors up, plans run and judged, times taken.
 *
 * Small batches are judged by the oracle, whole. Large ones by attn_1_naive, whole, on the device (which must agree with
 * the oracle itself), and by the oracle in SAMPLE_ROWS rows picked by the seed. */
#ifndef TANDEM_LAB_DEVICE_RUN_H
#define TANDEM_LAB_DEVICE_RUN_H

#include "cuda/exec.h"
#include "lab/run.h"

enum { DEVICE_SAMPLE_ROWS = 256 };

struct device_run {
    struct cuda_device *device;
    enum cuda_ladder ladder;
    struct truth truth; /* tensors and error model; the oracle's whole result where `whole` */
    bool whole;
    struct row_ref *rows; /* the sample; where `whole`, only after device_run_sample */
    int32_t n_rows;
    struct oracle_result sample;
    struct result judge; /* of attn_1_naive */
    struct result got;
};

/* A workload's tensors, created and uploaded, and its judges. *r must hold an open device (and a ladder). */
enum status device_run_begin(struct device_run *r, const struct workload *w, const struct machine *m,
                             struct why *why);

/* The same with tensors and oracle that are there already (borrowed: the caller frees them). */
enum status device_run_adopt(struct device_run *r, const struct workload *w, const struct truth *truth,
                             struct why *why);

/* After an adopt: forgets truth that is the caller's, frees the rest. */
void device_run_release(struct device_run *r);

/* Frees what a begin made; the device stays open. */
void device_run_end(struct device_run *r);

/* Draws SAMPLE_ROWS rows by the workload's seed (all of a smaller batch's number, some perhaps twice) and has the oracle
 * do them: rows, n_rows, sample. Needs the tensors only, no device. Nothing happens where a sample is there already. */
enum status device_run_sample(struct device_run *r, const struct workload *w, struct why *why);

/* A comparison's verdict in one line: STATUS_MISMATCH names the first element out of bounds of what `who` computed. */
enum status device_run_report(const struct workload *w, const struct comparison *c, const char *who,
                              struct why *why);

/* Prepares the plan, runs it twice over poisoned outputs, compares with the judges; both runs must give the same bits.
 * Fills executor, max_err_*, kernels in the options; STATUS_MISMATCH with the first fault. */
enum status device_run_verify(struct device_run *r, const struct workload *w, const struct machine *m,
                              const struct plan *plan, struct record *record, struct why *why);

/* Times the plan that was verified last: time_us, its quantiles, runs, joules; clocks and sustained time in the
 * options. */
enum status device_run_time(struct device_run *r, const struct machine *m,
                            const struct cuda_time_options *options, struct record *record, struct why *why);

/* Runs the plan once more with spans; the role's ends go into the record. free(*spans). */
enum status device_run_spans(struct device_run *r, const struct machine *m, const struct plan *plan,
                             struct record *record, struct span **spans, int64_t *n, struct why *why);

#endif
