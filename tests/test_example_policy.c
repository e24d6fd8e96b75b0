/* The README's example is a real policy: it compiles, proves and executes, and the README shows exactly its
 * code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/run.h"
#include "tests/random_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct policy policy_example;

static void test_example_runs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct workload w;
        struct machine m;
        struct truth truth;
        struct plan p = {0};
        struct record r;
        struct why why = {""};
        random_batch(seed, 1e6, &w);
        test_machine(&w, &m);
        record_init(&r, &w);
        assert_int_equal(truth_create(&w, &truth, &why), STATUS_OK);
        enum status status = run_plan(&w, &m, &policy_example, NULL, &p, &r, &why);
        if (status == STATUS_OK) status = run_verify(&w, &truth, &p, &r, &why);
        if (status != STATUS_OK) fail_msg("seed %d: %s", (int)seed, why.text);
        plan_free(&p);
        truth_free(&truth);
        workload_free(&w);
    }
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be read (run from the repository's root)", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static void test_readme_shows_it(void **state)
{
    (void)state;
    char *readme = read_all("README.md"), *code = read_all("tests/policy_example.c");
    assert_non_null(strstr(readme, code));
    free(readme);
    free(code);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_example_runs),
                                       cmocka_unit_test(test_readme_shows_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
