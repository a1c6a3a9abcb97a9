// The part of the state that is the broker's own: where it serves, its counters, what has happened.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "base/mpscan.h"
#include "kernels/pool.h"
#include "request/request.h"
#include "base/version.h"

static void write_events(struct state_out *out, const struct events *ev)
{
    uint64_t first = ev->next > EVENTS_KEPT ? ev->next - EVENTS_KEPT : 1;
    for (uint64_t seq = first; seq < ev->next; seq++) {
        const struct kept_event *kept = &ev->kept[seq % EVENTS_KEPT];
        state_begin(out, "event", 3);
        pack_key_uint(&out->bytes, "seq", seq);
        state_put_bytes(out, "packed", kept->packed.bytes, kept->packed.size);
        state_put_bytes(out, "outcome", kept->outcome.bytes, kept->outcome.size);
    }
}

void state_write_broker(struct state_out *out, struct broker *b, uint64_t held_since)
{
    struct buf *bytes = &out->bytes;
    state_begin(out, "broker", 18);
    state_put_str(out, "version", OPD_VERSION); // for who looks at it
    state_put_str(out, "socket", b->options.socket);
    pack_str(bytes, "kernels");
    pack_array(bytes, (size_t)b->options.n_kernels);
    for (int i = 0; i < b->options.n_kernels; i++)
        pack_bin(bytes, b->options.kernels[i], strlen(b->options.kernels[i]));
    state_put_fd(out, "listen_fd", b->listen_fd);
    state_put_fd(out, "lock_fd", b->lock_fd);
    pack_key_uint(bytes, "next_conn_id", b->next_conn_id);
    pack_key_uint(bytes, "started_ns", b->started_ns);
    pack_key_float(bytes, "started_time", b->started_time);
    pack_key_uint(bytes, "n_requests", b->n_requests);
    pack_key_uint(bytes, "n_errors", b->turn.n_errors);
    pack_str(bytes, "errors_of");
    pack_array(bytes, TURN_MAX_ERRORS);
    for (int i = 0; i < TURN_MAX_ERRORS; i++)
        pack_uint(bytes, b->turn.errors_of[i]);
    pack_key_uint(bytes, "n_traced", b->n_traced);
    pack_key_uint(bytes, "n_contexts", b->n_contexts);
    pack_key_uint(bytes, "n_regions", b->devices.n_regions);
    pack_key_uint(bytes, "n_upgrades", b->n_upgrades);
    pack_key_uint(bytes, "held_since", held_since);
    pack_key_uint(bytes, "next_event", b->events.next);
    pack_key_uint(bytes, "generation", b->registry.generation);
    for (int i = 0; i < n_request_rows; i++) {
        state_begin(out, "count", 2);
        state_put_str(out, "request", request_rows[i].name);
        pack_key_uint(bytes, "count", request_rows[i].count);
    }
    write_events(out, &b->events);
}

// They are taken from the state, not from the program's place: an upgrade changes the program and
// nothing else.
static void read_kernels(struct state_in *in)
{
    struct options *o = &in->broker->options;
    const value *list = state_get(in, "kernels");
    size_t n = value_count(list);
    if (n == 0 || n > OPTIONS_MAX_FOLDERS) {
        state_fail(in, "there is no folder of kernels, or too many");
        return;
    }
    while (o->n_kernels > 0)
        free(o->kernels[--o->n_kernels]);
    for (size_t i = 0; i < n; i++) {
        const value *v = value_at(list, i);
        size_t size = 0;
        const char *path = v && value_type(v) == VALUE_BIN ? value_bytes(v, &size) : "";
        if (path[0] != '/' || memchr(path, '\0', size)) {
            state_fail(in, "a folder of kernels has no absolute path");
            return;
        }
        o->kernels[o->n_kernels++] = mem_strndup(path, size);
    }
}

static void read_errors(struct state_in *in)
{
    const value *list = state_get(in, "errors_of");
    size_t n = value_count(list); // of codes that there are no longer nobody asks
    for (size_t i = 0; i < n && i < TURN_MAX_ERRORS; i++)
        in->broker->turn.errors_of[i] = (uint64_t)state_int_of(in, value_at(list, i), 0, INT64_MAX);
}

bool state_read_broker(struct state_in *in)
{
    struct broker *b = in->broker;
    char *socket = state_str(in, "socket");
    if (socket && b->reload.common_path == NULL) {
        free(b->options.socket);
        b->options.socket = socket;
    } else {
        free(socket);
        return state_fail(in, "there is no socket, or two of this record");
    }
    read_kernels(in);
    if (!state_good(in))
        return false;
    b->reload.common_path = mem_printf("%s/opd.cuh", b->options.kernels[0]);
    b->listen_fd = state_fd(in, "listen_fd");
    b->lock_fd = state_fd(in, "lock_fd");
    b->next_conn_id = state_uint(in, "next_conn_id");
    b->started_ns = state_uint(in, "started_ns");
    b->started_time = state_float(in, "started_time");
    b->n_requests = state_uint(in, "n_requests");
    b->turn.n_errors = state_uint(in, "n_errors");
    read_errors(in);
    if (state_get(in, "n_traced")) // as "traces" of a connection
        b->n_traced = state_uint(in, "n_traced");
    b->n_contexts = state_uint(in, "n_contexts");
    b->devices.n_regions = state_uint(in, "n_regions");
    b->n_upgrades = state_uint(in, "n_upgrades") + 1;
    b->held_since = state_uint(in, "held_since");
    b->events.next = (uint64_t)state_int(in, "next_event", 1, INT64_MAX);
    b->registry.generation = state_uint(in, "generation");
    return true;
}

bool state_read_count(struct state_in *in)
{
    size_t size;
    const char *name = state_bytes(in, "request", &size);
    struct request_row *row = request_find(name, size);
    uint64_t count = state_uint(in, "count");
    if (row && !in->check) // one that is no longer there is no longer counted
        row->count = count;
    return true;
}

// Clients get these bytes as they are.
static bool is_one_object(const void *bytes, size_t size)
{
    struct mpscan scan = { 0 };
    return size > 0 && mpscan_scan(&scan, bytes, size, NULL) == MPSCAN_DONE &&
           scan.position == size;
}

bool state_read_event(struct state_in *in)
{
    struct events *ev = &in->broker->events;
    uint64_t seq = (uint64_t)state_int(in, "seq", 1, INT64_MAX);
    size_t packed_size, outcome_size;
    const void *packed = state_bytes(in, "packed", &packed_size);
    const void *outcome = state_bytes(in, "outcome", &outcome_size);
    struct kept_event *kept = &ev->kept[seq % EVENTS_KEPT];
    if (seq >= ev->next || ev->next - seq > EVENTS_KEPT || kept->packed.size > 0 ||
        !is_one_object(packed, packed_size) ||
        (outcome_size > 0 && !is_one_object(outcome, outcome_size)))
        return state_fail(in, "that is no event, or not one of the last");
    buf_append(&kept->packed, packed, packed_size);
    buf_append(&kept->outcome, outcome, outcome_size);
    return true;
}

// --- what changes by itself: compilers are asked who they are, a device that starts is measured

void state_write_now(struct state_out *out, struct broker *b)
{
    struct buf *bytes = &out->bytes;
    struct pool_stats stats;
    pool_stats(b->pool, &stats);
    state_begin(out, "now", 8);
    pack_key_uint(bytes, "compiled", stats.compiled);
    pack_key_uint(bytes, "cached", stats.cached);
    pack_key_uint(bytes, "not_compiled", stats.failed);
    pack_key_float(bytes, "compile_seconds", stats.seconds);
    pack_key_uint(bytes, "cache_bytes", stats.cache_bytes);
    state_put_str(out, "host_compiler", b->host_compiler);
    state_put_str(out, "nvrtc", b->nvrtc);
    pack_str(bytes, "devices");
    pack_array(bytes, (size_t)b->devices.n);
    for (int i = 0; i < b->devices.n; i++) {
        pack_array(bytes, 2);
        pack_uint(bytes, b->devices.at[i]->info.memory_free);
        pack_uint(bytes, b->devices.at[i]->busy_ns);
    }
}

bool state_read_now(struct state_in *in)
{
    struct broker *b = in->broker;
    struct pool_stats stats = { .compiled = state_uint(in, "compiled"),
                                .cached = state_uint(in, "cached"),
                                .failed = state_uint(in, "not_compiled"),
                                .seconds = state_float(in, "compile_seconds"),
                                .cache_bytes = state_uint(in, "cache_bytes") };
    pool_count_on(b->pool, &stats);
    state_copy_str(in, "host_compiler", b->host_compiler, sizeof b->host_compiler);
    state_copy_str(in, "nvrtc", b->nvrtc, sizeof b->nvrtc);
    const value *list = state_get(in, "devices");
    for (int i = 0; i < b->devices.n; i++) {
        const value *pair = value_at(list, (size_t)i);
        struct device *d = b->devices.at[i];
        d->info.memory_free = (uint64_t)state_int_of(in, value_at(pair, 0), 0, INT64_MAX);
        d->busy_ns = (uint64_t)state_int_of(in, value_at(pair, 1), 0, INT64_MAX);
    }
    return true;
}

// --- children: this process will have them, and nobody else will wait for their end

static void write_child(struct state_out *out, int pid, bool kill)
{
    state_begin(out, "child", 2);
    pack_key_int(&out->bytes, "pid", pid);
    pack_key_bool(&out->bytes, "kill", kill);
}

void state_write_children(struct state_out *out, struct broker *b)
{
    for (int i = 0; i < b->devices.n; i++)
        if (b->devices.at[i]->process_alive)
            write_child(out, b->devices.at[i]->process.pid, true);
    int pids[OPTIONS_MAX_COMPILERS];
    int n = pool_pids(b->pool, pids, OPTIONS_MAX_COMPILERS);
    for (int i = 0; i < n; i++)
        write_child(out, pids[i], false);          // it sees the end of its socket
    for (int i = 0; i < b->devices.orphans.n; i++) // of the upgrade before
        write_child(out, b->devices.orphans.list[i].pid, b->devices.orphans.list[i].kill);
}

bool state_read_child(struct state_in *in)
{
    struct broker *b = in->broker;
    int64_t pid = state_int(in, "pid", 2, INT32_MAX);
    bool kill = state_bool(in, "kill");
    if (b->devices.orphans.n == ORPHANS_MAX)
        return state_fail(in, "there are too many");
    b->devices.orphans.list[b->devices.orphans.n++] = (struct orphan){ (int)pid, kill };
    return true;
}
