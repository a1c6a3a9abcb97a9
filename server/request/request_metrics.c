// metrics: what the daemon counts, in Prometheus's text format.

#include <inttypes.h>
#include <stdlib.h>

#include "request/parts.h"
#include "base/clock.h"
#include "base/version.h"
#include "kernels/pool.h"
#include "request/request.h"

static void begin(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP opd_%s %s\n# TYPE opd_%s %s\n", name, help, name, type);
}

static void put(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    begin(out, name, type, help);
    buf_printf(out, "opd_%s %.17g\n", name, v);
}

static void put_requests(struct buf *out, const struct broker *b)
{
    static const char *const codes[TURN_MAX_ERRORS] = {
#define ERROR(name, number, python, advice) [number] = #name,
#include "../../protocol/errors.def"
#undef ERROR
    };
    begin(out, "build_info", "gauge", "1, for the program's version and protocol.");
    buf_printf(out, "opd_build_info{version=\"%s\",protocol=\"%d\"} 1\n", OPD_VERSION,
               OPD_PROTOCOL);
    begin(out, "requests_total", "counter", "Requests that were answered or submitted.");
    for (int i = 0; i < METHOD_COUNT; i++)
        buf_printf(out, "opd_requests_total{method=\"%s\"} %" PRIu64 "\n", methods[i].name,
                   b->counters.calls[i]);
    begin(out, "errors_total", "counter", "Requests that were answered with an error.");
    for (int i = 0; i < TURN_MAX_ERRORS; i++)
        if (codes[i])
            buf_printf(out, "opd_errors_total{code=\"%s\"} %" PRIu64 "\n", codes[i],
                       b->turn.errors_of[i]);
    put(out, "request_parts_total", "counter",
        "Turns of the loop after which a large request was to go on.", (double)b->counters.parts);
    put(out, "turn_seconds_max", "gauge",
        "The longest turn of the broker's loop, in time of the processor.",
        (double)b->turn.longest_ns / 1e9);
    put(out, "connections", "gauge", "Clients that are connected.", b->clients.n);
    put(out, "uptime_seconds", "gauge", "Since the daemon's start.",
        (double)(clock_ns() - b->counters.started_ns) / 1e9);
    put(out, "operators", "gauge", "Operators that are served.", b->registry.count);
}

static void put_compiles(struct buf *out, const struct broker *b)
{
    struct pool_stats s;
    pool_stats(b->pool, &s);
    begin(out, "compiles_total", "counter", "Kernels that were asked of the compilers.");
    buf_printf(out,
               "opd_compiles_total{result=\"compiled\"} %" PRIu64
               "\nopd_compiles_total{result=\"cached\"} %" PRIu64
               "\nopd_compiles_total{result=\"failed\"} %" PRIu64 "\n",
               s.compiled, s.cached, s.failed);
    put(out, "compile_seconds_total", "counter", "Time that compilers have worked.", s.seconds);
    put(out, "compiles_waiting", "gauge", "Compiles that no compiler has begun.", s.waiting);
    put(out, "cache_bytes", "gauge", "Compiled kernels on disk.", (double)s.cache_bytes);
}

// Those of each device: name, type, help, value.
#define DEVICE_METRICS(X)                                                                          \
    X("device_up", "gauge", "1: its process serves.", d->state == DEVICE_READY)                    \
    X("device_memory_used_bytes", "gauge", "Held by tensors.", d->space.map.used)                  \
    X("device_memory_named_bytes", "gauge", "Of that, by named ones.", d->space.named_bytes)       \
    X("device_memory_reserved_bytes", "gauge", "Taken from the device.", d->space.map.reserved)    \
    X("device_spare_up", "gauge", "1: another process waits to take over.",                        \
      device_ready_spare(d) != NULL)                                                               \
    X("device_spare_memory_bytes", "gauge", "Taken by that.", device_spare_memory(d))              \
    X("device_tensors", "gauge", "Tensors.", d->space.n_tensors)                                   \
    X("device_queue", "gauge", "Commands that wait or are in flight.", d->queue.n)                 \
    X("device_restarts_total", "counter", "Its process was replaced.", d->restart.count)           \
    X("device_reruns_total", "counter", "Requests run again since that was killed.",               \
      d->queue.n_reruns)                                                                           \
    X("device_busy_seconds_total", "counter", "Something was in flight.",                          \
      (double)device_busy_ns(d) / 1e9)

static void put_devices(struct buf *out, const struct devices *all)
{
#define PUT(metric, type, help, value)                                                             \
    begin(out, metric, type, help);                                                                \
    for (int i = 0; i < all->n; i++) {                                                             \
        struct device *d = all->at[i];                                                             \
        buf_printf(out, "opd_" metric "{device=\"%s\"} %.17g\n", d->name, (double)(value));        \
    }
    DEVICE_METRICS(PUT)
#undef PUT
}

// Of operators that have run: bounds from 4 us to 4.3 s, each four times the one before.
static void put_times(struct buf *out, const struct opd_operator *o)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < TIMES_BUCKETS; i++) {
        n += o->runs->times[i];
        if (i % 8 == 7)
            buf_printf(out, "opd_run_duration_seconds_bucket{op=\"%s\",le=\"%.9g\"} %" PRIu64 "\n",
                       o->name, (double)times_bound(i) / 1e9, n);
    }
    buf_printf(out,
               "opd_run_duration_seconds_bucket{op=\"%s\",le=\"+Inf\"} %" PRIu64
               "\nopd_run_duration_seconds_sum{op=\"%s\"} %.9f"
               "\nopd_run_duration_seconds_count{op=\"%s\"} %" PRIu64 "\n",
               o->name, n, o->name, (double)o->runs->ns / 1e9, o->name, n);
}

static void put_operators(struct buf *out, const struct broker *b)
{
    struct opd_operator *const *all = b->registry.operators;
    const size_t n = b->registry.n_operators;
    begin(out, "runs_total", "counter", "Runs of an operator that a device has ended.");
    for (size_t i = 0; i < n; i++)
        if (registry_is_first(&b->registry, i))
            buf_printf(out,
                       "opd_runs_total{op=\"%s\",direction=\"forward\"} %" PRIu64
                       "\nopd_runs_total{op=\"%s\",direction=\"backward\"} %" PRIu64 "\n",
                       all[i]->name, all[i]->runs->forward, all[i]->name, all[i]->runs->backward);
    begin(out, "runs_failed_total", "counter", "Runs that failed.");
    for (size_t i = 0; i < n; i++)
        if (registry_is_first(&b->registry, i))
            buf_printf(out, "opd_runs_failed_total{op=\"%s\"} %" PRIu64 "\n", all[i]->name,
                       all[i]->runs->failed);
    begin(out, "run_seconds_total", "counter", "Time of those runs on devices.");
    for (size_t i = 0; i < n; i++)
        if (registry_is_first(&b->registry, i))
            buf_printf(out, "opd_run_seconds_total{op=\"%s\"} %.9f\n", all[i]->name,
                       (double)all[i]->runs->ns / 1e9);
    begin(out, "run_bytes_total", "counter",
          "Bytes of the tensors that those runs read and wrote.");
    for (size_t i = 0; i < n; i++)
        if (registry_is_first(&b->registry, i))
            buf_printf(out, "opd_run_bytes_total{op=\"%s\"} %" PRIu64 "\n", all[i]->name,
                       all[i]->runs->bytes);
    begin(out, "run_duration_seconds", "histogram", "How long each run was on its device.");
    for (size_t i = 0; i < n; i++)
        if (registry_is_first(&b->registry, i) &&
            all[i]->runs->forward + all[i]->runs->backward > 0)
            put_times(out, all[i]);
}

// Runs in clients' own processes are counted by nobody; who makes them is known.
static void put_exported(struct buf *out, const struct broker *b)
{
    const struct registry *r = &b->registry;
    int *clients = mem_zalloc((size_t)r->published.n_given + 1, sizeof *clients); // by slot
    for (const struct conn *c = b->clients.first; c; c = c->next) {
        size_t cursor = 0;
        for (const struct opd_operator *o; (o = map_next(&c->exported, &cursor)) != NULL;)
            clients[o->slot]++;
    }
    begin(out, "in_process_clients", "gauge", "Clients that run an operator in their own process.");
    for (size_t i = 0, next; i < r->n_operators; i = next) {
        int n = 0, n_slots = 0;
        for (next = i; next == i || (next < r->n_operators && !registry_is_first(r, next));
             next++) {
            n += clients[r->operators[next]->slot];
            n_slots += r->operators[next]->slot != 0;
        }
        if (n_slots > 0)
            buf_printf(out, "opd_in_process_clients{op=\"%s\"} %d\n", r->operators[i]->name, n);
    }
    free(clients);
}

enum request_status request_metrics(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    struct buf text = { 0 };
    put_requests(&text, req->broker);
    put_compiles(&text, req->broker);
    put_devices(&text, &req->broker->devices);
    put_operators(&text, req->broker);
    put_exported(&text, req->broker);
    pack_str(&req->reply, buf_str(&text));
    buf_finish(&text);
    return REQUEST_ANSWERED;
}
