// opctl check --run, and --grad: the file's kernels at work, in processes of their own. No daemon
// takes part: this process becomes `opd trial`.

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
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

static const char *word(const struct args *args, enum option option)
{
    return args->options[option] ? args->options[option] : "";
}

int check_run(const struct args *args)
{
    char beside[PATH_MAX];
    const char *opd = find_daemon(beside, sizeof beside);
    if (access(args->words[1], R_OK) != 0)
        return session_refuse("%s: %s", args->words[1], strerror(errno));
    const char *const argv[] = { "opd",
                                 "trial",
                                 args->options[OPTION_GRAD] ? "grad" : "run",
                                 args->words[1],
                                 word(args, OPTION_SEED),
                                 word(args, OPTION_DEADLINE),
                                 word(args, OPTION_DTYPE),
                                 args->options[OPTION_JSON] ? "json" : "",
                                 NULL };
    execvp(opd, (char *const *)argv);
    fprintf(stderr, "opctl: %s does not start: %s; set OPD_BIN to the path of opd\n", opd,
            strerror(errno));
    return EXIT_ABSENT;
}
