// The executor that is started before the one that serves fails.

#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
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

void device_spare_said_hello(struct device *d)
{
    if (fits(d))
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

void device_lost_spare(struct device *d, const struct device_link *link)
{
    if (link != d->spare.link)
        return; // it was told to end
    bool lived = link->ready && clock_ns() - link->started >= LIVED_NS;
    d->spare.link = NULL;
    d->spare.n_failures = lived ? 0 : d->spare.n_failures + 1;
    log_warn("device %s: its spare: %s", d->name, link->exit.reason);
    device_want_spare(d);
}

void device_end_spare(struct device *d)
{
    struct device_link *link = d->spare.link;
    d->spare.link = NULL;
    if (link)
        device_link_kill(link, OPD_E_unavailable, "it is not wanted any more");
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
