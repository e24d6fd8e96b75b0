/* GPU profiles: the shipped ones load, hold together and name a source for every value; anything wrong with a
 * file is one line that says where, what, and what was expected. Faults are planted into the text of
 * h200.ini. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/data_dir.h"
#include "lab/profile.h"
#include "lab/profile_write.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 16384 };
static const char *const shipped[] = {"a100", "h100", "h200", "l40s", "rtx4090"};
enum { N_SHIPPED = sizeof shipped / sizeof shipped[0] };

static struct gpu load(const char *name)
{
    struct gpu gpu;
    struct why why = {""};
    if (profile_load(name, &gpu, &why) != STATUS_OK) fail_msg("%s", why.text);
    return gpu;
}

static FILE *open_shipped(const char *name)
{
    char dir[PATH_MAX], path[PATH_MAX + 64];
    assert_int_equal(data_dir("TANDEM_GPU_DIR", "sim/gpus", dir, sizeof dir), 0);
    snprintf(path, sizeof path, "%s/%s.ini", dir, name);
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("cannot open %s", path);
    return file;
}

/* Datasheets: 132 SMs and 4.8 TB/s, 108 SMs, 128 SMs; 228 KB, 164 KB and 100 KB of shared memory. */
static void test_known_values(void **state)
{
    (void)state;
    const struct gpu h200 = load("h200"), a100 = load("a100"), ada = load("rtx4090");
    assert_string_equal(h200.name, "h200");
    assert_true(h200.sm_count == 132 && h200.cc_major == 9 && h200.cc_minor == 0);
    assert_true(h200.peak_hbm_bytes_per_ns == 4800 && h200.peak_flops_per_ns == 989400);
    assert_true(h200.n_gpcs == 8 && h200.gpc_sms[0] == 16 && h200.gpc_sms[7] == 18);
    assert_true(h200.n_smem_sizes == 10 && h200.smem_sizes_bytes[9] == 228 * 1024);
    assert_true(a100.sm_count == 108 && a100.n_gpcs == 0 && a100.smem_optin_bytes == 163 * 1024);
    assert_true(ada.sm_count == 128 && ada.cc_minor == 9 && ada.max_threads_per_sm == 1536);
}

/* What holds for every GPU: rates reach no more than the peaks, a CTA alone no more than its SM, the largest
 * carve-out is the SM's memory, and a CTA may ask for all of it but the reserved KB. */
static void test_shipped_hold_together(void **state)
{
    char **names;
    int32_t n;
    struct why why = {""};
    (void)state;
    assert_int_equal(profile_names(&names, &n, &why), STATUS_OK);
    assert_true(n >= N_SHIPPED);
    for (int32_t i = 1; i < n; i++)
        assert_true(strcmp(names[i - 1], names[i]) < 0);
    for (int32_t i = 0; i < n; i++) {
        const struct gpu g = load(names[i]);
        assert_string_equal(g.name, names[i]);
        assert_true(g.hbm_bytes_per_ns <= g.peak_hbm_bytes_per_ns);
        assert_true(g.sm_bytes_per_ns * g.sm_count > g.hbm_bytes_per_ns);
        assert_int_equal(g.smem_sizes_bytes[g.n_smem_sizes - 1], g.smem_per_sm_bytes);
        assert_int_equal(g.smem_optin_bytes, g.smem_per_sm_bytes - 1024);
        for (int m = MATH_FMA; m < MATH_COUNT; m++)
            assert_true(g.cta_flops_frac[m] > 0 && g.cta_flops_frac[m] <= g.flops_frac[m]);
    }
    profile_names_free(names, n);
}

/* Every value has a comment, and it opens with a mark; "same" and "unknown" are the two other words. */
static void test_every_value_has_its_source(void **state)
{
    static const char *const openings[] = {"[measured]", "[published]", "[assumed]", "same", "unknown"};
    (void)state;
    for (int i = 0; i < N_SHIPPED; i++) {
        FILE *file = open_shipped(shipped[i]);
        char line[512];
        for (int number = 1; fgets(line, sizeof line, file); number++) {
            const char *comment = strchr(line, ';');
            bool sourced = !strchr(line, '=') || line[0] == ';';
            for (size_t k = 0; comment && k < sizeof openings / sizeof openings[0]; k++)
                sourced |= strncmp(comment + 2, openings[k], strlen(openings[k])) == 0;
            if (!sourced) fail_msg("%s.ini:%d: no source: %s", shipped[i], number, line);
        }
        fclose(file);
    }
}

/* ---- planted faults */

static void read_text(char text[TEXT_MAX])
{
    FILE *file = open_shipped("h200");
    const size_t n = fread(text, 1, TEXT_MAX - 1, file);
    fclose(file);
    text[n] = '\0';
}

/* Loads the text of h200.ini with the line that starts with `start` replaced by `line` ("" takes it out). */
static enum status load_changed(const char *start, const char *line, struct why *why)
{
    char text[TEXT_MAX], path[] = "/tmp/tandem-profile-XXXXXX.ini";
    struct gpu gpu;
    read_text(text);
    char *at = strstr(text, start);
    if (!at) fail_msg("h200.ini has no '%s'", start);
    char *rest = strchr(at, '\n') + 1;
    const int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    *at = '\0';
    fprintf(file, "%s%s%s%s", text, line, *line ? "\n" : "", rest);
    fclose(file);
    const enum status status = profile_load(path, &gpu, why);
    unlink(path);
    return status;
}

static void test_planted_faults(void **state)
{
    /* the line that starts so | becomes | the reason has these two in it */
    static const struct {
        const char *start, *line, *says, *also;
    } faults[] = {
        {"sm_count", "", "[gpu] sm_count is missing", ""},
        {"sm_count", "sm_count = 132\nsm_count = 132", "sm_count = 132: expected each key once", ".ini:8:"},
        {"sm_count", "sm_count = 0", "sm_count = 0: expected a whole number in range", ".ini:7:"},
        {"sm_count", "sm_count = -4", "sm_count = -4", ".ini:7:"},
        {"sm_count", "sm_count = 132.5", "sm_count = 132.5", ".ini:7:"},
        {"sm_count", "sm_count = 99999999999999999999", "sm_count = 9999", ".ini:7:"},
        {"sm_count", "sm_count = 2147483648", "sm_count = 2147483648", ".ini:7:"},
        {"sm_count", "sm_count =", "sm_count = : expected", ".ini:7:"},
        {"sm_count", "sm_count = 133", "gpc_sms sum to 132: expected sm_count 133", ""},
        {"sm_count", "sm_counts = 132", "unknown key 'sm_counts' in section [gpu]", ".ini:7:"},
        {"sm_count", "sm_count", "expected [section] or key = value", ".ini:7:"},
        {"[gpu]", "[gpus]", "unknown key 'cc_major' in section [gpus]", ".ini:5:"},
        {"gpc_sms", "gpc_sms = 2147483647 2147483647 2", "gpc_sms sum to 4294967296", "expected sm_count"},
        {"gpc_sms", "gpc_sms = 16, 16", "expected SM counts", ".ini:8:"},
        {"gpc_sms", "gpc_sms = 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 116", "expected SM counts", ".ini:8:"},
        {"max_ctas_per_sm", "max_ctas_per_sm = 33", "max_ctas_per_sm 33: expected at most 32", ""},
        {"smem_sizes", "smem_sizes_bytes = 8192 8192", "smem_sizes_bytes: expected ascending", ""},
        {"smem_sizes", "smem_sizes_bytes =", "expected ascending sizes", ""},
        {"flops_per_ns", "flops_per_ns = nan", "flops_per_ns = nan: expected a positive number", ""},
        {"flops_per_ns", "flops_per_ns = inf", "expected a positive number", ""},
        {"flops_per_ns", "flops_per_ns = 1e999", "expected a positive number", ""},
        {"flops_per_ns", "flops_per_ns = 1e16", "expected a positive number (1e-9 to 1e15)", ""},
        {"flops_per_ns", "flops_per_ns = 1e-10", "expected a positive number", ""},
        {"flops_per_ns", "flops_per_ns = 0", "expected a positive number", ""},
        {"flops_per_ns", "flops_per_ns = 989400x", "expected a positive number", ""},
        {"latency_ns", "latency_ns = -862", "latency_ns = -862: expected a positive number", ""},
        {"latency_ns", "latency_ns = 0", "latency_ns = 0: expected a positive number", ""},
        {"launch_ns", "launch_ns = -1", "launch_ns = -1: expected a positive number", ""},
        {"mma_sync_frac", "mma_sync_frac = 1.01", "fractions: expected at most 1", ""},
        {"hbm_bytes_per_ns = 4450", "hbm_bytes_per_ns = 4801", "above the peak", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct why why = {""};
        const enum status status = load_changed(faults[i].start, faults[i].line, &why);
        if (status != STATUS_BAD_INPUT || !strstr(why.text, faults[i].says) ||
            !strstr(why.text, faults[i].also))
            fail_msg("%s: status %d, '%s', expected '%s'", faults[i].line, status, why.text, faults[i].says);
        assert_null(strchr(why.text, '\n'));
    }
}

/* Overheads and the L2 may be nothing in a what-if profile; an unchanged text loads. */
static void test_allowed_changes(void **state)
{
    static const char *const lines[][2] = {{"launch_ns", "launch_ns = 0"},
                                           {"cta_start_ns", "cta_start_ns = 0"},
                                           {"l2_bytes", "l2_bytes = 0"},
                                           {"gpc_sms", "gpc_sms ="},
                                           {"[gpu]", "[gpu] ; a comment"}};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct why why = {""};
        if (load_changed(lines[i][0], lines[i][1], &why) != STATUS_OK) fail_msg("%s", why.text);
    }
}

/* Names that are not there, and files that are no files. */
static void test_lookup(void **state)
{
    struct gpu gpu;
    struct why why = {""};
    char long_name[4096];
    (void)state;
    assert_int_equal(profile_load("h300", &gpu, &why), STATUS_UNKNOWN_NAME);
    for (int i = 0; i < N_SHIPPED; i++)
        assert_non_null(strstr(why.text, shipped[i]));
    assert_int_equal(profile_load("", &gpu, &why), STATUS_UNKNOWN_NAME);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(profile_load(long_name, &gpu, &why), STATUS_UNKNOWN_NAME);
    assert_int_equal(profile_load("nowhere/x.ini", &gpu, &why), STATUS_IO);
    assert_non_null(strstr(why.text, "nowhere/x.ini: No such file"));
    assert_int_equal(profile_load("/tmp/", &gpu, &why), STATUS_IO);
    assert_non_null(strstr(why.text, "directory"));
    assert_int_equal(profile_load("/dev/null", &gpu, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, "cc_major is missing"));
}

/* $TANDEM_GPU_DIR comes before everything else: an empty directory knows no names. */
static void test_gpu_dir(void **state)
{
    struct gpu gpu;
    struct why why = {""};
    char dir[] = "/tmp/tandem-gpus-XXXXXX", path[64];
    char text[TEXT_MAX];
    const char *before = getenv("TANDEM_GPU_DIR");
    char *kept = before ? strdup(before) : NULL;
    (void)state;
    read_text(text);
    assert_non_null(mkdtemp(dir));
    setenv("TANDEM_GPU_DIR", dir, 1);
    assert_int_equal(profile_load("h200", &gpu, &why), STATUS_UNKNOWN_NAME);
    snprintf(path, sizeof path, "%s/mine.ini", dir);
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    assert_int_equal(profile_load("mine", &gpu, &why), STATUS_OK);
    assert_string_equal(gpu.name, "mine");
    unlink(path);
    rmdir(dir);
    assert_int_equal(profile_load("mine", &gpu, &why), STATUS_IO);
    if (kept)
        setenv("TANDEM_GPU_DIR", kept, 1);
    else
        unsetenv("TANDEM_GPU_DIR");
    free(kept);
}

/* ---- profiles of a probe */

/* A card that no shipped profile is of. */
static struct probe other_card(void)
{
    struct probe p = {.card = {.cc_major = 9, .sm_count = 114},
                      .max_threads_per_sm = 1536,
                      .max_ctas_per_sm = 24,
                      .registers_per_sm = 32768,
                      .smem_per_sm_bytes = 233472,
                      .smem_optin_bytes = 232448,
                      .l2_bytes = 62914560,
                      .n_gpcs = 2,
                      .gpc_sms = {60, 54}};
    p.hbm_by_sms = (struct probe_curve){.n = 2, .x = {1, 114}, .y = {{88.25, 0.01}, {4100, 0.01}}};
    p.hbm_by_bytes = (struct probe_curve){.n = 1, .x = {32768}, .y = {{4200, 0.01}}};
    p.stream_latency_ns.value = 777;
    p.launch_gap_ns.value = 1234;
    p.turnaround_ns[1].value = 150;
    p.hbm_latency_ns.value = 600;
    return p;
}

/* The text that a probe makes of a shipped profile, loaded; says what went wrong. */
static enum status rewrite(const struct probe *p, const char *base_name, struct gpu *out, struct why *why)
{
    const struct gpu base = load(base_name);
    struct profile_value values[PROFILE_PROBED];
    const int32_t n = profile_of_probe(p, &base, values);
    char text[TEXT_MAX] = "";
    FILE *file = open_shipped(base_name), *memory = fmemopen(text, TEXT_MAX, "w");
    assert_true(n <= PROFILE_PROBED);
    enum status status = profile_rewrite(file, base_name, "; made by a test\n", values, n, memory, why);
    fclose(file);
    fclose(memory);
    if (status != STATUS_OK) return status;
    assert_true(strncmp(text, "; made by a test\n\n[gpu]\n", 24) == 0);
    file = fmemopen(text, strlen(text), "r");
    status = profile_read(file, "made.ini", out, why);
    fclose(file);
    return status;
}

/* Measured keys are the probe's, all others the base's, whichever shipped profile that is. */
static void test_probe_becomes_a_profile(void **state)
{
    const struct probe p = other_card();
    (void)state;
    for (int i = 0; i < N_SHIPPED; i++) {
        const struct gpu base = load(shipped[i]);
        struct gpu expected = base, got;
        struct why why = {""};
        if (rewrite(&p, shipped[i], &got, &why) != STATUS_OK) fail_msg("%s: %s", shipped[i], why.text);
        memset(expected.name, 0, sizeof expected.name);
        memcpy(expected.name, "made", 4);
        expected.cc_major = 9;
        expected.cc_minor = 0;
        expected.sm_count = 114;
        expected.n_gpcs = 2;
        memset(expected.gpc_sms, 0, sizeof expected.gpc_sms);
        expected.gpc_sms[0] = 60;
        expected.gpc_sms[1] = 54;
        expected.max_threads_per_sm = 1536;
        expected.max_ctas_per_sm = 24;
        expected.registers_per_sm = 32768;
        expected.smem_per_sm_bytes = 233472;
        expected.smem_optin_bytes = 232448;
        expected.hbm_bytes_per_ns = fmin(4200, base.peak_hbm_bytes_per_ns);
        expected.sm_bytes_per_ns = 88.2; /* one decimal, and the even one of two as near */
        expected.memory_latency_ns = 777;
        expected.l2_bytes = 62914560;
        expected.launch_ns = 1234;
        expected.cta_start_ns = 750;
        assert_memory_equal(&got, &expected, sizeof got);
    }
}

/* A map that misses SMs is not written; the base's must then fit, or the profile is refused. */
static void test_probe_with_half_a_map(void **state)
{
    struct probe p = other_card();
    struct gpu got;
    struct why why = {""};
    (void)state;
    p.n_gpcs = 1;
    assert_int_equal(rewrite(&p, "h200", &got, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, "gpc_sms sum to 132: expected sm_count 114"));
    p.card.sm_count = 132;
    if (rewrite(&p, "h200", &got, &why) != STATUS_OK) fail_msg("%s", why.text);
    assert_true(got.n_gpcs == 8 && got.gpc_sms[7] == 18);
}

/* A base without a measured key cannot carry it. */
static void test_rewrite_misses_a_key(void **state)
{
    const struct profile_value value = {"memory", "sm_count", "132", "driver"};
    struct why why = {""};
    FILE *file = open_shipped("h200"), *sink = fopen("/dev/null", "w");
    (void)state;
    assert_int_equal(profile_rewrite(file, "h200.ini", "", &value, 1, sink, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "h200.ini: has 0 of the 1 keys that were measured");
    fclose(file);
    fclose(sink);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_shipped_hold_together),
        cmocka_unit_test(test_every_value_has_its_source),
        cmocka_unit_test(test_planted_faults),
        cmocka_unit_test(test_allowed_changes),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_gpu_dir),
        cmocka_unit_test(test_probe_becomes_a_profile),
        cmocka_unit_test(test_probe_with_half_a_map),
        cmocka_unit_test(test_rewrite_misses_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
