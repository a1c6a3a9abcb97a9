#include "upgrade/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "request/lane.h"
#include "request/parts.h"
#include "base/clock.h"
#include "request/listen.h"
#include "base/log.h"
#include "request/request.h"
#include "base/file.h"
#include "upgrade/state.h"
#include "upgrade/successor.h"

// ROUNDS: how often the state may have changed while it was looked at, though nothing should.
enum { SETTLE_LIMIT_MS = 120000, DRAIN_LIMIT_MS = 30000, ROUNDS = 5 };

enum phase { PHASE_TRIAL, PHASE_SETTLE, PHASE_DRAIN, PHASE_CHECK };

struct upgrade {
    struct broker *broker;
    struct request *asked;
    char *program;
    struct file_stamp stamp; // of the program that was tried
    enum phase phase;
    struct state_out checked; // the state that is being looked at
    int round;
    struct successor *successor; // NULL: none is under way
    uv_timer_t limit;
};

// --- the end of it, where it fails

// A signal waits too: one that has come before is taken by the loop while the program looks at the
// state, one that comes later is the successor's, which is ready for it when it lets it in.
static void pause_all(struct broker *b, bool paused)
{
    turn_hold_signals(paused);
    listen_pause(b, paused);
    for (struct conn *c = b->clients.first; c; c = c->next) {
        c->waiting = c->waiting || paused;
        conn_queue(c);
        stream_pause(&c->stream, paused);
    }
}

static void closed_cb(uv_handle_t *handle)
{
    struct upgrade *u = handle->data;
    state_out_finish(&u->checked);
    free(u->program);
    free(u);
}

// The daemon goes on as before.
static void refuse(struct upgrade *u, const struct opd_err *err)
{
    struct broker *b = u->broker;
    log_error("the upgrade is refused: %s", err->msg);
    b->handover.upgrade = NULL;
    b->handover.held = false;
    pause_all(b, false);
    successor_drop(u->successor);
    request_finish(u->asked, err);
    uv_close((uv_handle_t *)&u->limit, closed_cb);
    turn_retry(&b->turn);
    b->reload.held = false;
    if (!b->stopping)
        reload_look(&b->reload);
}

static void refuse_because(struct upgrade *u, enum opd_err_code code, const char *why)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, code, "upgrade: %s", why);
    refuse(u, &err);
}

void upgrade_cancel(struct broker *b, const char *why)
{
    if (b->handover.upgrade)
        refuse_because(b->handover.upgrade, OPD_E_unavailable, why);
}

static void limit_cb(uv_timer_t *timer)
{
    struct upgrade *u = timer->data;
    refuse_because(u, OPD_E_unavailable,
                   u->phase == PHASE_SETTLE
                       ? "edits or checks are compiling for minutes; try again later"
                       : "requests in flight did not end within 30 s; try again later");
}

// --- the last step

static bool same_program(const struct upgrade *u)
{
    struct file_stamp now;
    return file_stamp_read(u->program, &now) && file_stamp_same(&now, &u->stamp);
}

static void keep_open(const struct state_out *state, int state_fd, bool keep)
{
    int flags = keep ? 0 : FD_CLOEXEC;
    const int *fds = (const int *)(const void *)state->fds.bytes;
    for (size_t i = 0; i < state->fds.size / sizeof *fds; i++)
        fcntl(fds[i], F_SETFD, flags);
    fcntl(state_fd, F_SETFD, flags);
}

static void run_program(struct upgrade *u, int state_fd)
{
    char number[16];
    snprintf(number, sizeof number, "%d", state_fd);
    char **args = successor_args(u->broker, u->program, "resume", number);
    execve(u->program, args, environ);
    int why = errno;
    free(args);
    errno = why;
}

// Comes back only where it fails.
static void take_over(struct upgrade *u, const struct state_out *state)
{
    struct opd_err err = { 0 };
    int fd = same_program(u) ? successor_state_fd(&state->bytes, &err) : -1;
    if (fd < 0) {
        if (!err.code)
            opd_err_set(&err, OPD_E_unavailable, "%s has changed meanwhile; try again", u->program);
        refuse(u, &err);
        return;
    }
    log_info("upgrading to %s; nothing was begun for %.1f ms", u->program,
             clock_ms_since(u->broker->handover.held_since));
    keep_open(state, fd, true);
    run_program(u, fd);
    opd_err_errno(&err, OPD_E_invalid_argument, "%s cannot be run", u->program);
    keep_open(state, fd, false);
    close(fd);
    refuse(u, &err);
}

// --- the phases

// Has everything that was begun ended, but for the request that asked for this?
static bool is_quiet(const struct upgrade *u)
{
    const struct broker *b = u->broker;
    if (b->reload.edits || b->n_checks > 0 || b->clients.left)
        return false;
    for (int i = 0; i < b->devices.n; i++)
        if (!device_is_idle(b->devices.at[i]))
            return false;
    for (const struct conn *c = b->clients.first; c; c = c->next)
        if (c->n_flight > (c == u->asked->conn))
            return false;
    return true;
}

// Whoever asked may have gone; it is done all the same.
static struct request *asked_by(const struct upgrade *u)
{
    return u->asked->conn->closed ? NULL : u->asked;
}

static void drain(struct upgrade *u)
{
    u->phase = PHASE_DRAIN;
    u->broker->handover.held = true;
    lane_disarm_all(u->broker);
    uv_timer_start(&u->limit, limit_cb, DRAIN_LIMIT_MS, 0);
}

static void checked(void *data, const struct opd_err *err)
{
    struct upgrade *u = data;
    u->successor = NULL;
    if (err->code) {
        refuse(u, err);
        return;
    }
    if (u->phase == PHASE_TRIAL) {
        u->phase = PHASE_SETTLE;
        uv_timer_start(&u->limit, limit_cb, SETTLE_LIMIT_MS, 0);
        upgrade_poll(u->broker);
        return;
    }
    struct state_out now = { 0 };
    state_write(&now, u->broker, asked_by(u));
    if (state_is_same(&now, &u->checked) && is_quiet(u))
        take_over(u, &now);
    else if (++u->round == ROUNDS)
        refuse_because(u, OPD_E_internal, "the daemon does not come to rest");
    else
        drain(u); // an executor has died, say
    state_out_finish(&now);
}

// Has the program look at the state as it is now. True: it does, and checked() comes.
static bool start_successor(struct upgrade *u, struct opd_err *err)
{
    state_out_finish(&u->checked);
    state_write(&u->checked, u->broker, asked_by(u));
    if (u->phase != PHASE_TRIAL && u->checked.unknown_memory > 0)
        return opd_err_set(err, OPD_E_internal,
                           "device memory is in use that the state knows nothing of");
    u->successor = successor_start(u->broker, u->program, &u->checked.bytes, checked, u, err);
    return u->successor != NULL;
}

static void check(struct upgrade *u)
{
    struct opd_err err = { 0 };
    u->phase = PHASE_CHECK;
    uv_timer_stop(&u->limit);
    pause_all(u->broker, true);
    if (!start_successor(u, &err))
        refuse(u, &err);
}

void upgrade_poll(struct broker *b)
{
    struct upgrade *u = b->handover.upgrade;
    if (u && u->phase == PHASE_SETTLE && !b->reload.edits && b->n_checks == 0) {
        b->handover.held_since = clock_ns();
        drain(u);
    }
    if (!u || u->phase != PHASE_DRAIN || !is_quiet(u))
        return;
    lane_drop_all_calls(b); // with what is theirs alone: scratch
    if (is_quiet(u))
        check(u);
}

// --- the request

static bool read_program(const struct broker *b, const value *options, char *out,
                         struct opd_err *err)
{
    const value *path = value_get(options, "path");
    struct stat st;
    snprintf(out, PATH_MAX, "%s", b->handover.program);
    if (!value_is_nil(path) &&
        (!value_is_text(path) || !value_copy_str(path, out, PATH_MAX) || out[0] != '/'))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "upgrade: the option path is no absolute path");
    if (stat(out, &st) < 0 || access(out, X_OK) < 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "upgrade: %s%s cannot be run", out,
                             value_is_nil(path) ? ", from which this daemon was started," : "");
    if (!S_ISREG(st.st_mode))
        return opd_err_set(err, OPD_E_invalid_argument, "upgrade: %s is no program", out);
    return true;
}

enum request_status request_upgrade(struct request *req, const value *params, struct opd_err *err)
{
    struct broker *b = req->broker;
    char program[PATH_MAX];
    if (b->handover.upgrade)
        return REQUEST_FAIL(err, OPD_E_unavailable, "upgrade: another one is under way");
    if (!read_program(b, value_at(params, 0), program, err))
        return REQUEST_ERROR;
    struct upgrade *u = mem_zalloc(1, sizeof *u);
    *u = (struct upgrade){ .broker = b, .program = mem_strdup(program) };
    file_stamp_read(program, &u->stamp);
    u->asked = request_defer(req);
    uv_timer_init(&b->turn.loop, &u->limit);
    u->limit.data = u;
    b->handover.upgrade = u;
    b->reload.held = true;
    struct opd_err problem = { 0 };
    if (!start_successor(u, &problem))
        refuse(u, &problem);
    return REQUEST_SUBMITTED;
}
