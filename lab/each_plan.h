/* each_plan: the loop that verify, sim and compare share: every workload of the arguments under every plan
 * they name (policies, or one saved plan), each into a record. */
#ifndef TANDEM_LAB_EACH_PLAN_H
#define TANDEM_LAB_EACH_PLAN_H

#include "lab/commands.h"

struct each_plan {
    const struct args *args;
    void *user;
    /* Once a workload, before its plans; may be NULL. */
    enum status (*begin)(struct each_plan *e, const struct workload *w, struct why *why);
    /* One plan, proved and described in *r. A failure that belongs to the plan is noted in r and returned. */
    enum status (*run)(struct each_plan *e, const struct workload *w, const struct machine *m,
                       const struct plan *plan, struct record *r, struct why *why);
    /* Once a workload, after its plans; may be NULL. */
    void (*end)(struct each_plan *e);
    struct rows rows;
};

/* Runs all. A mismatch or an invalid plan is reported on stderr and does not stop the loop; the worst status
 * is returned. Bad input and lack of memory stop it. */
enum status each_plan_run(struct each_plan *e, struct why *why);

/* The same over one workload that the caller has. */
enum status each_plan_run_one(struct each_plan *e, const struct workload *w, struct why *why);

#endif
