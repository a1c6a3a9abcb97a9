// opd: one binary. Without a role it is the broker, which starts the others as itself:
// "opd executor DEVICE" and "opd compiler", with their descriptors in place. "opd trial FILE" is
// what `opctl check --run` and `--grad` become.

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker.h"
#include "compiler/compiler.h"
#include "executor/executor.h"
#include "keeper/keeper.h"
#include "base/log.h"
#include "base/mem.h"
#include "options.h"
#include "trial/new.h"
#include "trial/trial.h"

// An executor and a compiler end with the broker, whatever ends it. They leave to it a terminal's
// ^C and its end, and the SIGTERM that a service manager sends to every process: it finishes what
// is in flight, for which it needs them.
static void become_child(int death_signal)
{
    prctl(PR_SET_PDEATHSIG, death_signal);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

// A compiler sees by its socket that the broker has gone, ends what it runs, and cleans up; NVRTC
// cannot be interrupted.
static void end_soon(int signal)
{
    (void)signal;
    alarm(2);
}

static enum log_level read_level(const char *name)
{
    int level = log_level_parse(name);
    return level < 0 ? LOG_LEVEL_INFO : (enum log_level)level;
}

// The path that this program was started from, which is where a new one will be put. Its own file
// where the path leads elsewhere.
static char *find_program(const char *name)
{
    static char path[PATH_MAX];
    struct stat own, there;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    char *folder = getcwd(NULL, 0);
    char *full = name[0] == '/' || !folder ? mem_strdup(name) : mem_printf("%s/%s", folder, name);
    if (strchr(name, '/') && strlen(full) < sizeof path && stat("/proc/self/exe", &own) == 0 &&
        stat(full, &there) == 0 && own.st_dev == there.st_dev && own.st_ino == there.st_ino)
        strcpy(path, full);
    free(folder);
    free(full);
    return path;
}

// "resume FD" and "check-state FD" before the options: the successor's side of an upgrade.
static int read_fd(const char *text)
{
    int fd = atoi(text);
    return fd > 2 ? fd : -1;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "executor") == 0) {
        static char role[64];
        snprintf(role, sizeof role, "executor %s", argv[2]);
        log_init(role, read_level(argv[5]));
        bool spare = strcmp(argv[4], "spare") == 0;
        executor_take_name(argv[2], spare);
        become_child(SIGKILL);
        return executor_main(argv[2],
                             strcmp(argv[3], "own") == 0     ? EXECUTOR_BLAS_NONE
                             : strcmp(argv[3], "later") == 0 ? EXECUTOR_BLAS_LATER
                                                             : EXECUTOR_BLAS_NOW,
                             spare);
    }
    if (argc == 4 && strcmp(argv[1], "compiler") == 0) {
        log_init("compiler", read_level(argv[3]));
        signal(SIGUSR1, end_soon);
        prctl(PR_SET_NAME, "opd: compiler"); // in ps and top; else that of /proc/self/exe
        become_child(SIGUSR1);
        setsid(); // by which the broker finds what it runs, should it be killed
        if (strcmp(argv[2], "low") == 0 && nice(COMPILER_NICE) < 0)
            log_debug("this compiler runs at the priority of the others");
        return compiler_main();
    }
    if (argc == 4 && strcmp(argv[1], "keeper") == 0)
        return keeper_main(atof(argv[2]));
    if (argc >= 4 && strcmp(argv[1], "trial") == 0) {
        log_init("trial", LOG_LEVEL_WARN);
        return trial_main(argc - 2, argv + 2);
    }
    if (argc >= 3 && strcmp(argv[1], "new") == 0)
        return new_main(argc - 2, argv + 2);
    if (argc >= 3 && strcmp(argv[1], "trial-stage") == 0) {
        prctl(PR_SET_NAME, "opd: trial");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return trial_stage_main(argc - 2, argv + 2);
    }
    bool resume = argc >= 3 && strcmp(argv[1], "resume") == 0,
         check = argc >= 3 && strcmp(argv[1], "check-state") == 0;
    int state_fd = resume || check ? read_fd(argv[2]) : -1;
    char *program = find_program(argv[0]);
    if (resume || check) {
        argv += 2;
        argc -= 2;
    }
    struct options options;
    struct opd_err err = { 0 };
    if (!options_parse(&options, argc, argv, &err)) {
        fprintf(check ? stdout : stderr, "opd: %s\n", err.msg);
        options_finish(&options);
        return 2;
    }
    log_init("broker", (enum log_level)options.log_level);
    prctl(PR_SET_NAME, "opd: broker");
    signal(SIGPIPE, SIG_IGN);
    if (check)
        return broker_check_state(&options, state_fd);
    if (resume)
        return broker_resume(&options, program, argv + 1, state_fd);
    return broker_main(&options, program, argv + 1);
}
