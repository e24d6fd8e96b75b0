/* policy: a named pure function from (batch, gpu, kernels, options) to a plan, and the registry of all of
 * them.
 *
 * A policy never sees the simulator, a clock, randomness or I/O: the same inputs give the same plan. To add
 * one: write sched/policy_NAME.c with a `const struct policy policy_NAME`, add its line to POLICY_LIST below,
 * and every generic test, command and plot has it. README, "Add a policy", walks through a whole example. */
#ifndef TANDEM_SCHED_POLICY_H
#define TANDEM_SCHED_POLICY_H

#include "sched/gpu.h"
#include "sched/kernel.h"
#include "sched/plan.h"

/* One settable thing of a policy. values: "a|b|c" (one of these words) or "int:LOW..HIGH". First word, or
 * default_value, is what is used when nothing is said. */
struct policy_option {
    const char *name;
    const char *values;
    const char *default_value;
    const char *brief;
};

/* What the user set: n pairs of name and value, as given (--option name=value). */
struct options {
    int32_t n;
    const char *const *names;
    const char *const *values;
};

struct policy_input {
    const struct batch *batch;
    const struct gpu *gpu;
    const struct kernels *kernels;
    const struct policy *policy;
    const struct options *options; /* checked against the policy's own list; may be NULL */
};

struct policy {
    const char *name;
    const char *brief;                   /* one line for `tandem list policies` */
    const char *source;                  /* the published rule it restates */
    const struct policy_option *options; /* ends with a NULL name; may be NULL */
    /* Fills *out (already plan_begin'ed). Returns STATUS_UNSUPPORTED with a reason for batches it cannot
     * express. */
    enum status (*plan)(const struct policy_input *in, struct plan *out, struct why *why);
};

/* The registry: order is the order of tables and pictures. */
#define POLICY_LIST(X) \
    X(unified)         \
    X(serial)          \
    X(streams)         \
    X(fi_decode)       \
    X(fi_prefill)      \
    X(fi_sm90)         \
    X(fi_batch_pod)    \
    X(fi_holistic)     \
    X(fa2_splits)      \
    X(fa3_splits)      \
    X(fa3_varlen)      \
    X(pod)             \
    X(warp_fused)      \
    X(stream_k)        \
    X(fixed_split)     \
    X(sm_partition)    \
    X(linear_bid)      \
    X(page_aware)

#define X(name) extern const struct policy policy_##name;
POLICY_LIST(X)
#undef X

int32_t policy_count(void);
const struct policy *policy_at(int32_t i);

/* NULL when unknown; policy_names lists the known ones, comma separated, for the error. */
const struct policy *policy_find(const char *name);
const char *policy_names(void);

/* Checks the options (unknown name or value: STATUS_UNKNOWN_NAME / STATUS_BAD_INPUT naming the known ones),
 * empties *out, plans and finishes it. The batch must have passed batch_check. On failure *out is empty but
 * still valid. */
enum status policy_plan(const struct policy *policy, const struct batch *batch, const struct gpu *gpu,
                        const struct kernels *kernels, const struct options *options, struct plan *out,
                        struct why *why);

/* Options that every policy has, applied to the finished plan; ends with a NULL name. */
const struct policy_option *policy_common_options(void);

/* A policy's option by name, its own or a common one; NULL when it has none of that name. */
const struct policy_option *policy_find_option(const struct policy *policy, const char *name);

/* Checks options against a policy's own list and the common one, as policy_plan does. */
enum status policy_check_options(const struct policy *policy, const struct options *options, struct why *why);

/* Value of an option as a word, or as an int; the default when not set. The name must be one of the policy's.
 */
const char *policy_option_word(const struct policy_input *in, const char *name);
int32_t policy_option_int(const struct policy_input *in, const char *name);

#endif
