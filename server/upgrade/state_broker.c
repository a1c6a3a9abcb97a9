// The part of the state that is the broker's own: where it serves, its counters, what has happened.

#include "upgrade/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mpscan.h"
#include "base/version_page.h"
#include "request/parts.h"
#include "kernels/pool.h"

// The kernel folders are taken from the state, not from the program's place: an upgrade changes the
// program and nothing else.
static void archive_kernels(struct archive *a, struct options *o)
{
    size_t n = archive_open(a, "kernels", (size_t)o->n_kernels, 1, OPTIONS_MAX_FOLDERS);
    for (size_t i = 0; i < n; i++)
        archive_path(a, NULL, &o->kernels[i]);
    while (a->reading && (size_t)o->n_kernels > n)
        free(o->kernels[--o->n_kernels]);
    o->n_kernels = (int)n;
    archive_close(a);
}

// Counts of errors by code; nobody asks for a code that there is no longer.
static void archive_errors(struct archive *a, uint64_t *errors_of)
{
    size_t n = archive_open(a, "errors_of", TURN_MAX_ERRORS, 0, SIZE_MAX);
    for (size_t i = 0; i < n && i < TURN_MAX_ERRORS; i++)
        archive_count(a, NULL, &errors_of[i]);
    archive_close(a);
}

// The page of versions goes on, so that who looks at it notices nothing.
static void archive_page(struct archive *a, struct published *p)
{
    int fd = p->page ? p->fd : -1;
    archive_fd(a, "page_fd", &fd);
    archive_int(a, "n_slots", &p->n_given, 0, VERSION_PAGE_SLOTS - 1);
    if (a->reading && fd >= 0 && !published_resume(p, fd))
        archive_fail(a, "its page of versions is none");
}

// The keeper of named tensors goes on too.
static void archive_keep(struct archive *a, struct devices *all, const char *socket)
{
    int sock = a->reading ? -1 : all->keep.sock, list = a->reading ? -1 : all->keep.kept.fd;
    if (a->reading)
        keep_init(all, socket, a->broker->options.keep);
    if (!archive_has(a, "keeper_fd")) // absent in programs from before there was one
        return;
    archive_fd(a, "keeper_fd", &sock);
    archive_fd(a, "names_fd", &list);
    archive_int(a, "keeper_pid", &all->keep.pid, 0, INT32_MAX);
    if (a->reading && list >= 0 && !keep_resume(all, sock, list))
        archive_fail(a, "its list of named tensors is none");
}

bool state_broker(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    (void)thing;
    if (a->reading && b->handover.count > 0)
        return archive_fail(a, "there are two");
    archive_str(a, "socket", &b->options.socket);
    archive_kernels(a, &b->options);
    archive_fd(a, "listen_fd", &b->listener.fd);
    archive_fd(a, "lock_fd", &b->listener.lock_fd);
    if (archive_has(a, "listen_lent")) // absent in programs from before it could be
        archive_bool(a, "listen_lent", &b->listener.lent);
    archive_count(a, "next_conn_id", &b->clients.last_id);
    archive_count(a, "started_ns", &b->counters.started_ns);
    archive_float(a, "started_time", &b->counters.started_time);
    archive_count(a, "n_requests", &b->counters.requests);
    archive_count(a, "n_errors", &b->turn.n_errors);
    archive_errors(a, b->turn.errors_of);
    if (archive_has(a, "n_traced")) // as "traces" of a connection
        archive_count(a, "n_traced", &b->clients.n_traced);
    archive_count(a, "n_contexts", &b->counters.contexts);
    if (archive_has(a, "n_graphs")) // absent in programs from before there were any
        archive_count(a, "n_graphs", &b->counters.graphs);
    archive_count(a, "n_regions", &b->devices.n_regions);
    archive_count(a, "n_upgrades", &b->handover.count);
    archive_count(a, "held_since", &b->handover.held_since);
    archive_int(a, "next_event", &b->events.next, 1, INT64_MAX);
    archive_count(a, "generation", &b->registry.generation);
    if (archive_has(a, "n_marks")) // absent in programs from before operators could be loaded
        archive_int(a, "n_marks", &b->registry.n_marks, 0, INT32_MAX);
    if (archive_has(a, "page_fd")) // absent in programs from before there was a page
        archive_page(a, &b->registry.published);
    archive_keep(a, &b->devices, b->options.socket ? b->options.socket : "");
    if (!a->reading || !archive_good(a))
        return true;
    b->handover.count++;
    b->reload.sources.n_folders = b->options.n_kernels;
    return b->options.socket || archive_fail(a, "there is no socket");
}

bool state_request_count(struct archive *a, void *thing)
{
    uint64_t *calls = thing, count = calls ? *calls : 0;
    char name[64] = "";
    if (calls)
        snprintf(name, sizeof name, "%s", methods[calls - a->broker->counters.calls].name);
    archive_chars(a, "request", name, sizeof name);
    archive_count(a, "count", &count);
    int method = calls ? -1 : method_find(name, strlen(name));
    if (method >= 0) // one that is no longer there is no longer counted
        a->broker->counters.calls[method] = count;
    return true;
}

// Clients get these bytes as they are.
static bool is_one_object(const struct buf *b)
{
    struct mpscan scan = { 0 };
    return b->size > 0 && mpscan_scan(&scan, b->bytes, b->size, NULL) == MPSCAN_DONE &&
           scan.position == b->size;
}

bool state_event(struct archive *a, void *thing)
{
    struct events *ev = &a->broker->events;
    uint64_t seq = thing ? *(const uint64_t *)thing : 0;
    archive_int(a, "seq", &seq, 1, INT64_MAX);
    struct kept_event *kept = &ev->kept[seq % EVENTS_KEPT];
    if (a->reading && (seq >= ev->next || ev->next - seq > EVENTS_KEPT || kept->packed.size > 0))
        return archive_fail(a, "that is not one of the last events");
    archive_buf(a, "packed", &kept->packed);
    archive_buf(a, "outcome", &kept->outcome);
    return (is_one_object(&kept->packed) &&
            (kept->outcome.size == 0 || is_one_object(&kept->outcome))) ||
           archive_fail(a, "that is no event");
}

bool state_end(struct archive *a, void *thing)
{
    const struct broker *b = a->broker;
    (void)thing;
    a->over = true;
    for (uint64_t seq = events_oldest(&b->events); seq < b->events.next; seq++)
        if (b->events.kept[seq % EVENTS_KEPT].packed.size == 0)
            return archive_fail(a, "an event has not come");
    return (b->options.n_kernels > 0 && b->reload.common && b->devices.n > 0) ||
           archive_fail(a, "there is no broker, common header or device before it");
}

void state_write_broker(struct archive *a)
{
    const struct events *ev = &a->broker->events;
    archive_put(a, RECORD_broker, a->broker);
    for (int i = 0; i < METHOD_COUNT; i++)
        archive_put(a, RECORD_request_count, &a->broker->counters.calls[i]);
    for (uint64_t seq = events_oldest(ev); seq < ev->next; seq++)
        archive_put(a, RECORD_event, &seq);
}

// --- what changes by itself: compilers are asked who they are, a device that starts is measured

bool state_now(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    struct pool_stats stats = { 0 };
    (void)thing;
    if (!a->reading)
        pool_stats(b->pool, &stats);
    archive_count(a, "compiled", &stats.compiled);
    archive_count(a, "cached", &stats.cached);
    archive_count(a, "not_compiled", &stats.failed);
    archive_float(a, "compile_seconds", &stats.seconds);
    archive_count(a, "cache_bytes", &stats.cache_bytes);
    if (a->reading)
        pool_count_on(b->pool, &stats);
    archive_chars(a, "host_compiler", b->host_compiler, sizeof b->host_compiler);
    archive_chars(a, "nvrtc", b->nvrtc, sizeof b->nvrtc);
    size_t n = (size_t)b->devices.n;
    archive_open(a, "devices", n, n, n);
    for (size_t i = 0; i < n; i++) {
        archive_open(a, NULL, 2, 2, 2);
        archive_count(a, NULL, &b->devices.at[i]->info.memory_free);
        archive_count(a, NULL, &b->devices.at[i]->queue.busy_ns);
        archive_close(a);
    }
    archive_close(a);
    return true;
}

// --- children: this process will have them, and nobody else will wait for their end

bool state_child(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    struct orphan child = thing ? *(struct orphan *)thing : (struct orphan){ 0 };
    archive_int(a, "pid", &child.pid, 2, INT32_MAX);
    archive_bool(a, "kill", &child.kill);
    if (!a->reading)
        return true;
    if (b->devices.orphans.n == ORPHANS_MAX)
        return archive_fail(a, "there are too many");
    b->devices.orphans.list[b->devices.orphans.n++] = child;
    return true;
}

void state_write_children(struct archive *a)
{
    struct broker *b = a->broker;
    for (int i = 0; i < b->devices.n; i++)
        for (const struct device_link *l = b->devices.at[i]->links; l; l = l->next)
            if (!l->gone)
                archive_put(a, RECORD_child, &(struct orphan){ l->process.pid, true });
    int pids[POOL_MAX_PIDS];
    int n = pool_pids(b->pool, pids);
    for (int i = 0; i < n; i++) // they see the ends of their sockets
        archive_put(a, RECORD_child, &(struct orphan){ pids[i], false });
    for (int i = 0; i < b->devices.orphans.n; i++) // of the upgrade before
        archive_put(a, RECORD_child, &b->devices.orphans.list[i]);
}
