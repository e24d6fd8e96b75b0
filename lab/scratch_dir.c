#define _GNU_SOURCE /* getdents64 */
#include "lab/scratch_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The one that is open, for the signal handler. */
static const char *volatile open_path;

/* Only async-signal-safe calls; getdents64 is a bare system call, where readdir may lock and allocate. Removing files
 * while a directory is read may make the reader skip some, so it is read again until a pass finds none. */
static void remove_all(const char *path)
{
    _Alignas(struct dirent64) char entries[4096];
    int removed = 1;
    for (int pass = 0; removed > 0 && pass < 64; pass++) {
        const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        removed = 0;
        if (fd < 0) return;
        for (ssize_t n; (n = getdents64(fd, entries, sizeof entries)) > 0;)
            for (ssize_t at = 0; at < n;) {
                const struct dirent64 *entry = (const void *)(entries + at);
                removed += unlinkat(fd, entry->d_name, 0) == 0; /* "." and ".." are refused */
                at += entry->d_reclen;
            }
        close(fd);
    }
    rmdir(path);
}

enum status scratch_dir_open(struct scratch_dir *d, struct why *why)
{
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = "/tmp";
    if ((size_t)snprintf(d->path, sizeof d->path, "%s/tandem-XXXXXX", base) >= sizeof d->path) {
        d->path[0] = '\0';
        return status_fail(why, STATUS_IO, "TMPDIR: longer than a path may be");
    }
    if (!mkdtemp(d->path)) {
        d->path[0] = '\0';
        return status_fail(why, STATUS_IO, "%.180s: no directory can be made there: %s", base,
                           strerror(errno));
    }
    open_path = d->path;
    return STATUS_OK;
}

enum status scratch_dir_file(const struct scratch_dir *d, const char *name, char *out, struct why *why)
{
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", d->path, name) < PATH_MAX) return STATUS_OK;
    return status_fail(why, STATUS_IO, "%.180s/%.60s: longer than a path may be", d->path, name);
}

void scratch_dir_close(struct scratch_dir *d)
{
    if (!d->path[0]) return;
    remove_all(d->path);
    open_path = NULL;
    d->path[0] = '\0';
}

void scratch_dir_abort_on_signal(void)
{
    if (open_path) remove_all((const char *)open_path);
}
