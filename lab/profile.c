#include "lab/profile.h"

#include "lab/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every key of a profile: section, key, type, field, lowest value (LIST types check themselves). */
#define PROFILE_KEYS(X)                                                    \
    X("gpu", "cc_major", INT, cc_major, 7)                                 \
    X("gpu", "cc_minor", INT, cc_minor, 0)                                 \
    X("gpu", "sm_count", INT, sm_count, 1)                                 \
    X("gpu", "gpc_sms", GPCS, gpc_sms, 0)                                  \
    X("sm", "max_threads_per_sm", INT, max_threads_per_sm, 32)             \
    X("sm", "max_ctas_per_sm", INT, max_ctas_per_sm, 1)                    \
    X("sm", "registers_per_sm", INT, registers_per_sm, 1024)               \
    X("sm", "smem_per_sm_bytes", INT, smem_per_sm_bytes, 1024)             \
    X("sm", "smem_optin_bytes", INT, smem_optin_bytes, 1024)               \
    X("sm", "smem_sizes_bytes", SIZES, smem_sizes_bytes, 0)                \
    X("sm", "barrier_factor", INT, barrier_factor, 1)                      \
    X("peak", "flops_per_ns", REAL, peak_flops_per_ns, 0)                  \
    X("peak", "hbm_bytes_per_ns", REAL, peak_hbm_bytes_per_ns, 0)          \
    X("memory", "hbm_bytes_per_ns", REAL, hbm_bytes_per_ns, 0)             \
    X("memory", "sm_bytes_per_ns", REAL, sm_bytes_per_ns, 0)               \
    X("memory", "latency_ns", REAL, memory_latency_ns, 0)                  \
    X("memory", "l2_bytes", REAL, l2_bytes, 0)                             \
    X("math", "fma_frac", REAL, flops_frac[MATH_FMA], 0)                   \
    X("math", "fma_cta_frac", REAL, cta_flops_frac[MATH_FMA], 0)           \
    X("math", "mma_sync_frac", REAL, flops_frac[MATH_MMA_SYNC], 0)         \
    X("math", "mma_sync_cta_frac", REAL, cta_flops_frac[MATH_MMA_SYNC], 0) \
    X("math", "wgmma_frac", REAL, flops_frac[MATH_WGMMA], 0)               \
    X("math", "wgmma_cta_frac", REAL, cta_flops_frac[MATH_WGMMA], 0)       \
    X("overhead", "launch_ns", REAL, launch_ns, 0)                         \
    X("overhead", "cta_start_ns", REAL, cta_start_ns, 0)                   \
    X("overhead", "cta_end_ns", REAL, cta_end_ns, 0)                       \
    X("overhead", "item_ns", REAL, item_ns, 0)

enum key_type { INT, REAL, GPCS, SIZES };

static const struct key {
    const char *section, *name;
    enum key_type type;
    size_t offset;
    int32_t low;
} keys[] = {
#define X(section, name, type, field, low) {section, name, type, offsetof(struct gpu, field), low},
    PROFILE_KEYS(X)
#undef X
};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* Far beyond any machine on both sides, and no product of a few of them leaves the range of a double. */
static const double real_low = 1e-9, real_high = 1e15;

/* Debian's inih passes no line numbers to its handler, but reports the line whose handler returned 0: so
 * reasons are kept without a place, and load_file adds it. */
struct loader {
    struct gpu *gpu;
    const char *path;
    struct why *why;
    struct why reason; /* of the first key that was refused */
    bool refused;
    bool seen[N_KEYS];
};

static int reject(struct loader *l, const char *name, const char *value, const char *expected)
{
    l->refused = true;
    status_fail(&l->reason, STATUS_BAD_INPUT, "%s = %.40s: expected %s", name, value, expected);
    return 0;
}

/* "16 16 18": whole numbers above 0, at most `cap`; returns how many, -1 for anything else. */
static int32_t parse_list(const char *value, int32_t *out, int32_t cap)
{
    int32_t n = 0;
    for (const char *s = value; *s;) {
        char *end;
        errno = 0;
        const long x = strtol(s, &end, 10);
        if (end == s || errno || x < 0 || x > INT32_MAX || n == cap) return -1;
        out[n++] = (int32_t)x;
        s = end + strspn(end, " \t");
    }
    return n;
}

static int store(struct loader *l, const struct key *k, const char *value)
{
    char *end;
    void *field = (char *)l->gpu + k->offset;
    errno = 0;
    if (k->type == INT) {
        const long x = strtol(value, &end, 10);
        if (end == value || *end || errno || x < k->low || x > INT32_MAX)
            return reject(l, k->name, value, "a whole number in range");
        *(int32_t *)field = (int32_t)x;
    } else if (k->type == REAL) {
        const double x = strtod(value, &end);
        /* overheads and L2 may be 0 in a what-if profile; rates may not */
        const bool zero_ok = strcmp(k->section, "overhead") == 0 || strcmp(k->name, "l2_bytes") == 0;
        if (end == value || *end || !(x <= real_high) || x < 0 || (x < real_low && !(x == 0 && zero_ok)))
            return reject(l, k->name, value, "a positive number (1e-9 to 1e15)");
        *(double *)field = x;
    } else if (k->type == GPCS) {
        l->gpu->n_gpcs = parse_list(value, l->gpu->gpc_sms, GPU_MAX_GPCS);
        if (l->gpu->n_gpcs < 0) return reject(l, k->name, value, "SM counts, one a GPC, or nothing");
    } else {
        l->gpu->n_smem_sizes = parse_list(value, l->gpu->smem_sizes_bytes, GPU_MAX_SMEM_SIZES);
        if (l->gpu->n_smem_sizes < 1) return reject(l, k->name, value, "ascending sizes in bytes");
    }
    return 1;
}

/* inih calls this for every key and goes on after a 0; only the first reason is kept. */
static int on_key(void *user, const char *section, const char *name, const char *value)
{
    struct loader *l = user;
    if (l->refused) return 0;
    for (int i = 0; i < N_KEYS; i++) {
        if (strcmp(section, keys[i].section) != 0 || strcmp(name, keys[i].name) != 0) continue;
        if (l->seen[i]) return reject(l, name, value, "each key once");
        l->seen[i] = true;
        return store(l, &keys[i], value);
    }
    l->refused = true;
    status_fail(&l->reason, STATUS_BAD_INPUT, "unknown key '%.40s' in section [%.40s]", name, section);
    return 0;
}

/* What single keys cannot show. */
static enum status check_whole(const struct loader *l)
{
    const struct gpu *g = l->gpu;
    int64_t sms = 0;
    for (int i = 0; i < N_KEYS; i++)
        if (!l->seen[i])
            return status_fail(l->why, STATUS_BAD_INPUT, "%s: [%s] %s is missing", l->path, keys[i].section,
                               keys[i].name);
    for (int32_t i = 0; i < g->n_gpcs; i++)
        sms += g->gpc_sms[i];
    if (g->n_gpcs && sms != g->sm_count)
        return status_fail(l->why, STATUS_BAD_INPUT, "%s: gpc_sms sum to %lld: expected sm_count %d", l->path,
                           (long long)sms, g->sm_count);
    for (int32_t i = 1; i < g->n_smem_sizes; i++)
        if (g->smem_sizes_bytes[i] <= g->smem_sizes_bytes[i - 1])
            return status_fail(l->why, STATUS_BAD_INPUT, "%s: smem_sizes_bytes: expected ascending sizes",
                               l->path);
    if (g->sm_count > GPU_MAX_SMS)
        return status_fail(l->why, STATUS_BAD_INPUT, "%s: sm_count %d: expected at most %d", l->path,
                           g->sm_count, GPU_MAX_SMS);
    if (g->max_ctas_per_sm > 32)
        return status_fail(l->why, STATUS_BAD_INPUT, "%s: max_ctas_per_sm %d: expected at most 32", l->path,
                           g->max_ctas_per_sm);
    if (g->hbm_bytes_per_ns > g->peak_hbm_bytes_per_ns)
        return status_fail(l->why, STATUS_BAD_INPUT, "%s: [memory] hbm_bytes_per_ns is above the peak",
                           l->path);
    for (int m = MATH_FMA; m < MATH_COUNT; m++)
        if (g->flops_frac[m] > 1 || g->cta_flops_frac[m] > 1)
            return status_fail(l->why, STATUS_BAD_INPUT, "%s: [math] fractions: expected at most 1", l->path);
    return STATUS_OK;
}

/* "dir/h200.ini" -> "h200", kept as the profile's name. */
static void name_from_path(const char *path, char name[GPU_NAME_MAX])
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    const size_t n = dot ? (size_t)(dot - base) : strlen(base);
    snprintf(name, GPU_NAME_MAX, "%.*s", (int)n, base);
}

enum status profile_read(FILE *file, const char *path, struct gpu *out, struct why *why)
{
    struct loader l = {.gpu = out, .path = path, .why = why};
    memset(out, 0, sizeof *out);
    errno = 0;
    const int line = ini_parse_file(file, on_key, &l);
    if (ferror(file) || line < 0) return status_fail(why, STATUS_IO, "%.150s: %s", path, strerror(errno));
    if (line > 0)
        return status_fail(why, STATUS_BAD_INPUT, "%.100s:%d: %.120s", path, line,
                           l.refused ? l.reason.text : "expected [section] or key = value");
    name_from_path(path, out->name);
    return check_whole(&l);
}

static bool is_path(const char *s)
{
    const size_t n = strlen(s);
    return strchr(s, '/') || (n > 4 && strcmp(s + n - 4, ".ini") == 0);
}

static enum status unknown_profile(const char *name, struct why *why)
{
    char **names, known[160] = "";
    int32_t n;
    size_t used = 0;
    TRY(profile_names(&names, &n, why));
    for (int32_t i = 0; i < n && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    profile_names_free(names, n);
    return status_fail(why, STATUS_UNKNOWN_NAME, "gpu '%.40s': expected one of: %s, or a .ini file", name,
                       known);
}

enum status profile_open(const char *name_or_path, char *path, FILE **out, struct why *why)
{
    char dir[PATH_MAX];
    const bool by_path = is_path(name_or_path);
    *out = NULL;
    if (by_path)
        snprintf(path, PROFILE_PATH_MAX, "%s", name_or_path);
    else if (data_dir("TANDEM_GPU_DIR", "sim/gpus", dir, sizeof dir) != 0 ||
             strlen(name_or_path) >= GPU_NAME_MAX)
        return unknown_profile(name_or_path, why);
    else
        snprintf(path, PROFILE_PATH_MAX, "%s/%.*s.ini", dir, GPU_NAME_MAX, name_or_path);
    *out = fopen(path, "r");
    if (*out) return STATUS_OK;
    return by_path ? status_fail(why, STATUS_IO, "%.150s: %s", path, strerror(errno))
                   : unknown_profile(name_or_path, why);
}

enum status profile_load(const char *name_or_path, struct gpu *out, struct why *why)
{
    char path[PROFILE_PATH_MAX];
    FILE *file;
    memset(out, 0, sizeof *out);
    TRY(profile_open(name_or_path, path, &file, why));
    const enum status status = profile_read(file, path, out, why);
    fclose(file);
    return status;
}

static int is_profile(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name);
    return n > 4 && strcmp(entry->d_name + n - 4, ".ini") == 0;
}

enum status profile_names(char ***names, int32_t *n, struct why *why)
{
    char dir[PATH_MAX];
    struct dirent **entries;
    if (data_dir("TANDEM_GPU_DIR", "sim/gpus", dir, sizeof dir) != 0)
        return status_fail(why, STATUS_IO, "the directory of GPU profiles has too long a name");
    const int found = scandir(dir, &entries, is_profile, alphasort);
    if (found < 0) return status_fail(why, STATUS_IO, "%s: %s", dir, strerror(errno));
    *names = malloc(((size_t)found + 1) * sizeof **names);
    *n = 0;
    for (int i = 0; i < found; i++) {
        char name[GPU_NAME_MAX];
        name_from_path(entries[i]->d_name, name);
        char *copy = *names ? strdup(name) : NULL;
        if (copy) (*names)[(*n)++] = copy;
        free(entries[i]);
    }
    free(entries);
    return *names ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "out of memory");
}

void profile_names_free(char **names, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}
