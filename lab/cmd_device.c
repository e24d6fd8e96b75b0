#include "lab/commands.h"

#include "cuda/exec.h"

#include <string.h>

int cmd_device(int argc, char **argv)
{
    struct args a;
    struct why why = {""};
    const enum args_command command = strcmp(argv[0], "bench") == 0 ? COMMAND_BENCH : COMMAND_PROBE;
    enum status status = args_parse(command, argc, argv, &a, &why);
    if (status == STATUS_OK) status = cuda_available(&why);
    return status == STATUS_OK ? command_finish(0) : command_fail(status, &why);
}
