#include "compiler/host_cxx.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { PROBE_LIMIT = 4096, PROBE_LIMIT_MS = 10000 };

static int watched = -1;

void host_cxx_watch(int socket)
{
    watched = socket;
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

// Its own process group, so that the compiler's children are killed with it.
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
static bool read_output(int fd, int64_t deadline, size_t limit, struct buf *output)
{
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
                               { .fd = watched, .events = POLLIN | POLLRDHUP } };
        int n = left > 0 ? poll(p, 2, (int)left) : 0;
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

bool host_cxx_run(char *const argv[], const char *cwd, int limit_ms, size_t limit,
                  struct buf *output, int *out_status, struct opd_err *err)
{
    int fds[2];
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return opd_err_errno(err, OPD_E_internal, "pipe for the C++ compiler");
    int rc = spawn_group(argv, cwd, fds[1], &pid);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        errno = rc;
        return opd_err_errno(err, OPD_E_unavailable, "%s does not start", argv[0]);
    }
    bool ended = read_output(fds[0], now_ms() + limit_ms, limit, output);
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

// The first line of `command --version`, or NULL if that does not run.
static char *ask_version(const char *command)
{
    struct opd_err ignored = { 0 };
    struct buf output = { 0 };
    char *name = mem_strdup(command), *argv[] = { name, (char[]){ "--version" }, NULL };
    int status = 0;
    char *version = NULL;
    if (host_cxx_run(argv, NULL, PROBE_LIMIT_MS, PROBE_LIMIT, &output, &status, &ignored) &&
        status == 0 && output.size) {
        const char *text = buf_str(&output);
        version = mem_strndup(text, strcspn(text, "\n"));
    }
    opd_err_clear(&ignored);
    buf_finish(&output);
    free(name);
    return version;
}

static unsigned long long hash_text(unsigned long long h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

// Its name and its features: virtual machines give one name to many.
static char *read_processor(void)
{
    char *line = NULL, *name = NULL;
    size_t capacity = 0;
    unsigned long long features = 0xcbf29ce484222325u;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && getline(&line, &capacity, f) > 1) { // an empty line ends the first core
        char *colon = strchr(line, ':');
        if (colon && !name &&
            (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0))
            name = mem_strndup(colon + 1, strcspn(colon + 1, "\n"));
        else if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)
            features = hash_text(features, line);
    }
    if (f)
        fclose(f);
    char *processor = mem_printf("%s, features %016llx", name ? name : " unknown processor",
                                 features);
    free(name);
    free(line);
    return processor;
}

const struct host_cxx *host_cxx_find(struct opd_err *err)
{
    static struct host_cxx cxx;
    if (cxx.path)
        return &cxx;
    const char *chosen = getenv("OPD_CXX");
    const char *names[] = { chosen && *chosen ? chosen : "c++", "g++", "clang++" };
    for (size_t i = 0; i < sizeof names / sizeof *names && !cxx.path; i++) {
        cxx.version = ask_version(names[i]);
        if (cxx.version)
            cxx.path = mem_strdup(names[i]);
        else if (names[i] == chosen)
            break;
    }
    if (!cxx.path) {
        opd_err_set(err, OPD_E_unavailable,
                    "cpu device: no C++17 compiler found (tried %s); install g++ or clang++, "
                    "or set OPD_CXX",
                    chosen && *chosen ? chosen : "c++, g++, clang++");
        return NULL;
    }
    cxx.clang = strstr(cxx.version, "clang") != NULL;
    cxx.processor = read_processor();
    return &cxx;
}
