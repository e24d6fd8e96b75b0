/* out_file: files that are whole or not there: written beside, then renamed. "-" is stdout. */
#ifndef TANDEM_LAB_OUT_FILE_H
#define TANDEM_LAB_OUT_FILE_H

#include "sched/status.h"

#include <stdio.h>

struct out_file {
    FILE *stream;
    char *path, *temporary; /* NULL for stdout */
};

/* Opens PATH.tmp-PID beside PATH. STATUS_IO names the path and the cause (a directory, no permission, ...).
 */
enum status out_file_open(const char *path, struct out_file *out, struct why *why);

/* Flushes, checks for write errors (a full disk), renames into place. On failure nothing is left behind. */
enum status out_file_commit(struct out_file *f, struct why *why);

/* Throws away what was written. Safe after commit. */
void out_file_abort(struct out_file *f);

/* Removes the temporary files that are open now; async-signal-safe, for interrupts. */
void out_file_abort_all_on_signal(void);

#endif
