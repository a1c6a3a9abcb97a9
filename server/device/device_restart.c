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
    *w = (struct device_waiter){ .next = d->waiters, .done = done, .data = data };
    d->waiters = w;
    d->restart_wanted = true;
    log_info("device %s is to be restarted", d->name);
    device_try_restart(d);
}

void device_try_restart(struct device *d)
{
    if (!d->restart_wanted || d->stopping)
        return;
    if (d->process_alive && d->state == DEVICE_READY) {
        if (!d->flight)
            device_kill(d, OPD_E_unavailable, "restarted because a client asked for it");
    } else if (!d->process_alive && !d->handles_open && d->n_closing == 0) {
        uv_timer_stop(&d->timer); // it waits after a failure: try now
        device_start_executor(d);
    }
}

void device_end_restart(struct device *d, const struct opd_err *err)
{
    struct device_waiter *w = d->waiters, *next;
    d->waiters = NULL;
    d->restart_wanted = false;
    for (; w; w = next) {
        next = w->next;
        w->done(w->data, err);
        free(w);
    }
}
