/* tandem: mixed prefill/decode attention batches, planned, proved, executed, simulated and plotted. */
#include "lab/commands.h"

#include "lab/child.h"
#include "lab/out_file.h"
#include "lab/scratch_dir.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} commands[] = {
    {"compare", cmd_compare, "plan, prove, execute, verify and simulate a batch under every policy"},
    {"list", cmd_list, "policies, gpus, kernels, models, workloads"},
    {"plan", cmd_plan, "print or save a plan"},
    {"check", cmd_check, "is this plan (ours or anybody's) valid?"},
    {"import", cmd_import, "make a plan of another planner's arrays"},
    {"verify", cmd_verify, "execute plans, compare with attention in double precision"},
    {"sim", cmd_sim, "simulate plans SM by SM, with timelines"},
    {"replay", cmd_replay, "turn a trace into the mixed batches an engine would form"},
    {"bench", cmd_bench, "measure on the GPU that is here (CUDA builds)"},
    {"probe", cmd_probe, "measure this GPU's profile (CUDA builds)"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *out)
{
    fputs("usage: tandem COMMAND [flags]   (tandem COMMAND --help)\n\n", out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].text);
    fputs("\nexit status: 0 done and right; 1 a check or comparison failed; 2 bad usage or input; 3 the "
          "machine lacks\n"
          "something; 4 internal error; 130 interrupted\n",
          out);
}

/* Interrupted: nothing half-written stays behind. Only async-signal-safe calls. */
static void on_interrupt(int signal_number)
{
    child_kill_on_signal();
    out_file_abort_all_on_signal();
    scratch_dir_abort_on_signal();
    _exit(128 + signal_number);
}

int main(int argc, char **argv)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)) {
        usage(stdout);
        return command_finish(0);
    }
    for (int i = 0; argc >= 2 && i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    if (argc < 2)
        fputs("tandem: expected a command: compare, list, plan, check, import, verify, sim, replay, bench, "
              "probe "
              "(tandem --help)\n",
              stderr);
    else
        fprintf(stderr, "tandem: %.40s: unknown command (tandem --help lists them)\n", argv[1]);
    return 2;
}
