#include "lab/auto.h"

#include "sched/cost.h"
#include "sim/sim.h"

#include <math.h>
#include <string.h>

static const struct policy_option options_list[] = {
    {"budget_us", "int:100..600000000", "3000", "time to spend on choosing, predicted from item counts"},
    {0},
};

/* Candidates that are tried first; the others follow in the registry's order. */
static const char *const promising[] = {"page_aware", "sm_partition", "fi_batch_pod", "streams",
                                        "stream_k",   "fi_holistic",  "fixed_split",  "fa3_varlen"};
enum { N_PROMISING = sizeof promising / sizeof promising[0] };

/* What planning and simulating an item takes on one core, us; measured by `make bench`, rounded up. */
static const double plan_item_us = 0.1, sim_item_us = 0.5;

/* Candidates this near to the best are simulated to the end, to say by how much they lost. */
static const double near_frac = 1.2;

struct search {
    const struct batch *batch;
    const struct gpu *gpu;
    const struct kernels *kernels;
    struct options common; /* merge=..., for every candidate */
    double budget_us, spent_us;
    struct plan *best; /* the caller's plan */
    struct plan trial;
    struct auto_choice *choice;
};

/* No simulation of the plan is shorter: its longest CTA runs alone at best, and its FLOPs need the tensor
 * pipes. */
static double bound_us(const struct search *s, const struct plan *p)
{
    double longest = 0, pipe_ns = 0;
    for (int32_t g = 0; g < p->n_grids; g++) {
        const struct grid *grid = &p->grids[g];
        const struct kernel *k = kernel_row((enum kernel_id)grid->kernel);
        const int32_t *indptr = p->list_indptr + grid->list_begin;
        if (k->role == ROLE_MERGE) continue;
        const bool serial = grid->dispatch == DISPATCH_FIXED && kernel_lanes(k) == 1;
        for (int32_t l = 0; l < grid->n_lists; l++) {
            double list_ns = 0;
            for (int32_t i = indptr[l]; i < indptr[l + 1]; i++) {
                const struct cost c = cost_item(p, s->batch, s->kernels, &p->items[i]);
                const double rate = s->kernels->fit[p->items[i].kernel].sm_flops_per_ns * s->gpu->sm_count;
                if (rate > 0) pipe_ns += c.issued_flops / rate;
                list_ns = serial ? list_ns + c.ns : c.ns;
                if (list_ns > longest) longest = list_ns;
            }
        }
    }
    return (longest > pipe_ns ? longest : pipe_ns) / 1e3;
}

static void keep_best(struct search *s, const struct policy *policy, double us)
{
    const struct plan swap = *s->best;
    s->choice->next = s->choice->policy;
    s->choice->next_us = s->choice->time_us;
    s->choice->policy = policy;
    s->choice->time_us = us;
    *s->best = s->trial;
    s->trial = swap;
}

/* Simulates the trial plan until it is done or well behind the best. */
static enum status try_plan(struct search *s, const struct policy *policy, struct why *why)
{
    struct sim_result r;
    const bool first = s->choice->policy == NULL;
    const struct sim_options options = {.stop_ns = first ? 0 : near_frac * s->choice->time_us * 1e3};
    TRY(sim_run(s->batch, s->gpu, s->kernels, &s->trial, &options, &r, why));
    const double us = r.makespan_ns / 1e3;
    s->spent_us += sim_item_us * (double)r.items_done;
    s->choice->simulated++;
    if (!r.stopped && (first || us < s->choice->time_us)) {
        keep_best(s, policy, us);
    } else if (!r.stopped && (!s->choice->next || us < s->choice->next_us)) {
        s->choice->next = policy;
        s->choice->next_us = us;
    }
    sim_result_free(&r);
    return STATUS_OK;
}

/* STATUS_UNSUPPORTED is a candidate's own affair. */
static enum status try_policy(struct search *s, const struct policy *policy, struct why *why)
{
    if (s->choice->policy && s->spent_us >= s->budget_us) return STATUS_OK;
    const enum status status = policy_plan(policy, s->batch, s->gpu, s->kernels, &s->common, &s->trial, why);
    if (status != STATUS_OK) return status;
    s->choice->planned++;
    s->spent_us += plan_item_us * s->trial.n_items;
    const double most_us = sim_item_us * ((double)s->trial.n_items + s->trial.n_merges);
    if (s->choice->policy &&
        (bound_us(s, &s->trial) >= near_frac * s->choice->time_us || s->spent_us + most_us > s->budget_us))
        return STATUS_OK;
    return try_plan(s, policy, why);
}

static bool is_promising(const struct policy *policy)
{
    for (int i = 0; i < N_PROMISING; i++)
        if (strcmp(promising[i], policy->name) == 0) return true;
    return false;
}

static enum status try_all(struct search *s, struct why *why)
{
    enum status first_failure = STATUS_OK;
    for (int32_t i = 0; i < N_PROMISING + policy_count(); i++) {
        const struct policy *policy =
            i < N_PROMISING ? policy_find(promising[i]) : policy_at(i - N_PROMISING);
        struct why own = {""};
        if (i >= N_PROMISING && is_promising(policy)) continue;
        const enum status status = try_policy(s, policy, &own);
        if (status == STATUS_OK) continue;
        if (status != STATUS_UNSUPPORTED) {
            if (why) *why = own;
            return status;
        }
        if (first_failure == STATUS_OK && why) *why = own;
        first_failure = status;
    }
    return s->choice->policy ? STATUS_OK : first_failure;
}

enum status auto_plan(const struct batch *batch, const struct gpu *gpu, const struct kernels *kernels,
                      const struct options *options, struct plan *out, struct auto_choice *choice,
                      struct why *why)
{
    const struct policy_input in = {batch, gpu, kernels, &policy_auto, options};
    *choice = (struct auto_choice){.time_us = NAN, .next_us = NAN};
    plan_begin(out, batch);
    TRY(policy_check_options(&policy_auto, options, why));
    static const char *const merge = "merge";
    const char *const how = policy_option_word(&in, merge);
    struct search s = {.batch = batch,
                       .common = {1, &merge, &how},
                       .gpu = gpu,
                       .kernels = kernels,
                       .budget_us = policy_option_int(&in, "budget_us"),
                       .best = out,
                       .choice = choice};
    const enum status status = try_all(&s, why);
    plan_free(&s.trial);
    if (status != STATUS_OK) plan_begin(out, batch);
    return status;
}

static enum status plan_auto(const struct policy_input *in, struct plan *out, struct why *why)
{
    struct auto_choice choice;
    return auto_plan(in->batch, in->gpu, in->kernels, in->options, out, &choice, why);
}

const struct policy policy_auto = {
    .name = "auto",
    .brief = "plans the others, simulates them, keeps the fastest within a time budget",
    .source = "this project",
    .options = options_list,
    .plan = plan_auto,
};
