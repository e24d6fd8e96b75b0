/* The command as scripts see it: exit statuses, one clear line for bad input, nothing half-written, round
 * trips. The binary is $TANDEM_BIN, default ./tandem. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/npy.h"
#include "sched/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/tandem-cli-XXXXXX";

/* Runs "tandem ARGS" in a shell; returns the exit status, fills out with stdout and err with stderr. */
static int run(const char *args, char *out, size_t out_size, char *err, size_t err_size)
{
    char command[2048], path[128];
    const char *binary = getenv("TANDEM_BIN") ? getenv("TANDEM_BIN") : "./tandem";
    size_t n;
    snprintf(path, sizeof path, "%s/stderr", dir);
    snprintf(command, sizeof command, "{ T='%s'; D='%s'; %s; } 2>'%s'", binary, dir, args, path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    n = fread(out, 1, out_size - 1, pipe);
    out[n] = '\0';
    while (fgetc(pipe) != EOF)
        ;
    const int state = pclose(pipe);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    n = fread(err, 1, err_size - 1, file);
    err[n] = '\0';
    fclose(file);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define BATCH "{\"num_qo_heads\": 8, \"num_kv_heads\": 2, \"head_dim\": 16, \"qo_len\": [1]"

/* Command lines that must fail, and what their one line on stderr must hold. */
static const struct {
    const char *args, *fragment;
} bad_input[] = {
    {"$T verify --spec q1s9 --policy unified --numerics fp16", "--numerics"},
    {"$T verify --spec q1s9 --policy unified --cpu sse", "--cpu"},
    {"$T verify --spec q1s9 --policy unified --kv-store heap", "--kv-store"},
    {"$T verify --spec q1s9 --policy unified --rope neox", "--rope"},
    {"$T verify --spec q1s9 --policy unified --head-dim 64/", "--head-dim"},
    {"$T verify --spec q1s9 --policy unified --head-dim 64/0", "--head-dim"},
    {"$T verify --spec q1s9 --policy unified --head-dim 64/128/2", "--head-dim"},
    {"$T verify --spec q1s9 --policy unified --kv-store latent --head-dim 64/128", "head_dim_vo"},
    {"$T verify --tensors $D/none.npz", "none.npz"},
    {"$T verify --tensors $D/none.npz --spec q1s9", "workloads"},
    {"$T verify --tensors $D/none.npz --head-dim 64", "--head-dim"},
    {"$T verify --spec q1s9 --save-tensors $D/no/such/x.npz", "x.npz"},
    {"$T verify --spec q1s9 --save-tensors /dev/full", "/dev/full"},
    {"$T verify --batches - --save-tensors $D/x.npz", "--save-tensors"},
    {"$T compare --spec q1s9 --tensors x.npz", "--tensors"},
    {"$T bench", "0 workloads"},
    {"$T bench --colocate --spec q1s9", "--colocate with --spec"},
    {"$T bench --policy pod --colocate", "--colocate with --policy"},
    {"$T bench --colocate --heads 8/8", "--colocate with --heads"},
    {"$T bench --colocate --sustain 2s", "--colocate with --sustain"},
    {"$T bench --colocate --elements 65535", "expected a whole number in 65536..4294967296"},
    {"$T bench --spec q1s9 --policy pod --elements 65536", "expected --colocate"},
    {"$T sim --colocate", "unknown flag"},
    {"$T", "expected a command"},
    {"$T frobnicate", "unknown command"},
    {"$T sim --spec q1s10", "one of --policy and --plan"},
    {"$T sim --policy pod", "expected one of --spec"},
    {"$T sim --spec q1 --workload demo --policy pod", "2 workloads"},
    {"$T sim --spec '' --policy pod", "expected 'q'"},
    {"$T sim --spec q --policy pod", "expected a number"},
    {"$T sim --spec q1s10_ --policy pod", "expected 'q'"},
    {"$T sim --spec 0q1s10 --policy pod", "expected 1.."},
    {"$T sim --spec q1s-5 --policy pod", "expected a number"},
    {"$T sim --spec q99999999999s1 --policy pod", "below 2^31"},
    {"$T sim --spec q2147483647k --policy pod", "expected 1..2147483647"},
    {"$T sim --spec 2000000q1s1 --policy pod", "more than 1048576 requests"},
    {"$T sim --spec q1s10x --policy pod", "'x' at 5"},
    {"$T sim --spec q1s10 --policy nonesuch", "expected all, auto, or some of: unified"},
    {"$T sim --spec q1s10 --policy pod,pod", "named twice"},
    {"$T sim --spec q1s10 --policy pod --gpu nonesuch", "expected one of: a100"},
    {"$T sim --spec q1s10 --policy pod --option ratio=golden", "expected proportional|half|exact"},
    {"$T sim --spec q1s10 --policy unified,fi_prefill --option chunk_pages=0", "expected int:1..1048576"},
    {"$T sim --batch $D/unknown.json --page-size 1 --policy pod", "--page-size with --batch"},
    {"$T sim --spec q1s10 --policy pod --option nonesuch=1", "none of the chosen policies"},
    {"$T sim --spec q1s10 --policy pod --heads 7/2", "--heads 7/2"},
    {"$T sim --spec q1s10 --policy pod --page-size 0", "--page-size 0"},
    {"$T sim --spec q1s10 --policy pod --head-dim 99999999999999999999", "--head-dim"},
    {"$T sim --spec q1s10 --policy pod --bogus", "unknown flag"},
    {"$T sim --spec q1s10 --policy pod --gpu", "expected a value"},
    {"$T sim --spec q1s10 --policy pod surplus", "unexpected argument"},
    {"$T list nonsense", "expected policies"},
    {"$T sim --workload nonesuch --policy pod", "expected one of: demo"},
    {"$T sim --batch $D/missing.json --policy pod", "No such file"},
    {"$T sim --batch $D --policy pod", "directory"},
    {"$T sim --batch $D/empty.json --policy pod", "empty.json"},
    {"$T sim --batch $D/unknown.json --policy pod", "pages"},
    {"$T sim --batch $D/negative.json --policy pod", "kv_len[0]"},
    {"$T sim --batch $D/page.json --policy pod", "kv_indices[0]"},
    {"$T sim --batch $D/last.json --policy pod", "last_page_len[0]"},
    {"$T sim --batch $D/huge.json --policy pod", "num_qo_heads"},
    {"$T sim --batch $D/syntax.json --policy pod", "syntax.json:2"},
    {"$T sim --batches $D/lines.jsonl --policy unified --quiet >/dev/null", "lines.jsonl:2"},
    {"$T sim --spec q1s2147483647 --page-size 1 --policy pod", "more than 67108864 pages"},
    {"$T sim --batches $D/blank.jsonl --policy pod", "no batches"},
    {"$T replay --trace $D/times.csv --trace-format vidur", "times.csv:2: expected a time"},
    {"$T check --spec q1s10 --plan $D/missing.json", "No such file"},
    {"$T check --spec q1s10 --plan $D/empty.json", "empty.json"},
    {"$T check --spec q1s10 --plan $D/noplan.json", "tandem_plan"},
    {"$T import --spec q1s10", "expected --arrays"},
    {"$T import --batches $D/blank.jsonl --arrays $D/arrays.json", "the one batch"},
    {"$T import --spec q1s10 --arrays $D/missing.json", "No such file"},
    {"$T import --spec q1s10 --arrays $D", "directory"},
    {"$T import --spec q1s10 --arrays $D/syntax.json", "syntax.json:2"},
    {"$T import --spec q1s10 --arrays $D/unknown.json", "num_qo_heads"},
    {"$T import --spec q1s10 --arrays $D/lines.jsonl", "lines.jsonl:2"},
    {"echo '[]' | $T import --spec q1s10 --arrays -", "value: expected an object"},
    {"echo '{}' | $T import --spec q1s10 --arrays -", "cta_tile_q: expected a whole number"},
    {"sed 's/: 16/: 1e1/' $D/arrays.json | $T import --spec q1s10 --arrays -", "cta_tile_q"},
    {"sed 's/: 16/: 17/' $D/arrays.json | $T import --spec q1s10 --arrays -", "-: cta_tile_q 17"},
    {"sed 's/false/0/' $D/arrays.json | $T import --spec q1s10 --arrays -", "split_kv: expected true or"},
    {"sed 's/\\[5/[5, 9/' $D/arrays.json | $T import --spec q1s10 --arrays -", "2, 1, 1 entries"},
    {"sed 's/\\[5/[\"5\"/' $D/arrays.json | $T import --spec q1s10 --arrays -", "request_indices[0]"},
    {"sed 's/\\[5/[5e9/' $D/arrays.json | $T import --spec q1s10 --arrays -", "request_indices[0]"},
    {"sed 's/\\[5/[4294967296/' $D/arrays.json | $T import --spec q1s10 --arrays -",
     "request_indices[0]: expected a whole number in -2147483648..2147483647"},
    {"sed 's/\\[5/[99999999999999999999/' $D/arrays.json | $T import --spec q1s10 --arrays -", "-:1: too"},
    {"sed 's/\\[5\\]/null/' $D/arrays.json | $T import --spec q1s10 --arrays -", "request_indices: expected"},
    {"sed 's/}/, \"block_valid_mask\": [2]}/' $D/arrays.json | $T import --spec q1s10 --arrays -",
     "block_valid_mask[0]: expected true, false"},
    {"$T import --spec q1s10 --arrays $D/arrays.json", "arrays.json: request_indices[0] is 5"},
    {"$T import --spec 6q1s10 --arrays $D/arrays.json", "arrays.json: request 0 has 0 works"},
    {"$T sim --spec q1s10 --policy pod --gpu $D/bad.ini", "bad.ini:2"},
    {"$T plan --spec q1s10 --policy pod --out $D", "is a directory"},
    {"$T plan --spec q1s10 --policy pod --out $D/no/such/dir/plan.json", "No such file"},
    {"$T plan --spec q1s10 --policy pod --out /dev/full", "No space left"},
    {"$T plan --spec q1s10 --policy pod >/dev/full", "No space left"},
    {"$T list policies >/dev/full", "No space left"},
    {"$T sim --spec q1s10 --policy pod --spans $D/no/x.csv", "No such file"},
    {"$T sim --spec q1s10 --policy all --spans $D/x.csv", "one policy"},
    {"$T replay --trace $D/missing --trace-format azure", "No such file"},
    {"$T replay --trace $D/trace.csv --trace-format nonesuch", "expected azure"},
    {"$T replay --trace $D/trace.csv --trace-format vidur", "a header with arrived_at"},
    {"$T replay --trace $D/trace.csv --trace-format azure", "trace.csv:2"},
};

/* Each: exit status 2, exactly one line on stderr that holds the fragment, nothing on stdout. */
static void test_bad_input(void **state)
{
    char out[4096], err[4096];
    (void)state;
    write_file("empty.json", "");
    write_file("blank.jsonl", "\n \n");
    write_file("times.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n-1e308,10,5\n1e308,10,5\n");
    write_file("unknown.json", BATCH ", \"kv_len\": [5], \"pages\": 3}");
    write_file("negative.json", BATCH ", \"kv_len\": [-5]}");
    write_file("page.json", BATCH ", \"kv_indptr\": [0, 1], \"kv_indices\": [2000000000], \"kv_len\": [5]}");
    write_file("last.json", BATCH ", \"kv_indptr\": [0, 1], \"kv_indices\": [0], \"last_page_len\": [17]}");
    write_file("huge.json", "{\"num_qo_heads\": 99999999999, \"num_kv_heads\": 2, \"head_dim\": 16, "
                            "\"qo_len\": [1], \"kv_len\": [1]}");
    write_file("syntax.json", "{\n\"num_qo_heads\": ,}");
    write_file("lines.jsonl", BATCH ", \"kv_len\": [5]}\n{\"batch\": 7}\n");
    write_file("arrays.json",
               "{\"cta_tile_q\": 16, \"kv_chunk_size\": 0, \"split_kv\": false, \"request_indices\": [5], "
               "\"qo_tile_indices\": [0], \"kv_tile_indices\": [0]}\n");
    write_file("noplan.json", "{\"grids\": []}");
    write_file("bad.ini", "[gpu]\nsm_count = -4\n");
    write_file("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,5\n");
    for (size_t i = 0; i < sizeof bad_input / sizeof bad_input[0]; i++) {
        const int status = run(bad_input[i].args, out, sizeof out, err, sizeof err);
        if (status != 2 || lines(err) != 1 || !strstr(err, bad_input[i].fragment) ||
            strncmp(err, "tandem: ", 8) != 0)
            fail_msg("%s: exit %d, stderr '%s': expected exit 2 and one line with '%s'", bad_input[i].args,
                     status, err, bad_input[i].fragment);
    }
    assert_int_equal(run("ls $D | grep -c tmp-", out, sizeof out, err, sizeof err), 1); /* grep found none */
}

/* What a machine lacks is 3; a failed check is 1. */
static void test_other_statuses(void **state)
{
    char out[4096], err[4096];
    (void)state;
    assert_int_equal(run("$T probe", out, sizeof out, err, sizeof err), 3);
    assert_int_equal(lines(err), 1);
    assert_int_equal(run("$T bench --colocate --format csv", out, sizeof out, err, sizeof err), 3);
    assert_int_equal(lines(err), 1);
    assert_string_equal(out, "");
    assert_int_equal(
        run("$T verify --spec q1s10 --policy pod --executor cuda", out, sizeof out, err, sizeof err), 3);
    assert_int_equal(run("$T plan --spec q1s10 --policy pod | $T check --spec q1s11 --plan -", out,
                         sizeof out, err, sizeof err),
                     1);
    assert_non_null(strstr(err, "keys are missing"));
    assert_int_equal(run("$T --help && $T compare --help", out, sizeof out, err, sizeof err), 0);
}

/* A plan read back and written again is the same bytes; the saved plan simulates like the policy's. */
static void test_plan_round_trip(void **state)
{
    char out[1 << 16], again[1 << 16], err[4096];
    (void)state;
    for (int32_t i = 0; i < policy_count(); i++) {
        const char *policy = policy_at(i)->name;
        char args[512];
        snprintf(args, sizeof args,
                 "$T plan --spec q40s300_3q1s9000 --policy %s --out $D/p.json && $T check --spec "
                 "q40s300_3q1s9000 --plan $D/p.json",
                 policy);
        if (run(args, out, sizeof out, err, sizeof err) != 0) fail_msg("%s: %s", policy, err);
        assert_non_null(strstr(out, "valid: "));
        snprintf(args, sizeof args,
                 "$T sim --spec q40s300_3q1s9000 --policy %s --format csv | tail -1 | cut -d, -f15", policy);
        assert_int_equal(run(args, out, sizeof out, err, sizeof err), 0);
        assert_int_equal(
            run("$T sim --spec q40s300_3q1s9000 --plan $D/p.json --format csv | tail -1 | cut -d, -f15",
                again, sizeof again, err, sizeof err),
            0);
        assert_string_equal(out, again);
        assert_true(out[0] >= '1' && out[0] <= '9');
    }
}

/* The arrays that the README shows are the plan of `unified`, and come out as it. */
static void test_import(void **state)
{
    char out[4096], err[4096];
    (void)state;
    if (run("sed -n '/^{\"cta_tile_q\"/,/}$/p' README.md >$D/five.json && $T import --spec q40s120_q1s300 "
            "--arrays "
            "$D/five.json --gpu a100 --out $D/five.plan && $T check --spec q40s120_q1s300 --plan "
            "$D/five.plan && "
            "$T verify --spec q40s120_q1s300 --plan $D/five.plan >$D/rows && $T sim --spec q40s120_q1s300 "
            "--plan "
            "$D/five.plan >$D/rows",
            out, sizeof out, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_non_null(strstr(out, "valid: 2 grids, 40 items, 88 merges, 1376 partial rows cover"));
    assert_int_equal(
        run("$T plan --spec q40s120_q1s300 --gpu a100 --policy unified | sed 's/unified/import/' | cmp "
            "- $D/five.plan",
            out, sizeof out, err, sizeof err),
        0);
}

/* A saved plan is text that people edit: what is still right is executed and simulated, what is not is
 * refused with exit 1. Four direct items of one list each, then a plan with partials. */
static void test_hand_edited_plans(void **state)
{
    static const struct {
        const char *spec, *edit, *fragment; /* fragment NULL: still valid */
    } edits[] = {
        /* two items change places, hence CTAs */
        {"2q1s64 --heads 2/2", "/\"items\"/{n;N;s/\\(.*\\),\\n\\(.*\\),$/\\2,\\n\\1,/}", NULL},
        /* CTA 0 takes CTA 1's item, which idles */
        {"2q1s64 --heads 2/2", "s/\\[0,1,2,3,4\\]/[0,2,2,3,4]/", NULL},
        /* all on one CTA of four */
        {"2q1s64 --heads 2/2", "s/\\[0,1,2,3,4\\]/[0,0,0,4,4]/", NULL},
        /* an item's keys split over two that both write O */
        {"2q1s64 --heads 2/2",
         "s/\\[0,1,2,3,4\\]/[0,2,3,4,5]/;s/^\\(.0,0,0,1,\\)0,64\\(.*\\)/\\10,32\\2\\n\\132,64\\2/",
         "both write these rows"},
        {"2q1s64 --heads 2/2", "s/^\\(.0,0,0,1,\\)0,64/\\10,60/", "keys are missing"},
        {"2q1s64 --heads 2/2", "s/\\[0,1,2,3,4\\]/[0,1,2,3,3]/", "in no list"},
        {"2q1s64 --heads 2/2", "s/^\\[1,0,/[0,0,/", "both write these rows"},
        /* partials: order of sources and of items is free, which source is not */
        {"q40s120_q1s300", "s/\\[1280,1312,1344\\]/[1312,1344,1280]/", NULL},
        {"q40s120_q1s300", "/\"items\"/{n;N;s/\\(.*\\),\\n\\(.*\\),$/\\2,\\n\\1,/}", NULL},
        {"q40s120_q1s300", "s/\\[1280,1312,1344\\]/[1280,1312,1312]/", "partial row"},
        {"q40s120_q1s300", "s/\\[1280,1312,1344\\]/[1280,1312]/", "partial row"},
        {"q40s120_q1s300", "s/^\\(.1,0,0,4,\\)128,256/\\1128,255/", "keys are missing"},
        {"q40s120_q1s300", "s/^\\(.1,0,0,4,\\)128,256/\\1127,256/", "keys are computed twice"},
    };
    char out[4096], err[4096], args[1024];
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        snprintf(args, sizeof args,
                 "$T plan --spec %s --policy unified >$D/a.plan && sed '%s' $D/a.plan >$D/b.plan && ! cmp -s "
                 "$D/a.plan $D/b.plan && $T check --spec %s --plan $D/b.plan",
                 edits[i].spec, edits[i].edit, edits[i].spec);
        const int status = run(args, out, sizeof out, err, sizeof err);
        if (status != (edits[i].fragment ? 1 : 0) || (status && !strstr(err, edits[i].fragment)))
            fail_msg("edit %zu: exit %d, '%s'", i, status, err);
        snprintf(
            args, sizeof args,
            "$T verify --spec %s --plan $D/b.plan >$D/rows && $T sim --spec %s --plan $D/b.plan >$D/rows",
            edits[i].spec, edits[i].spec);
        if (run(args, out, sizeof out, err, sizeof err) != status)
            fail_msg("edit %zu: executed: '%s'", i, err);
    }
}

/* auto says what it chose; its plan is that policy's. */
static void test_auto(void **state)
{
    char out[1 << 16], err[4096];
    (void)state;
    assert_int_equal(
        run("$T sim --spec q512s4k_20q1s2k --policy auto --format csv", out, sizeof out, err, sizeof err), 0);
    assert_non_null(strstr(err, "auto: chose="));
    assert_non_null(strstr(out, "auto,chose="));
    assert_int_equal(
        run("P=$($T plan --spec q512s4k_20q1s2k --policy auto --out $D/auto.json 2>&1 | sed "
            "'s/.*chose=\\([a-z0-9_]*\\).*/\\1/') && $T plan --spec q512s4k_20q1s2k --policy $P | "
            "sed s/$P/auto/ | cmp - $D/auto.json",
            out, sizeof out, err, sizeof err),
        0);
}

/* The CSV header is what scripts rely on; columns nobody can know are empty. */
static void test_csv(void **state)
{
    char out[8192], err[4096];
    (void)state;
    assert_int_equal(run("$T compare --spec q20s100_2q1s50 --format csv", out, sizeof out, err, sizeof err),
                     0);
    assert_int_equal(lines(out), policy_count() + 1);
    assert_int_equal(
        strncmp(out,
                "workload,spec,seed,model,num_qo_heads,num_kv_heads,head_dim,page_size,dtype,kv_dtype,policy,"
                "options,gpu,"
                "executor,time_us,time_p10_us,time_p90_us,runs,prefill_end_us,decode_end_us,limit_us,limit_"
                "ratio,flops,"
                "hbm_bytes,tensor_util,hbm_util,sm_busy_frac,imbalance,grids,ctas,items,merges,partial_rows,"
                "workspace_bytes,plan_us,max_err_o,max_err_lse,joules,status,git,created_utc\n",
                strcspn(out, "\n") + 1),
        0);
    assert_non_null(strstr(out, ",bf16,bf16,page_aware,,h200,sim,"));
}

/* Replay gives the same bytes on any number of threads, and its batches can be read back and verified. */
static void test_replay(void **state)
{
    char one[4096], two[4096], err[4096];
    (void)state;
    write_file(
        "small.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,700,20\n0.001,300,5\n0.002,50,0\n0.01,900,30\n");
    assert_int_equal(run("$T replay --trace $D/small.csv --trace-format vidur --budget 256 --policy all "
                         "--threads 1 --out $D/b1.jsonl",
                         one, sizeof one, err, sizeof err),
                     0);
    assert_int_equal(run("$T replay --trace $D/small.csv --trace-format vidur --budget 256 --policy all "
                         "--threads 2 --out $D/b2.jsonl",
                         two, sizeof two, err, sizeof err),
                     0);
    assert_string_equal(one, two);
    assert_int_equal(run("cmp $D/b1.jsonl $D/b2.jsonl && $T verify --batches $D/b1.jsonl --policy page_aware "
                         "--format csv >$D/v.csv && grep -c ,ok, $D/v.csv",
                         one, sizeof one, err, sizeof err),
                     0);
    assert_true(atoi(one) > 3);
}

/* Tensors go out and come back; a dump that is wrong is exit 1 and says where; a dump of nothing to check is exit 2. */
static void test_tensors(void **state)
{
    char out[8192], err[1024];
    (void)state;
    assert_int_equal(
        run("$T verify --spec q5s40_2q1s90 --save-tensors $D/x.npz", out, sizeof out, err, sizeof err), 0);
    assert_int_equal(run("$T verify --tensors $D/x.npz --format csv", out, sizeof out, err, sizeof err), 0);
    assert_int_equal(lines(out), 2);
    assert_non_null(strstr(out, "peer:file"));
    assert_int_equal(run("$T verify --tensors $D/x.npz --policy unified,pod --numerics device --format csv",
                         out, sizeof out, err, sizeof err),
                     0);
    assert_int_equal(lines(out), 4);
    assert_non_null(strstr(out, "numerics=device"));
    assert_int_equal(run("$T verify --spec q50s90 --policy serial --cpu base --format csv", out, sizeof out,
                         err, sizeof err),
                     0);
    assert_non_null(strstr(out, "numerics=fp32 cpu=base blas="));
    /* one element of O off by a thousandth */
    struct npy_file f;
    struct npz_writer *writer;
    char path[160];
    snprintf(path, sizeof path, "%s/x.npz", dir);
    assert_int_equal(npz_read(path, &f, NULL), STATUS_OK);
    assert_int_equal(npz_writer_open(path, &writer, NULL), STATUS_OK);
    for (int32_t i = 0; i < f.n; i++) {
        if (strcmp(f.arrays[i].name, "o") == 0) ((double *)f.arrays[i].data)[(3 * 32 + 5) * 128 + 7] += 1e-3;
        assert_int_equal(npz_writer_add(writer, &f.arrays[i], NULL), STATUS_OK);
    }
    assert_int_equal(npz_writer_close(writer, true, NULL), STATUS_OK);
    npy_file_free(&f);
    assert_int_equal(run("$T verify --tensors $D/x.npz --quiet", out, sizeof out, err, sizeof err), 1);
    assert_int_equal(lines(err), 1);
    assert_non_null(strstr(err, "token 3 head 5 dim 7"));
}

/* Inputs that broke other people's code, where that corpus is at hand. */
static void test_public_bugs(void **state)
{
    char out[4096], err[4096];
    (void)state;
    if (access("../shared/cases/public_bugs.jsonl", R_OK) != 0) {
        print_message("skipped: no corpus of public bugs beside this checkout\n");
        skip();
    }
    if (run("head -8 ../shared/cases/public_bugs.jsonl | $T verify --batches - --policy all --format csv "
            ">/dev/null",
            out, sizeof out, err, sizeof err) != 0)
        fail_msg("%s", err);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_other_statuses),
        cmocka_unit_test(test_plan_round_trip),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_import),
        cmocka_unit_test(test_hand_edited_plans),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_public_bugs),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
