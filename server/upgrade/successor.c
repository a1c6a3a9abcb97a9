#include "upgrade/successor.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "request/parts.h"
#include "base/file.h"

enum { TRIAL_LIMIT_MS = 5000 };

struct successor {
    uv_process_t process;
    uv_timer_t timer;
    int n_handles;
    int answer; // the pipe that it writes to
    bool late;
    char *program;
    void (*done)(void *data, const struct opd_err *err); // NULL: nobody wants to know any more
    void *data;
};

int successor_state_fd(const struct buf *state, struct opd_err *err)
{
    int fd = file_memfd("opd-state", state->bytes, state->size);
    if (fd >= 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
        return fd;
    opd_err_errno(err, OPD_E_out_of_memory, "memory for the state of %zu bytes", state->size);
    file_close(&fd);
    return -1;
}

static void free_trial(struct successor *t)
{
    close(t->answer);
    free(t->program);
    free(t);
}

static void closed_cb(uv_handle_t *handle)
{
    struct successor *t = handle->data;
    if (--t->n_handles == 0)
        free_trial(t);
}

// A session of its own, so that what it has started goes with it.
static void end_program(struct successor *t)
{
    kill(-t->process.pid, SIGKILL);
    uv_process_kill(&t->process, SIGKILL);
}

static void limit_cb(uv_timer_t *timer)
{
    struct successor *t = timer->data;
    t->late = true;
    end_program(t);
}

// The first line of what it said.
static void read_answer(const struct successor *t, char *out, size_t size)
{
    ssize_t n = read(t->answer, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static void judge(const struct successor *t, int64_t status, int signal, struct opd_err *err)
{
    char said[768];
    read_answer(t, said, sizeof said);
    if (t->late)
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s did not say within %d s whether it can read this daemon's state",
                    t->program, TRIAL_LIMIT_MS / 1000);
    else if (signal)
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s crashed by signal %d (%s) while it looked at this daemon's state",
                    t->program, signal, strsignal(signal));
    else if (status != 0 && said[0])
        opd_err_set(err, OPD_E_invalid_argument, "%s: %s", t->program, said);
    else if (status != 0)
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s cannot read this daemon's state: it ended with status %lld; see the log",
                    t->program, (long long)status);
    else if (strncmp(said, "ok ", 3) != 0)
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s is no opd that can be upgraded to: it does not answer 'check-state'",
                    t->program);
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct successor *t = process->data;
    struct opd_err err = { 0 };
    judge(t, status, signal, &err);
    uv_close((uv_handle_t *)&t->process, closed_cb);
    uv_close((uv_handle_t *)&t->timer, closed_cb);
    if (t->done)
        t->done(t->data, &err);
    opd_err_clear(&err);
}

char **successor_args(const struct broker *b, const char *program, const char *role,
                      const char *state_fd)
{
    size_t n = 0;
    while (b->handover.args[n])
        n++;
    char **args = mem_zalloc(n + 4, sizeof *args);
    args[0] = (char *)(uintptr_t)program;
    args[1] = (char *)(uintptr_t)role;
    args[2] = (char *)(uintptr_t)state_fd;
    memcpy(args + 3, b->handover.args, n * sizeof *args);
    return args;
}

static int spawn(struct successor *t, struct broker *b, int state_fd, int answer)
{
    char **args = successor_args(b, t->program, "check-state", "3");
    uv_stdio_container_t stdio[4] = {
        { .flags = UV_IGNORE },
        { .flags = UV_INHERIT_FD, .data.fd = answer },
        { .flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO },
        { .flags = UV_INHERIT_FD, .data.fd = state_fd },
    };
    uv_process_options_t options = { .exit_cb = exit_cb,
                                     .file = t->program,
                                     .args = args,
                                     .flags = UV_PROCESS_DETACHED,
                                     .stdio = stdio,
                                     .stdio_count = 4 };
    t->process.data = t->timer.data = t;
    int result = uv_spawn(&b->turn.loop, &t->process, &options);
    free(args);
    return result;
}

struct successor *successor_start(struct broker *b, const char *program, const struct buf *state,
                                  void (*done)(void *data, const struct opd_err *err), void *data,
                                  struct opd_err *err)
{
    int pipes[2];
    int state_fd = successor_state_fd(state, err);
    if (state_fd < 0)
        return NULL;
    if (pipe2(pipes, O_CLOEXEC) < 0) {
        opd_err_errno(err, OPD_E_out_of_memory, "a pipe to %s", program);
        close(state_fd);
        return NULL;
    }
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    struct successor *t = mem_zalloc(1, sizeof *t);
    *t = (struct successor){
        .answer = pipes[0], .program = mem_strdup(program), .done = done, .data = data
    };
    int result = spawn(t, b, state_fd, pipes[1]);
    close(pipes[1]);
    close(state_fd);
    if (result < 0) {
        opd_err_set(err, OPD_E_invalid_argument, "%s cannot be started: %s", program,
                    uv_strerror(result));
        t->n_handles = 1; // libuv made a handle of it all the same
        uv_close((uv_handle_t *)&t->process, closed_cb);
        return NULL;
    }
    t->n_handles = 2;
    uv_timer_init(&b->turn.loop, &t->timer);
    uv_timer_start(&t->timer, limit_cb, TRIAL_LIMIT_MS, 0);
    return t;
}

void successor_drop(struct successor *t)
{
    if (!t)
        return;
    t->done = NULL;
    end_program(t);
}
