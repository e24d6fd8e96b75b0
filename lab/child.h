/* child: runs another program to its end, or to a deadline. It can hang, print anything or be killed: the caller always
 * gets an answer. */
#ifndef TANDEM_LAB_CHILD_H
#define TANDEM_LAB_CHILD_H

#include "sched/status.h"

#include <stddef.h>

enum { CHILD_MAX_OUTPUT = 1 << 20 }; /* bytes of stdout */

struct child {
    const char *const *argv; /* argv[0] is looked up on the PATH; NULL-terminated */
    const char *errors;      /* file that its stderr goes to */
    double timeout_s;        /* then it and all that it started are killed */
};

struct child_end {
    char *output;          /* its stdout, NUL-terminated: free() it, also after a failure */
    size_t n;              /* bytes */
    int exit_code, signal; /* the signal that killed it, or 0 */
};

/* STATUS_UNSUPPORTED when it cannot be started; STATUS_INTERNAL, with what it printed before in *end, when it ran into the
 * deadline or printed more than CHILD_MAX_OUTPUT. STATUS_OK however it ended otherwise. stdin is empty. */
enum status child_run(const struct child *c, struct child_end *end, struct why *why);

/* Kills the one that runs now; async-signal-safe, for interrupts. */
void child_kill_on_signal(void);

#endif
