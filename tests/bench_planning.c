/* Planning cost of every policy, ns an item, at 256 and at 100,000 requests of 32/8 heads; prefix discovery
 * and auto by themselves. Best of several runs. `make bench` runs it; it fails where a limit of the list
 * below is not kept. */
#include "lab/auto.h"
#include "lab/rng.h"
#include "lab/run.h"
#include "sched/cascade.h"
#include "tests/random_batch.h"
#include "tests/shipped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 7, MANY = 100000, FEW = 256 };
static const double limit_ns = 50, heap_limit_ns = 150, auto_limit_us = 3000;

/* Limit of a shipped policy, ns an item; 0 for others, which are measured only. */
static double limit_of(const char *policy)
{
    for (int i = 0; i < N_SHIPPED; i++)
        if (strcmp(shipped[i].name, policy) == 0) return shipped[i].has_heap ? heap_limit_ns : limit_ns;
    return 0;
}

/* Processor time: other jobs on the machine do not count. */
static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* n decodes of 1 .. 2048 keys and, where asked for, two chunks of 1024 at 4096. */
static void ragged(int32_t n, bool chunks, struct workload *w)
{
    struct workload_params p = workload_default_params();
    struct rng r = {7};
    struct why why = {""};
    int32_t *qo_len = malloc(2 * (size_t)n * sizeof *qo_len), *kv_len = qo_len + n;
    for (int32_t i = 0; i < n; i++) {
        qo_len[i] = chunks && i < 2 ? 1024 : 1;
        kv_len[i] = chunks && i < 2 ? 4096 : 1 + (int32_t)rng_below(&r, 2048);
    }
    if (workload_from_lengths(qo_len, kv_len, n, &p, w, &why) != STATUS_OK ||
        workload_finish(w, &why) != STATUS_OK) {
        fprintf(stderr, "bench_planning: %s\n", why.text);
        exit(3);
    }
    free(qo_len);
}

static double discovery_us(const struct batch *b)
{
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        struct cascade c;
        const double begin = now_us();
        if (cascade_find(b, 128, 256, &c) != STATUS_OK) exit(3);
        if (now_us() - begin < best) best = now_us() - begin;
        cascade_free(&c);
    }
    return best;
}

/* Discovery is part of page_aware and is taken off: both are printed. */
static bool bench_policy(const struct workload *w, const struct machine *m, const struct policy *policy,
                         double discovery, const char *name)
{
    struct plan p = {0};
    struct why why = {""};
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        const double begin = now_us();
        if (policy_plan(policy, &w->batch, &m->gpu, &m->kernels, NULL, &p, &why) != STATUS_OK) {
            fprintf(stderr, "bench_planning: %s: %s\n", policy->name, why.text);
            exit(3);
        }
        if (now_us() - begin < best) best = now_us() - begin;
    }
    if (strcmp(policy->name, "page_aware") == 0) best -= discovery;
    const double limit = limit_of(policy->name), ns = 1e3 * best / p.n_items;
    const bool ok = limit == 0 || ns <= limit;
    printf("%-14s %-14s %9d %11.0f %9.1f %7.0f%s\n", policy->name, name, p.n_items, best, ns, limit,
           ok ? "" : "  ABOVE THE LIMIT");
    plan_free(&p);
    return ok;
}

static bool bench_auto(const struct workload *w, const struct machine *m, const char *name)
{
    double best = INFINITY;
    struct auto_choice choice;
    struct plan p = {0};
    struct why why = {""};
    for (int i = 0; i < RUNS; i++) {
        const double begin = now_us();
        if (auto_plan(&w->batch, &m->gpu, &m->kernels, NULL, &p, &choice, &why) != STATUS_OK) exit(3);
        if (now_us() - begin < best) best = now_us() - begin;
    }
    printf("%-14s %-14s %9d %11.0f   chose %s, simulated %d%s\n", "auto", name, p.n_items, best,
           choice.policy->name, choice.simulated,
           best <= auto_limit_us ? "" : "  ABOVE THE LIMIT of 3000 us");
    plan_free(&p);
    return best <= auto_limit_us;
}

int main(void)
{
    static const struct {
        const char *name;
        int32_t n;
        bool chunks;
    } cases[] = {{"256 decodes", FEW, false}, {"254 + 2 chunks", FEW, true}, {"100k decodes", MANY, false}};
    bool ok = true;
    printf("%-14s %-14s %9s %11s %9s %7s\n", "policy", "batch", "items", "plan us", "ns/item", "limit");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct workload w;
        struct machine m;
        ragged(cases[i].n, cases[i].chunks, &w);
        test_machine(&w, &m);
        const double discovery = discovery_us(&w.batch);
        for (int32_t k = 0; k < policy_count(); k++)
            ok &= bench_policy(&w, &m, policy_at(k), discovery, cases[i].name);
        printf("%-14s %-14s %9d %11.0f %9.1f (ns a request)\n", "discovery", cases[i].name, cases[i].n,
               discovery, 1e3 * discovery / cases[i].n);
        if (cases[i].n == FEW) ok &= bench_auto(&w, &m, cases[i].name);
        workload_free(&w);
    }
    return ok ? 0 : 1;
}
