#include "sched/policy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct policy *const registry[] = {
#define X(name) &policy_##name,
    POLICY_LIST(X)
#undef X
};

int32_t policy_count(void)
{
    return (int32_t)(sizeof registry / sizeof registry[0]);
}

const struct policy *policy_at(int32_t i)
{
    assert(i >= 0 && i < policy_count());
    return registry[i];
}

const struct policy *policy_find(const char *name)
{
    for (int32_t i = 0; i < policy_count(); i++)
        if (strcmp(registry[i]->name, name) == 0) return registry[i];
    return NULL;
}

const char *policy_names(void)
{
#define X(name) ", " #name
    static const char names[] = POLICY_LIST(X);
#undef X
    return names + 2;
}

static const struct policy_option common[] = {
    {"merge", "grid|last", "grid",
     "partial rows are merged by a grid of their own, or by the last item to arrive"},
    {0},
};

const struct policy_option *policy_common_options(void)
{
    return common;
}

static const struct policy_option *find_in(const struct policy_option *list, const char *name)
{
    for (const struct policy_option *o = list; o && o->name; o++)
        if (strcmp(o->name, name) == 0) return o;
    return NULL;
}

const struct policy_option *policy_find_option(const struct policy *policy, const char *name)
{
    const struct policy_option *own = find_in(policy->options, name);
    return own ? own : find_in(common, name);
}

/* Is `word` one of the '|'-separated words of `values`? */
static bool is_listed(const char *values, const char *word)
{
    const size_t n = strlen(word);
    for (const char *v = values; *v;) {
        const size_t len = strcspn(v, "|");
        if (len == n && memcmp(v, word, n) == 0) return n > 0;
        v += len + (v[len] == '|');
    }
    return false;
}

/* Reads a whole decimal number within "int:LOW..HIGH". */
static bool is_int_in(const char *values, const char *text, int32_t *out)
{
    long low, high;
    char *end;
    if (sscanf(values, "int:%ld..%ld", &low, &high) != 2 || *text == '\0') return false;
    const long x = strtol(text, &end, 10);
    if (*end != '\0' || x < low || x > high) return false;
    *out = (int32_t)x;
    return true;
}

enum status policy_check_options(const struct policy *policy, const struct options *options, struct why *why)
{
    for (int32_t i = 0; options && i < options->n; i++) {
        const char *name = options->names[i], *value = options->values[i];
        const struct policy_option *o = policy_find_option(policy, name);
        int32_t ignored;
        if (!o) {
            char known[160] = "merge";
            size_t used = strlen(known);
            for (const struct policy_option *k = policy->options; k && k->name && used < sizeof known; k++)
                used += (size_t)snprintf(known + used, sizeof known - used, ", %s", k->name);
            return status_fail(why, STATUS_UNKNOWN_NAME,
                               "policy %s has no option '%.40s': expected one of: %s", policy->name, name,
                               known);
        }
        const bool is_int = strncmp(o->values, "int:", 4) == 0;
        if (is_int ? !is_int_in(o->values, value, &ignored) : !is_listed(o->values, value))
            return status_fail(why, STATUS_BAD_INPUT, "policy %s: option %s=%.40s: expected %s", policy->name,
                               name, value, o->values);
    }
    return STATUS_OK;
}

const char *policy_option_word(const struct policy_input *in, const char *name)
{
    const struct policy_option *o = policy_find_option(in->policy, name);
    assert(o);
    for (int32_t i = in->options ? in->options->n : 0; i-- > 0;) /* the last one said wins */
        if (strcmp(in->options->names[i], name) == 0) return in->options->values[i];
    return o->default_value;
}

int32_t policy_option_int(const struct policy_input *in, const char *name)
{
    int32_t x = 0;
    const bool ok = is_int_in(policy_find_option(in->policy, name)->values, policy_option_word(in, name), &x);
    assert(ok);
    (void)ok;
    return x;
}

enum status policy_plan(const struct policy *policy, const struct batch *batch, const struct gpu *gpu,
                        const struct kernels *kernels, const struct options *options, struct plan *out,
                        struct why *why)
{
    const struct policy_input in = {batch, gpu, kernels, policy, options};
    plan_begin(out, batch);
    TRY(policy_check_options(policy, options, why));
    enum status s = policy->plan(&in, out, why);
    if (s == STATUS_OK && strcmp(policy_option_word(&in, "merge"), "last") == 0)
        s = plan_merge_last(out, why);
    if (s == STATUS_OK)
        plan_finish(out, batch);
    else
        plan_begin(out, batch);
    return s;
}
