/* cascade: which requests share physical pages at their start, found from the page table alone.
 *
 * Requests whose first pages are the same physical pages form a tree (a radix cache's tree, read back from
 * kv_indices): a node is a run of keys that all requests below it hold in the same pages, so its K/V needs to
 * be read once for all of their query rows. What a node gives is a partial result for every member's rows; a
 * request's answer is the merge of its chain of nodes and of its own remaining keys.
 *
 *   pages      a: 7 3 9 4     b: 7 3 8     c: 7 3 9 5        node 0: keys of 7 3, members a b c
 *                                                            node 1: keys of 9, members a c, child of node 0
 */
#ifndef TANDEM_SCHED_CASCADE_H
#define TANDEM_SCHED_CASCADE_H

#include "sched/batch.h"

struct cascade_node {
    struct range keys; /* whole pages, before every member's new tokens: all member rows see all of them */
    int32_t parent;    /* node whose keys end where these begin; -1: keys begin at 0 */
    int32_t member_begin, member_end; /* requests[member_begin .. member_end) */
};

struct cascade {
    struct cascade_node *nodes;
    int32_t n_nodes, cap_nodes;
    int32_t *requests; /* candidates, those of a node next to each other */
    int32_t n_requests;
    int32_t *position;      /* [batch requests]: where a request is in requests */
    int32_t *tokens_before; /* [n_requests + 1]: query tokens of the requests before a position */
    int32_t *leaf;          /* [batch requests]: deepest node of a request, -1 for none */
};

/* Finds the tree. Candidates are requests with 1 .. max_rows packed rows a kv head (more rows reuse K/V well
 * by themselves); a node has at least 2 members and min_keys keys, shorter runs stay with the requests. At
 * most 16 branchings on a path. No nodes under a sliding window, where rows do not see their prefix. Time:
 * linear in the pages looked at, plus sorting the requests. */
enum status cascade_find(const struct batch *b, int32_t max_rows, int32_t min_keys, struct cascade *out);
void cascade_free(struct cascade *c);

/* First key a request has to itself: the end of its deepest node, 0 without one. */
static inline int32_t cascade_own_begin(const struct cascade *c, int32_t request)
{
    return c->n_nodes && c->leaf[request] >= 0 ? c->nodes[c->leaf[request]].keys.end : 0;
}

#endif
