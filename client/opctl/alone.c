#include "opctl/alone.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opctl/command.h"

// $OPD_BIN, else beside opctl, else on $PATH.
static const char *find_daemon(char *beside, size_t size)
{
    const char *given = getenv("OPD_BIN");
    if (given && *given)
        return given;
    ssize_t n = readlink("/proc/self/exe", beside, size - 1);
    char *slash = n > 0 ? (beside[n] = '\0', strrchr(beside, '/')) : NULL;
    if (!slash || (size_t)(slash - beside) + sizeof "/opd" > size)
        return "opd";
    strcpy(slash, "/opd");
    return access(beside, X_OK) == 0 ? beside : "opd";
}

static int become(const char *const *argv)
{
    char beside[PATH_MAX];
    const char *opd = find_daemon(beside, sizeof beside);
    execvp(opd, (char *const *)(uintptr_t)argv);
    fprintf(stderr, "opctl: %s does not start: %s; set OPD_BIN to the path of opd\n", opd,
            strerror(errno));
    return EXIT_ABSENT;
}

static const char *word(const struct args *args, enum option option)
{
    return args->options[option] ? args->options[option] : "";
}

int alone_check(const struct args *args)
{
    const char *const argv[] = { "opd",
                                 "trial",
                                 args->options[OPTION_GRAD] ? "grad" : "run",
                                 args->words[1],
                                 word(args, OPTION_SEED),
                                 word(args, OPTION_DEADLINE),
                                 word(args, OPTION_DTYPE),
                                 args->options[OPTION_JSON] ? "json" : "",
                                 word(args, OPTION_DEVICE),
                                 NULL };
    if (access(args->words[1], R_OK) != 0)
        return session_refuse("%s: %s", args->words[1], strerror(errno));
    return become(argv);
}

int alone_faults(const struct args *args, const char *cache)
{
    const char *json = args->options[OPTION_JSON] ? "json" : "", *number = args->words[1];
    const char *const list[] = { "opd", "trial", "faults", cache, json, NULL };
    const char *const replay[] = {
        "opd", "trial", "replay", number, word(args, OPTION_SEED), word(args, OPTION_DEADLINE),
        cache, json,    word(args, OPTION_DEVICE), NULL
    };
    if (number && (!number[0] || number[strspn(number, "0123456789")]))
        return session_refuse("'%s' is no number of a fault; 'opctl faults' lists them", number);
    return become(number ? replay : list);
}

int alone_new(const struct args *args)
{
    const char *const argv[] = { "opd", "new", args->words[1], args->words[2] ? args->words[2] : "",
                                 NULL };
    return become(argv);
}

// --- a daemon of its own

static struct {
    char folder[PATH_MAX], socket[PATH_MAX + 16], lock[PATH_MAX + 32];
    pid_t pid;
} own;

// Also in a signal's handler.
void alone_stop(void)
{
    if (own.pid > 0) {
        kill(own.pid, SIGTERM);
        while (waitpid(own.pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    own.pid = 0;
    if (own.folder[0]) {
        unlink(own.socket);
        unlink(own.lock);
        rmdir(own.folder);
    }
    own.folder[0] = '\0';
}

static void interrupted(int number)
{
    alone_stop();
    _exit(128 + number);
}

static bool make_folder(void)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(own.folder, sizeof own.folder - 16, "%s/opctl-XXXXXX",
             temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(own.folder)) {
        own.folder[0] = '\0';
        return false;
    }
    snprintf(own.socket, sizeof own.socket, "%s/s", own.folder);
    snprintf(own.lock, sizeof own.lock, "%s.lock", own.socket);
    return true;
}

// Its standard output tells when it serves. What it logs before that is why it does not.
static void run_daemon(int out)
{
    const char *const argv[] = { "opd", "--socket",    own.socket, "--cache",
                                 "",    "--log-level", "error",    NULL };
    for (const int *s = (const int[]){ SIGINT, SIGTERM, SIGHUP, 0 }; *s; s++)
        signal(*s, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(out, STDOUT_FILENO);
    _exit(become(argv));
}

const char *alone_start(void)
{
    int fds[2];
    char line[16];
    for (const int *s = (const int[]){ SIGINT, SIGTERM, SIGHUP, 0 }; *s; s++)
        signal(*s, interrupted);
    if (!make_folder() || pipe2(fds, O_CLOEXEC) != 0)
        return NULL;
    own.pid = fork();
    if (own.pid == 0)
        run_daemon(fds[1]);
    close(fds[1]);
    bool serves = own.pid > 0 && read(fds[0], line, sizeof line) > 0;
    close(fds[0]);
    if (!serves)
        alone_stop();
    return serves ? own.socket : NULL;
}
