#include "lab/args.h"

#include "lab/auto.h"
#include "lab/batch_features.h"

#include "lab/generators.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define WITH_PLANS    (COMMAND_PLAN | COMMAND_VERIFY | COMMAND_SIM | COMMAND_COMPARE | COMMAND_BENCH)
#define WITH_WORKLOAD (WITH_PLANS | COMMAND_CHECK | COMMAND_IMPORT)
#define ALL_COMMANDS  (WITH_WORKLOAD | COMMAND_LIST | COMMAND_REPLAY | COMMAND_PROBE)

/* Flags in the order of --help: name, value's name (NULL: none), commands, text. The enum below must match.
 */
#define FLAGS(X)                                                                                             \
    X(SPEC, "spec", "S", WITH_WORKLOAD,                                                                      \
      "batch spec, e.g. q2ks8k_64q1s8k: one chunk of 2048 at 8192, 64 decodes at 8192")                      \
    X(BATCH, "batch", "FILE", WITH_WORKLOAD, "one batch, batch.json")                                        \
    X(BATCHES, "batches", "FILE", WITH_WORKLOAD, "many batches, one JSON object a line")                     \
    X(WORKLOAD, "workload", "NAME", WITH_WORKLOAD, "a named generator (tandem list workloads)")              \
    X(TENSORS, "tensors", "FILE", COMMAND_VERIFY, "a batch with its numbers and results, .npz: check them")  \
    X(SAVE_TENSORS, "save-tensors", "FILE", COMMAND_VERIFY,                                                  \
      "write Q, K, V, page table and the right answer, .npz")                                                \
    X(MODEL, "model", "NAME", WITH_WORKLOAD | COMMAND_REPLAY, "head shape of a model (tandem list models)")  \
    X(HEADS, "heads", "Q/KV", WITH_WORKLOAD | COMMAND_REPLAY, "query and KV heads (32/8)")                   \
    X(HEAD_DIM, "head-dim", "N[/V]", WITH_WORKLOAD | COMMAND_REPLAY, "head dimension, V's after / (128)")    \
    X(PAGE_SIZE, "page-size", "N", WITH_WORKLOAD | COMMAND_REPLAY, "keys a page (16)")                       \
    X(DTYPE, "dtype", "T", WITH_WORKLOAD | COMMAND_REPLAY, "type of Q and O: bf16, fp16, fp32")              \
    X(KV_DTYPE, "kv-dtype", "T", WITH_WORKLOAD | COMMAND_REPLAY,                                             \
      "K and V: bf16, fp16, fp32, fp8_e4m3, fp8_e5m2")                                                       \
    X(LAYOUT, "layout", "L", WITH_WORKLOAD, "layout of a page: NHD or HND")                                  \
    X(KV_STORE, "kv-store", "S", WITH_WORKLOAD | COMMAND_REPLAY,                                             \
      "K and V: separate, interleaved, ragged (no pages), latent (V within K), latent_ragged")               \
    X(ROPE, "rope", "STYLE", WITH_WORKLOAD, "rotate Q and K: none, llama or interleaved")                    \
    X(CAUSAL, "causal", "0|1", WITH_WORKLOAD, "causal mask, bottom-right aligned (1)")                       \
    X(WINDOW_LEFT, "window-left", "N", WITH_WORKLOAD, "sliding window, -1 for none")                         \
    X(SOFT_CAP, "soft-cap", "X", WITH_WORKLOAD, "soft cap of the logits, 0 for none")                        \
    X(SEED, "seed", "N", WITH_WORKLOAD | COMMAND_REPLAY, "seed of tensors and page order (1)")               \
    X(TRACE, "trace", "FILE", COMMAND_REPLAY, "the trace to replay")                                         \
    X(TRACE_FORMAT, "trace-format", "F", COMMAND_REPLAY, "azure, mooncake, vidur or burstgpt")               \
    X(BUDGET, "budget", "N", COMMAND_REPLAY, "tokens a step (8192)")                                         \
    X(MAX_SEQS, "max-seqs", "N", COMMAND_REPLAY, "running requests at most (256)")                           \
    X(RATE, "rate", "X", COMMAND_REPLAY, "arrivals X times as fast as in the trace (1)")                     \
    X(STEPS, "steps", "N", COMMAND_REPLAY, "stop after N steps (0: never)")                                  \
    X(PREFIX_CACHE, "prefix-cache", "0|1", COMMAND_REPLAY, "share the pages of equal prefixes (1)")          \
    X(ALL_STEPS, "all-steps", NULL, COMMAND_REPLAY, "every step, not only mixed ones")                       \
    X(ROWS, "rows", "FILE", COMMAND_REPLAY, "a result row for every batch and policy, CSV")                  \
    X(POLICY, "policy", "P", WITH_PLANS | COMMAND_REPLAY, "policy, list of policies, all, or auto")          \
    X(OPTION, "option", "[P:]N=V", WITH_PLANS | COMMAND_REPLAY, "set a policy's option; repeatable")         \
    X(PLAN, "plan", "FILE", COMMAND_CHECK | COMMAND_VERIFY | COMMAND_SIM | COMMAND_BENCH,                    \
      "a saved plan, - for stdin")                                                                           \
    X(ARRAYS, "arrays", "FILE", COMMAND_IMPORT, "FlashInfer's FA2 plan arrays, JSON; - for stdin")           \
    X(GPU, "gpu", "G", WITH_PLANS | COMMAND_REPLAY | COMMAND_LIST | COMMAND_IMPORT | COMMAND_PROBE,          \
      "profile name or .ini file (h200)")                                                                    \
    X(EXECUTOR, "executor", "E", COMMAND_VERIFY, "ref or cuda (ref)")                                        \
    X(LADDER, "ladder", "STEP", COMMAND_VERIFY | COMMAND_BENCH,                                              \
      "GPU kernels: best, naive (attn_1) or mma (attn_2)")                                                   \
    X(RUNS, "runs", "N", COMMAND_BENCH, "timed runs, L2 flushed before each (50; --colocate: 5)")            \
    X(SUSTAIN, "sustain", "S", COMMAND_BENCH, "also replay back to back for S seconds (0: no)")              \
    X(BASELINE, "baseline", "B", COMMAND_BENCH, "torch: time PyTorch's attention on the same tensors")       \
    X(COLOCATE, "colocate", NULL, COMMAND_BENCH,                                                             \
      "POD-Attention's co-location micro-benchmark; no workload, no policy")                                 \
    X(ELEMENTS, "elements", "N", COMMAND_BENCH, "--colocate: floats an array at most (1073741824)")          \
    X(NUMERICS, "numerics", "N", COMMAND_VERIFY, "arithmetic: exact, fp32, or device, as GPUs round (fp32)") \
    X(CPU, "cpu", "SET", COMMAND_VERIFY, "instructions of ref: base, avx2, avx512 (the best there is)")      \
    X(NO_VERIFY, "no-verify", NULL, COMMAND_COMPARE, "skip execution and comparison")                        \
    X(PLOT, "plot", "DIR", COMMAND_COMPARE, "draw the pictures into DIR")                                    \
    X(TIMELINE, "timeline", "FILE", COMMAND_SIM | COMMAND_BENCH, "write a trace for Perfetto, JSON")         \
    X(SPANS, "spans", "FILE", COMMAND_SIM | COMMAND_BENCH, "write every item's span, CSV")                   \
    X(OUT, "out", "FILE", COMMAND_PLAN | COMMAND_REPLAY | COMMAND_PROBE | COMMAND_IMPORT,                    \
      "output file (stdout)")                                                                                \
    X(FORMAT, "format", "F", ALL_COMMANDS, "table, csv or json")                                             \
    X(THREADS, "threads", "N", ALL_COMMANDS, "CPU threads")                                                  \
    X(QUIET, "quiet", NULL, ALL_COMMANDS, "no progress, no remarks")                                         \
    X(HELP, "help", NULL, ALL_COMMANDS, "this text")

enum flag_id {
#define X(id, name, value, commands, text) FLAG_##id,
    FLAGS(X)
#undef X
        N_FLAGS
};

static const struct flag {
    const char *name, *value;
    int commands;
    const char *text;
} flags[] = {
#define X(id, name, value, commands, text) {name, value, commands, text},
    FLAGS(X)
#undef X
};

static const struct {
    enum args_command command;
    const char *usage, *text, *example;
} helps[] = {
    {COMMAND_LIST, "tandem list policies|gpus|kernels|models|workloads", "Lists what there is by name.",
     "tandem list policies"},
    {COMMAND_PLAN, "tandem plan WORKLOAD --policy P [--gpu G] [--out plan.json]", "Prints or saves a plan.",
     "tandem plan --spec q2ks8k_64q1s8k --policy page_aware --out plan.json"},
    {COMMAND_CHECK, "tandem check WORKLOAD --plan plan.json",
     "Proves a plan, ours or anybody's: every visible key computed once, every row written once.",
     "tandem plan --spec q4k_8q1s1k --policy pod | tandem check --spec q4k_8q1s1k --plan -"},
    {COMMAND_IMPORT, "tandem import WORKLOAD --arrays FILE.json [--gpu G] [--out plan.json]",
     "Turns the arrays of a FlashInfer FA2 plan into a plan, as they are: tandem check proves it.",
     "tandem import --batch batch.json --arrays arrays.json | tandem check --batch batch.json --plan -"},
    {COMMAND_VERIFY,
     "tandem verify WORKLOAD|--tensors F.npz --policy P|all|--plan F [--numerics exact|fp32|device]",
     "Executes plans and compares them with attention in double precision.",
     "tandem verify --spec q512s4k_16q1s2k --policy all"},
    {COMMAND_SIM, "tandem sim WORKLOAD --policy P|all|--plan F [--gpu G] [--timeline F.json] [--spans F.csv]",
     "Simulates plans SM by SM.", "tandem sim --spec q2ks8k_64q1s8k --policy pod --timeline pod.json"},
    {COMMAND_COMPARE, "tandem compare WORKLOAD [--policy a,b,..|all] [--gpu G] [--plot DIR]",
     "The main job: plans, proves, executes, verifies and simulates a batch under every policy.",
     "tandem compare --spec q2ks8k_63q1s1k_1q1s128k --plot out/demo"},
    {COMMAND_REPLAY, "tandem replay --trace FILE --trace-format F [--policy ..] [--out batches.jsonl]",
     "Turns a trace into the mixed batches an engine would form; plans and simulates them.",
     "tandem replay --trace azure.csv --trace-format azure --policy all"},
    {COMMAND_BENCH, "tandem bench WORKLOAD --policy P|all|--plan F\n       tandem bench --colocate",
     "Measures on the GPU that is here (CUDA builds): verifies first, then times graph replays.",
     "tandem bench --spec q2ks8k_64q1s8k --policy all --sustain 2s"},
    {COMMAND_PROBE, "tandem probe [--out gpu.ini] [--gpu G]",
     "Measures the GPU that is here, half a minute (CUDA builds). --out: a profile, what cannot be measured\n"
     "taken from G.",
     "tandem probe --out my.ini"},
};

void args_help(enum args_command command, FILE *out)
{
    for (size_t h = 0; h < sizeof helps / sizeof helps[0]; h++)
        if (helps[h].command == command) fprintf(out, "usage: %s\n\n%s\n\n", helps[h].usage, helps[h].text);
    for (int f = 0; f < N_FLAGS; f++) {
        char left[40];
        if (!(flags[f].commands & command)) continue;
        snprintf(left, sizeof left, "--%s%s%s", flags[f].name, flags[f].value ? " " : "",
                 flags[f].value ? flags[f].value : "");
        fprintf(out, "  %-22s %s\n", left, flags[f].text);
    }
    for (size_t h = 0; h < sizeof helps / sizeof helps[0]; h++)
        if (helps[h].command == command) fprintf(out, "\nexample: %s\n", helps[h].example);
}

static enum status parse_int(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out,
                             struct why *why)
{
    char *end;
    errno = 0;
    const long long x = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || errno || x < low || x > high)
        return status_fail(why, STATUS_BAD_INPUT, "--%s %.60s: expected a whole number in %lld..%lld", flag,
                           text, (long long)low, (long long)high);
    *out = x;
    return STATUS_OK;
}

static enum status parse_int32(const char *flag, const char *text, int32_t low, int32_t high, int32_t *out,
                               struct why *why)
{
    int64_t x = 0;
    TRY(parse_int(flag, text, low, high, &x, why));
    *out = (int32_t)x;
    return STATUS_OK;
}

static enum status parse_bool(const char *flag, const char *text, bool *out, struct why *why)
{
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return status_fail(why, STATUS_BAD_INPUT, "--%s %.60s: expected 0 or 1", flag, text);
    *out = text[0] == '1';
    return STATUS_OK;
}

static enum status parse_real(const char *flag, const char *text, double *out, struct why *why)
{
    char *end;
    const double x = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !isfinite(x) || x < 0)
        return status_fail(why, STATUS_BAD_INPUT, "--%s %.60s: expected a number >= 0", flag, text);
    *out = x;
    return STATUS_OK;
}

static enum status parse_dtype(const char *flag, const char *text, enum dtype *out, struct why *why)
{
    *out = dtype_from_name(text);
    return *out < DTYPE_COUNT && (strcmp(flag, "kv-dtype") == 0 || !dtype_is_fp8(*out))
               ? STATUS_OK
               : status_fail(why, STATUS_BAD_INPUT, "--%s %.60s: expected bf16, fp16 or fp32%s", flag, text,
                             strcmp(flag, "kv-dtype") == 0 ? ", fp8_e4m3 or fp8_e5m2" : "");
}

static enum status parse_heads(const char *text, struct shape *s, struct why *why)
{
    char extra;
    int qo, kv;
    if (sscanf(text, "%d/%d%c", &qo, &kv, &extra) != 2 || qo < 1 || kv < 1 || qo > BATCH_MAX_HEADS ||
        qo % kv != 0)
        return status_fail(why, STATUS_BAD_INPUT,
                           "--heads %.60s: expected Q/KV, Q a multiple of KV, at most %d", text,
                           BATCH_MAX_HEADS);
    s->num_qo_heads = qo;
    s->num_kv_heads = kv;
    return STATUS_OK;
}

/* "128", or "192/128": K's and V's. */
static enum status parse_head_dim(const char *text, struct shape *s, struct why *why)
{
    char extra;
    int qk, vo;
    if (!strchr(text, '/')) {
        TRY(parse_int32("head-dim", text, 1, BATCH_MAX_HEAD_DIM, &s->head_dim_qk, why));
        s->head_dim_vo = s->head_dim_qk;
        return STATUS_OK;
    }
    const int n = sscanf(text, "%d/%d%c", &qk, &vo, &extra);
    if (n != 2 || qk < 1 || vo < 1 || qk > BATCH_MAX_HEAD_DIM || vo > BATCH_MAX_HEAD_DIM)
        return status_fail(why, STATUS_BAD_INPUT, "--head-dim %.60s: expected N or K/V, each in 1..%d", text,
                           BATCH_MAX_HEAD_DIM);
    s->head_dim_qk = qk;
    s->head_dim_vo = vo;
    return STATUS_OK;
}

static enum status parse_rope(const char *text, struct rope *out, struct why *why)
{
    const int kind = rope_kind_from_name(text);
    if (kind > ROPE_INTERLEAVED)
        return status_fail(why, STATUS_BAD_INPUT, "--rope %.60s: expected none, llama or interleaved", text);
    *out = (struct rope){.kind = (enum rope_kind)kind};
    return STATUS_OK;
}

static enum status parse_kv_store(const char *text, struct workload_params *p, struct why *why)
{
    struct why reason = {""};
    if (kv_store_from_name(text, p, &reason) == STATUS_OK) return STATUS_OK;
    return status_fail(why, STATUS_BAD_INPUT,
                       "--kv-store %.60s: expected separate, interleaved, ragged, latent or latent_ragged",
                       text);
}

static enum status parse_numerics(const char *text, enum numerics_kind *out, struct why *why)
{
    for (int i = 0; i < NUMERICS_COUNT; i++)
        if (strcmp(text, numerics_names[i]) == 0) {
            *out = (enum numerics_kind)i;
            return STATUS_OK;
        }
    return status_fail(why, STATUS_BAD_INPUT, "--numerics %.60s: expected exact, fp32 or device", text);
}

static enum status parse_ladder(const char *text, int32_t *out, struct why *why)
{
    static const char *const names[] = {"best", "naive", "mma"};
    for (int32_t i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return STATUS_OK;
        }
    return status_fail(why, STATUS_BAD_INPUT, "--ladder %.60s: expected best, naive or mma", text);
}

/* "2" or "2s". */
static enum status parse_seconds(const char *flag, const char *text, double *out, struct why *why)
{
    char digits[32];
    const size_t n = strlen(text), unit = n > 1 && text[n - 1] == 's';
    snprintf(digits, sizeof digits, "%.*s", (int)(n - unit < 31 ? n - unit : 31), text);
    TRY(parse_real(flag, digits, out, why));
    return *out <= 3600
               ? STATUS_OK
               : status_fail(why, STATUS_BAD_INPUT, "--%s %.60s: expected at most 3600 seconds", flag, text);
}

static enum status parse_cpu(const char *text, const struct vector_ops **out, struct why *why)
{
    if (strcmp(text, "base") != 0 && strcmp(text, "avx2") != 0 && strcmp(text, "avx512") != 0)
        return status_fail(why, STATUS_BAD_INPUT, "--cpu %.60s: expected base, avx2 or avx512", text);
    *out = vector_find(text);
    return *out ? STATUS_OK : status_fail(why, STATUS_UNSUPPORTED, "--cpu %s: this CPU has not got it", text);
}

static enum status parse_shape_flag(enum flag_id flag, const char *v, struct workload_params *p,
                                    struct why *why)
{
    double x = 0;
    int64_t n = 0;
    switch (flag) {
    case FLAG_MODEL:
        return workload_set_model(p, v, why);
    case FLAG_HEADS:
        return parse_heads(v, &p->shape, why);
    case FLAG_HEAD_DIM:
        return parse_head_dim(v, &p->shape, why);
    case FLAG_PAGE_SIZE:
        return parse_int32("page-size", v, 1, BATCH_MAX_PAGE_SIZE, &p->page_size, why);
    case FLAG_DTYPE:
        return parse_dtype("dtype", v, &p->shape.q_dtype, why);
    case FLAG_KV_DTYPE:
        return parse_dtype("kv-dtype", v, &p->shape.kv_dtype, why);
    case FLAG_LAYOUT:
        if (strcmp(v, "NHD") != 0 && strcmp(v, "HND") != 0)
            return status_fail(why, STATUS_BAD_INPUT, "--layout %.60s: expected NHD or HND", v);
        p->layout.order = v[0] == 'N' ? LAYOUT_NHD : LAYOUT_HND;
        return STATUS_OK;
    case FLAG_KV_STORE:
        return parse_kv_store(v, p, why);
    case FLAG_ROPE:
        return parse_rope(v, &p->rope, why);
    case FLAG_CAUSAL:
        return parse_bool("causal", v, &p->mask.causal, why);
    case FLAG_WINDOW_LEFT:
        return parse_int32("window-left", v, -1, INT32_MAX, &p->mask.window_left, why);
    case FLAG_SOFT_CAP:
        TRY(parse_real("soft-cap", v, &x, why));
        p->mask.logits_soft_cap = (float)x;
        return STATUS_OK;
    default:
        TRY(parse_int("seed", v, 0, INT64_MAX, &n, why));
        p->seed = (uint64_t)n;
        return STATUS_OK;
    }
}

static enum status parse_format(const char *v, enum args_format *out, struct why *why)
{
    static const char *const names[] = {"table", "csv", "json"};
    for (int i = 0; i < 3; i++)
        if (strcmp(v, names[i]) == 0) {
            *out = (enum args_format)i;
            return STATUS_OK;
        }
    return status_fail(why, STATUS_BAD_INPUT, "--format %.60s: expected table, csv or json", v);
}

/* Flags that only keep their text. */
static const char **text_field(enum flag_id flag, struct args *a)
{
    switch (flag) {
    case FLAG_SPEC:
        return &a->spec;
    case FLAG_BATCH:
        return &a->batch;
    case FLAG_BATCHES:
        return &a->batches;
    case FLAG_WORKLOAD:
        return &a->workload;
    case FLAG_TENSORS:
        return &a->tensors;
    case FLAG_SAVE_TENSORS:
        return &a->save_tensors;
    case FLAG_TRACE:
        return &a->trace;
    case FLAG_TRACE_FORMAT:
        return &a->trace_format;
    case FLAG_ROWS:
        return &a->rows;
    case FLAG_POLICY:
        return &a->policy;
    case FLAG_PLAN:
        return &a->plan;
    case FLAG_ARRAYS:
        return &a->arrays;
    case FLAG_GPU:
        return &a->gpu;
    case FLAG_EXECUTOR:
        return &a->executor;
    case FLAG_BASELINE:
        return &a->baseline;
    case FLAG_PLOT:
        return &a->plot_dir;
    case FLAG_TIMELINE:
        return &a->timeline;
    case FLAG_SPANS:
        return &a->spans;
    case FLAG_OUT:
        return &a->out;
    default:
        return NULL;
    }
}

static bool colocate_takes(enum flag_id flag)
{
    return flag == FLAG_COLOCATE || flag == FLAG_ELEMENTS || flag == FLAG_RUNS || flag == FLAG_FORMAT ||
           flag == FLAG_THREADS || flag == FLAG_QUIET;
}

static enum status store_flag(enum flag_id flag, const char *v, struct args *a, struct why *why)
{
    if (!colocate_takes(flag)) a->not_of_colocate = flags[flag].name;
    const char **text = text_field(flag, a);
    if (text) {
        *text = v;
        return STATUS_OK;
    }
    if (flag >= FLAG_MODEL && flag <= FLAG_SEED) {
        a->shape_flag = flags[flag].name;
        return parse_shape_flag(flag, v, &a->params, why);
    }
    switch (flag) {
    case FLAG_BUDGET:
        return parse_int32("budget", v, 1, 1 << 24, &a->budget, why);
    case FLAG_MAX_SEQS:
        return parse_int32("max-seqs", v, 1, 1 << 20, &a->max_seqs, why);
    case FLAG_STEPS:
        return parse_int("steps", v, 0, INT64_MAX, &a->steps, why);
    case FLAG_RATE:
        TRY(parse_real("rate", v, &a->rate, why));
        return a->rate > 0 ? STATUS_OK
                           : status_fail(why, STATUS_BAD_INPUT, "--rate %.60s: expected a number above 0", v);
    case FLAG_PREFIX_CACHE:
        return parse_bool("prefix-cache", v, &a->prefix_cache, why);
    case FLAG_ALL_STEPS:
        a->all_steps = true;
        return STATUS_OK;
    case FLAG_OPTION:
        if (a->n_options == ARGS_MAX_OPTIONS)
            return status_fail(why, STATUS_BAD_INPUT, "--option: at most %d", ARGS_MAX_OPTIONS);
        if (!strchr(v, '=') || strlen(v) >= 64)
            return status_fail(why, STATUS_BAD_INPUT, "--option %.60s: expected [policy:]name=value", v);
        a->options[a->n_options++] = v;
        return STATUS_OK;
    case FLAG_NUMERICS:
        a->has_numerics = true;
        return parse_numerics(v, &a->numerics, why);
    case FLAG_CPU:
        return parse_cpu(v, &a->ops, why);
    case FLAG_LADDER:
        return parse_ladder(v, &a->ladder, why);
    case FLAG_RUNS:
        return parse_int32("runs", v, 1, 1000000, &a->runs, why);
    case FLAG_SUSTAIN:
        return parse_seconds("sustain", v, &a->sustain_s, why);
    case FLAG_COLOCATE:
        a->colocate = true;
        return STATUS_OK;
    case FLAG_ELEMENTS:
        return parse_int("elements", v, 1 << 16, (int64_t)1 << 32, &a->elements, why);
    case FLAG_NO_VERIFY:
        a->verify = false;
        return STATUS_OK;
    case FLAG_FORMAT:
        return parse_format(v, &a->format, why);
    case FLAG_THREADS:
        return parse_int32("threads", v, 1, 4096, &a->threads, why);
    case FLAG_QUIET:
        a->quiet = true;
        return STATUS_OK;
    default:
        return status_fail(why, STATUS_INTERNAL, "flag %d has no home", flag);
    }
}

/* bench --colocate runs kernels of its own. */
static enum status check_colocate(const struct args *a, struct why *why)
{
    return a->not_of_colocate
               ? status_fail(why, STATUS_BAD_INPUT,
                             "--colocate with --%s: expected no workload, policy or plan, only --elements, "
                             "--runs, --format, --quiet",
                             a->not_of_colocate)
               : STATUS_OK;
}

static enum status check_whole(const struct args *a, struct why *why)
{
    if (a->colocate) return check_colocate(a, why);
    if (a->elements) return status_fail(why, STATUS_BAD_INPUT, "--elements: expected --colocate with it");
    const int sources = !!a->spec + !!a->batch + !!a->batches + !!a->workload + !!a->tensors;
    if ((a->command & WITH_WORKLOAD) && sources != 1)
        return status_fail(why, STATUS_BAD_INPUT,
                           "%d workloads: expected one of --spec, --batch, --batches, --workload%s", sources,
                           a->command == COMMAND_VERIFY ? ", --tensors" : "");
    if (a->shape_flag && (a->batch || a->batches || a->tensors))
        return status_fail(why, STATUS_BAD_INPUT,
                           "--%s with --%s: expected it in the file, which says the whole batch",
                           a->shape_flag, a->tensors ? "tensors" : "batch");
    if (a->save_tensors && (a->batches || a->tensors))
        return status_fail(why, STATUS_BAD_INPUT,
                           "--save-tensors: expected one batch of --spec, --batch or "
                           "--workload");
    const bool plans = (a->tensors || a->save_tensors) && !a->policy ? false : !a->policy == !a->plan;
    if ((a->command & (COMMAND_VERIFY | COMMAND_SIM | COMMAND_BENCH)) && plans)
        return status_fail(why, STATUS_BAD_INPUT, "expected one of --policy and --plan");
    if (a->command == COMMAND_PLAN && !a->policy)
        return status_fail(why, STATUS_BAD_INPUT, "expected --policy");
    if (a->command == COMMAND_IMPORT && !a->arrays)
        return status_fail(why, STATUS_BAD_INPUT, "expected --arrays");
    if (a->command == COMMAND_CHECK && !a->plan) return status_fail(why, STATUS_BAD_INPUT, "expected --plan");
    if (a->executor && strcmp(a->executor, "ref") != 0 && strcmp(a->executor, "cuda") != 0)
        return status_fail(why, STATUS_BAD_INPUT, "--executor %.60s: expected ref or cuda", a->executor);
    if (a->baseline && strcmp(a->baseline, "torch") != 0)
        return status_fail(why, STATUS_BAD_INPUT, "--baseline %.60s: expected torch", a->baseline);
    if (a->command == COMMAND_REPLAY && (!a->trace || !a->trace_format))
        return status_fail(why, STATUS_BAD_INPUT, "expected --trace and --trace-format");
    if (a->command == COMMAND_LIST && !a->what)
        return status_fail(why, STATUS_BAD_INPUT,
                           "expected one of policies, gpus, kernels, models, workloads");
    return STATUS_OK;
}

static enum status parse_flags(int argc, char **argv, struct args *a, struct why *why)
{
    struct option longs[N_FLAGS + 1] = {{0}};
    int n = 0, ids[N_FLAGS], chosen;
    for (int f = 0; f < N_FLAGS; f++)
        if (flags[f].commands & a->command) {
            longs[n] = (struct option){flags[f].name, flags[f].value ? required_argument : no_argument, NULL,
                                       256 + f};
            ids[n++] = f;
        }
    (void)ids;
    opterr = 0;
    optind = 0;
    while ((chosen = getopt_long(argc, argv, ":", longs, NULL)) != -1) {
        if (chosen == ':')
            return status_fail(why, STATUS_BAD_INPUT, "%.60s: expected a value", argv[optind - 1]);
        if (chosen == '?')
            return status_fail(why, STATUS_BAD_INPUT, "%.60s: unknown flag (tandem %s --help lists them)",
                               argv[optind - 1], argv[0]);
        if (chosen - 256 == FLAG_HELP) {
            args_help(a->command, stdout);
            exit(fflush(stdout) == 0 ? 0 : 2);
        }
        TRY(store_flag((enum flag_id)(chosen - 256), optarg, a, why));
    }
    if (a->command == COMMAND_LIST && optind < argc) a->what = argv[optind++];
    if (optind < argc) return status_fail(why, STATUS_BAD_INPUT, "%.60s: unexpected argument", argv[optind]);
    return STATUS_OK;
}

enum status args_parse(enum args_command command, int argc, char **argv, struct args *out, struct why *why)
{
    *out = (struct args){.command = command,
                         .numerics = NUMERICS_FP32,
                         .params = workload_default_params(),
                         .gpu = "h200",
                         .verify = true,
                         .budget = 8192,
                         .max_seqs = 256,
                         .rate = 1,
                         .prefix_cache = true};
    TRY(parse_flags(argc, argv, out, why));
    TRY(check_whole(out, why));
    if (!out->runs) out->runs = out->colocate ? 5 : 50;
    if (!out->elements) out->elements = (int64_t)1 << 30;
    if (out->threads) omp_set_num_threads(out->threads);
    return STATUS_OK;
}

/* ---- what the arguments name
 * ---------------------------------------------------------------------------------------- */

enum status args_open_workloads(const struct args *args, struct workload_stream *s, struct why *why)
{
    *s = (struct workload_stream){.args = args};
    if (args->batch) return workload_reader_open(args->batch, false, &s->reader, why);
    if (args->batches) return workload_reader_open(args->batches, true, &s->reader, why);
    return STATUS_OK;
}

bool args_next_workload(struct workload_stream *s, struct workload *w, enum status *status, struct why *why)
{
    *status = STATUS_OK;
    if (s->done) return false;
    if (s->reader) {
        *status = workload_reader_next(s->reader, w, &s->done, why);
        return *status == STATUS_OK && !s->done;
    }
    s->done = true;
    *status = s->args->spec ? workload_from_spec(s->args->spec, &s->args->params, w, why)
                            : workload_generate(s->args->workload, &s->args->params, w, why);
    return *status == STATUS_OK;
}

void args_close_workloads(struct workload_stream *s)
{
    if (s->reader) workload_reader_close(s->reader);
    s->reader = NULL;
}

enum status args_policies(const struct args *args, const struct policy **policies, int32_t *n,
                          struct why *why)
{
    const char *list = args->policy ? args->policy : "all";
    *n = 0;
    if (strcmp(list, "all") == 0) {
        for (int32_t i = 0; i < policy_count(); i++)
            policies[(*n)++] = policy_at(i);
        return STATUS_OK;
    }
    for (const char *at = list;;) {
        char name[64];
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), at);
        const struct policy *policy = strcmp(name, "auto") == 0 ? &policy_auto : policy_find(name);
        if (!policy)
            return status_fail(why, STATUS_UNKNOWN_NAME, "policy '%s': expected all, auto, or some of: %s",
                               name, policy_names());
        for (int32_t i = 0; i < *n; i++)
            if (policies[i] == policy)
                return status_fail(why, STATUS_BAD_INPUT, "policy '%s': named twice", name);
        policies[(*n)++] = policy;
        if (at[length] == '\0') return STATUS_OK;
        at += length + 1;
    }
}

/* Splits "[policy:]name=value"; true when it concerns the policy. */
static bool option_for(const char *option, const struct policy *policy, char text[64], const char **name,
                       const char **value)
{
    snprintf(text, 64, "%s", option);
    char *equals = strchr(text, '='), *colon = strchr(text, ':');
    *equals = '\0';
    *value = equals + 1;
    *name = text;
    if (colon && colon < equals) {
        *colon = '\0';
        *name = colon + 1;
        return strcmp(text, policy->name) == 0;
    }
    return policy_find_option(policy, *name) != NULL;
}

enum status args_options(const struct args *args, const struct policy *policy, struct policy_options *out,
                         struct why *why)
{
    int32_t n = 0;
    (void)why;
    for (int32_t i = 0; i < args->n_options; i++)
        n += option_for(args->options[i], policy, out->text[n], &out->names[n], &out->values[n]);
    out->options = (struct options){n, out->names, out->values};
    return STATUS_OK;
}

enum status args_check_options(const struct args *args, const struct policy *const *policies, int32_t n,
                               struct why *why)
{
    for (int32_t i = 0; i < args->n_options; i++) {
        bool used = false;
        for (int32_t p = 0; p < n && !used; p++) {
            char text[64];
            const char *name, *value;
            used = option_for(args->options[i], policies[p], text, &name, &value);
        }
        if (!used)
            return status_fail(why, STATUS_BAD_INPUT, "--option %.60s: none of the chosen policies has it",
                               args->options[i]);
    }
    for (int32_t p = 0; p < n; p++) {
        struct policy_options own;
        TRY(args_options(args, policies[p], &own, why));
        TRY(policy_check_options(policies[p], &own.options, why));
    }
    return STATUS_OK;
}

enum status args_check_single_timeline(const struct args *a, struct why *why)
{
    const bool many = a->batches || (a->policy && (strchr(a->policy, ',') || strcmp(a->policy, "all") == 0));
    if ((a->timeline || a->spans) && many)
        return status_fail(why, STATUS_BAD_INPUT,
                           "--timeline and --spans: expected one batch and one policy or plan");
    return STATUS_OK;
}
