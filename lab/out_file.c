#include "lab/out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Temporary files open now, for the signal handler: it may only read this table and call unlink. */
enum { MAX_OPEN = 16 };
static char *volatile open_files[MAX_OPEN];

static void remember(char *path)
{
    for (int i = 0; i < MAX_OPEN; i++)
        if (!open_files[i]) {
            open_files[i] = path;
            return;
        }
}

static void forget(const char *path)
{
    for (int i = 0; i < MAX_OPEN; i++)
        if (open_files[i] == path) open_files[i] = NULL;
}

void out_file_abort_all_on_signal(void)
{
    for (int i = 0; i < MAX_OPEN; i++)
        if (open_files[i]) unlink(open_files[i]);
}

enum status out_file_open(const char *path, struct out_file *out, struct why *why)
{
    struct stat st;
    memset(out, 0, sizeof *out);
    if (strcmp(path, "-") == 0) {
        out->stream = stdout;
        return STATUS_OK;
    }
    const int exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return status_fail(why, STATUS_IO, "%.180s: is a directory", path);
    /* a device or pipe cannot be renamed onto: write to it */
    if (exists && !S_ISREG(st.st_mode)) {
        out->stream = fopen(path, "w");
        if (!out->stream) return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
        out->path = strdup(path);
        return STATUS_OK;
    }
    const size_t size = strlen(path) + 32;
    out->path = strdup(path);
    out->temporary = malloc(size);
    if (out->path && out->temporary) {
        snprintf(out->temporary, size, "%s.tmp-%ld", path, (long)getpid());
        out->stream = fopen(out->temporary, "w");
    }
    if (out->stream) {
        remember(out->temporary);
        return STATUS_OK;
    }
    const int cause = errno;
    free(out->path);
    free(out->temporary);
    memset(out, 0, sizeof *out);
    return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(cause));
}

enum status out_file_commit(struct out_file *f, struct why *why)
{
    const char *name = f->path ? f->path : "stdout";
    errno = 0;
    int bad = ferror(f->stream) || fflush(f->stream) != 0;
    int cause = errno;
    if (f->stream != stdout) {
        errno = 0;
        if (fclose(f->stream) != 0 && !bad) {
            bad = 1;
            cause = errno;
        }
    }
    f->stream = NULL;
    errno = 0;
    if (!bad && f->temporary && rename(f->temporary, f->path) != 0) {
        bad = 1;
        cause = errno;
    }
    if (!bad && f->temporary) {
        forget(f->temporary);
        free(f->temporary);
        f->temporary = NULL;
    }
    const enum status status =
        bad ? status_fail(why, STATUS_IO, "%.180s: %s", name, cause ? strerror(cause) : "write error")
            : STATUS_OK;
    out_file_abort(f);
    return status;
}

void out_file_abort(struct out_file *f)
{
    if (f->stream && f->stream != stdout) fclose(f->stream);
    if (f->temporary) {
        unlink(f->temporary);
        forget(f->temporary);
    }
    free(f->path);
    free(f->temporary);
    memset(f, 0, sizeof *f);
}
