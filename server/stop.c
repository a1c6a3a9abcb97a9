#include "roof.h"

#include "base/log.h"
#include "base/systemd.h"
#include "device/device.h"
#include "kernels/pool.h"
#include "request/conn.h"
#include "request/lane.h"
#include "request/listen.h"
#include "request/parts.h"
#include "upgrade/upgrade.h"

// How long a stopping daemon waits for what is in flight, and for clients that do not read replies.
enum { STOP_LIMIT_MS = 30000, STOP_READ_MS = 2000 };

void stop_close_loop(struct broker *b)
{
    uv_close((uv_handle_t *)&roof(b)->prepare, NULL);
    uv_close((uv_handle_t *)&roof(b)->idle, NULL);
    uv_close((uv_handle_t *)&roof(b)->stop_timer, NULL);
    replies_close(b);
    compiling_close(b);
    if (b->stopping && !roof(b)->exit_status)
        keep_over(&b->devices);
    keep_close(&b->devices);
    devices_close(&b->devices);
    turn_hold_signals(true); // one that comes again now would end it before it has tidied up
    for (int i = 0; i < TURN_N_SIGNALS; i++)
        uv_close((uv_handle_t *)&roof(b)->signals[i], NULL);
}

static void pool_stopped(void *broker)
{
    stop_close_loop(broker);
}

static void device_stopped(struct device *d)
{
    struct broker *b = d->all->owner;
    if (--roof(b)->n_stopping == 0)
        pool_stop(b->pool, pool_stopped, b);
}

void stop_go_on(struct broker *b)
{
    if (roof(b)->devices_stopping)
        return;
    struct conn *next;
    for (struct conn *c = b->clients.first; c; c = next) {
        next = c->next;
        bool idle = conn_idle(c) && (!c->lane || lane_is_disarmed(c->lane));
        if (idle || (roof(b)->read_over && c->n_flight == 0 && !c->waiting_since))
            conn_close(c);
    }
    if (b->clients.n > 0 || b->clients.left)
        return;
    roof(b)->devices_stopping = true;
    roof(b)->n_stopping = b->devices.n;
    for (int i = 0; i < b->devices.n; i++)
        device_stop(b->devices.at[i], device_stopped);
    if (b->devices.n == 0)
        pool_stop(b->pool, pool_stopped, b);
}

static void stop_limit_cb(uv_timer_t *timer)
{
    struct broker *b = timer->data;
    log_warn("what was in flight did not end in time; it is ended");
    while (b->clients.first)
        conn_close(b->clients.first);
    for (int i = 0; i < b->devices.n; i++)
        device_kill(b->devices.at[i], OPD_E_unavailable, "the daemon is stopping");
    turn_retry(&b->turn);
}

static void stop_read_cb(uv_timer_t *timer)
{
    struct broker *b = timer->data;
    roof(b)->read_over = true;
    uv_timer_start(&roof(b)->stop_timer, stop_limit_cb, STOP_LIMIT_MS - STOP_READ_MS, 0);
    roof_stay_awake(b); // the next turn comes at once
}

void stop_begin(struct broker *b)
{
    if (b->stopping)
        return;
    log_info("stopping");
    systemd_notify("STOPPING=1");
    b->stopping = true;
    lane_disarm_all(b);
    upgrade_cancel(b, "the daemon is stopping");
    listen_close(b);
    published_end(&b->registry.published);
    reload_stop(&b->reload);
    uv_timer_start(&roof(b)->stop_timer, stop_read_cb, STOP_READ_MS, 0);
    turn_retry(&b->turn);
    roof_stay_awake(b); // the next turn comes at once
}
