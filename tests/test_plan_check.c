/* plan_check must reject every planted fault, on plans of every policy; and prove hand-made plans of each
 * kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/run.h"
#include "sched/plan_check.h"
#include "tests/random_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A fault changes a valid plan; false when this plan has nothing of the kind to break. */
typedef bool fault_fn(struct plan *p, const struct batch *b);

static struct item *first_partial(struct plan *p)
{
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0) return &p->items[i];
    return NULL;
}

static struct item *first_direct(struct plan *p)
{
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial < 0 && p->items[i].kv_end > p->items[i].kv_begin) return &p->items[i];
    return NULL;
}

static struct grid *grid_of(struct plan *p, enum dispatch dispatch, bool merges)
{
    for (int32_t g = 0; g < p->n_grids; g++)
        if (p->grids[g].dispatch == (int32_t)dispatch && (p->grids[g].kernel == KERNEL_MERGE) == merges)
            return &p->grids[g];
    return NULL;
}

static bool shorten_keys(struct plan *p, const struct batch *b)
{
    struct item *x = first_direct(p);
    /* the last key the item's last row sees goes missing */
    if (!x) return false;
    const struct range keys = plan_item_keys(p, b, x);
    if (keys.begin == keys.end) return false;
    x->kv_end = keys.end - 1;
    return true;
}

static bool late_keys(struct plan *p, const struct batch *b)
{
    struct item *x = first_direct(p);
    if (!x) return false;
    const struct range keys = plan_item_keys(p, b, x);
    if (keys.begin == keys.end) return false;
    x->kv_begin = keys.begin + 1;
    return true;
}

static bool shrink_rows(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_direct(p);
    if (!x || x->row_end - x->row_begin < 2) return false;
    x->row_end--;
    return true;
}

static bool duplicate_item(struct plan *p, const struct batch *b)
{
    (void)b;
    if (p->n_items < 2) return false;
    for (int32_t i = 1; i < p->n_items; i++)
        if (p->items[i].kernel == p->items[0].kernel) {
            p->items[i] = p->items[0];
            return true;
        }
    return false;
}

static bool wrong_head(struct plan *p, const struct batch *b)
{
    p->items[0].kv_head = (p->items[0].kv_head + 1) % b->shape.num_kv_heads;
    return b->shape.num_kv_heads > 1;
}

static bool head_out_of_range(struct plan *p, const struct batch *b)
{
    p->items[0].kv_head = b->shape.num_kv_heads;
    return true;
}

static bool wrong_request(struct plan *p, const struct batch *b)
{
    for (int32_t i = 0; i < p->n_items; i++)
        for (int32_t r = 0; r < b->n_requests; r++)
            if (r != p->items[i].group && batch_qo_len(b, r) == batch_qo_len(b, p->items[i].group) &&
                b->kv_len[r] >= p->items[i].kv_end) {
                p->items[i].group = r;
                return true;
            }
    return false;
}

static bool group_out_of_range(struct plan *p, const struct batch *b)
{
    p->items[0].group = b->n_requests;
    return true;
}

static bool negative_row(struct plan *p, const struct batch *b)
{
    (void)b;
    p->items[0].row_begin = -1;
    return true;
}

static bool rows_beyond(struct plan *p, const struct batch *b)
{
    p->items[0].row_end = batch_qo_len(b, p->items[0].group) * batch_group_size(b) + 1;
    return true;
}

static bool keys_beyond(struct plan *p, const struct batch *b)
{
    p->items[0].kv_end = b->kv_len[p->items[0].group] + 1;
    return true;
}

static bool huge_keys(struct plan *p, const struct batch *b)
{
    (void)b;
    p->items[0].kv_end = INT32_MAX;
    return true;
}

static bool unknown_kernel(struct plan *p, const struct batch *b)
{
    (void)b;
    p->items[0].kernel = KERNEL_COUNT;
    return true;
}

static bool merge_kernel_item(struct plan *p, const struct batch *b)
{
    (void)b;
    p->items[0].kernel = KERNEL_MERGE;
    return true;
}

static bool foreign_kernel(struct plan *p, const struct batch *b)
{
    (void)b;
    for (int32_t i = 0; i < p->n_items; i++) {
        p->items[i].kernel =
            p->items[i].kernel == KERNEL_FA2_PREFILL_64 ? KERNEL_FA2_PREFILL_128 : KERNEL_FA2_PREFILL_64;
        return true;
    }
    return false;
}

static bool unknown_flag(struct plan *p, const struct batch *b)
{
    (void)b;
    p->items[0].flags = 64;
    return true;
}

static bool flag_without_partial(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_direct(p);
    if (!x) return false;
    x->flags = ITEM_LAST_MERGES;
    return true;
}

static bool last_merges_beside_grid(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_partial(p);
    if (!x) return false;
    x->flags = ITEM_LAST_MERGES;
    return true;
}

/* Neighbouring chunks of a split tile share a key: nothing is missing, one key counts twice. */
static bool overlapping_chunks(struct plan *p, const struct batch *b)
{
    (void)b;
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].partial >= 0 && p->items[i].kv_begin > 0) {
            p->items[i].kv_begin--;
            return true;
        }
    return false;
}

static bool partial_overlap(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_partial(p);
    if (!x) return false;
    for (struct item *y = x + 1; y < p->items + p->n_items; y++)
        if (y->partial >= 0) {
            y->partial = x->partial;
            return true;
        }
    return false;
}

static bool partial_beyond(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_partial(p);
    if (!x) return false;
    x->partial = p->partial_rows;
    return true;
}

static bool direct_beside_merge(struct plan *p, const struct batch *b)
{
    (void)b;
    struct item *x = first_partial(p);
    if (!x) return false;
    x->partial = -1;
    return true;
}

static bool swapped_sources(struct plan *p, const struct batch *b)
{
    (void)b;
    for (int32_t m = 1; m < p->n_merges; m++)
        if (p->merges[m].row_end - p->merges[m].row_begin == p->merges[0].row_end - p->merges[0].row_begin &&
            (p->merges[m].request != p->merges[0].request || p->merges[m].kv_head != p->merges[0].kv_head ||
             p->merges[m].row_begin != p->merges[0].row_begin)) {
            const int32_t a = p->merge_indptr[0], c = p->merge_indptr[m], t = p->merge_src[a];
            p->merge_src[a] = p->merge_src[c];
            p->merge_src[c] = t;
            return true;
        }
    return false;
}

static bool dropped_source(struct plan *p, const struct batch *b)
{
    (void)b;
    for (int32_t m = p->n_merges - 1; m >= 0; m--)
        if (p->merge_indptr[m + 1] - p->merge_indptr[m] > 1) {
            for (int32_t i = p->merge_indptr[m]; i + 1 < p->n_merge_src; i++)
                p->merge_src[i] = p->merge_src[i + 1];
            for (int32_t k = m + 1; k <= p->n_merges; k++)
                p->merge_indptr[k]--;
            p->n_merge_src--;
            return true;
        }
    return false;
}

static bool source_twice(struct plan *p, const struct batch *b)
{
    (void)b;
    for (int32_t m = 0; m < p->n_merges; m++)
        if (p->merge_indptr[m + 1] - p->merge_indptr[m] > 1) {
            p->merge_src[p->merge_indptr[m]] = p->merge_src[p->merge_indptr[m] + 1];
            return true;
        }
    return false;
}

static bool negative_source(struct plan *p, const struct batch *b)
{
    (void)b;
    if (p->n_merge_src == 0) return false;
    p->merge_src[0] = -5;
    return true;
}

static bool merge_order_flipped(struct plan *p, const struct batch *b)
{
    for (int32_t m = 0; m < p->n_merges; m++)
        /* with one token or one head a tile, both orders name the same rows */
        if (batch_group_size(b) > 1 && batch_qo_len(b, p->merges[m].request) > 1) {
            p->merges[m].row_order = !p->merges[m].row_order;
            return true;
        }
    return false;
}

static bool merge_indptr_falls(struct plan *p, const struct batch *b)
{
    (void)b;
    if (p->n_merges < 2) return false;
    p->merge_indptr[1] = p->n_merge_src + 7;
    return true;
}

static bool merge_in_two_lists(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_FIXED, true);
    if (!g || g->n_lists < 2) return false;
    p->list_indptr[g->list_begin + 1] = p->list_indptr[g->list_begin + 2] + 1;
    return true;
}

static bool merge_before_items(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_FIXED, true);
    if (!g) return false;
    g->stream += 5; /* nobody to wait for any more */
    return g->after_begin == g->after_end;
}

static bool item_in_no_list(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = &p->grids[0];
    if (g->n_lists < 2 || g->dispatch != DISPATCH_FIXED) return false;
    p->list_indptr[g->list_begin] = p->list_indptr[g->list_begin + 1];
    return true;
}

static bool remap_counts_off(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_FIXED, false);
    if (!g) return false;
    g->remap.n_prefill++;
    return true;
}

static bool remap_overflow(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_FIXED, false);
    if (!g) return false;
    g->remap.n_prefill = INT32_MAX;
    g->remap.n_decode = INT32_MIN;
    return true;
}

static bool remap_unknown(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_FIXED, false);
    if (!g) return false;
    g->remap.kind = REMAP_KIND_COUNT;
    return true;
}

static bool ticket_counts_off(struct plan *p, const struct batch *b)
{
    (void)b;
    struct grid *g = grid_of(p, DISPATCH_SM_TICKET, false);
    if (!g) return false;
    g->ticket.n_decode--;
    return true;
}

static bool ctas_off(struct plan *p, const struct batch *b)
{
    (void)b;
    if (p->grids[0].dispatch == DISPATCH_QUEUE) return false; /* one worker fewer is as good */
    p->grids[0].n_ctas--;
    return true;
}

/* A prefill behind a decode in a list of halves. */
static bool halves_swapped(struct plan *p, const struct batch *b)
{
    const struct grid *g = &p->grids[0];
    (void)b;
    if (g->kernel != KERNEL_WARP_FUSED_128_64) return false;
    for (int32_t l = 0; l < g->n_lists; l++) {
        struct item *first = &p->items[p->list_indptr[l]], *last = &p->items[p->list_indptr[l + 1] - 1];
        if (first->kernel == last->kernel) continue;
        const struct item swap = *first;
        *first = *last;
        *last = swap;
        return true;
    }
    return false;
}

/* Virtual CTAs without tickets to deal them out. */
static bool lanes_without_tickets(struct plan *p, const struct batch *b)
{
    struct grid *g = &p->grids[0];
    (void)b;
    if (g->dispatch != DISPATCH_SM_TICKET || kernel_lanes(kernel_row((enum kernel_id)g->kernel)) == 1)
        return false;
    g->dispatch = DISPATCH_FIXED;
    g->n_ctas = g->n_lists;
    g->remap = (struct remap){.n_prefill = g->n_lists};
    return true;
}

static bool no_such_dispatch(struct plan *p, const struct batch *b)
{
    (void)b;
    p->grids[0].dispatch = DISPATCH_COUNT;
    return true;
}

static bool grid_kernel_unknown(struct plan *p, const struct batch *b)
{
    (void)b;
    p->grids[0].kernel = -1;
    return true;
}

static bool waits_for_itself(struct plan *p, const struct batch *b)
{
    (void)b;
    static int32_t self;
    self = 0;
    p->after = realloc(p->after, sizeof *p->after);
    p->after[0] = self;
    p->n_after = p->cap_after = 1;
    p->grids[0].after_begin = 0;
    p->grids[0].after_end = 1;
    return true;
}

static bool lists_outside(struct plan *p, const struct batch *b)
{
    (void)b;
    p->grids[0].list_begin = INT32_MAX;
    return true;
}

static bool workspace_off(struct plan *p, const struct batch *b)
{
    (void)b;
    p->workspace_bytes++;
    return true;
}

static bool phantom_partials(struct plan *p, const struct batch *b)
{
    p->partial_rows += 1000;
    p->workspace_bytes = plan_workspace_bytes(p, b);
    return true;
}

static bool other_batch(struct plan *p, const struct batch *b)
{
    (void)b;
    p->n_requests++;
    return true;
}

/* clang-format off */
#define FAULTS(X) \
    X(shorten_keys) X(late_keys) X(shrink_rows) X(duplicate_item) X(wrong_head) X(head_out_of_range) \
    X(wrong_request) X(group_out_of_range) X(negative_row) X(rows_beyond) X(keys_beyond) X(huge_keys) \
    X(unknown_kernel) X(merge_kernel_item) X(foreign_kernel) X(unknown_flag) X(flag_without_partial) \
    X(last_merges_beside_grid) X(overlapping_chunks) X(partial_overlap) X(partial_beyond) \
    X(direct_beside_merge) X(swapped_sources) X(dropped_source) X(source_twice) X(negative_source) \
    X(merge_order_flipped) X(merge_indptr_falls) X(merge_in_two_lists) X(merge_before_items) \
    X(item_in_no_list) X(remap_counts_off) X(remap_overflow) X(remap_unknown) X(ticket_counts_off) \
    X(ctas_off) X(halves_swapped) X(lanes_without_tickets) X(no_such_dispatch) X(grid_kernel_unknown) X(waits_for_itself) X(lists_outside) \
    X(workspace_off) X(phantom_partials) X(other_batch)
/* clang-format on */

static const struct {
    const char *name;
    fault_fn *plant;
} faults[] = {
#define X(name) {#name, name},
    FAULTS(X)
#undef X
};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

/* Each fault on each policy's plans of two batches; each must have applied somewhere and be rejected
 * everywhere. */
static void test_planted_faults(void **state)
{
    static const char *const specs[] = {"q300s900_7q1s200_q1s9000", "3q40s2000_2q1s64", "q1s20000_q1s30"};
    int applied[N_FAULTS] = {0};
    (void)state;
    for (int s = 0; s < 3; s++) {
        struct workload w;
        struct machine m;
        struct why why = {""};
        spec_batch(specs[s], 16, &w);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++)
            for (int f = 0; f < N_FAULTS; f++) {
                struct plan p = {0};
                assert_int_equal(policy_plan(policy_at(i), &w.batch, &m.gpu, &m.kernels, NULL, &p, &why),
                                 STATUS_OK);
                if (plan_check(&p, &w.batch, &why) != STATUS_OK)
                    fail_msg("%s: %s", policy_at(i)->name, why.text);
                if (faults[f].plant(&p, &w.batch)) {
                    applied[f]++;
                    why.text[0] = '\0';
                    if (plan_check(&p, &w.batch, &why) != STATUS_INVALID_PLAN || why.text[0] == '\0')
                        fail_msg("%s on %s: fault %s was not found", policy_at(i)->name, specs[s],
                                 faults[f].name);
                }
                plan_free(&p);
            }
        workload_free(&w);
    }
    for (int f = 0; f < N_FAULTS; f++)
        if (!applied[f]) fail_msg("fault %s never applied", faults[f].name);
}

/* Two decodes that share their first page, 32 keys each, group 4, one kv head: the shared 16 keys once for
 * both as a row group, the rest apart, one merge a request. */
static void make_cascade(struct workload *w, struct plan *p)
{
    struct why why = {""};
    struct workload_params params = workload_default_params();
    const struct member members[] = {{0, 0, 1}, {1, 0, 1}};
    int32_t group, first;
    params.shape.num_qo_heads = 4;
    params.shape.num_kv_heads = 1;
    assert_int_equal(workload_from_spec("2q1s32", &params, w, &why), STATUS_OK);
    w->kv_indices[2] = w->kv_indices[0];
    plan_begin(p, &w->batch);
    assert_int_equal(plan_add_group(p, members, 2, &group), STATUS_OK);
    assert_int_equal(plan_begin_grid(p, KERNEL_FA2_DECODE_16, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    assert_int_equal(plan_take_partials(p, 16, &first), STATUS_OK);
    const struct item items[] = {
        {.group = group, .row_end = 8, .kv_end = 16, .partial = 0, .kernel = KERNEL_FA2_DECODE_16},
        {.group = 0,
         .row_end = 4,
         .kv_begin = 16,
         .kv_end = 32,
         .partial = 8,
         .kernel = KERNEL_FA2_DECODE_16},
        {.group = 1,
         .row_end = 4,
         .kv_begin = 16,
         .kv_end = 32,
         .partial = 12,
         .kernel = KERNEL_FA2_DECODE_16}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(plan_add_item(p, &items[i]), STATUS_OK);
        assert_int_equal(plan_end_list(p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(p, 0), STATUS_OK);
    for (int32_t r = 0; r < 2; r++)
        assert_int_equal(plan_add_merge(p, &(struct merge){r, 0, 0, 4, ROWS_TOKEN_MAJOR},
                                        (int32_t[]){4 * r, 8 + 4 * r}, 2),
                         STATUS_OK);
    assert_int_equal(plan_add_merge_grid(p, 0, 2, 0, NULL, 0), STATUS_OK);
    plan_finish(p, &w->batch);
}

static void expect_fault(const struct plan *p, const struct batch *b, const char *fragment)
{
    struct why why = {""};
    if (plan_check(p, b, &why) != STATUS_INVALID_PLAN || !strstr(why.text, fragment))
        fail_msg("got '%s', want '%s'", why.text, fragment);
}

static void test_cascade(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct why why = {""};
    (void)state;
    make_cascade(&w, &p);
    if (plan_check(&p, &w.batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    w.kv_indices[2] = 3; /* the page is not shared after all */
    w.kv_indices[3] = 2;
    expect_fault(&p, &w.batch, "page 0 of requests 0 and 1 differs");
    w.kv_indices[2] = w.kv_indices[0];
    p.members[1].request = 7;
    expect_fault(&p, &w.batch, "member 1: request 7");
    p.members[1] = (struct member){0, 0, 1}; /* request 0 twice, request 1 without its prefix */
    expect_fault(&p, &w.batch, "merge 1 takes it for");
    plan_free(&p);
    workload_free(&w);
}

/* The cascade executes to what the oracle says: its rows resolve through the group. */
static void test_cascade_executes(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct truth truth;
    struct record r;
    struct why why = {""};
    (void)state;
    make_cascade(&w, &p);
    record_init(&r, &w);
    assert_int_equal(truth_create(&w, &truth, &why), STATUS_OK);
    if (run_verify(&w, &truth, &p, &r, &why) != STATUS_OK) fail_msg("%s", why.text);
    /* last arrivers instead of a merge grid: same cover, same values */
    p.n_grids = 1;
    p.n_list_indptr = 4;
    expect_fault(&p, &w.batch, "does not merge as last arriver");
    for (int i = 0; i < 3; i++)
        p.items[i].flags = ITEM_LAST_MERGES;
    if (plan_check(&p, &w.batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    if (run_verify(&w, &truth, &p, &r, &why) != STATUS_OK) fail_msg("%s", why.text);
    truth_free(&truth);
    plan_free(&p);
    workload_free(&w);
}

/* QUEUE grids: every queue must be reachable, homes and steal orders must name queues. */
static void test_queues(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct why why = {""};
    (void)state;
    spec_batch("2q1s40", 16, &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, KERNEL_FA2_DECODE_16, DISPATCH_QUEUE, 0, NULL), STATUS_OK);
    for (int32_t r = 0; r < 2; r++) {
        for (int32_t h = 0; h < 8; h++) {
            const struct item item = {.group = r,
                                      .kv_head = h,
                                      .row_end = 4,
                                      .kv_end = 40,
                                      .partial = -1,
                                      .kernel = KERNEL_FA2_DECODE_16};
            assert_int_equal(plan_add_item(&p, &item), STATUS_OK);
        }
        assert_int_equal(plan_end_list(&p), STATUS_OK);
    }
    assert_int_equal(plan_set_home(&p, (int32_t[]){0, 1, 0}, 3), STATUS_OK);
    assert_int_equal(plan_set_steal(&p, (int32_t[]){0, 1, 1, -1}, 2), STATUS_OK);
    assert_int_equal(plan_end_grid(&p, 3), STATUS_OK);
    plan_finish(&p, &w.batch);
    if (plan_check(&p, &w.batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    p.home[1] = 2;
    expect_fault(&p, &w.batch, "home queue 2");
    p.home[1] = 0;
    p.steal[1] = -1; /* nobody lives in queue 1 and nobody steals from it */
    expect_fault(&p, &w.batch, "no CTA ever takes from queue 1");
    p.steal[1] = 0;
    expect_fault(&p, &w.batch, "expected distinct queues");
    p.steal[0] = 1;
    expect_fault(&p, &w.batch, "expected itself");
    plan_free(&p);
    workload_free(&w);
}

/* Rows without any key still need exactly one writer: qo_len 3 at kv_len 1 leaves two such tokens. */
static void test_rows_without_keys(void **state)
{
    struct workload w;
    struct plan p = {0};
    struct why why = {""};
    (void)state;
    spec_batch("q3s1", 16, &w);
    plan_begin(&p, &w.batch);
    assert_int_equal(plan_begin_grid(&p, KERNEL_FA2_DECODE_16, DISPATCH_FIXED, 0, NULL), STATUS_OK);
    for (int32_t h = 0; h < 8; h++) {
        const struct item item = {.kv_head = h,
                                  .row_begin = 0,
                                  .row_end = 12,
                                  .kv_end = 1,
                                  .partial = -1,
                                  .kernel = KERNEL_FA2_DECODE_16};
        assert_int_equal(plan_add_item(&p, &item), STATUS_OK);
        assert_int_equal(plan_end_list(&p), STATUS_OK);
    }
    assert_int_equal(plan_end_grid(&p, 0), STATUS_OK);
    plan_finish(&p, &w.batch);
    if (plan_check(&p, &w.batch, &why) != STATUS_OK) fail_msg("%s", why.text);
    p.items[3].row_begin = 4; /* token 0 of head group 3 has no keys, but nobody writes it now */
    expect_fault(&p, &w.batch, "no item or merge writes these rows");
    plan_free(&p);
    workload_free(&w);
}

/* An independent judge of tiny plans: counts, for every (request, head, token, key), how often it is computed
 * and written to where it belongs. Random mutations of valid plans: plan_check and the count agree. */
static bool brute_force_valid(const struct plan *p, const struct batch *b)
{
    const int32_t heads = b->shape.num_qo_heads;
    bool ok = true;
    for (int32_t r = 0; r < b->n_requests && ok; r++)
        for (int32_t t = 0; t < batch_qo_len(b, r) && ok; t++)
            for (int32_t h = 0; h < heads && ok; h++) {
                const struct range v = batch_visible(b, r, t);
                int32_t writers = 0, *count = calloc((size_t)b->kv_len[r] + 1, sizeof *count);
                for (int32_t i = 0; i < p->n_items; i++) {
                    const struct item *x = &p->items[i];
                    const enum row_order order = kernel_row((enum kernel_id)x->kernel)->row_order;
                    for (int32_t row = x->row_begin; row < x->row_end; row++) {
                        const struct row_ref ref = plan_row(p, b, x->group, x->kv_head, order, row);
                        if (ref.request != r || ref.token != t || ref.qo_head != h) continue;
                        if (x->partial < 0) writers++;
                        for (int32_t k = x->kv_begin; k < x->kv_end; k++)
                            count[k]++;
                    }
                }
                for (int32_t m = 0; m < p->n_merges; m++)
                    for (int32_t row = p->merges[m].row_begin; row < p->merges[m].row_end; row++) {
                        const struct row_ref ref = plan_row(p, b, p->merges[m].request, p->merges[m].kv_head,
                                                            (enum row_order)p->merges[m].row_order, row);
                        writers += ref.request == r && ref.token == t && ref.qo_head == h;
                    }
                ok = writers == 1;
                for (int32_t k = v.begin; k < v.end; k++)
                    ok = ok && count[k] == 1;
                free(count);
            }
    return ok;
}

static void test_agrees_with_brute_force(void **state)
{
    uint64_t seed = 99;
    int valid = 0, invalid = 0;
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct workload w;
        struct machine m;
        struct why why = {""};
        struct workload_params params = workload_default_params();
        params.shape.num_qo_heads = 4;
        params.shape.num_kv_heads = 2;
        params.page_size = 4;
        assert_int_equal(workload_from_spec(round % 2 ? "q5s9_q1s30" : "q3s2_2q1s7_q9s20", &params, &w, &why),
                         STATUS_OK);
        test_machine(&w, &m);
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan p = {0};
            assert_int_equal(policy_plan(policy_at(i), &w.batch, &m.gpu, &m.kernels, NULL, &p, &why),
                             STATUS_OK);
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            /* nudge one coordinate of one direct item by -1, 0 or 1, keeping the structure in bounds */
            struct item *x = &p.items[(seed >> 33) % (uint64_t)p.n_items];
            int32_t *fields[] = {&x->row_begin, &x->row_end, &x->kv_begin, &x->kv_end};
            *fields[(seed >> 20) & 3] += (int32_t)((seed >> 40) % 3) - 1;
            const bool in_bounds = x->row_begin >= 0 && x->row_end > x->row_begin && x->kv_begin >= 0 &&
                                   x->kv_end >= x->kv_begin &&
                                   x->row_end <= batch_qo_len(&w.batch, x->group) * 2 &&
                                   x->kv_end <= w.kv_len[x->group] && x->partial < 0;
            if (in_bounds) {
                const bool want = brute_force_valid(&p, &w.batch),
                           got = plan_check(&p, &w.batch, &why) == STATUS_OK;
                if (got != want)
                    fail_msg("%s, round %d: plan_check says %d, counting says %d: %s", policy_at(i)->name,
                             round, got, want, why.text);
                valid += want;
                invalid += !want;
            }
            plan_free(&p);
        }
        workload_free(&w);
    }
    assert_true(valid > 50 && invalid > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted_faults),    cmocka_unit_test(test_cascade),
        cmocka_unit_test(test_cascade_executes),  cmocka_unit_test(test_queues),
        cmocka_unit_test(test_rows_without_keys), cmocka_unit_test(test_agrees_with_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
