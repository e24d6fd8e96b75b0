/* baseline: the batch that was just measured, through other people's attention on the same GPU: lab/baseline.py, run as a
 * child over the same tensors. Each peer becomes a row beside the policies'.
 *
 * The child is not trusted: its lines are checked, and each peer's O (and LSE) at the sampled rows is held to the
 * oracle here, by the bound that policies are held to. A peer that is wrong has no time. */
#ifndef TANDEM_LAB_BASELINE_H
#define TANDEM_LAB_BASELINE_H

#include "lab/commands.h"
#include "lab/device_run.h"

enum { BASELINE_NAME_MAX = 40, BASELINE_MAX_PEERS = 32, BASELINE_TIMEOUT_S = 1800 };

struct baseline {
    const struct workload *w;
    const struct machine *m;
    struct device_run *run; /* tensors, error model; gets a sample if it has none. Its device is not used */
    int32_t runs;
    double timeout_s; /* of the child, all peers: compiling may take minutes */
    bool quiet;
};

/* One line of the child: {"peer", "time_us", "p10_us", "p90_us", "runs", "options"} or {"peer", "error"}. */
struct baseline_line {
    char peer[BASELINE_NAME_MAX];
    double time_us, p10_us, p90_us; /* NaN beside an error */
    int64_t runs;
    char options[RECORD_TEXT_MAX], error[RECORD_TEXT_MAX]; /* error "": it was timed */
};

/* Reads one (without its newline). STATUS_BAD_INPUT says what was expected: known members, peer of [a-z0-9_],
 * 0 < p10 <= time <= p90. */
enum status baseline_read_line(const char *text, struct baseline_line *out, struct why *why);

/* Writes what the child needs: tensors (README, "Tensors in and out") at `tensors`; at `sample` the members row [n]
 * (int64, token * num_qo_heads + head), o [n, head_dim_vo] and lse [n] (double). Makes the sample if it must. */
enum status baseline_write(const struct baseline *b, const char *tensors, const char *sample,
                           struct why *why);

/* Runs $TANDEM_PYTHON (python3) over the batch and adds a row a peer, "peer:NAME". A row's failure (an error of the peer,
 * a mismatch) is reported on stderr. STATUS_MISMATCH when a peer was wrong; STATUS_UNSUPPORTED when Python, PyTorch or a
 * GPU is missing; STATUS_INTERNAL when the child failed, printed something else or did not end: rows that it had finished
 * are kept. */
enum status baseline_run(const struct baseline *b, struct rows *rows, struct why *why);

#endif
