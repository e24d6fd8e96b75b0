/* plan: one batch's attention, cut into items and laid on launches. A plain value: print it, save it, check
 * it (plan_check.h), execute it (ref/ref_exec.h, cuda/), simulate it (sim/sim.h), diff it.
 *
 *   grids   launches in order; each holds lists of items (or of merges)
 *   items   a rectangle of work: packed query rows x keys, for one kv head
 *   merges  which partial results make which output rows; one list for the whole plan, whoever made the partials
 *   groups  row groups beyond the requests themselves (cascade: rows of several requests that read the same
 *           pages) */
#ifndef TANDEM_SCHED_PLAN_H
#define TANDEM_SCHED_PLAN_H

#include "sched/batch.h"
#include "sched/kernel.h"
#include "sched/remap.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum item_flag {
    ITEM_KV_REVERSED = 1, /* walk keys from the end */
    ITEM_LAST_MERGES = 2, /* the last item to finish of a merge's sources does that merge (no merge grid) */
    ITEM_FLAGS_ALL = 3
};

/* Attention of packed rows [row_begin, row_end) of row group `group` for kv head `kv_head` against keys
 * [kv_begin, kv_end), by kernel row `kernel` (which fixes the row order, see enum row_order).
 *
 * group < n_requests is that request; packed rows then run over its qo_len * group_size rows of this kv head.
 * group >= n_requests is plan.groups[group - n_requests]; packed rows run over the members' tokens one after
 * another.
 *
 * partial < 0: the item sees every visible key of its rows and writes O and LSE itself.
 * partial >= 0: it writes partial rows partial + (row - row_begin), in packed row order, for a merge.
 * An item may be empty of keys (kv_begin == kv_end): it then writes O = 0, LSE = -inf for its rows. */
struct item {
    int32_t group;
    int32_t kv_head;
    int32_t row_begin, row_end;
    int32_t kv_begin, kv_end;
    int32_t partial;
    uint16_t kernel; /* enum kernel_id, never a fused row */
    uint16_t flags;  /* enum item_flag */
};
static_assert(sizeof(struct item) == 32, "struct item is copied raw to the device");

/* Output rows [row_begin, row_end) (packed by `row_order`) of one request and kv head come from the partial
 * rows src + (row - row_begin) of each src in merge_src[merge_indptr[m] .. merge_indptr[m + 1]). No sources:
 * O = 0 and LSE = -inf (rows without keys are written too). Sources are merged in list order, so results are
 * deterministic. */
struct merge {
    int32_t request;
    int32_t kv_head;
    int32_t row_begin, row_end;
    int32_t row_order;
};

/* A member of a row group: query tokens [token_begin, token_end) of a request. */
struct member {
    int32_t request;
    int32_t token_begin, token_end;
};

/* How a grid's CTAs find their work. "List" l of a grid is items [list_indptr[list_begin + l], .. + 1) of the
 * plan (for a grid whose kernel row has ROLE_MERGE: merges instead of items).
 *   FIXED      n_lists == n_ctas; CTA i runs all of list remap_linear_bid(remap, i).entry, in order; a BESIDE
 *              kernel's list holds its prefill items first, and its two halves run next to each other
 *   QUEUE      lists are queues. CTA i repeats: take the next item of its home queue; when that is dry, of the
 *              queues in its home's steal order; stop when all are dry
 *   SM_TICKET  list 0 = prefill entries, list 1 = decode entries, as many a CTA as its role has lanes; the
 *              CTA's role comes from ticket_role, see remap.h */
enum dispatch { DISPATCH_FIXED, DISPATCH_QUEUE, DISPATCH_SM_TICKET, DISPATCH_COUNT };

struct grid {
    int32_t kernel; /* enum kernel_id; a fused row for grids that hold both roles */
    int32_t n_ctas;
    int32_t stream; /* grids of one stream run in plan order, one after another */
    int32_t dispatch;
    int32_t after_begin,
        after_end; /* this grid also waits for grids plan.after[after_begin .. after_end), all earlier */
    int32_t list_begin, n_lists; /* n_lists + 1 entries of list_indptr from list_begin */
    struct remap remap;          /* FIXED */
    struct ticket ticket;        /* SM_TICKET: CTAs of each role */
    int32_t home_begin;          /* QUEUE: plan.home[home_begin + cta] = home queue */
    int32_t steal_begin; /* QUEUE: plan.steal[steal_begin + home * n_lists + k], k-th queue tried (0-th =
                            home), -1 ends */
};

/* CTAs that `entries` of a role need in an SM_TICKET grid: one for every lanes-ful (virtual CTAs). */
static inline int32_t plan_ticket_ctas(const struct grid *g, enum work_role role, int32_t entries)
{
    const int32_t lanes = kernel_role_lanes(kernel_row((enum kernel_id)g->kernel), role == WORK_DECODE);
    return (int32_t)(((int64_t)entries + lanes - 1) / lanes);
}

/* Grids of a plan, streams 0 .. PLAN_MAX_GRIDS - 1. */
enum { PLAN_MAX_GRIDS = 1024 };

struct plan {
    int32_t n_requests; /* of the batch this plan was made for */

    struct grid *grids;
    int32_t n_grids, cap_grids;
    int32_t *after;
    int32_t n_after, cap_after;
    int32_t *list_indptr;
    int32_t n_list_indptr, cap_list_indptr;
    int32_t *home;
    int32_t n_home, cap_home;
    int32_t *steal;
    int32_t n_steal, cap_steal;

    struct item *items;
    int32_t n_items, cap_items;

    int32_t *group_indptr; /* [n_groups + 1] into members, once there is a group */
    int32_t n_group_indptr, cap_group_indptr;
    struct member *members;
    int32_t n_members, cap_members;

    struct merge *merges;
    int32_t n_merges, cap_merges;
    int32_t *merge_indptr; /* [n_merges + 1] into merge_src, once there is a merge */
    int32_t n_merge_indptr, cap_merge_indptr;
    int32_t *merge_src;
    int32_t n_merge_src, cap_merge_src;

    int32_t partial_rows;
    int64_t workspace_bytes; /* exactly plan_workspace_bytes(plan, batch) */
};

/* Releases everything and zeroes *p. Safe on a zeroed or freed plan. */
void plan_free(struct plan *p);

/* Number of row groups beyond the requests. */
static inline int32_t plan_n_groups(const struct plan *p)
{
    return p->n_group_indptr ? p->n_group_indptr - 1 : 0;
}

/* Workspace for partial results: partial_rows x (head_dim_vo fp32 + 1 fp32 LSE). */
int64_t plan_workspace_bytes(const struct plan *p, const struct batch *b);

/* ---- building
 * --------------------------------------------------------------------------------------------------- All
 * return STATUS_NO_MEMORY or STATUS_TOO_LARGE (2^31 entries) and leave the plan valid for plan_free. Order:
 * plan_begin, then for each grid plan_begin_grid, items with plan_end_list after each list, plan_end_grid. */

/* Empties *p (keeping its memory) for a batch. */
void plan_begin(struct plan *p, const struct batch *b);

/* Opens a grid; fill the dispatch fields of the returned pointer before plan_end_grid (it is valid until
 * then). */
enum status plan_begin_grid(struct plan *p, enum kernel_id kernel, enum dispatch dispatch, int32_t stream,
                            struct grid **out);

/* The open grid waits for grid `grid` too. */
enum status plan_add_after(struct plan *p, int32_t grid);

enum status plan_add_item(struct plan *p, const struct item *item);

/* Reserves n items at once and returns where they start, for loops that fill them in place. */
enum status plan_add_items(struct plan *p, int32_t n, struct item **out);

/* Ends the current list of the open grid (which took all items or merges added since the last end). */
enum status plan_end_list(struct plan *p);

/* Closes the grid. n_ctas: FIXED and SM_TICKET are counted here (pass 0), QUEUE takes the number of workers.
 * A QUEUE grid gets home queue 0 and no stealing unless plan_set_home / plan_set_steal said otherwise. */
enum status plan_end_grid(struct plan *p, int32_t n_ctas);

/* QUEUE grids, before plan_end_grid: homes[n_ctas]; order[n_lists * n_lists] as in struct grid. */
enum status plan_set_home(struct plan *p, const int32_t *homes, int32_t n_ctas);
enum status plan_set_steal(struct plan *p, const int32_t *order, int32_t n_lists);

/* Takes n partial rows and returns the first. */
enum status plan_take_partials(struct plan *p, int32_t n, int32_t *first);

/* Adds a row group of the given members; *group is the id items use. */
enum status plan_add_group(struct plan *p, const struct member *members, int32_t n, int32_t *group);

/* Adds a merge and its sources (partial row bases). */
enum status plan_add_merge(struct plan *p, const struct merge *m, const int32_t *src, int32_t n_src);

/* Partial rows one merge CTA reads, about: enough to be worth a CTA, few enough that no CTA is late. */
enum { PLAN_MERGE_ROWS = 16 };

/* Adds one FIXED merge grid over merges [first, end), about the merge kernel's tile_q rows a CTA (whole
 * merges are never cut), on `stream`, after the grids listed. Nothing is added when there are no such merges.
 */
enum status plan_add_merge_grid(struct plan *p, int32_t first_merge, int32_t end_merge, int32_t stream,
                                const int32_t *after, int32_t n_after);

/* Gives all merging to the items: merge grids go, every item that writes partial rows carries ITEM_LAST_MERGES.
 * STATUS_UNSUPPORTED, with the plan unchanged, where a merge has no sources or a grid waits for merges. */
enum status plan_merge_last(struct plan *p, struct why *why);

/* Sets workspace_bytes. Call last. */
void plan_finish(struct plan *p, const struct batch *b);

/* ---- reading
 * ---------------------------------------------------------------------------------------------------- */

/* Query tokens of a row group (of the request, or of all members). */
int32_t plan_group_tokens(const struct plan *p, const struct batch *b, int32_t group);

/* Resolves packed row `row` of `group` for `kv_head` in the given order. O(members of the group). */
struct row_ref plan_row(const struct plan *p, const struct batch *b, int32_t group, int32_t kv_head,
                        enum row_order order, int32_t row);

/* Keys that any row of the item sees, inside its own key range: what a kernel must load. Empty: begin == end.
 * Exact for requests; for groups the union over members. */
struct range plan_item_keys(const struct plan *p, const struct batch *b, const struct item *item);

#endif
