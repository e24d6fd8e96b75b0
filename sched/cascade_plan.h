/* cascade_plan: a cascade in a plan: its nodes as row groups, and the merges of what they and the requests'
 * own keys gave. */
#ifndef TANDEM_SCHED_CASCADE_PLAN_H
#define TANDEM_SCHED_CASCADE_PLAN_H

#include "sched/cascade.h"
#include "sched/plan.h"

/* Adds every node as a row group of its members' whole query ranges; node n gets the id n_requests + n (the
 * plan must have no groups yet). */
enum status cascade_add_groups(const struct cascade *c, const struct batch *b, struct plan *out);

/* Query tokens of a row group: of a request, or of all members of node group - n_requests. */
int32_t cascade_group_tokens(const struct cascade *c, const struct batch *b, int32_t group);

/* Who knows where partial rows are: writes the rows that hold (token, q head `head` of the group of kv_head)
 * of a row group into src, in key order, and returns how many; most_sources at the most. */
struct cascade_sources {
    int32_t (*of)(const void *context, int32_t group, int32_t token, int32_t kv_head, int32_t head,
                  int32_t *src);
    const void *context;
    int32_t most_sources; /* of one row group */
};

/* Adds the merges of all requests that have a node: for every row the pieces of its chain of nodes, root
 * first, then of its own keys. Rows whose sources are neighbours share a merge, up to PLAN_MERGE_ROWS partial
 * rows. */
enum status cascade_add_merges(const struct cascade *c, const struct batch *b,
                               const struct cascade_sources *sources, struct plan *out);

#endif
