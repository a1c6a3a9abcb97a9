// The successor's side of an upgrade: takes the state over and goes on. upgrade.h tells the rest.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.h"
#include "base/clock.h"
#include "request/conn.h"
#include "request/parts.h"
#include "device/device.h"
#include "request/listen.h"
#include "base/log.h"
#include "device/orphans.h"
#include "upgrade/state.h"
#include "wire/trust.h"
#include "upgrade/upgrade.h"
#include "base/version.h"

// --- the state

static bool take_state(struct broker *b, int state_fd, bool check, struct opd_err *err)
{
    struct stat st = { 0 };
    if (!trust_init(b->options.group, err))
        return false;
    fstat(state_fd, &st);
    size_t size = S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, state_fd, 0);
    if (bytes == MAP_FAILED)
        return opd_err_set(err, OPD_E_invalid_argument, "descriptor %d holds no state", state_fd);
    bool ok = state_read(b, bytes, size, check, err);
    munmap(bytes, size);
    return ok;
}

int upgrade_check_state(const struct options *options, int state_fd)
{
    struct opd_err err = { 0 };
    struct broker *b = broker_new(options);
    bool ok = take_state(b, state_fd, true, &err);
    if (ok)
        printf("ok %d %s\n", STATE_FORMAT, OPD_VERSION);
    else
        printf("%s\n", err.msg);
    broker_discard(b);
    opd_err_clear(&err);
    return ok ? 0 : 1;
}

static void go_on(struct broker *b)
{
    orphans_start(&b->devices.orphans);
    for (int i = 0; i < b->devices.n; i++)
        device_resume(b->devices.at[i]);
    struct event event = { .kind = "upgraded",
                           .ms = (double)(clock_ns() - b->handover.held_since) / 1e6 };
    events_add(b, &event);
    for (struct conn *c = b->clients.first; c; c = c->next)
        conn_start(c);
    broker_serve(b);
    log_info("opd %s goes on: upgrade %llu, %d connections, nothing was begun for %.1f ms",
             OPD_VERSION, (unsigned long long)b->handover.count, b->clients.n, event.ms);
}

int upgrade_resume(const struct options *options, const char *program, char **args, int state_fd)
{
    struct opd_err err = { 0 };
    struct broker *b = broker_new(options);
    b->handover.program = program;
    b->handover.args = args;
    if (!take_state(b, state_fd, false, &err)) {
        // The program said that it could: nothing is left to go back to.
        log_error("the state of the program before is lost: %s", err.msg);
        fprintf(stderr, "opd: %s\n", err.msg);
        return 1;
    }
    close(state_fd);
    turn_hold_signals(false);
    go_on(b);
    return broker_run(b);
}
