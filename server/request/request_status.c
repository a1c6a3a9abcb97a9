// Requests about the daemon itself: who it is, what it can do, how it does, and its end.

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/clock.h"
#include "base/mpscan.h"
#include "kernels/pool.h"
#include "request/request.h"
#include "base/version.h"

#define REQUEST(name, since, params, result, doc)
#include "../../protocol/protocol.def"
#undef REQUEST

void request_pack_device(struct buf *out, struct device *d)
{
    size_t map = pack_map_begin(out);
    pack_key_str(out, "name", d->name);
    pack_key_str(out, "model", d->info.name);
    pack_key_str(out, "uuid", d->info.uuid);
    pack_key_str(out, "target", d->info.target);
    pack_key_str(out, "blas", d->info.blas);
    pack_key_str(out, "state", device_state_name(d->state));
    pack_key_str(out, "message", d->state == DEVICE_READY ? "" : d->message);
    pack_key_uint(out, "memory_total", d->info.memory_total);
    pack_key_uint(out, "memory_used", d->space.map.used);
    pack_key_uint(out, "memory_named", d->space.named_bytes);
    pack_key_uint(out, "memory_reserved", d->space.map.reserved);
    pack_key_uint(out, "memory_limit", device_memory_limit(d));
    pack_key_int(out, "tensors", d->space.n_tensors);
    pack_key_str(out, "spare", device_spare_state(d));
    pack_key_uint(out, "spare_memory", device_spare_memory(d));
    pack_key_int(out, "restarts", d->restart.count);
    pack_key_int(out, "reruns", d->queue.n_reruns);
    pack_key_int(out, "queued", d->queue.n);
    pack_key_float(out, "copy", device_copy_speed(d));
    pack_key_float(out, "busy", (double)device_busy_ns(d) / 1e9);
    pack_map_end(out, map);
}

static void pack_devices(struct buf *out, const struct broker *b)
{
    pack_key_array(out, "devices", (size_t)b->devices.n);
    for (int i = 0; i < b->devices.n; i++)
        request_pack_device(out, b->devices.at[i]);
}

static void pack_methods(struct buf *out)
{
    pack_str(out, "methods");
    pack_map(out, (size_t)METHOD_COUNT);
    for (int i = 0; i < METHOD_COUNT; i++) {
        pack_str(out, methods[i].name);
        size_t map = pack_map_begin(out);
        pack_key_str(out, "params", methods[i].params);
        pack_key_str(out, "result", methods[i].result);
        pack_key_str(out, "doc", methods[i].doc);
        pack_map_end(out, map);
    }
}

static void pack_limits(struct buf *out, const struct options *o)
{
    struct rlimit fds = { 0 };
    getrlimit(RLIMIT_NOFILE, &fds);
    size_t map = pack_key_map_begin(out, "limits");
    pack_key_uint(out, "max_message", o->max_message);
    pack_key_int(out, "max_depth", MPSCAN_DEFAULT_DEPTH);
    pack_key_int(out, "max_rank", OP_MAX_RANK);
    pack_key_int(out, "max_launches", o->max_launches);
    pack_key_int(out, "connections", o->max_connections);
    pack_key_int(out, "client_requests", o->client_requests);
    pack_key_uint(out, "client_memory", o->client_memory);
    pack_key_uint(out, "memory", o->memory_limit);
    pack_key_float(out, "deadline", o->deadline);
    pack_key_int(out, "descriptors_waiting", STREAM_MAX_FDS);
    pack_key_uint(out, "descriptors", fds.rlim_cur);
    pack_map_end(out, map);
}

// nil: no tensor has a name, or nothing is kept.
static void pack_keeper(struct buf *out, const struct keep *k)
{
    pack_str(out, "keeper");
    if (k->sock < 0) {
        pack_nil(out);
        return;
    }
    size_t map = pack_map_begin(out);
    pack_key_int(out, "pid", k->pid);
    pack_key_float(out, "seconds", k->seconds);
    pack_key_uint(out, "tensors", k->kept.n);
    pack_key_uint(out, "bytes", k->kept.bytes);
    pack_map_end(out, map);
}

// The operators that a client runs in its own process.
static void pack_exported(struct buf *out, const struct broker *b, const struct conn *c)
{
    pack_key_array(out, "in_process", c->exported.count);
    for (size_t i = 0; i < b->registry.n_operators && c->exported.count > 0; i++)
        if (map_get(&c->exported, b->registry.operators[i]->slot))
            pack_str(out, b->registry.operators[i]->name);
}

// The operators that it has loaded.
static void pack_loaded(struct buf *out, const struct broker *b, const struct conn *c)
{
    pack_str(out, "loaded");
    size_t n = 0, list = pack_array_begin(out);
    for (size_t i = 0; b->registry.n_loaded > 0 && i < b->registry.n_operators; i++)
        if (b->registry.operators[i]->owner == c->id) {
            pack_str(out, b->registry.operators[i]->name);
            n++;
        }
    pack_array_end(out, list, n);
}

static void pack_client(struct buf *out, const struct broker *b, const struct conn *c)
{
    size_t map = pack_map_begin(out);
    pack_key_str(out, "client", c->holder->client);
    pack_key_int(out, "pid", c->holder->pid);
    pack_key_uint(out, "connection", c->id);
    pack_key_int(out, "in_flight", c->n_flight);
    pack_key_uint(out, "tensors", c->tensors.count);
    size_t memory = pack_key_map_begin(out, "memory");
    for (int i = 0; i < b->devices.n; i++)
        pack_key_uint(out, b->devices.at[i]->name, c->holder->bytes[i] - c->holder->named[i]);
    pack_map_end(out, memory);
    pack_exported(out, b, c);
    pack_loaded(out, b, c);
    pack_map_end(out, map);
}

static void pack_clients(struct buf *out, const struct broker *b)
{
    pack_key_array(out, "clients", (size_t)b->clients.n);
    for (const struct conn *c = b->clients.first; c; c = c->next)
        pack_client(out, b, c);
}

// [seconds from which it is, and below which, how many] of each bucket that counts any.
static void pack_times(struct buf *out, const uint64_t times[TIMES_BUCKETS])
{
    pack_str(out, "times");
    size_t n = 0, list = pack_array_begin(out);
    for (unsigned i = 0; i < TIMES_BUCKETS; i++) {
        if (times[i] == 0)
            continue;
        pack_array(out, 3);
        pack_float(out, i ? (double)times_bound(i - 1) / 1e9 : 0);
        if (i + 1 < TIMES_BUCKETS)
            pack_float(out, (double)times_bound(i) / 1e9);
        else
            pack_nil(out);
        pack_uint(out, times[i]);
        n++;
    }
    pack_array_end(out, list, n);
}

static void pack_runs(struct buf *out, const struct broker *b)
{
    pack_str(out, "runs");
    size_t n = 0, list = pack_array_begin(out);
    for (size_t i = 0; i < b->registry.n_operators; i++) {
        const struct opd_operator *o = b->registry.operators[i];
        const struct run_stats *runs = o->runs;
        if (!registry_is_first(&b->registry, i) ||
            runs->forward + runs->backward + runs->failed + runs->compiles.n == 0)
            continue;
        size_t map = pack_map_begin(out);
        pack_key_str(out, "op", o->name);
        pack_key_uint(out, "forward", runs->forward);
        pack_key_uint(out, "backward", runs->backward);
        pack_key_uint(out, "failed", runs->failed);
        pack_key_float(out, "seconds", (double)runs->ns / 1e9);
        pack_key_uint(out, "bytes", runs->bytes);
        pack_key_float(out, "copy_seconds", (double)runs->copy_ns / 1e9);
        pack_times(out, runs->times);
        pack_key_uint(out, "compiles", runs->compiles.n);
        pack_key_float(out, "compile_seconds", (double)runs->compiles.ns / 1e9);
        pack_map_end(out, map);
        n++;
    }
    pack_array_end(out, list, n);
}

// The notifications that a client wants, but for those that requests of their own are for.
static bool hear(struct conn *c, const value *names, struct opd_err *err)
{
    const struct {
        const char *name;
        bool *hears;
    } known[] = { { "printed", &c->hears.printed },
                  { "compiling", &c->hears.compiling },
                  { "compiled", &c->hears.compiled } };
    char name[16];
    if (!value_is_nil(names) && value_type(names) != VALUE_ARRAY)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "hello: notify is %s, expected an array of notifications' names",
                           value_type_name(names));
    for (size_t i = 0; i < value_count(names); i++)
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            if (value_copy_str(value_at(names, i), name, sizeof name) &&
                strcmp(name, known[k].name) == 0)
                *known[k].hears = true;
    return true;
}

enum request_status request_hello(struct request *req, const value *params, struct opd_err *err)
{
    const struct broker *b = req->broker;
    const value *client = value_at(params, 0);
    struct holder *holder = req->conn->holder;
    if (!hear(req->conn, value_get(value_at(params, 1), "notify"), err))
        return REQUEST_ERROR;
    size_t named = 0;
    if (client)
        value_bytes(client, &named);
    if (named && !value_copy_str(client, holder->client, sizeof holder->client))
        holder->client[0] = '\0'; // too long to be kept: it is only for people
    struct buf *out = &req->reply;
    size_t map = pack_map_begin(out);
    pack_key_int(out, "protocol", OPD_PROTOCOL);
    pack_key_str(out, "version", OPD_VERSION);
    pack_key_int(out, "pid", getpid());
    pack_devices(out, b);
    pack_key_str(out, "default_device", b->devices.at[0]->name);
    pack_key_array(out, "dtypes", OPD_DTYPE_COUNT - 1);
    for (int i = 1; i < OPD_DTYPE_COUNT; i++)
        pack_str(out, dtype_name((enum opd_dtype)i));
    pack_methods(out);
    pack_limits(out, &b->options);
    pack_key_uint(out, "generation", b->registry.generation);
    pack_key_bool(out, "spins", b->spins);
    pack_map_end(out, map);
    return REQUEST_ANSWERED;
}

static void pack_compilers(struct buf *out, const struct broker *b)
{
    struct pool_stats stats;
    pool_stats(b->pool, &stats);
    size_t map = pack_key_map_begin(out, "compilers");
    pack_key_int(out, "processes", stats.processes);
    pack_key_uint(out, "compiled", stats.compiled);
    pack_key_uint(out, "cache_hits", stats.cached);
    pack_key_uint(out, "failed", stats.failed);
    pack_key_uint(out, "cache_bytes", stats.cache_bytes);
    pack_key_uint(out, "cache_limit", b->options.cache_limit);
    pack_key_str(out, "nvrtc", b->nvrtc);
    pack_key_str(out, "host", b->host_compiler);
    pack_map_end(out, map);
}

static void pack_counts(struct buf *out, const struct broker *b)
{
    size_t map = pack_key_map_begin(out, "requests");
    for (int i = 0; i < METHOD_COUNT; i++)
        if (b->counters.calls[i] > 0)
            pack_key_uint(out, methods[i].name, b->counters.calls[i]);
    pack_map_end(out, map);
}

enum request_status request_status(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    const struct broker *b = req->broker;
    struct buf *out = &req->reply;
    size_t map = pack_map_begin(out);
    pack_key_str(out, "version", OPD_VERSION);
    pack_key_int(out, "protocol", OPD_PROTOCOL);
    pack_key_int(out, "pid", getpid());
    pack_key_str(out, "socket", b->options.socket);
    pack_key_float(out, "uptime", (double)(clock_ns() - b->counters.started_ns) / 1e9);
    pack_key_float(out, "started", b->counters.started_time);
    pack_key_uint(out, "upgrades", b->handover.count);
    pack_key_int(out, "connections", b->clients.n);
    pack_counts(out, b);
    pack_key_uint(out, "requests_total", b->counters.requests);
    pack_key_uint(out, "errors_total", b->turn.n_errors);
    pack_devices(out, b);
    pack_compilers(out, b);
    pack_key_str(out, "cache", b->options.cache);
    pack_key_bool(out, "debug", b->options.debug);
    pack_keeper(out, &b->devices.keep);
    pack_limits(out, &b->options);
    pack_clients(out, b);
    pack_runs(out, b);
    pack_key_int(out, "operators", b->registry.count);
    pack_key_uint(out, "generation", b->registry.generation);
    pack_key_array(out, "kernels", (size_t)b->options.n_kernels);
    for (int i = 0; i < b->options.n_kernels; i++)
        pack_str(out, b->options.kernels[i]);
    pack_map_end(out, map);
    return REQUEST_ANSWERED;
}

enum request_status request_stop(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    req->broker->stop(req->broker);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}
