#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/device_queue.h"
#include "device/devices.h"
#include "base/log.h"
#include "op/plan.h"

struct device *device_new(struct devices *all, const char *name, int index)
{
    struct device *d = mem_zalloc(1, sizeof *d);
    *d = (struct device){
        .all = all,
        .is_cpu = strcmp(name, "cpu") == 0,
    };
    snprintf(d->name, sizeof d->name, "%s", name);
    d->space = (struct space){ .ops = &device_space_ops,
                               .device = d,
                               .name = d->name,
                               .index = index,
                               .paged = d->is_cpu,
                               .client_limit = all->client_memory,
                               .holders = &all->holders };
    d->queue.pending_end = &d->queue.pending;
    d->spare.trials_end = &d->spare.trials;
    uv_timer_init(&all->turn->loop, &d->timer);
    uv_timer_init(&all->turn->loop, &d->spare.timer);
    d->timer.data = d->spare.timer.data = d;
    return d;
}

const char *device_state_name(enum device_state state)
{
    static const char *const names[] = { "starting", "ready", "restarting", "failed" };
    return names[state];
}

void device_set_unavailable(const struct device *d, struct opd_err *err)
{
    opd_err_set(err, OPD_E_unavailable, "device %s does not work: %.900s", d->name, d->message);
}

// Of CUDA 12.1 drivers take them, and GPUs from Volta on.
static bool takes_long_args(const struct device *d)
{
    return d->is_cpu || (d->all->long_args && d->info.driver_version >= 12010 &&
                         atoi(d->info.target + strlen("sm_")) >= 70);
}

void device_fill_plan_request(const struct device *d, struct plan_request *request)
{
    request->on_cpu = d->is_cpu;
    request->long_args = takes_long_args(d);
    request->blas = d->info.blas[0] != '\0';
}

void device_link_take_done(struct device_link *link)
{
    struct device *d = link->device;
    if (device_take_done(link))
        device_link_leave(link);
    device_pump(d);
    device_try_restart(d);
    turn_retry(d->all->turn);
}

void device_look(struct device *d)
{
    uint32_t size;
    bool bad;
    struct device_link *link = d->link;
    if (link && link->alive && !link->broken && ring_peek(&link->done, &size, &bad))
        device_link_take_done(link);
}

static double deadline_of(const struct device *d, const struct command *c)
{
    return c->deadline > 0 ? c->deadline : d->all->deadline;
}

// What clients begin by their lanes wakes nobody as long as this looks at it: see devwire.h.
static void look_at_lanes(struct device *d)
{
    struct device_link *link = d->link;
    if (!link || !link->lanes || !atomic_load(&link->lanes->watched))
        return;
    device_look(d);
    if (d->link != link || !link->lanes || link->flight)
        return;
    atomic_store(&link->lanes->watched, 0);
    device_look(d);
}

static void deadline_cb(uv_timer_t *timer)
{
    struct device *d = timer->data;
    look_at_lanes(d);
    const struct command *c = d->link ? d->link->flight : NULL;
    if (!c && d->state == DEVICE_READY)
        d->all->hooks->rests(d);
    if (!c || d->state != DEVICE_READY)
        return; // the next command is watched when it runs
    if (clock_ns() < d->queue.due) {
        device_watch_deadline(d);
        return;
    }
    char reason[128];
    snprintf(reason, sizeof reason, "ran longer than its deadline of %g s and was ended",
             deadline_of(d, c));
    d->queue.expired_seq = d->link->oldest;
    device_kill(d, OPD_E_deadline_exceeded, reason);
}

// The timer is seldom set: it looks a second ahead at most, and what has ended leaves it as it is,
// unless the next one is due before. After the last one it ends by itself.
void device_watch_deadline(struct device *d)
{
    const uint64_t ms = 1000000, second = 1000 * ms;
    double limit = deadline_of(d, d->link->flight);
    d->queue.due = d->queue.head_since + (uint64_t)(limit < 1e9 ? limit * 1e9 : 1e18);
    if (uv_is_active((uv_handle_t *)&d->timer) && d->queue.due >= d->queue.timer_due)
        return;
    uint64_t now = clock_ns(), left = d->queue.due > now ? d->queue.due - now : 0;
    left = left < second ? left : second;
    d->queue.timer_due = now + left;
    uv_update_time(&d->all->turn->loop);
    uv_timer_start(&d->timer, deadline_cb, left / ms + 1, 0);
}

void device_kill(struct device *d, enum opd_err_code code, const char *reason)
{
    if (d->link)
        device_link_kill(d->link, code, reason);
}

// --- the next one

// What a fresh executor must know: the memory, then the kernels.
static void restore(struct device *d, struct device_link *link)
{
    for (uint32_t i = 0; i < d->regions.n; i++)
        if (d->regions.list[i].used && d->regions.list[i].ready)
            device_map_region(link, i);
    d->all->hooks->restored(d, link);
}

// The one that is ready serves from now on.
static void serve(struct device *d)
{
    struct device_link *link = d->link;
    bool first = d->state == DEVICE_STARTING;
    d->state = DEVICE_READY;
    keep_executor(d);
    if (link->flight) {
        d->queue.head_since = clock_ns();
        device_watch_deadline(d);
    }
    log_info("device %s is ready: %s, %s", d->name, d->info.name, d->info.target);
    if (first)
        d->all->hooks->ready(d);
    device_end_restart(d, &(struct opd_err){ 0 });
    device_want_spare(d);
    device_pump(d);
    turn_retry(d->all->turn);
}

void device_link_said_hello(struct device_link *link, const struct dev_hello *hello)
{
    struct device *d = link->device;
    if (d->info.uuid[0] && strcmp(d->info.uuid, hello->info.uuid) != 0) {
        device_link_kill(link, OPD_E_unavailable,
                         "it is another GPU than the one that has its tensors");
        return;
    }
    struct backend_info info = hello->info;
    if (d->blas_known) // the executor has not looked again
        memcpy(info.blas, d->info.blas, sizeof info.blas);
    d->info = info;
    d->info.blas[sizeof d->info.blas - 1] = '\0';
    d->blas_known = true;
    link->ready = true;
    link->memory = info.context_size;
    uv_timer_stop(&link->timer);
    restore(d, link); // what a daemon before has left, if it is the first
    if (link == d->link) {
        serve(d);
        return;
    }
    device_spare_said_hello(d);
    device_pump(d);
}

void device_next_executor(struct device *d)
{
    uv_timer_stop(&d->timer);
    if (d->state == DEVICE_FAILED)
        d->state = DEVICE_RESTARTING;
    d->queue.expired_seq = 0;
    if (!d->spare.link || d->spare.n_trials > 0) {
        d->link = device_link_start(d, false);
        return;
    }
    d->link = d->spare.link;
    d->spare.link = NULL;
    for (struct command *c = d->link->flight; c; c = c->next)
        c->aside = false;
    for (struct command *c = d->link->pending; c; c = c->next)
        c->aside = false;
    device_prepare(d->link, command_new(DEV_SERVE, 0, 0));
    if (d->link->ready)
        serve(d);
}

static void restart_cb(uv_timer_t *timer)
{
    struct device *d = timer->data;
    if (!d->link)
        device_next_executor(d);
}

static void replace(struct device *d, struct device_link *dead)
{
    bool ran = d->state == DEVICE_READY;
    snprintf(d->message, sizeof d->message, "%s", d->exit.reason);
    // One that dies before it has done anything may do so for ever: each waits longer.
    bool good = ran && (dead->worked || d->restart.wanted);
    d->restart.n_failures = good ? 0 : d->restart.n_failures + 1;
    d->restart.count += ran;
    bool hopeless = !good && (d->state == DEVICE_STARTING || d->restart.n_failures >= 3);
    bool never_started = d->state == DEVICE_STARTING;
    d->state = hopeless ? DEVICE_FAILED : DEVICE_RESTARTING;
    if (never_started) {
        d->all->hooks->failed(d); // who knows whether it must be there tells of it
        return;
    }
    log_warn("device %s: %s", d->name, d->message);
    struct opd_err why = { .code = d->exit.code };
    snprintf(why.msg, sizeof why.msg, "%s: %.900s", d->name, d->message);
    d->all->hooks->died(d, &why);
    device_settle_flight(d, dead);
    if (hopeless) {
        struct opd_err err = { 0 };
        device_set_unavailable(d, &err);
        device_fail_all(d, device_take_all(&d->queue.pending, &d->queue.pending_end), &err);
        device_end_restart(d, &err);
    }
    turn_retry(d->all->turn);
    int n = d->restart.n_failures;
    if (n > 0)
        uv_timer_start(&d->timer, restart_cb, 100u << (n < 6 ? n : 6), 0);
    else if (!d->link)
        device_next_executor(d);
}

// What was for that one alone.
static void drop_commands(struct device *d, struct device_link *link)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unavailable, "%s: %.900s", d->name, link->exit.reason);
    device_fail_all(d, device_take_all(&link->flight, &link->flight_end), &err);
    device_fail_all(d, device_take_all(&link->pending, &link->pending_end), &err);
}

static void note_writes(struct device *d, struct device_link *link)
{
    if (link->gone || link->quiet)
        return;
    link->writes = true;
    d->n_writing++;
    device_note_left(link);
}

static void go_on_without(struct device *d, struct device_link *link)
{
    uv_timer_stop(&d->timer);
    if (link->flight)
        device_count_busy(d, clock_ns());
    d->link = NULL;
    d->exit = link->exit;
    note_writes(d, link);
    if (d->stopping)
        device_put_back(d, device_take_all(&link->flight, &link->flight_end));
    else
        replace(d, link);
}

bool device_link_is_over(struct device_link *link)
{
    struct device *d = link->device;
    bool served = link == d->link;
    if (served)
        device_take_rest(link);
    if (served && !link->gone && !link->quiet && !device_may_leave(link))
        return false;
    if (served) {
        go_on_without(d, link);
    } else {
        if (link->tries)
            note_writes(d, link);
        device_lost_spare(d, link);
    }
    drop_commands(d, link);
    return true;
}

static void close_when_ended(struct device *d);

void device_link_is_gone(struct device_link *link)
{
    struct device *d = link->device;
    struct device_link **at = &d->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    if (link->writes && --d->n_writing == 0) {
        device_left_clear(d);
        device_release_held(d);
        device_pump(d);
        turn_retry(d->all->turn);
    }
    close_when_ended(d);
}

// --- its life

void device_start(struct device *d)
{
    d->state = DEVICE_STARTING;
    device_next_executor(d);
}

void device_resume(struct device *d)
{
    d->state = DEVICE_RESTARTING;
    device_next_executor(d);
}

bool device_is_idle(const struct device *d)
{
    return d->queue.n == 0 && d->n_writing == 0;
}

static void timer_closed_cb(uv_handle_t *handle)
{
    struct device *d = handle->data;
    if (handle == (uv_handle_t *)&d->timer)
        uv_close((uv_handle_t *)&d->spare.timer, timer_closed_cb);
    else if (d->stopped)
        d->stopped(d);
}

void device_discard(struct device *d)
{
    uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
}

static void close_when_ended(struct device *d)
{
    bool closing = uv_is_closing((uv_handle_t *)&d->timer);
    if (d->stopping && !d->links && !closing)
        device_discard(d);
}

void device_stop(struct device *d, void (*stopped)(struct device *d))
{
    d->stopped = stopped;
    d->stopping = true;
    struct opd_err err = { .code = OPD_E_unavailable, .msg = "the daemon is stopping" };
    device_end_restart(d, &err);
    device_end_spare(d);
    if (d->link && d->link->alive && d->state == DEVICE_READY)
        device_submit(d, command_new(DEV_STOP, 0, 0));
    else if (d->link)
        device_kill(d, OPD_E_unavailable, "the daemon is stopping");
    else
        close_when_ended(d);
}

void device_fail_rest(struct device *d)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unavailable, "the daemon is stopping");
    while (d->queue.pending) // who is told may have more to do: what is not loaded goes
        device_fail_all(d, device_take_all(&d->queue.pending, &d->queue.pending_end), &err);
}

void device_free(struct device *d)
{
    if (!d)
        return;
    device_fail_rest(d);
    for (uint32_t i = 0; i < d->regions.n; i++)
        if (d->regions.list[i].used && d->regions.list[i].fd >= 0)
            close(d->regions.list[i].fd);
    free(d->regions.list);
    device_free_spare(d);
    suballoc_finish(&d->space.map);
    staging_finish(&d->staging);
    free(d);
}
