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

int data_dir(const char *env, const char *subdir, char *out, size_t size)
{
    char exe[PATH_MAX];
    const char *set = getenv(env);
    if (set && *set) return (size_t)snprintf(out, size, "%s", set) < size ? 0 : -1;
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = '\0';
        /* up from build/tests/test_x or build/tandem to the directory that holds subdir */
        for (char *slash = strrchr(exe, '/'); slash && slash != exe; slash = strrchr(exe, '/')) {
            *slash = '\0';
            if ((size_t)snprintf(out, size, "%s/%s", exe, subdir) >= size) return -1;
            if (is_directory(out)) return 0;
        }
    }
    return (size_t)snprintf(out, size, "./%s", subdir) < size ? 0 : -1;
}
