/* scratch_dir: a private directory for files that another program reads and writes; gone afterwards, also when tandem is
 * interrupted. One at a time. */
#ifndef TANDEM_LAB_SCRATCH_DIR_H
#define TANDEM_LAB_SCRATCH_DIR_H

#include "sched/status.h"

#include <limits.h>

struct scratch_dir {
    char path[PATH_MAX];
};

/* A new directory of mode 0700 below $TMPDIR, or /tmp. STATUS_IO names it and the cause. */
enum status scratch_dir_open(struct scratch_dir *d, struct why *why);

/* PATH/name into out[PATH_MAX]; STATUS_IO when it does not fit. */
enum status scratch_dir_file(const struct scratch_dir *d, const char *name, char *out, struct why *why);

/* Removes the files in it, then itself. Files only: what makes directories there keeps them. Twice is safe. */
void scratch_dir_close(struct scratch_dir *d);

/* The same of the one that is open now; async-signal-safe, for interrupts. */
void scratch_dir_abort_on_signal(void);

#endif
