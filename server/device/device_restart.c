// A device's executor is replaced because a client wants it so.

#include <stdlib.h>

#include "device/device.h"
#include "base/log.h"

struct device_waiter {
    struct device_waiter *next;
    void (*done)(void *data, const struct opd_err *err);
    void *data;
};

void device_restart(struct device *d, void (*done)(void *data, const struct opd_err *err),
                    void *data)
{
    struct device_waiter *w = mem_alloc(sizeof *w);
    *w = (struct device_waiter){ .next = d->restart.waiters, .done = done, .data = data };
    d->restart.waiters = w;
    d->restart.wanted = true;
    log_info("device %s is to be restarted", d->name);
    device_try_restart(d);
}

void device_try_restart(struct device *d)
{
    if (!d->restart.wanted || d->stopping)
        return;
    device_end_spare(d); // it is as old as the other
    if (!d->link)
        device_next_executor(d); // it waits after a failure: try now
    else if (d->link->alive && d->link->ready && !d->link->flight)
        device_kill(d, OPD_E_unavailable, "restarted because a client asked for it");
}

void device_end_restart(struct device *d, const struct opd_err *err)
{
    struct device_waiter *w = d->restart.waiters, *next;
    d->restart.waiters = NULL;
    d->restart.wanted = false;
    for (; w; w = next) {
        next = w->next;
        w->done(w->data, err);
        free(w);
    }
}
