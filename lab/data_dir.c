#include "lab/data_dir.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The first `below`, which `is_it` knows, at or above the executable. */
static int find(const char *below, int (*is_it)(const char *path), char *out, size_t size)
{
    char exe[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = '\0';
        /* up from build/tests/test_x or build/tandem to the directory that holds it */
        for (char *slash = strrchr(exe, '/'); slash && slash != exe; slash = strrchr(exe, '/')) {
            *slash = '\0';
            if ((size_t)snprintf(out, size, "%s/%s", exe, below) >= size) return -1;
            if (is_it(out)) return 0;
        }
    }
    return (size_t)snprintf(out, size, "./%s", below) < size ? 0 : -1;
}

int data_dir(const char *env, const char *subdir, char *out, size_t size)
{
    const char *set = getenv(env);
    if (set && *set) return (size_t)snprintf(out, size, "%s", set) < size ? 0 : -1;
    return find(subdir, is_directory, out, size);
}

/* build/lab, of objects, is above build/tandem too: looked for is the file. */
int data_file(const char *env, const char *subdir, const char *name, char *out, size_t size)
{
    char below[PATH_MAX];
    const char *set = getenv(env);
    if (set && *set) return (size_t)snprintf(out, size, "%s/%s", set, name) < size ? 0 : -1;
    if ((size_t)snprintf(below, sizeof below, "%s/%s", subdir, name) >= sizeof below) return -1;
    return find(below, is_file, out, size);
}
