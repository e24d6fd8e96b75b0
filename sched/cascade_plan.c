#include "sched/cascade_plan.h"

#include <stdlib.h>
#include <string.h>

int32_t cascade_group_tokens(const struct cascade *c, const struct batch *b, int32_t group)
{
    if (group < b->n_requests) return batch_qo_len(b, group);
    const struct cascade_node *node = &c->nodes[group - b->n_requests];
    return c->tokens_before[node->member_end] - c->tokens_before[node->member_begin];
}

enum status cascade_add_groups(const struct cascade *c, const struct batch *b, struct plan *out)
{
    enum status status = STATUS_OK;
    struct member *members = malloc(((size_t)c->n_requests + 1) * sizeof *members);
    if (!members) return STATUS_NO_MEMORY;
    for (int32_t n = 0; n < c->n_nodes && status == STATUS_OK; n++) {
        int32_t group, count = 0;
        for (int32_t m = c->nodes[n].member_begin; m < c->nodes[n].member_end; m++)
            members[count++] = (struct member){c->requests[m], 0, batch_qo_len(b, c->requests[m])};
        status = plan_add_group(out, members, count, &group);
        assert(status != STATUS_OK || group == b->n_requests + n);
    }
    free(members);
    return status;
}

/* A merge that grows while the next row's sources are the rows behind its own. */
struct pending {
    struct merge merge;
    int32_t *src, *next; /* of the first row, and of the row being looked at */
    int32_t n;
};

static enum status flush(struct pending *m, struct plan *out)
{
    if (m->merge.row_begin == m->merge.row_end) return STATUS_OK;
    const enum status status = plan_add_merge(out, &m->merge, m->src, m->n);
    m->merge.row_begin = m->merge.row_end = 0;
    return status;
}

static bool follows(const struct pending *m, const struct merge *row, int32_t n)
{
    const int32_t rows = m->merge.row_end - m->merge.row_begin;
    if (rows == 0 || n != m->n || row->kv_head != m->merge.kv_head || row->request != m->merge.request ||
        row->row_begin != m->merge.row_end || (rows + 1) * n > PLAN_MERGE_ROWS)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (m->next[i] != m->src[i] + rows) return false;
    return true;
}

static enum status add_row(struct pending *m, const struct merge *row, int32_t n, struct plan *out)
{
    if (follows(m, row, n)) {
        m->merge.row_end++;
        return STATUS_OK;
    }
    TRY(flush(m, out));
    m->merge = *row;
    m->n = n;
    memcpy(m->src, m->next, (size_t)n * sizeof *m->src);
    return STATUS_OK;
}

/* The chain of a request: its own rows, then its nodes from the deepest to the root, each with the token of
 * its row group at which the request's begin. */
struct link {
    int32_t group, token;
};
enum { MAX_LINKS = 32 };

static int32_t chain_of(const struct cascade *c, const struct batch *b, int32_t request, struct link *links)
{
    int32_t n = 0;
    links[n++] = (struct link){request, 0};
    for (int32_t node = c->leaf[request]; node >= 0; node = c->nodes[node].parent)
        links[n++] = (struct link){b->n_requests + node, c->tokens_before[c->position[request]] -
                                                             c->tokens_before[c->nodes[node].member_begin]};
    return n;
}

static enum status merge_request(const struct cascade *c, const struct batch *b,
                                 const struct cascade_sources *sources, int32_t request, struct pending *m,
                                 struct plan *out)
{
    const int32_t group_size = batch_group_size(b);
    struct link links[MAX_LINKS];
    const int32_t n_links = chain_of(c, b, request, links);
    for (int32_t kv_head = 0; kv_head < b->shape.num_kv_heads; kv_head++)
        for (int32_t token = 0; token < batch_qo_len(b, request); token++)
            for (int32_t head = 0; head < group_size; head++) {
                const int32_t row = token * group_size + head;
                const struct merge merge = {request, kv_head, row, row + 1, ROWS_TOKEN_MAJOR};
                int32_t n = 0;
                for (int32_t l = n_links; l-- > 0;) /* in key order */
                    n += sources->of(sources->context, links[l].group, links[l].token + token, kv_head, head,
                                     m->next + n);
                TRY(add_row(m, &merge, n, out));
            }
    return flush(m, out);
}

enum status cascade_add_merges(const struct cascade *c, const struct batch *b,
                               const struct cascade_sources *sources, struct plan *out)
{
    struct pending m = {0};
    if (c->n_nodes == 0) return STATUS_OK;
    const size_t cap = (size_t)sources->most_sources * MAX_LINKS;
    m.src = malloc(cap * sizeof *m.src);
    m.next = malloc(cap * sizeof *m.next);
    enum status status = m.src && m.next ? STATUS_OK : STATUS_NO_MEMORY;
    for (int32_t r = 0; r < b->n_requests && status == STATUS_OK; r++)
        if (c->leaf[r] >= 0) status = merge_request(c, b, sources, r, &m, out);
    free(m.src);
    free(m.next);
    return status;
}
