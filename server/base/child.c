#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

static int watched = -1;

void child_watch(int socket)
{
    watched = socket;
}

// Its own process group, so that what it starts is killed with it.
static int spawn_group(char *const argv[], const char *cwd, int output_fd, pid_t *out_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output_fd, 1);
    posix_spawn_file_actions_adddup2(&actions, output_fd, 2);
    if (cwd)
        posix_spawn_file_actions_addchdir_np(&actions, cwd);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    int rc = posix_spawnp(out_pid, argv[0], &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

// Reads until the last writer has gone. False: the time is over, or nobody waits for the result.
static bool read_output(int fd, int limit_ms, size_t limit, struct buf *output)
{
    for (uint64_t begun = clock_ns();;) {
        int left = limit_ms - (int)clock_ms_since(begun);
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
                               { .fd = watched, .events = POLLIN | POLLRDHUP } };
        int n = left > 0 ? poll(p, 2, left) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || p[1].revents)
            return false;
        char bytes[16384];
        ssize_t got = read(fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return true;
        if (output->size < limit)
            buf_append(output, bytes, (size_t)got);
    }
}

bool child_run(char *const argv[], const char *cwd, int limit_ms, size_t limit, struct buf *output,
               int *out_status, struct opd_err *err)
{
    int fds[2];
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return opd_err_errno(err, OPD_E_internal, "a pipe to %s", argv[0]);
    int rc = spawn_group(argv, cwd, fds[1], &pid);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        errno = rc;
        return opd_err_errno(err, OPD_E_unavailable, "%s does not start", argv[0]);
    }
    bool ended = read_output(fds[0], limit_ms, limit, output);
    close(fds[0]);
    if (!ended)
        kill(-pid, SIGKILL);
    while (waitpid(pid, out_status, 0) < 0 && errno == EINTR)
        ;
    if (!ended)
        return opd_err_set(err, OPD_E_deadline_exceeded,
                           "%s ran longer than %d s, or nobody waits for it; it was ended", argv[0],
                           limit_ms / 1000);
    return true;
}
