#include "request/trace.h"

#include <stdlib.h>

#include "request/lane.h"
#include "request/parts.h"
#include "base/clock.h"
#include "request/conn.h"
#include "device/device.h"
#include "memory/holder.h"
#include "wire/msg.h"
#include "request/request.h"

struct trace {
    struct holder *holder; // the client's; a reference
    uint64_t conn;
    uint64_t since; // clock_ns() of its submission
};

void trace_follow(struct conn *c, bool follows)
{
    if (follows)
        lane_disarm_all(c->broker);
    c->broker->clients.n_tracers += follows - c->traces;
    c->traces = follows;
}

struct trace *trace_begin(struct command *c, const struct conn *conn)
{
    ((struct dev_command *)(void *)c->bytes.bytes)->id |= DEV_RUN_TIMED;
    struct trace *t = mem_alloc(sizeof *t);
    *t =
        (struct trace){ .holder = holder_ref(conn->holder), .conn = conn->id, .since = clock_ns() };
    return t;
}

void trace_free(struct trace *t)
{
    if (t)
        holder_unref(t->holder);
    free(t);
}

static int count_kernels(const struct plan *plan)
{
    int n = 0;
    for (int i = 0; plan && i < plan->n_steps; i++)
        n += plan->steps[i].kind != PLAN_STEP_ZERO;
    return n;
}

// A graph's has no operator of its own.
static void pack_run(struct buf *out, const struct command *c)
{
    const struct plan *plan = c->plan;
    int n = count_kernels(plan);
    for (size_t i = 0; i < c->n_parts; i++)
        n += count_kernels(c->parts[i].plan);
    pack_key_str(out, "op", plan ? plan->op->name : "");
    pack_key_int(out, "version", c->version);
    pack_key_str(out, "direction",
                 !plan                             ? "replay"
                 : plan->direction == PLAN_FORWARD ? "forward"
                                                   : "backward");
    pack_key_int(out, "kernels", n);
}

static void pack_record(struct buf *out, const struct request *req, const struct command *c,
                        const struct opd_err *err)
{
    const struct trace *t = req->trace;
    uint64_t took = clock_ns() - t->since;
    size_t map = pack_map_begin(out);
    pack_key_uint(out, "seq", req->broker->clients.n_traced);
    pack_key_float(out, "time", clock_unix());
    pack_run(out, c);
    pack_key_str(out, "device", req->device->name);
    pack_key_float(out, "queued", took > c->ran ? (double)(took - c->ran) / 1e9 : 0);
    pack_key_float(out, "seconds", (double)c->ran / 1e9);
    pack_key_str(out, "client", t->holder->client);
    pack_key_int(out, "pid", t->holder->pid);
    pack_key_uint(out, "connection", t->conn);
    if (err->code)
        pack_key_str(out, "error", opd_err_name(err->code));
    pack_map_end(out, map);
}

void trace_end(const struct request *req, const struct command *c, const struct opd_err *err)
{
    struct buf record = { 0 };
    req->broker->clients.n_traced++;
    pack_record(&record, req, c, err);
    for (struct conn *to = req->broker->clients.first; to; to = to->next)
        if (to->traces)
            conn_notify(to, "trace", &record);
    buf_finish(&record);
}

enum request_status request_trace(struct request *req, const value *params, struct opd_err *err)
{
    bool follow = true;
    if (!request_flag(value_at(params, 0), "trace", "follow", &follow, err))
        return REQUEST_ERROR;
    trace_follow(req->conn, follow);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}
