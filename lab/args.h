/* args: the command line. One table of flags, each known to the commands that use it; parsed by getopt_long.
 */
#ifndef TANDEM_LAB_ARGS_H
#define TANDEM_LAB_ARGS_H

#include "lab/workload.h"
#include "ref/numerics.h"
#include "ref/vector.h"
#include "sched/policy.h"

enum { ARGS_MAX_OPTIONS = 32 };

enum args_format { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSON };

/* Commands, as bits, so that a flag can name those it belongs to. */
enum args_command {
    COMMAND_LIST = 1,
    COMMAND_PLAN = 2,
    COMMAND_CHECK = 4,
    COMMAND_VERIFY = 8,
    COMMAND_SIM = 16,
    COMMAND_COMPARE = 32,
    COMMAND_REPLAY = 64,
    COMMAND_BENCH = 128,
    COMMAND_PROBE = 256,
    COMMAND_IMPORT = 512
};

struct args {
    enum args_command command;
    const char *what; /* list: policies, gpus, ... */
    /* the workload: exactly one of the four */
    const char *spec, *batch, *batches, *workload;
    struct workload_params params;
    const char *shape_flag; /* the last of --model .. --seed that was given, NULL for none */
    const char *policy, *plan, *arrays, *gpu, *executor;
    const char *options[ARGS_MAX_OPTIONS]; /* [policy:]name=value as given */
    int32_t n_options;
    enum args_format format;
    bool quiet, verify;
    enum numerics_kind numerics;
    const struct vector_ops *ops; /* --cpu; NULL: the best */
    bool has_numerics;            /* --numerics was given */
    const char *tensors, *save_tensors;
    int32_t threads; /* 0: OpenMP's default */
    const char *plot_dir, *out, *timeline, *spans;
    /* on a GPU */
    int32_t runs;
    double sustain_s;
    int32_t ladder; /* enum cuda_ladder */
    const char *baseline;
    bool colocate;               /* bench --colocate: no workload, no plans */
    int64_t elements;            /* with it: floats an array at most; 0: not given */
    const char *not_of_colocate; /* the last flag given that --colocate has no use for, NULL for none */
    /* replay */
    const char *trace, *trace_format, *rows;
    int32_t budget, max_seqs;
    int64_t steps; /* 0: all */
    double rate;
    bool prefix_cache, all_steps;
};

/* Parses argv (argv[0] = the command's name). --help prints and exits 0. STATUS_BAD_INPUT with the reason
 * otherwise. */
enum status args_parse(enum args_command command, int argc, char **argv, struct args *out, struct why *why);

/* A command's --help text. */
void args_help(enum args_command command, FILE *out);

/* The workloads the arguments name, one at a time: a single one, or a JSONL file's. */
struct workload_stream {
    const struct args *args;
    struct workload_reader *reader;
    bool done;
};
enum status args_open_workloads(const struct args *args, struct workload_stream *s, struct why *why);
/* false at the end or on failure (*status). */
bool args_next_workload(struct workload_stream *s, struct workload *w, enum status *status, struct why *why);
void args_close_workloads(struct workload_stream *s);

/* The policies of --policy: a list of names or "all". policies has room for policy_count(). */
enum status args_policies(const struct args *args, const struct policy **policies, int32_t *n,
                          struct why *why);

/* The --option settings that concern `policy`, into arrays of ARGS_MAX_OPTIONS. */
struct policy_options {
    char text[ARGS_MAX_OPTIONS][64];
    const char *names[ARGS_MAX_OPTIONS], *values[ARGS_MAX_OPTIONS];
    struct options options;
};
enum status args_options(const struct args *args, const struct policy *policy, struct policy_options *out,
                         struct why *why);

/* Every --option must concern one of the chosen policies, with a value it takes. */
enum status args_check_options(const struct args *args, const struct policy *const *policies, int32_t n,
                               struct why *why);

/* --timeline and --spans are of one plan of one batch. */
enum status args_check_single_timeline(const struct args *a, struct why *why);

#endif
