/* Batches with their numbers: PyTorch's answers to small ones (tests/golden/sdpa, made by sdpa_dumps.py) are ours, under
 * every policy; what is saved is read back with the same bits, whatever the store; one wrong element is found;
 * one hidden NaN is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/npy.h"
#include "lab/run.h"
#include "lab/tensor_file.h"
#include "tests/random_batch.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void read_or_fail(const char *path, struct tensor_file *f)
{
    struct why why = {""};
    if (tensor_file_read(path, f, &why) != STATUS_OK) fail_msg("%s", why.text);
}

static void adopt_or_fail(struct tensor_file *f, struct truth *truth)
{
    struct why why = {""};
    if (truth_adopt(&f->w, &f->t, truth, &why) != STATUS_OK) fail_msg("%s", why.text);
}

/* Every policy over the file's numbers, in every numerics. */
static void check_policies(const struct tensor_file *f, struct truth *truth)
{
    struct machine m;
    test_machine(&f->w, &m);
    for (int kind = 0; kind < NUMERICS_COUNT; kind++)
        for (int32_t i = 0; i < policy_count(); i++) {
            struct plan plan = {0};
            struct record r;
            struct why why = {""};
            record_init(&r, &f->w);
            truth_set_numerics(&f->w, numerics_of((enum numerics_kind)kind, &f->w.batch), truth);
            enum status s = run_plan(&f->w, &m, policy_at(i), NULL, &plan, &r, &why);
            if (s == STATUS_OK) s = run_verify(&f->w, truth, &plan, &r, &why);
            if (s != STATUS_OK) fail_msg("%s: %s: %s", f->w.name, policy_at(i)->name, why.text);
            plan_free(&plan);
        }
}

static void test_pytorch(void **state)
{
    glob_t files;
    (void)state;
    assert_int_equal(glob("tests/golden/sdpa/*.npz", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 10);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct tensor_file f;
        struct truth truth;
        read_or_fail(files.gl_pathv[i], &f);
        assert_true(f.result.o && f.has_lse && f.o_is_wide);
        adopt_or_fail(&f, &truth);
        truth_set_numerics(&f.w, tensor_file_numerics(&f), &truth);
        struct comparison c = compare_result(&f.w.batch, &f.result, &truth.oracle, &truth.model);
        if (!c.ok)
            fail_msg("%s: row %d dim %d: PyTorch %.9g, ours %.9g", files.gl_pathv[i], (int)c.bad_row,
                     c.bad_dim, c.got, c.want);
        f.result.o[f.result.o_elements / 2] += 1e-3f;
        c = compare_result(&f.w.batch, &f.result, &truth.oracle, &truth.model);
        assert_false(c.ok);
        if (f.result.o_elements > 0) /* else it was a guard word */
            assert_int_equal(c.bad_row * f.result.head_dim_vo + c.bad_dim, f.result.o_elements / 2);
        check_policies(&f, &truth);
        truth_free(&truth);
        tensor_file_free(&f);
    }
    globfree(&files);
}

/* Saved and read: the oracle says the same, bit for bit. */
static void test_round_trip(void **state)
{
    char path[64];
    int saved = 0;
    (void)state;
    snprintf(path, sizeof path, "/tmp/tandem-tensors-%d.npz", (int)getpid());
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct workload w;
        struct truth truth, again;
        struct tensor_file f;
        struct why why = {""};
        random_batch(seed, 2e5, &w);
        w.layout.q = (struct row_stride){0, 0};
        if (w.layout.store == KV_INTERLEAVED) w.batch.shape.head_dim_vo = w.batch.shape.head_dim_qk;
        if (truth_create(&w, &truth, &why) != STATUS_OK) fail_msg("%s", why.text);
        if (tensor_file_write(path, &w, &truth.tensors, &truth.oracle, &why) != STATUS_OK)
            fail_msg("seed %d: %s", (int)seed, why.text);
        saved++;
        read_or_fail(path, &f);
        assert_int_equal(f.n_given, 2);
        adopt_or_fail(&f, &again);
        assert_int_equal(again.oracle.n_rows, truth.oracle.n_rows);
        assert_memory_equal(again.oracle.o, truth.oracle.o,
                            truth.oracle.n_rows * (size_t)truth.oracle.head_dim_vo * sizeof *truth.oracle.o);
        assert_memory_equal(again.oracle.lse, truth.oracle.lse,
                            truth.oracle.n_rows * sizeof *truth.oracle.lse);
        for (size_t i = 0; i < f.result.n_rows; i++)
            assert_true(f.result.lse[i] == (float)truth.oracle.lse[i]);
        truth_free(&again);
        truth_free(&truth);
        tensor_file_free(&f);
        workload_free(&w);
    }
    assert_true(saved == 60);
    unlink(path);
}

/* ---- files that lie: a good one with one member changed ------------------------------------------------------ */

struct good {
    struct npy_file f;
    float q[2 * 2 * 8], k[3 * 4 * 1 * 8], v[3 * 4 * 1 * 8], o[2 * 2 * 8];
    int32_t qo_indptr[3], kv_indptr[3], kv_indices[3], last_page_len[2], causal;
    struct npy_array arrays[16];
    int32_t n;
};

static struct npy_array *put(struct good *g, const char *name, char kind, int32_t bytes, void *data,
                             int32_t n_dims, const int64_t *dim)
{
    struct npy_array *a = &g->arrays[g->n++];
    *a = (struct npy_array){.kind = kind, .item_bytes = bytes, .n_dims = n_dims, .data = data, .n = 1};
    snprintf(a->name, sizeof a->name, "%s", name);
    for (int32_t i = 0; i < n_dims; i++) {
        a->dim[i] = dim[i];
        a->n *= (size_t)dim[i];
    }
    a->bytes = a->n * (size_t)bytes;
    return a;
}

/* Two requests, 5 and 3 keys on pages of 4, one query token each. */
static void make_good(struct good *g)
{
    memset(g, 0, sizeof *g);
    memcpy(g->qo_indptr, (int32_t[]){0, 1, 2}, sizeof g->qo_indptr);
    memcpy(g->kv_indptr, (int32_t[]){0, 2, 3}, sizeof g->kv_indptr);
    memcpy(g->kv_indices, (int32_t[]){2, 0, 1}, sizeof g->kv_indices);
    memcpy(g->last_page_len, (int32_t[]){1, 3}, sizeof g->last_page_len);
    g->causal = 1;
    put(g, "q", 'f', 4, g->q, 3, (int64_t[]){2, 2, 8});
    put(g, "k", 'f', 4, g->k, 4, (int64_t[]){3, 4, 1, 8});
    put(g, "v", 'f', 4, g->v, 4, (int64_t[]){3, 4, 1, 8});
    put(g, "o", 'f', 4, g->o, 3, (int64_t[]){2, 2, 8});
    put(g, "qo_indptr", 'i', 4, g->qo_indptr, 1, (int64_t[]){3});
    put(g, "kv_indptr", 'i', 4, g->kv_indptr, 1, (int64_t[]){3});
    put(g, "kv_indices", 'i', 4, g->kv_indices, 1, (int64_t[]){3});
    put(g, "last_page_len", 'i', 4, g->last_page_len, 1, (int64_t[]){2});
    put(g, "causal", 'i', 4, &g->causal, 0, NULL);
}

static enum status read_good(const struct good *g, struct why *why)
{
    char path[64];
    struct tensor_file f;
    snprintf(path, sizeof path, "/tmp/tandem-tensors-%d.npz", (int)getpid());
    struct npz_writer *writer;
    assert_int_equal(npz_writer_open(path, &writer, why), STATUS_OK);
    for (int32_t i = 0; i < g->n; i++)
        assert_int_equal(npz_writer_add(writer, &g->arrays[i], why), STATUS_OK);
    assert_int_equal(npz_writer_close(writer, true, why), STATUS_OK);
    memset(why, 0, sizeof *why);
    const enum status s = tensor_file_read(path, &f, why);
    if (s == STATUS_OK) tensor_file_free(&f);
    unlink(path);
    return s;
}

static struct npy_array *member(struct good *g, const char *name)
{
    for (int32_t i = 0; i < g->n; i++)
        if (strcmp(g->arrays[i].name, name) == 0) return &g->arrays[i];
    return NULL;
}

#define assert_refused(g, part)                                                                       \
    do {                                                                                              \
        struct why why_ = {""};                                                                       \
        if (read_good(g, &why_) != STATUS_BAD_INPUT || !strstr(why_.text, part))                      \
            fail_msg("line %d: '%s', expected a refusal that names '%s'", __LINE__, why_.text, part); \
    } while (0)

static void test_refused(void **state)
{
    struct good g;
    struct why why = {""};
    (void)state;
    make_good(&g);
    if (read_good(&g, &why) != STATUS_OK) fail_msg("%s", why.text);
    g.q[7] = NAN;
    assert_refused(&g, "q: expected finite");
    make_good(&g);
    g.k[(2 * 4 + 3) * 8 + 5] = NAN; /* page 2, position 3: a key of request 0 */
    assert_refused(&g, "finite");
    make_good(&g);
    g.v[(0 * 4 + 1) * 8] = INFINITY; /* page 0, position 1: behind request 0's fifth key */
    if (read_good(&g, &why) != STATUS_OK) fail_msg("%s", why.text);
    make_good(&g);
    g.kv_indices[1] = 3;
    assert_refused(&g, "page id");
    make_good(&g);
    g.kv_indptr[1] = 3, g.kv_indptr[2] = 2;
    assert_refused(&g, "kv_indptr");
    make_good(&g);
    g.qo_indptr[2] = 3;
    assert_refused(&g, "qo_indptr");
    make_good(&g);
    g.last_page_len[0] = 5;
    assert_refused(&g, "pages");
    make_good(&g);
    member(&g, "k")->dim[3] = 4, member(&g, "k")->dim[0] = 6;
    assert_refused(&g, "head_dim");
    make_good(&g);
    member(&g, "v")->dim[1] = 2, member(&g, "v")->dim[0] = 6;
    assert_refused(&g, "v: expected");
    make_good(&g);
    member(&g, "o")->dim[1] = 1, member(&g, "o")->dim[0] = 4;
    assert_refused(&g, "o: expected");
    make_good(&g);
    member(&g, "q")->n_dims = 2;
    member(&g, "q")->dim[0] = 4;
    member(&g, "q")->dim[1] = 8;
    assert_refused(&g, "q: expected");
    make_good(&g);
    strcpy(member(&g, "causal")->name, "casual");
    assert_refused(&g, "unknown member 'casual'");
    make_good(&g);
    strcpy(member(&g, "v")->name, "o_dtype"); /* no v, and not latent */
    assert_refused(&g, "head_dim_vo");
    make_good(&g);
    g.causal = 2;
    assert_refused(&g, "causal");
    make_good(&g);
    member(&g, "q")->kind = 'i';
    assert_refused(&g, "q: expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pytorch),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
