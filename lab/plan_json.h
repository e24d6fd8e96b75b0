/* plan_json: plans to and from plan.json. What is written is read back bit for bit. */
#ifndef TANDEM_LAB_PLAN_JSON_H
#define TANDEM_LAB_PLAN_JSON_H

#include "sched/plan.h"

#include <stdio.h>

/* Writes the plan; gpu and policy are names for the reader. */
enum status plan_json_write(const struct plan *p, const char *gpu, const char *policy, FILE *out,
                            struct why *why);

/* Reads a plan from a file or "-". Types, ranges and array shapes are checked here; whether it is a valid
 * plan for a batch is plan_check's business. STATUS_BAD_INPUT with place and expectation, STATUS_IO. */
enum status plan_json_read(const char *path, struct plan *out, struct why *why);

#endif
