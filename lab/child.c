#include "lab/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { SLICE_MS = 50 }; /* between looks at a child that is silent */

/* The child that runs, for the signal handler: leader of a process group of its own, so that all that it started can be
 * killed with it. */
static volatile sig_atomic_t running;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void child_kill_on_signal(void)
{
    if (running > 0) kill(-(pid_t)running, SIGKILL);
}

static int set_up(const struct child *c, int out, const sigset_t *mask, posix_spawn_file_actions_t *files,
                  posix_spawnattr_t *how)
{
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    int e = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_adddup2(files, out, 1);
    if (!e) e = posix_spawn_file_actions_addopen(files, 2, c->errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!e)
        e = posix_spawnattr_setflags(how,
                                     POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    if (!e) e = posix_spawnattr_setsigdefault(how, &defaults);
    if (!e) e = posix_spawnattr_setsigmask(how, mask);
    return e;
}

/* Starts it with its stdout at the write end `out`. An interrupt between the start and the note of it would leave it
 * behind, so it waits. */
static int start(const struct child *c, int out, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t interrupts, before;
    sigemptyset(&interrupts);
    sigaddset(&interrupts, SIGINT);
    sigaddset(&interrupts, SIGTERM);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    sigprocmask(SIG_BLOCK, &interrupts, &before);
    int e = set_up(c, out, &before, &files, &how);
    /* argv is const for callers; spawn's prototype predates const and changes nothing */
    if (!e) e = posix_spawnp(pid, c->argv[0], &files, &how, (char *const *)(uintptr_t)c->argv, environ);
    if (!e) running = *pid;
    sigprocmask(SIG_SETMASK, &before, NULL);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return e;
}

/* Takes what the pipe holds. 1: there may be more, 0: nothing now, -1: the end, -2: too much. */
static int take(int in, struct child_end *end)
{
    if (end->n == CHILD_MAX_OUTPUT) return -2;
    const ssize_t got = read(in, end->output + end->n, CHILD_MAX_OUTPUT - end->n);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    end->n += (size_t)got;
    return got > 0 ? 1 : -1;
}

static void note_end(int state, struct child_end *end)
{
    if (WIFSIGNALED(state))
        end->signal = WTERMSIG(state);
    else
        end->exit_code = WEXITSTATUS(state);
}

/* Reads until the child itself has ended: what it started may hold the pipe open for longer, and it may close the pipe
 * and go on. */
static enum status follow(const struct child *c, pid_t pid, int in, struct child_end *end, struct why *why)
{
    const double deadline = now_s() + c->timeout_s;
    bool open = true;
    for (;;) {
        int state, taken = 0;
        struct pollfd p = {.fd = open ? in : -1, .events = POLLIN};
        poll(&p, 1, SLICE_MS);
        const pid_t ended = waitpid(pid, &state, WNOHANG); /* before the last look into the pipe */
        while (open && (taken = take(in, end)) > 0)
            ;
        if (taken == -1) open = false;
        if (ended == pid) {
            note_end(state, end);
            return STATUS_OK;
        }
        if (taken == -2 || now_s() >= deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &state, 0);
            return taken == -2 ? status_fail(why, STATUS_INTERNAL, "%.180s: printed more than %d bytes",
                                             c->argv[0], CHILD_MAX_OUTPUT)
                               : status_fail(why, STATUS_INTERNAL, "%.180s: no end within %g s: killed",
                                             c->argv[0], c->timeout_s);
        }
    }
}

enum status child_run(const struct child *c, struct child_end *end, struct why *why)
{
    int ends[2];
    pid_t pid;
    *end = (struct child_end){.output = calloc(1, CHILD_MAX_OUTPUT + 1)};
    if (!end->output) return status_fail(why, STATUS_NO_MEMORY, "%.180s: out of memory", c->argv[0]);
    if (pipe(ends) != 0)
        return status_fail(why, STATUS_INTERNAL, "%.180s: no pipe: %s", c->argv[0], strerror(errno));
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC); /* the copy at 1 stays open */
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const int cause = start(c, ends[1], &pid);
    close(ends[1]);
    enum status status;
    if (cause != 0) {
        status = status_fail(why, STATUS_UNSUPPORTED, "%.180s: cannot be started: %s", c->argv[0],
                             strerror(cause));
    } else {
        status = follow(c, pid, ends[0], end, why);
        kill(-pid, SIGKILL); /* what it left running */
        running = 0;
    }
    close(ends[0]);
    return status;
}
