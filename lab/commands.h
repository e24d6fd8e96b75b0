/* commands: what `tandem NAME` runs. Each takes the command's own argv (argv[0] = its name), reports its
 * failures on stderr in one line, and returns the exit status. */
#ifndef TANDEM_LAB_COMMANDS_H
#define TANDEM_LAB_COMMANDS_H

#include "lab/args.h"
#include "lab/run.h"

int cmd_list(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_import(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_sim(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_bench(int argc, char **argv); /* needs a CUDA build and a GPU, as probe does */
int cmd_probe(int argc, char **argv);

/* Prints "tandem: reason" and returns the status's exit code. */
int command_fail(enum status status, const struct why *why);

/* Flushes stdout; a full disk there is an error like any other. */
int command_finish(int exit_code);

/* Writes the plan to --out, or stdout; `policy` is a name for the reader. */
enum status command_write_plan(const struct args *a, const struct plan *plan, const struct machine *m,
                               const char *policy, struct why *why);

/* Rows collected by a command, printed in the chosen format at its end. */
struct rows {
    struct record *data;
    int32_t n, cap;
};
enum status rows_add(struct rows *rows, const struct record *r, struct why *why);
/* columns: which of the row's columns a table shows is the same for all commands. */
void rows_print(const struct rows *rows, enum args_format format, FILE *out);
void rows_free(struct rows *rows);

/* Runs a step on the one workload that the arguments name; a JSONL file of many is refused: "--batches:
 * expected the one batch WHAT". */
enum status command_one_workload(const struct args *a, const char *what,
                                 enum status (*step)(const struct args *a, const struct workload *w,
                                                     struct why *why),
                                 struct why *why);

/* The machine for a workload: profile loaded, kernels resolved for its shape. */
enum status command_machine(const struct args *a, const struct workload *w, struct machine *m,
                            struct why *why);

#endif
