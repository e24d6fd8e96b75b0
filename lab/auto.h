/* auto: the policy of policies. Plans the candidates, asks the simulator, keeps the fastest. It lives above
 * policies and simulator, which do not know each other; `--policy auto` names it, `all` leaves it out. */
#ifndef TANDEM_LAB_AUTO_H
#define TANDEM_LAB_AUTO_H

#include "sched/policy.h"

/* What was chosen and by how much. Times are simulated. */
struct auto_choice {
    const struct policy *policy,
        *next; /* next: the fastest of the others that were simulated to the end; may be NULL */
    double time_us, next_us;
    int32_t planned, simulated; /* candidates */
};

extern const struct policy policy_auto;

/* Plans the batch by the candidate that simulates fastest. Candidates come in a fixed order of promise; each
 * is planned, dropped if a bound of its plan (its longest CTA alone, its tensor FLOPs) is 1.2 times the best
 * time so far or more, and simulated until it gets there. The option budget_us limits the whole: what the
 * next step would cost is predicted from the number of its items, so that the choice depends on the input
 * alone, never on the machine's speed. At least one candidate is simulated. Fails as the first candidate does
 * when none can plan the batch. */
enum status auto_plan(const struct batch *batch, const struct gpu *gpu, const struct kernels *kernels,
                      const struct options *options, struct plan *out, struct auto_choice *choice,
                      struct why *why);

#endif
