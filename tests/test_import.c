/* Plans of another planner: FlashInfer's FA2 plan, restated here as it fills its arrays, must come out as a
 * plan that is proved, executed, simulated, and has the items of policy `unified`; wrong arrays must not come
 * out at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/import_arrays.h"
#include "lab/rng.h"
#include "lab/run.h"
#include "ref/ref_exec.h"
#include "sched/plan_check.h"
#include "tests/random_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void push(struct import_ints *x, int64_t value)
{
    x->data = realloc(x->data, ((size_t)x->n + 1) * sizeof *x->data);
    assert_non_null(x->data);
    x->data[x->n++] = (int32_t)value;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- the FA2 plan, restated: request-major, q tile, kv chunk
 * -------------------------------------------------------- */

/* Chunks of `chunk` pages that request r has. */
static int64_t chunks(const struct batch *b, int32_t r, int64_t tile, int64_t chunk)
{
    const int64_t window = b->mask.window_left, page = b->kv.page_size;
    int64_t pages = up(b->kv_len[r], page);
    if (window >= 0) pages = least(pages, up(window + tile, page));
    return pages == 0 ? 1 : up(pages, chunk);
}

static int64_t tiles(const struct batch *b, int32_t r, int64_t tile)
{
    return up((int64_t)batch_qo_len(b, r) * batch_group_size(b), tile);
}

static int64_t average_tile(const struct batch *b)
{
    int64_t requests = 0, rows = 0;
    for (int32_t r = 0; r < b->n_requests; r++) {
        requests += batch_qo_len(b, r) > 0;
        rows += (int64_t)batch_qo_len(b, r) * batch_group_size(b);
    }
    const int64_t average = requests ? rows / requests : 0;
    return average > 64 && b->shape.head_dim_vo < 256 ? 128 : average > 16 ? 64 : 16;
}

/* The smallest chunk whose works fit two a multiprocessor; `longest` where none does. */
static int64_t best_chunk(const struct batch *b, int64_t tile, int64_t longest, int64_t n_sm)
{
    int64_t chunk = least(longest, b->kv.page_size > 128 ? 1 : 128 / b->kv.page_size);
    for (; chunk < longest; chunk++) {
        int64_t works = 0;
        for (int32_t r = 0; r < b->n_requests; r++)
            works += tiles(b, r, tile) * chunks(b, r, tile, chunk);
        if (works <= 2 * n_sm / b->shape.num_kv_heads) break;
    }
    return chunk;
}

static void restate(const struct batch *b, int64_t tile, int64_t chunk, bool split, struct import_arrays *a)
{
    *a = (struct import_arrays){
        .cta_tile_q = (int32_t)tile, .kv_chunk_size = (int32_t)(chunk * b->kv.page_size), .split_kv = split};
    push(&a->o_indptr, 0);
    push(&a->merge_indptr, 0);
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int64_t n = split ? chunks(b, r, tile, chunk) : 1;
        for (int64_t t = 0; t < tiles(b, r, tile); t++)
            for (int64_t k = 0; k < n; k++) {
                push(&a->request_indices, r);
                push(&a->qo_tile_indices, t);
                push(&a->kv_tile_indices, k);
            }
        for (int32_t q = 0; q < batch_qo_len(b, r); q++)
            push(&a->merge_indptr, a->merge_indptr.data[a->merge_indptr.n - 1] + n);
        push(&a->o_indptr, a->o_indptr.data[r] + n * batch_qo_len(b, r));
    }
}

static void fa2_plan(const struct batch *b, int64_t n_sm, struct import_arrays *a)
{
    const int64_t tile = average_tile(b);
    int64_t longest = 1;
    for (int32_t r = 0; r < b->n_requests; r++)
        if (batch_qo_len(b, r) > 0 && chunks(b, r, tile, 1) > longest) longest = chunks(b, r, tile, 1);
    const int64_t chunk = best_chunk(b, tile, longest, n_sm);
    restate(b, tile, chunk, chunk < longest, a);
}

/* ---- what an imported plan must do
 * ---------------------------------------------------------------------------------- */

static void import_or_fail(const struct import_arrays *a, const struct workload *w, struct plan *plan)
{
    struct why why = {""};
    enum status status = import_arrays_plan(a, &w->batch, plan, &why);
    if (status == STATUS_OK) status = plan_check(plan, &w->batch, &why);
    if (status != STATUS_OK) fail_msg("%s: %s", w->name, why.text);
}

static void execute_and_simulate(const struct workload *w, const struct truth *truth, const struct machine *m,
                                 const struct plan *plan)
{
    struct why why = {""};
    struct result r;
    struct sim_result s = {0};
    const struct sim_options options = {.spans = false};
    if (result_create(&w->batch, w->layout.o, &r, &why) != STATUS_OK ||
        ref_exec(&w->batch, &truth->tensors, plan, NULL, &r, &why) != STATUS_OK)
        fail_msg("%s: %s", w->name, why.text);
    const struct comparison c = compare_result(&w->batch, &r, &truth->oracle, &truth->model);
    if (!c.ok)
        fail_msg("%s: row %lld dim %d: got %.9g, want %.9g", w->name, (long long)c.bad_row, c.bad_dim, c.got,
                 c.want);
    const enum status status = sim_run(&w->batch, &m->gpu, &m->kernels, plan, &options, &s, &why);
    if (status != STATUS_OK && status != STATUS_UNSUPPORTED) fail_msg("%s: %s", w->name, why.text);
    if (status == STATUS_OK && plan->n_items > 0) assert_true(s.makespan_ns > 0);
    sim_result_free(&s);
    result_free(&r);
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct item));
}

/* Same items, partial rows included, in whatever order. */
static void assert_same_items(const struct plan *a, const struct plan *b, const char *name)
{
    const size_t n = (size_t)a->n_items, size = sizeof(struct item);
    if (a->n_items != b->n_items) fail_msg("%s: %d items, want %d", name, a->n_items, b->n_items);
    struct item *x = malloc((n + 1) * size), *y = malloc((n + 1) * size);
    if (n) memcpy(x, a->items, n * size);
    if (n) memcpy(y, b->items, n * size);
    qsort(x, n, size, by_bytes);
    qsort(y, n, size, by_bytes);
    const int differ = memcmp(x, y, n * size);
    free(x);
    free(y);
    if (differ) fail_msg("%s: other items than unified", name);
}

/* Also with a window, where unified counts chunks tile by tile and FlashInfer for all alike: there the items
 * differ, the proof and the numbers must not. */
static void check_workload(const struct workload *w)
{
    struct why why = {""};
    struct machine m;
    struct truth truth;
    struct import_arrays a;
    struct plan plan = {0}, unified = {0};
    test_machine(w, &m);
    assert_int_equal(truth_create(w, &truth, &why), STATUS_OK);
    fa2_plan(&w->batch, m.gpu.sm_count, &a);
    import_or_fail(&a, w, &plan);
    execute_and_simulate(w, &truth, &m, &plan);
    assert_int_equal(policy_plan(policy_find("unified"), &w->batch, &m.gpu, &m.kernels, NULL, &unified, &why),
                     STATUS_OK);
    if (w->batch.mask.window_left < 0) assert_same_items(&plan, &unified, w->name);
    plan_free(&unified);
    plan_free(&plan);
    import_arrays_free(&a);
    truth_free(&truth);
}

static void test_specs(void **state)
{
    static const char *const specs[] = {"q40s120_q1s300",  "q200s1k_30q1s500",  "q1s20000_7q1s1k",
                                        "q5s5_q1s1",       "q130s130_q129s700", "8q1s64",
                                        "4q2s3k_q64s4000", "q1s0_q3s1_q1s900"};
    static const int32_t page_sizes[] = {1, 16, 256};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (size_t p = 0; p < 3; p++) {
            struct workload w;
            spec_batch(specs[i], page_sizes[p], &w);
            check_workload(&w);
            workload_free(&w);
        }
}

static void test_random_batches(void **state)
{
    (void)state;
    for (uint64_t seed = 7000; seed < 7060; seed++) {
        struct workload w;
        random_batch(seed, 1e6, &w);
        check_workload(&w);
        workload_free(&w);
    }
}

/* Any tile and chunk, not only those the planner would choose: graphs plan for the worst case, and callers
 * fix the split. */
static void test_any_tile_and_chunk(void **state)
{
    static const int32_t tile_sizes[] = {16, 64, 128};
    struct rng r = {5};
    int32_t windows = 0;
    (void)state;
    for (uint64_t seed = 8000; seed < 8120; seed++) {
        struct workload w;
        struct plan plan = {0};
        struct import_arrays a;
        random_batch(seed, 1e5, &w);
        const int64_t chunk = 1 + (int64_t)rng_below(&r, 4 + 256 / (uint64_t)w.batch.kv.page_size);
        restate(&w.batch, tile_sizes[rng_below(&r, 3)], chunk, rng_below(&r, 4) > 0, &a);
        windows += w.batch.mask.window_left >= 0;
        import_or_fail(&a, &w, &plan);
        plan_free(&plan);
        import_arrays_free(&a);
        workload_free(&w);
    }
    assert_true(windows > 20);
}

/* ---- by hand
 * -------------------------------------------------------------------------------------------------------- */

static struct import_ints copy_of(const int32_t *values, int32_t n)
{
    struct import_ints x = {0};
    for (int32_t i = 0; i < n; i++)
        push(&x, values[i]);
    return x;
}

#define INTS(...) \
    copy_of((const int32_t[]){__VA_ARGS__}, (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* q40s120_q1s300, 32/8 heads: groups of 4, so 160 and 4 packed rows: two tiles of one chunk, one of three. */
static struct import_arrays five_works(void)
{
    return (struct import_arrays){.cta_tile_q = 128,
                                  .kv_chunk_size = 128,
                                  .split_kv = true,
                                  .request_indices = INTS(0, 0, 1, 1, 1),
                                  .qo_tile_indices = INTS(0, 1, 0, 0, 0),
                                  .kv_tile_indices = INTS(0, 0, 0, 1, 2)};
}

static void assert_item(const struct plan *p, int32_t i, const struct item *want)
{
    const struct item *x = &p->items[i];
    if (memcmp(x, want, sizeof *x) != 0)
        fail_msg("item %d: [%d %d, %d..%d, %d..%d, %d]", i, x->group, x->kv_head, x->row_begin, x->row_end,
                 x->kv_begin, x->kv_end, x->partial);
}

/* Head 1's items follow head 0's; a head has 160 + 3 * 4 = 172 partial rows, as o_indptr's 43 tokens of 4
 * heads; a work's rows of all heads lie together, so a work begins at 8 heads x 4 times FlashInfer's row. */
static void test_five_works(void **state)
{
    const uint16_t k = KERNEL_FA2_PREFILL_128;
    struct workload w;
    struct plan plan = {0};
    (void)state;
    struct import_arrays a = five_works();
    spec_batch("q40s120_q1s300", 16, &w);
    import_or_fail(&a, &w, &plan);
    assert_int_equal(plan.n_grids, 2);
    assert_int_equal(plan.grids[0].n_ctas, 5 * 8);
    assert_int_equal(plan.n_items, 5 * 8);
    assert_int_equal(plan.partial_rows, 172 * 8);
    assert_item(&plan, 0, &(struct item){0, 0, 0, 128, 0, 120, 0, k, 0});
    assert_item(&plan, 1, &(struct item){0, 0, 128, 160, 0, 120, 1024, k, 0});
    assert_item(&plan, 2, &(struct item){1, 0, 0, 4, 0, 128, 1280, k, 0});
    assert_item(&plan, 3, &(struct item){1, 0, 0, 4, 128, 256, 1312, k, 0});
    assert_item(&plan, 4, &(struct item){1, 0, 0, 4, 256, 300, 1344, k, 0});
    assert_item(&plan, 5, &(struct item){0, 1, 0, 128, 0, 120, 128, k, 0});
    plan_free(&plan);
    import_arrays_free(&a);
    workload_free(&w);
}

/* Padding works hold anything and do nothing; what is left keeps its order, and need not be FlashInfer's. */
static void test_padding_and_order(void **state)
{
    struct workload w;
    struct plan plan = {0}, want = {0};
    (void)state;
    struct import_arrays plain = five_works(),
                         a = {.cta_tile_q = 128, .kv_chunk_size = 128, .split_kv = true};
    a.request_indices = INTS(1, 1, INT32_MIN, 0, 1, 0, INT32_MAX);
    a.qo_tile_indices = INTS(0, 0, -7, 1, 0, 0, 9);
    a.kv_tile_indices = INTS(2, 0, 0, 0, 1, 0, 3);
    a.block_valid_mask = INTS(1, 1, 0, 1, 1, 1, 0);
    a.o_indptr = INTS(0, 40, 43);
    spec_batch("q40s120_q1s300", 16, &w);
    import_or_fail(&plain, &w, &want);
    import_or_fail(&a, &w, &plan);
    assert_same_items(&plan, &want, "padded");
    assert_int_equal(plan.items[0].kv_begin, 256);
    assert_int_equal(plan.items[4].row_begin, 0);
    plan_free(&plan);
    plan_free(&want);
    import_arrays_free(&a);
    import_arrays_free(&plain);
    workload_free(&w);
}

/* Page 16, window_left 100, tile 16: a reach of 116. The decode at 1007 sees keys 906 on, so its chunks begin
 * with their page, at 896. Chunks of 64: [896, 960), [960, 1007). Chunks of 112: 2 for a reach of 116, but
 * the first holds all there is, and the second is empty. */
static void test_window(void **state)
{
    static const int32_t one = 1, kv_len = 1007;
    struct workload_params p = workload_default_params();
    struct workload w;
    struct plan plan = {0};
    struct why why = {""};
    (void)state;
    p.mask.window_left = 100;
    assert_int_equal(workload_from_lengths(&one, &kv_len, 1, &p, &w, &why), STATUS_OK);
    assert_int_equal(workload_finish(&w, &why), STATUS_OK);
    struct import_arrays a = {.cta_tile_q = 16, .kv_chunk_size = 64, .split_kv = true};
    a.request_indices = INTS(0, 0);
    a.qo_tile_indices = INTS(0, 0);
    a.kv_tile_indices = INTS(0, 1);
    import_or_fail(&a, &w, &plan);
    assert_item(&plan, 1, &(struct item){0, 0, 0, 4, 960, 1007, 32, KERNEL_FA2_DECODE_16, 0});
    a.kv_chunk_size = 112;
    import_or_fail(&a, &w, &plan);
    assert_item(&plan, 0, &(struct item){0, 0, 0, 4, 896, 1007, 0, KERNEL_FA2_DECODE_16, 0});
    assert_item(&plan, 1, &(struct item){0, 0, 0, 4, 1007, 1007, 32, KERNEL_FA2_DECODE_16, 0});
    plan_free(&plan);
    import_arrays_free(&a);
    workload_free(&w);
}

/* window_left 112 and a tile of 16 tokens (heads 1/1) are exactly 2 chunks of 64 keys. FlashInfer begins them
 * at the first visible key; begun with its page, up to 15 keys earlier, the last chunk has to reach as much
 * further. */
static void test_window_from_mid_page(void **state)
{
    struct workload_params p = workload_default_params();
    struct why why = {""};
    int32_t longest = 0;
    (void)state;
    p.shape.num_qo_heads = p.shape.num_kv_heads = 1;
    p.mask.window_left = 112;
    for (int32_t kv_len = 1000; kv_len < 1016; kv_len++) {
        static const int32_t qo_len = 64;
        struct workload w;
        struct machine m;
        struct truth truth;
        struct plan plan = {0};
        struct import_arrays a;
        assert_int_equal(workload_from_lengths(&qo_len, &kv_len, 1, &p, &w, &why), STATUS_OK);
        assert_int_equal(workload_finish(&w, &why), STATUS_OK);
        test_machine(&w, &m);
        assert_int_equal(truth_create(&w, &truth, &why), STATUS_OK);
        restate(&w.batch, 16, 4, true, &a);
        assert_int_equal(a.request_indices.n, 4 * 2);
        import_or_fail(&a, &w, &plan);
        execute_and_simulate(&w, &truth, &m, &plan);
        for (int32_t i = 0; i < plan.n_items; i++)
            if (plan.items[i].kv_end - plan.items[i].kv_begin > longest)
                longest = plan.items[i].kv_end - plan.items[i].kv_begin;
        plan_free(&plan);
        import_arrays_free(&a);
        truth_free(&truth);
        workload_free(&w);
    }
    assert_int_equal(longest, 64 + 15); /* mid-page by 15 */
}

/* Unsplit, the planner leaves what an overflow makes of "no limit" in kv_chunk_size. Split with one chunk a
 * request (CUDA graphs), everything still goes through the merge. */
static void test_chunk_sizes(void **state)
{
    struct workload w;
    struct plan plan = {0};
    (void)state;
    spec_batch("q40s120_q1s300", 16, &w);
    struct import_arrays a = {.cta_tile_q = 128, .kv_chunk_size = -16};
    a.request_indices = INTS(0, 0, 1);
    a.qo_tile_indices = INTS(0, 1, 0);
    a.kv_tile_indices = INTS(0, 0, 0);
    a.o_indptr = INTS(0, 40, 41);
    import_or_fail(&a, &w, &plan);
    assert_int_equal(plan.n_grids, 1);
    assert_int_equal(plan.partial_rows, 0);
    a.kv_chunk_size = INT32_MAX;
    a.split_kv = true;
    import_or_fail(&a, &w, &plan);
    assert_int_equal(plan.n_grids, 2);
    assert_int_equal(plan.partial_rows, 41 * 32);
    plan_free(&plan);
    import_arrays_free(&a);
    workload_free(&w);
}

/* ---- wrong arrays
 * --------------------------------------------------------------------------------------------------- */

enum which { REQUEST, TILE, CHUNK, MASK, O_INDPTR, MERGE_INDPTR, TILE_Q, CHUNK_SIZE, SHORTEN };

static struct import_ints *array_of(struct import_arrays *a, enum which which)
{
    struct import_ints *const all[] = {&a->request_indices,  &a->qo_tile_indices, &a->kv_tile_indices,
                                       &a->block_valid_mask, &a->o_indptr,        &a->merge_indptr};
    return all[which];
}

static void spoil(struct import_arrays *a, enum which which, int32_t at, int32_t value)
{
    if (which == TILE_Q)
        a->cta_tile_q = value;
    else if (which == CHUNK_SIZE)
        a->kv_chunk_size = value;
    else if (which == SHORTEN)
        array_of(a, (enum which)at)->n = value;
    else
        array_of(a, which)->data[at] = value;
}

static void test_wrong_arrays(void **state)
{
    static const struct {
        enum which which;
        int32_t at, value;
        const char *reason;
    } wrong[] = {
        {REQUEST, 2, 2, "request_indices[2] is 2: the batch has 2 requests"},
        {REQUEST, 2, -1, "request_indices[2] is -1"},
        {REQUEST, 4, 0, "kv_tile_indices[4] is 2: request 0 has 1 chunks"},
        {REQUEST, 0, 1, "request 0 has 1 works: expected 2 tiles x 1 chunks"},
        {TILE, 1, 2, "qo_tile_indices[1] is 2: request 0 has 2 tiles"},
        {TILE, 1, INT32_MIN, "qo_tile_indices[1] is -2147483648"},
        {TILE, 1, 0, "work 1 repeats work 0: request 0 tile 0 chunk 0"},
        {CHUNK, 4, 3, "kv_tile_indices[4] is 3: request 1 has 3 chunks"},
        {CHUNK, 4, INT32_MAX, "kv_tile_indices[4] is 2147483647"},
        {CHUNK, 4, 0, "work 4 repeats work 2: request 1 tile 0 chunk 0"},
        {MASK, 4, 0, "request 1 has 2 works: expected 1 tiles x 3 chunks"},
        {MASK, 0, 0, "request 0 has 1 works"},
        {O_INDPTR, 0, 1, "o_indptr[0] is 1: the works make it 0"},
        {O_INDPTR, 2, 44, "o_indptr[2] is 44: the works make it 43"},
        {MERGE_INDPTR, 0, -1, "merge_indptr[0] is -1: the works make it 0"},
        {MERGE_INDPTR, 41, 41, "merge_indptr[41] is 41: the works make it 43"},
        {TILE_Q, 0, 32, "cta_tile_q 32: expected 16, 64 or 128"},
        {TILE_Q, 0, 64, "request 0 has 2 works: expected 3 tiles x 1 chunks"},
        {CHUNK_SIZE, 0, 0, "kv_chunk_size 0"},
        {CHUNK_SIZE, 0, -128, "kv_chunk_size -128"},
        {CHUNK_SIZE, 0, 1, "request 0 has 2 works: expected 2 tiles x 120 chunks"},
        {CHUNK_SIZE, 0, INT32_MAX, "kv_tile_indices[3] is 1: request 1 has 1 chunks"},
        {SHORTEN, REQUEST, 4, "have 4, 5, 5 entries: expected one length"},
        {SHORTEN, CHUNK, 0, "have 5, 5, 0 entries"},
        {SHORTEN, MASK, 4, "block_valid_mask has 4 entries: expected 5"},
        {SHORTEN, O_INDPTR, 2, "o_indptr has 2 entries: expected 3"},
        {SHORTEN, MERGE_INDPTR, 0, "merge_indptr has 0 entries: expected 42"},
    };
    struct workload w;
    (void)state;
    spec_batch("q40s120_q1s300", 16, &w);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct import_arrays a;
        struct plan plan = {0};
        struct why why = {""};
        restate(&w.batch, 128, 8, true, &a);
        a.block_valid_mask = INTS(1, 1, 1, 1, 1);
        spoil(&a, wrong[i].which, wrong[i].at, wrong[i].value);
        const enum status status = import_arrays_plan(&a, &w.batch, &plan, &why);
        if (status != STATUS_BAD_INPUT || !strstr(why.text, wrong[i].reason))
            fail_msg("case %zu: status %d, '%s': expected '%s'", i, (int)status, why.text, wrong[i].reason);
        plan_free(&plan);
        import_arrays_free(&a);
    }
    workload_free(&w);
}

/* Random edits: whatever still imports must be a plan that is proved, for the importer accepts only what
 * FlashInfer's kernel would have done right. */
static void test_random_edits(void **state)
{
    struct rng r = {99};
    struct workload w;
    int32_t refused = 0, imported = 0;
    (void)state;
    spec_batch("q40s120_q1s300_q70s90", 16, &w);
    for (int32_t round = 0; round < 3000; round++) {
        struct import_arrays a;
        struct plan plan = {0};
        struct why why = {""};
        restate(&w.batch, 64, 4, true, &a);
        for (uint64_t edits = 1 + rng_below(&r, 3); edits > 0; edits--) {
            struct import_ints *x = array_of(&a, (enum which)rng_below(&r, 3));
            int32_t *one = &x->data[rng_below(&r, (uint64_t)x->n)];
            int32_t *other = &x->data[rng_below(&r, (uint64_t)x->n)];
            const int32_t kept = *one;
            *one = rng_below(&r, 4) ? *other : (int32_t)rng_below(&r, 8) - 1;
            if (rng_below(&r, 2)) *other = kept;
        }
        if (import_arrays_plan(&a, &w.batch, &plan, &why) != STATUS_OK) {
            refused++;
            assert_true(why.text[0] != '\0');
        } else {
            imported++;
            if (plan_check(&plan, &w.batch, &why) != STATUS_OK) fail_msg("round %d: %s", round, why.text);
        }
        plan_free(&plan);
        import_arrays_free(&a);
    }
    workload_free(&w);
    if (refused < 100 || imported < 100)
        fail_msg("%d refused, %d imported: too few of one", refused, imported);
}

/* More partial rows than 32 bits hold are refused before memory is asked for. */
static void test_too_many_works(void **state)
{
    struct workload w;
    struct plan plan = {0};
    struct why why = {""};
    (void)state;
    spec_batch("q100000s1000000", 16, &w);
    struct import_arrays a = {.cta_tile_q = 16, .kv_chunk_size = 1, .split_kv = true};
    a.request_indices = INTS(0);
    a.qo_tile_indices = INTS(24999);
    a.kv_tile_indices = INTS(999999);
    assert_int_equal(import_arrays_plan(&a, &w.batch, &plan, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, "request 0 has 1 works: expected 25000 tiles x 1000000 chunks"));
    plan_free(&plan);
    import_arrays_free(&a);
    workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_random_batches),
        cmocka_unit_test(test_any_tile_and_chunk),
        cmocka_unit_test(test_five_works),
        cmocka_unit_test(test_padding_and_order),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_from_mid_page),
        cmocka_unit_test(test_chunk_sizes),
        cmocka_unit_test(test_wrong_arrays),
        cmocka_unit_test(test_random_edits),
        cmocka_unit_test(test_too_many_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
