#include "lab/plot.h"

#include "lab/data_dir.h"
#include "lab/out_file.h"
#include "lab/timeline.h"
#include "sched/cost.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

static const char *const scripts[] = {"policies", "timeline", "work"};
enum { N_SCRIPTS = sizeof scripts / sizeof scripts[0] };

/* Runs a program found on PATH. Its stdout joins our stderr, so that stdout stays the result's, or goes
 * nowhere. */
static int run_program(char *const argv[], bool silent)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int state = -1;
    posix_spawn_file_actions_init(&actions);
    if (silent)
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    else
        posix_spawn_file_actions_adddup2(&actions, 2, 1);
    const int failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return -1;
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static enum status make_directories(const char *dir, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
        return status_fail(why, STATUS_BAD_INPUT, "--plot: the name of the directory is too long");
    for (char *at = path + 1;; at++) {
        const char kept = *at;
        if (kept != '/' && kept != '\0') continue;
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
        *at = kept;
        if (kept == '\0') break;
    }
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return status_fail(why, STATUS_IO, "%.180s: not a directory", dir);
    return STATUS_OK;
}

enum status plot_prepare(const char *dir, struct why *why)
{
    char *const version[] = {"gnuplot", "--version", NULL};
    /* names go into a gnuplot string: what would end or interpolate it is refused */
    if (*dir == '\0' || strpbrk(dir, "'\"\\`\n"))
        return status_fail(why, STATUS_BAD_INPUT, "--plot %.60s: expected a directory name without quotes",
                           dir);
    TRY(make_directories(dir, why));
    if (run_program(version, true) != 0)
        return status_fail(why, STATUS_UNSUPPORTED, "gnuplot: not found (Debian: gnuplot-nox)");
    return STATUS_OK;
}

/* Work of each CTA alone, in issue order; merges are left out as in imbalance. Items of queues count one
 * each. */
static void write_work(FILE *out, const struct workload *w, const struct machine *m, const struct plan *p)
{
    fputs("cta,grid,role,work_ns\n", out);
    for (int32_t g = 0; g < p->n_grids; g++) {
        const struct grid *grid = &p->grids[g];
        const int32_t *indptr = p->list_indptr + grid->list_begin;
        if (kernel_row((enum kernel_id)grid->kernel)->role == ROLE_MERGE) continue;
        const bool by_list = grid->dispatch == DISPATCH_FIXED;
        const int32_t n = by_list ? grid->n_ctas : indptr[grid->n_lists] - indptr[0];
        for (int32_t c = 0; c < n; c++) {
            const int32_t list = by_list ? remap_linear_bid(grid->remap, c).entry : 0;
            const int32_t begin = by_list ? indptr[list] : indptr[0] + c,
                          end = by_list ? indptr[list + 1] : begin + 1;
            double ns = 0;
            for (int32_t i = begin; i < end; i++)
                ns += cost_item(p, &w->batch, &m->kernels, &p->items[i]).ns;
            const bool decode =
                begin < end && kernel_row((enum kernel_id)p->items[begin].kernel)->role == ROLE_DECODE;
            fprintf(out, "%d,%d,%s,%.3f\n", c, g, decode ? "decode" : "prefill", ns);
        }
    }
}

enum status plot_write_plan(const char *dir, const struct workload *w, const struct machine *m,
                            const struct plan *plan, const char *policy, const struct sim_result *s,
                            struct why *why)
{
    char path[PATH_MAX];
    struct out_file file;
    snprintf(path, sizeof path, "%s/spans_%s.csv", dir, policy);
    TRY(out_file_open(path, &file, why));
    timeline_write_csv(file.stream, plan, s->spans, s->n_spans);
    TRY(out_file_commit(&file, why));
    snprintf(path, sizeof path, "%s/work_%s.csv", dir, policy);
    TRY(out_file_open(path, &file, why));
    write_work(file.stream, w, m, plan);
    return out_file_commit(&file, why);
}

enum status plot_draw(const char *dir, const struct rows *rows, bool quiet, struct why *why)
{
    char path[PATH_MAX], scripts_dir[PATH_MAX - 64], script[PATH_MAX], define[2 * PATH_MAX + 64];
    struct out_file file;
    snprintf(path, sizeof path, "%s/compare.csv", dir);
    TRY(out_file_open(path, &file, why));
    rows_print(rows, FORMAT_CSV, file.stream);
    TRY(out_file_commit(&file, why));
    if (data_dir("TANDEM_PLOT_DIR", "plots", scripts_dir, sizeof scripts_dir) != 0)
        return status_fail(why, STATUS_IO, "the directory of plot scripts has too long a name");
    for (int i = 0; i < N_SCRIPTS; i++) {
        snprintf(script, sizeof script, "%s/%s.gp", scripts_dir, scripts[i]);
        snprintf(define, sizeof define, "indir='%s'; outdir='%s'; scriptdir='%s'", dir, dir, scripts_dir);
        char *const argv[] = {"gnuplot", "-e", define, script, NULL};
        if (run_program(argv, false) != 0)
            return status_fail(why, STATUS_INTERNAL, "gnuplot failed on %.150s", script);
        if (!quiet) fprintf(stderr, "%s/%s.png (.svg, .pdf)\n", dir, scripts[i]);
    }
    return STATUS_OK;
}
