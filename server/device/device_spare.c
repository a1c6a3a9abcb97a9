// The executor that is started before the one that serves fails. What may end a process is tried in
// it: the others see nothing of that.

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "device/device_queue.h"
#include "device/devices.h"

// What waits when a spare is promoted goes before the next one's start. One that does not live is
// tried again later and later; one that has lived has nothing against it.
enum { SPARE_AFTER_MS = 20, SPARE_LATEST = 12, LIVED_NS = 1000000000 };

// A spare may take the hundredth part of what the device has, or may have.
enum { SPARE_PART = 100 };

static bool fits(const struct device *d)
{
    uint64_t limit = device_memory_limit(d), total = d->info.memory_total;
    uint64_t least = limit < total ? limit : total;
    return d->info.context_size < least / SPARE_PART;
}

static bool is_wanted(const struct device *d)
{
    return d->all->spare && !d->stopping && !d->restart.wanted && d->state == DEVICE_READY &&
           !d->spare.link && fits(d);
}

static void send_trials(struct device *d)
{
    while (d->spare.trials && d->spare.link) {
        struct command *c = d->spare.trials;
        if (!(d->spare.trials = c->next))
            d->spare.trials_end = &d->spare.trials;
        d->spare.link->tries = true;
        device_prepare(d->spare.link, c);
    }
}

void device_spare_said_hello(struct device *d)
{
    send_trials(d);
    if (fits(d) || d->spare.n_trials > 0)
        return;
    log_info("device %s: its spare takes %" PRIu64 " MiB, more than a hundredth of the memory",
             d->name, d->info.context_size >> 20);
    device_end_spare(d);
}

static void start_cb(uv_timer_t *timer)
{
    struct device *d = timer->data;
    if (is_wanted(d))
        d->spare.link = device_link_start(d, true);
}

// Where nothing has run there is nothing to go on with.
void device_want_spare(struct device *d)
{
    int n = d->spare.n_failures;
    if (is_wanted(d) && d->link->worked && !uv_is_active((uv_handle_t *)&d->spare.timer))
        uv_timer_start(&d->spare.timer, start_cb,
                       (uint64_t)SPARE_AFTER_MS << (n < SPARE_LATEST ? n : SPARE_LATEST), 0);
}

struct device_link *device_ready_spare(const struct device *d)
{
    struct device_link *link = d->spare.link;
    return link && link->alive && link->ready ? link : NULL;
}

static void fail_trials(struct device *d)
{
    struct opd_err err = { .code = OPD_E_unavailable, .msg = "there is no process to try it in" };
    device_fail_all(d, device_take_all(&d->spare.trials, &d->spare.trials_end), &err);
}

void device_lost_spare(struct device *d, const struct device_link *link)
{
    if (link != d->spare.link)
        return; // it was told to end
    bool lived = link->tries || (link->ready && clock_ns() - link->started >= LIVED_NS);
    d->spare.link = NULL;
    d->spare.n_failures = lived ? 0 : d->spare.n_failures + 1;
    if (link->tries)
        log_info("device %s: its spare, in what was tried there: %s", d->name, link->exit.reason);
    else
        log_warn("device %s: its spare: %s", d->name, link->exit.reason);
    fail_trials(d);
    device_want_spare(d);
}

void device_end_spare(struct device *d)
{
    struct device_link *link = d->spare.link;
    d->spare.link = NULL;
    if (link)
        device_link_kill(link, OPD_E_unavailable, "it is not wanted any more");
    fail_trials(d);
}

void device_try(struct device *d, struct command *c)
{
    d->spare.n_trials++;
    c->trial = c->prepares = true;
    device_push(c, &d->spare.trials_end);
    if (device_ready_spare(d))
        send_trials(d);
    else if (!d->spare.link)
        d->spare.link = device_link_start(d, true);
}

void device_end_trials(struct device *d)
{
    fail_trials(d);
    if (d->spare.n_trials > 0 && d->spare.link)
        device_link_kill(d->spare.link, OPD_E_unavailable, "what was tried there took too long");
}

// Of one that was started for it nothing is to stay.
void device_trial_ended(struct device *d)
{
    if (--d->spare.n_trials == 0 && d->spare.link && (!d->all->spare || !fits(d)))
        device_end_spare(d);
}

const char *device_spare_state(const struct device *d)
{
    return !d->spare.link ? "none" : d->spare.link->ready ? "ready" : "starting";
}

uint64_t device_spare_memory(const struct device *d)
{
    const struct device_link *link = d->spare.link;
    return !link ? 0 : link->ready ? link->memory : d->info.context_size;
}
