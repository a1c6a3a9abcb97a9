#include "base/turn.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { MAX_ARGS = 8, MAX_STDIO = 8, READ_EVERY_NS = 5000000 };

void turn_retry(struct turn *turn)
{
    turn->retry_wanted = true;
}

static uint64_t worked_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// The processor's clock is a system call, and turns may be short and many: it is read where some
// time has passed. Of what was worked since, the turns before this one have at most the time that
// passed until they ended.
void turn_end(struct turn *turn)
{
    uint64_t now = clock_ns();
    if (now - turn->read_at >= READ_EVERY_NS) {
        uint64_t worked = worked_ns(), others = turn->ended_at - turn->read_at;
        uint64_t ran = worked - turn->worked_ns;
        if (turn->read_at && ran > others && ran - others > turn->longest_ns)
            turn->longest_ns = ran - others;
        turn->worked_ns = worked;
        turn->read_at = now;
    }
    turn->ended_at = now;
}

void turn_count_error(struct turn *turn, const struct opd_err *err)
{
    turn->n_errors++;
    if ((unsigned)err->code < TURN_MAX_ERRORS)
        turn->errors_of[err->code]++;
}

static const int signals[TURN_N_SIGNALS] = { SIGTERM, SIGINT, SIGHUP };

bool turn_signal(int i, int *out)
{
    struct sigaction before;
    *out = signals[i];
    sigaction(*out, NULL, &before);
    return *out == SIGTERM || before.sa_handler != SIG_IGN;
}

void turn_hold_signals(bool held)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < TURN_N_SIGNALS; i++)
        sigaddset(&set, signals[i]);
    sigprocmask(held ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

int turn_spawn(struct turn *turn, uv_process_t *process, const char *const *args, const int *fds,
               int n_fds, uv_exit_cb exited)
{
    char *argv[MAX_ARGS] = { (char *)(uintptr_t) "opd" };
    int n = 1;
    for (; *args && n < MAX_ARGS - 2; args++)
        argv[n++] = (char *)(uintptr_t)*args;
    argv[n++] = (char *)(uintptr_t)log_level_name(log_level_in_use());
    uv_stdio_container_t stdio[MAX_STDIO] = { { .flags = UV_IGNORE } };
    stdio[1] = stdio[2] = (uv_stdio_container_t){ .flags = UV_INHERIT_FD,
                                                  .data.fd = STDERR_FILENO };
    for (int i = 0; i < n_fds; i++)
        stdio[3 + i] = (uv_stdio_container_t){ .flags = UV_INHERIT_FD, .data.fd = fds[i] };
    uv_process_options_t options = { .exit_cb = exited,
                                     .file = "/proc/self/exe",
                                     .args = argv,
                                     .stdio = stdio,
                                     .stdio_count = 3 + n_fds };
    return uv_spawn(&turn->loop, process, &options);
}
