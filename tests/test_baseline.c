/* Peers in a child: its lines are read strictly, its files carry the batch bit for bit, and however it behaves (right,
 * wrong, broken, silent, gone) there is an answer. A shell script stands in for Python; no GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/baseline.h"
#include "lab/child.h"
#include "lab/npy.h"
#include "lab/scratch_dir.h"
#include "lab/tensor_file.h"
#include "tests/random_batch.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/tandem-baseline-XXXXXX";

static struct workload w;
static struct machine m;
static struct device_run device;

static const char *in_dir(const char *name)
{
    static char path[2][128];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

/* ---- a batch, and answers for a child to give ------------------------------------------------------------------ */

/* The oracle's rows as a peer would write them, the last element of O off by `off`. */
static void write_answer(const char *name, float off, bool has_lse)
{
    const int64_t n = device.n_rows, dv = w.batch.shape.head_dim_vo;
    float *o = calloc((size_t)(n * dv), sizeof *o), *lse = calloc((size_t)n, sizeof *lse);
    struct npz_writer *writer;
    for (int64_t i = 0; i < n * dv; i++)
        o[i] = (float)device.sample.o[i] + (i == n * dv - 1 ? off : 0);
    for (int64_t i = 0; i < n; i++)
        lse[i] = (float)device.sample.lse[i];
    const struct npy_array arrays[] = {
        {"o", 'f', 4, 2, {n, dv}, o, (size_t)(n * dv), 4 * (size_t)(n * dv)},
        {"lse", 'f', 4, 1, {n}, lse, (size_t)n, 4 * (size_t)n},
    };
    assert_int_equal(npz_writer_open(in_dir(name), &writer, NULL), STATUS_OK);
    for (int i = 0; i < (has_lse ? 2 : 1); i++)
        assert_int_equal(npz_writer_add(writer, &arrays[i], NULL), STATUS_OK);
    assert_int_equal(npz_writer_close(writer, true, NULL), STATUS_OK);
    free(o);
    free(lse);
}

static int set_up(void **state)
{
    struct why why = {""};
    (void)state;
    if (!mkdtemp(dir)) return -1;
    spec_batch("q5s40_2q1s90", 16, &w);
    test_machine(&w, &m);
    if (truth_create(&w, &device.truth, &why) != STATUS_OK) return -1;
    truth_set_numerics(&w, numerics_of(NUMERICS_DEVICE, &w.batch), &device.truth);
    device.whole = true;
    if (device_run_sample(&device, &w, &why) != STATUS_OK) return -1;
    write_answer("good.npz", 0, true);
    write_answer("plain.npz", 0, false);
    write_answer("bad.npz", 0.5f, true);
    mkdir(in_dir("tmp"), 0700);
    setenv("TMPDIR", in_dir("tmp"), 1);
    setenv("TANDEM_LAB_DIR", "lab", 1);
    return 0;
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    device_run_end(&device);
    workload_free(&w);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

#define GOOD \
    "{\"peer\":\"a\",\"time_us\":12.5,\"p10_us\":12,\"p90_us\":13,\"runs\":50,\"options\":\"torch=2\"}"

static void test_lines(void **state)
{
    static const char *const bad[][2] = {
        {"", "a JSON object"},
        {"hello", "a JSON object"},
        {"[1]", "a JSON object"},
        {"{\"peer\":\"a\",\"time_us\":12.5,\"p10", "a JSON object"},
        {GOOD GOOD, "a JSON object"},
        {"{\"time_us\":1}", "peer"},
        {"{\"peer\":\"\"}", "peer"},
        {"{\"peer\":\"../x\",\"error\":\"e\"}", "peer"},
        {"{\"peer\":\"a2345678901234567890123456789012345678901\",\"error\":\"e\"}", "peer"},
        {"{\"peer\":\"a\"}", "p10_us"},
        {"{\"peer\":\"a\",\"error\":\"\"}", "error"},
        {"{\"peer\":\"a\",\"error\":3}", "error"},
        {"{\"peer\":\"a\",\"error\":\"e\",\"time_us\":1}", "time_us"},
        {"{\"peer\":\"a\",\"error\":\"e\",\"speed\":1}", "speed"},
        {"{\"peer\":\"a\",\"peer\":\"b\",\"error\":\"e\"}", "a JSON object"},
        {"{\"peer\":\"a\",\"time_us\":0,\"p10_us\":0,\"p90_us\":1,\"runs\":5}", "p10_us"},
        {"{\"peer\":\"a\",\"time_us\":1,\"p10_us\":2,\"p90_us\":3,\"runs\":5}", "time_us"},
        {"{\"peer\":\"a\",\"time_us\":4,\"p10_us\":2,\"p90_us\":3,\"runs\":5}", "p90_us"},
        {"{\"peer\":\"a\",\"time_us\":NaN,\"p10_us\":2,\"p90_us\":3,\"runs\":5}", "a JSON object"},
        {"{\"peer\":\"a\",\"time_us\":2,\"p10_us\":2,\"p90_us\":3,\"runs\":0}", "runs"},
        {"{\"peer\":\"a\",\"time_us\":2,\"p10_us\":2,\"p90_us\":3}", "runs"},
    };
    struct baseline_line line;
    (void)state;
    assert_int_equal(baseline_read_line(GOOD, &line, NULL), STATUS_OK);
    assert_string_equal(line.peer, "a");
    assert_true(line.time_us == 12.5 && line.p10_us == 12 && line.p90_us == 13 && line.runs == 50);
    assert_string_equal(line.options, "torch=2");
    assert_string_equal(line.error, "");
    assert_int_equal(baseline_read_line("{\"peer\":\"b\",\"error\":\"no\\nway\"}", &line, NULL), STATUS_OK);
    assert_string_equal(line.error, "no way");
    assert_true(isnan(line.time_us));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct why why = {""};
        assert_int_equal(baseline_read_line(bad[i][0], &line, &why), STATUS_BAD_INPUT);
        if (!strstr(why.text, bad[i][1])) fail_msg("line %zu: '%s'", i, why.text);
    }
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

/* Read back, the tensors have the same bits and the sample the oracle's rows. */
static void test_files(void **state)
{
    const struct baseline b = {.w = &w, .m = &m, .run = &device, .runs = 5};
    struct tensor_file f;
    struct npy_file s;
    struct why why = {""};
    (void)state;
    if (baseline_write(&b, in_dir("t.npz"), in_dir("s.npz"), &why) != STATUS_OK) fail_msg("%s", why.text);
    if (tensor_file_read(in_dir("t.npz"), &f, &why) != STATUS_OK) fail_msg("%s", why.text);
    assert_int_equal(f.n_given, 0);
    assert_int_equal(f.t.q_bytes, device.truth.tensors.q_bytes);
    assert_memory_equal(f.t.q, device.truth.tensors.q, f.t.q_bytes);
    assert_memory_equal(f.t.k, device.truth.tensors.k, device.truth.tensors.k_bytes);
    assert_memory_equal(f.t.v, device.truth.tensors.v, device.truth.tensors.v_bytes);
    assert_memory_equal(f.w.kv_indices, w.kv_indices, (size_t)w.kv_indptr[3] * sizeof *w.kv_indices);
    tensor_file_free(&f);
    assert_int_equal(npz_read(in_dir("s.npz"), &s, &why), STATUS_OK);
    const struct npy_array *row = npy_find(&s, "row"), *o = npy_find(&s, "o"), *lse = npy_find(&s, "lse");
    assert_true(row && o && lse && s.n == 3);
    assert_int_equal(row->n, 7 * 32);
    for (size_t i = 0; i < row->n; i++) /* the oracle, whole, says the same of each row */
        assert_true(((double *)lse->data)[i] == device.truth.oracle.lse[((int64_t *)row->data)[i]]);
    assert_memory_equal(o->data, device.sample.o, o->bytes);
    npy_file_free(&s);
}

/* ---- children -------------------------------------------------------------------------------------------------- */

/* $3 tensors, $5 sample, $7 directory, $9 runs; D is the test's directory. Options carry what the child was told. */
#define LINE(peer)                                                                           \
    "echo '{\"peer\":\"" peer "\",\"time_us\":20,\"p10_us\":19,\"p90_us\":22,\"runs\":'$9'," \
    "\"options\":\"kv=contiguous\"}'\n"
#define ANSWER(peer, file) "cp $D/" file " \"$7/" peer ".npz\"\n" LINE(peer)

static const struct {
    const char *script;
    enum status status;
    const char *reason; /* in why */
    int rows;
    const char *row_status[3]; /* how each begins */
} children[] = {
    {ANSWER("a", "good.npz") ANSWER("b", "plain.npz"), STATUS_OK, "", 2, {"ok", "ok"}},
    {"test -s $3 && test -s $5 && test $9 = 7 && test $(stat -c %a $7) = 700 || exit 9\n",
     STATUS_OK,
     "",
     0,
     {0}},
    {ANSWER("a", "good.npz") "echo '{\"peer\":\"b\",\"error\":\"takes no soft cap\"}'\n",
     STATUS_OK,
     "",
     2,
     {"ok", "error: takes no soft cap"}},
    {ANSWER("a", "bad.npz") ANSWER("b", "good.npz"), STATUS_MISMATCH, "peer:a, seed", 2, {"mismatch", "ok"}},
    {LINE("a"), STATUS_INTERNAL, "a.npz", 1, {"error: "}},
    {"cp $5 $7/a.npz\n" LINE("a"), STATUS_OK, "", 1, {"ok"}}, /* doubles, a member more: fine */
    {"echo garbage >$7/a.npz\n" LINE("a"), STATUS_INTERNAL, "a.npz", 1, {"error: "}},
    {"cp $3 $7/a.npz\n" LINE("a"), STATUS_INTERNAL, "expected floats o", 1, {"error: "}},
    {ANSWER("a", "good.npz") ANSWER("a", "good.npz"), STATUS_INTERNAL, "a: twice", 1, {"ok"}},
    {ANSWER("a", "good.npz") "echo 'Segmentation'\n", STATUS_INTERNAL, "'Segmentation'", 1, {"ok"}},
    {ANSWER("a", "good.npz") "printf '{\"peer\":'\n", STATUS_INTERNAL, "ends early", 1, {"ok"}},
    {"printf 'a\\0b\\n'\n", STATUS_INTERNAL, "zero byte", 0, {0}},
    {ANSWER("a", "good.npz") "echo Traceback >&2; echo 'ValueError: x' >&2; exit 1\n",
     STATUS_INTERNAL,
     "exit status 1: ValueError: x",
     1,
     {"ok"}},
    {"echo 'baseline.py: torch: not installed' >&2; exit 3\n",
     STATUS_UNSUPPORTED,
     "--baseline torch: torch: not installed",
     0,
     {0}},
    {ANSWER("a", "good.npz") "kill -SEGV $$\n", STATUS_INTERNAL, "killed by signal 11", 1, {"ok"}},
    {ANSWER("a", "good.npz") "sleep 1000\n", STATUS_INTERNAL, "no end within 1 s", 1, {"ok"}},
    {"exec >&-; sleep 1000\n", STATUS_INTERNAL, "no end within 1 s", 0, {0}},
    {"sleep 1000 & " ANSWER("a", "good.npz"), STATUS_OK, "", 1, {"ok"}}, /* left behind: killed */
    {"yes\n", STATUS_INTERNAL, "printed more than", 0, {0}},
};

static void write_script(const char *text)
{
    FILE *f = fopen(in_dir("python"), "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\nD='%s'\n%s", dir, text);
    fclose(f);
    chmod(in_dir("python"), 0700);
    setenv("TANDEM_PYTHON", in_dir("python"), 1);
}

static void assert_nothing_left(void)
{
    assert_int_equal(rmdir(in_dir("tmp")), 0);
    assert_int_equal(mkdir(in_dir("tmp"), 0700), 0);
}

static enum status run(double timeout_s, struct rows *rows, struct why *why)
{
    const struct baseline b = {
        .w = &w, .m = &m, .run = &device, .runs = 7, .timeout_s = timeout_s, .quiet = true};
    *why = (struct why){""};
    *rows = (struct rows){0};
    return baseline_run(&b, rows, why);
}

static void check_row(size_t child, const struct record *r, const char *status)
{
    if (strncmp(r->status, status, strlen(status)) != 0) fail_msg("child %zu: row '%s'", child, r->status);
    assert_string_equal(r->executor, "cuda");
    assert_int_equal(strncmp(r->policy, "peer:", 5), 0);
    assert_true(r->flops > 0 && r->limit_us > 0);
    if (strcmp(status, "ok") != 0) { /* never a time that is not known to be right */
        assert_true(isnan(r->time_us) && r->runs == RECORD_EMPTY);
        return;
    }
    assert_true(r->time_us == 20 && r->time_p10_us == 19 && r->time_p90_us == 22 && r->runs == 7);
    assert_true(r->limit_ratio == 20 / r->limit_us && r->max_err_o < 1e-6);
    assert_string_equal(r->options, "kv=contiguous");
}

static void test_children(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof children / sizeof children[0]; i++) {
        struct rows rows;
        struct why why;
        write_script(children[i].script);
        const enum status status = run(strstr(children[i].script, "1000") ? 1 : 60, &rows, &why);
        if (status != children[i].status || !strstr(why.text, children[i].reason) || strchr(why.text, '\n'))
            fail_msg("child %zu: status %d, '%s'", i, status, why.text);
        assert_int_equal(rows.n, children[i].rows);
        for (int32_t k = 0; k < rows.n; k++)
            check_row(i, &rows.data[k], children[i].row_status[k]);
        rows_free(&rows);
        assert_nothing_left();
    }
    for (int i = 0; i < 2; i++) { /* no such program; no such script */
        struct rows rows;
        struct why why;
        setenv(i ? "TANDEM_LAB_DIR" : "TANDEM_PYTHON", "/no/such", 1);
        assert_int_equal(run(60, &rows, &why), STATUS_UNSUPPORTED);
        assert_non_null(strstr(why.text, i ? "baseline.py" : "/no/such: cannot be started"));
        assert_nothing_left();
    }
    setenv("TANDEM_LAB_DIR", "lab", 1);
}

static void on_alarm(int signal_number)
{
    child_kill_on_signal();
    scratch_dir_abort_on_signal();
    _exit(128 + signal_number);
}

/* What main's handler does: the child, what it started and the directory are gone. */
static void test_interrupt(void **state)
{
    int ended;
    (void)state;
    write_script("(sleep 1; touch $D/survived) & touch $D/started; sleep 1000\n");
    const pid_t pid = fork();
    if (pid == 0) {
        struct rows rows;
        struct why why;
        signal(SIGALRM, on_alarm);
        ualarm(500000, 0);
        run(60, &rows, &why);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(WEXITSTATUS(ended), 128 + SIGALRM);
    assert_nothing_left();
    sleep(1);
    usleep(200000);
    assert_int_equal(access(in_dir("started"), F_OK), 0);
    assert_int_not_equal(access(in_dir("survived"), F_OK), 0);
}

/* The script itself over the batch, where this machine has PyTorch: pages, groups and masks, in double. */
static void test_script(void **state)
{
    char command[512];
    const struct baseline b = {.w = &w, .m = &m, .run = &device, .runs = 5};
    (void)state;
    if (system("python3 -c 'import numpy, torch' 2>/dev/null") != 0) {
        print_message("skipped: no PyTorch on this machine\n");
        skip();
    }
    assert_int_equal(baseline_write(&b, in_dir("t.npz"), in_dir("s.npz"), NULL), STATUS_OK);
    snprintf(command, sizeof command, "python3 lab/baseline.py --cpu --in %s/t.npz --sample %s/s.npz", dir,
             dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),     cmocka_unit_test(test_files),  cmocka_unit_test(test_children),
        cmocka_unit_test(test_interrupt), cmocka_unit_test(test_script),
    };
    return cmocka_run_group_tests_name("baseline", tests, set_up, tear_down);
}
