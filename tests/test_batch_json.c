/* batch.json: what is written is read back as the same batch with the same numbers, every feature; values as a person
 * would write them; and what is wrong is refused in one line that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/workload.h"
#include "tests/random_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/tandem-batch-XXXXXX";

static enum status read_file(struct workload *w, struct why *why)
{
    struct workload_reader *reader;
    bool done = false;
    TRY(workload_reader_open(path, false, &reader, why));
    const enum status s = workload_reader_next(reader, w, &done, why);
    workload_reader_close(reader);
    return s;
}

static enum status read_text(const char *text, struct workload *w, struct why *why)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    memset(why, 0, sizeof *why);
    return read_file(w, why);
}

static void assert_same_floats(const float *a, const float *b, int32_t n)
{
    assert_true(!a == !b);
    if (a) assert_memory_equal(a, b, (size_t)n * sizeof *a);
}

static void assert_same_workload(const struct workload *a, const struct workload *b)
{
    const struct batch *x = &a->batch, *y = &b->batch;
    const int32_t n = x->n_requests;
    struct tensors s, t;
    struct why why = {""};
    assert_memory_equal(&x->shape, &y->shape, sizeof x->shape);
    assert_true(x->mask.causal == y->mask.causal && x->mask.alibi == y->mask.alibi &&
                x->mask.window_left == y->mask.window_left &&
                x->mask.logits_soft_cap == y->mask.logits_soft_cap && x->mask.sm_scale == y->mask.sm_scale);
    assert_memory_equal(&x->rope, &y->rope, sizeof x->rope);
    assert_memory_equal(&a->layout, &b->layout, sizeof a->layout);
    assert_int_equal(n, y->n_requests);
    assert_memory_equal(x->qo_indptr, y->qo_indptr, ((size_t)n + 1) * 4);
    assert_memory_equal(x->kv_len, y->kv_len, (size_t)n * 4);
    assert_memory_equal(x->kv.kv_indices, y->kv.kv_indices, (size_t)x->kv.kv_indptr[n] * 4);
    assert_same_floats(x->mask.sink, y->mask.sink, x->shape.num_qo_heads);
    assert_same_floats(x->k_scale, y->k_scale, x->shape.num_kv_heads);
    assert_same_floats(x->v_scale, y->v_scale, x->shape.num_kv_heads);
    assert_true(!a->custom == !b->custom);
    if (a->custom) assert_memory_equal(a->custom, b->custom, (size_t)a->custom_indptr[n]);
    /* pages beyond the last that is used are not written down */
    if (x->kv.num_pages != y->kv.num_pages) return;
    assert_int_equal(tensors_create(x, &a->layout, a->fill, a->seed, &s, &why), STATUS_OK);
    assert_int_equal(tensors_create(y, &b->layout, b->fill, b->seed, &t, &why), STATUS_OK);
    assert_memory_equal(s.q, t.q, s.q_bytes);
    assert_memory_equal(s.k, t.k, s.k_bytes);
    tensors_free(&s);
    tensors_free(&t);
}

static void test_round_trip(void **state)
{
    const char *asked = getenv("TANDEM_FUZZ_BATCHES");
    const uint64_t n = asked && atoi(asked) > 0 && atoi(asked) < 150 ? (uint64_t)atoi(asked) : 150;
    (void)state;
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct workload w, again;
        struct why why = {""};
        random_batch(seed, 1e5, &w);
        if (seed % 5 == 0) w.fill[1] = (struct fill){FILL_CONSTANT, 0.25};
        if (seed % 7 == 0) w.fill[2] = (struct fill){FILL_NORMAL, 3};
        FILE *f = fopen(path, "w");
        assert_int_equal(workload_write_json(&w, f, &why), STATUS_OK);
        fclose(f);
        if (read_file(&again, &why) != STATUS_OK) fail_msg("seed %d: %s", (int)seed, why.text);
        assert_same_workload(&w, &again);
        workload_free(&again);
        workload_free(&w);
    }
}

#define HEAD "{\"num_qo_heads\": 4, \"num_kv_heads\": 2, \"head_dim\": 8, \"qo_len\": [2], \"kv_len\": [5], "

static void test_by_hand(void **state)
{
    struct workload w;
    struct why why;
    (void)state;
    if (read_text(HEAD
                  "\"head_dim_vo\": 6, \"kv_store\": \"interleaved\", \"k_scale\": 0.5, \"v_scale\": [1, 2], "
                  "\"rope\": {\"style\": \"interleaved\", \"theta\": 500000, \"dim\": 4}, "
                  "\"custom_mask\": [\"d702\"], \"q_stride\": [64, 16], \"o_stride\": [100, 8]}",
                  &w, &why) != STATUS_OK)
        fail_msg("%s", why.text);
    const struct batch *b = &w.batch;
    assert_int_equal(b->shape.head_dim_vo, 6);
    assert_int_equal(w.layout.store, KV_INTERLEAVED);
    assert_true(b->k_scale[0] == 0.5f && b->k_scale[1] == 0.5f && b->v_scale[1] == 2);
    assert_true(b->rope.kind == ROPE_INTERLEAVED && b->rope.theta == 500000 && b->rope.dim == 4);
    assert_int_equal(batch_rope_dim(b), 4);
    assert_true(batch_custom_bit(b, 0, 0, 2) && !batch_custom_bit(b, 0, 0, 3) &&
                !batch_custom_bit(b, 0, 1, 0));
    assert_int_equal(w.layout.q.token, 64);
    assert_int_equal(w.layout.o.head, 8);
    workload_free(&w);
    if (read_text(HEAD "\"kv_store\": \"latent\", \"head_dim_vo\": 6, \"custom_mask\": [null]}", &w, &why) !=
        STATUS_OK)
        fail_msg("%s", why.text);
    assert_true(w.batch.shape.kv_latent && batch_custom_bit(&w.batch, 0, 1, 4));
    assert_int_equal(shape_key_bytes(&w.batch.shape), 16);
    workload_free(&w);
    if (read_text(HEAD "\"kv_store\": \"ragged\"}", &w, &why) != STATUS_OK) fail_msg("%s", why.text);
    assert_int_equal(w.batch.kv.page_size, 5);
    assert_int_equal(w.batch.kv.num_pages, 5);
    workload_free(&w);
}

static void test_refused(void **state)
{
    static const struct {
        const char *member, *fragment;
    } cases[] = {
        {"\"head_dim_vo\": 0", "head_dim_vo"},
        {"\"head_dim_vo\": 5000", "head_dim_vo"},
        {"\"kv_store\": \"mixed\"", "kv_store"},
        {"\"kv_store\": 3", "kv_store"},
        {"\"kv_store\": \"latent\", \"head_dim_vo\": 9", "latent"},
        {"\"k_scale\": 0", "k_scale"},
        {"\"k_scale\": [1]", "k_scale"},
        {"\"v_scale\": [1, -1]", "v_scale"},
        {"\"v_scale\": \"x\"", "v_scale"},
        {"\"rope\": {}", "style"},
        {"\"rope\": {\"style\": \"neox\"}", "style"},
        {"\"rope\": {\"style\": \"llama\", \"dim\": 3}", "rope dim"},
        {"\"rope\": {\"style\": \"llama\", \"dim\": 10}", "rope dim"},
        {"\"rope\": {\"style\": \"llama\", \"theta\": -1}", "theta"},
        {"\"rope\": {\"style\": \"llama\", \"base\": 1}", "base"},
        {"\"custom_mask\": []", "custom_mask"},
        {"\"custom_mask\": [\"d7\"]", "custom_mask"},
        {"\"custom_mask\": [\"d70g\"]", "custom_mask"},
        {"\"custom_mask\": [3]", "custom_mask"},
        {"\"q_stride\": [8, 8]", "q_stride"},
        {"\"q_stride\": [1]", "q_stride"},
        {"\"q_stride\": [9223372036854775807, 9223372036854775807]", "q_stride"},
        {"\"o_stride\": [-32, 8]", "o_stride"},
        {"\"o_stride\": [1099511627776, 8]", "o_stride"},
        {"\"kv_store\": \"ragged\", \"page_size\": 5, \"kv_indptr\": [0, 1], \"kv_indices\": [2147483647]",
         "kv_indices"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        struct workload w;
        struct why why;
        snprintf(text, sizeof text, HEAD "%s}", cases[i].member);
        const enum status s = read_text(text, &w, &why);
        if (s != STATUS_BAD_INPUT && s != STATUS_TOO_LARGE)
            fail_msg("%s: status %d '%s'", cases[i].member, (int)s, why.text);
        if (!strstr(why.text, cases[i].fragment)) fail_msg("%s: '%s'", cases[i].member, why.text);
    }
}

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    if (fd >= 0) close(fd);
    return fd < 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
