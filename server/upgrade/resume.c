// The successor's side of an upgrade: takes the state over and goes on. upgrade.h tells the rest.

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "request/conn.h"
#include "request/parts.h"
#include "device/device.h"
#include "base/log.h"
#include "device/orphans.h"
#include "upgrade/recover.h"
#include "upgrade/state.h"
#include "wire/trust.h"
#include "upgrade/upgrade.h"
#include "base/version.h"

bool upgrade_take_state(struct broker *b, int state_fd, bool check, struct opd_err *err)
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

void upgrade_go_on(struct broker *b)
{
    turn_hold_signals(false);
    recover_claim(b);
    keep_begin(&b->devices);
    recover_add(b);
    orphans_start(&b->devices.orphans);
    for (int i = 0; i < b->devices.n; i++)
        device_resume(b->devices.at[i]);
    double ms = clock_ms_since(b->handover.held_since);
    events_add(&b->events, &(struct event){ .kind = "upgraded", .ms = ms });
    for (struct conn *c = b->clients.first; c; c = c->next)
        conn_start(c);
    log_info("opd %s goes on: upgrade %llu, %d connections, nothing was begun for %.1f ms",
             OPD_VERSION, (unsigned long long)b->handover.count, b->clients.n, ms);
}
