// Requests that record what a connection runs, and run it again.

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"
#include "request/run_params.h"
#include "request/trace.h"

enum { LEAST_WHOLE = 3 }; // steps that a device may run as one: fewer are as fast by themselves

static bool read_name(struct request *req, const value *v, char name[REQUEST_MAX_NAME],
                      struct opd_err *err)
{
    if (!request_name(v, name, err))
        return false;
    return !name[0] || !graph_find(req->broker, name) ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "a graph named '%s' is there already; attach to it, or free it first", name);
}

static bool new_id(const struct request *req, const value *id, struct opd_err *err)
{
    const struct map *graphs = &req->conn->graphs;
    if (graphs->count >= REQUEST_MAX_GRAPHS)
        return opd_err_set(err, OPD_E_out_of_memory, "this connection has %d graphs; free some",
                           REQUEST_MAX_GRAPHS);
    return !map_get(graphs, (uint64_t)value_int(id)) ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "graph %" PRId64 " is in use; choose another or free it first",
                       value_int(id));
}

static struct graph *find_graph(struct request *req, const value *id, struct opd_err *err)
{
    struct graph *g = map_get(&req->conn->graphs, (uint64_t)value_int(id));
    if (!g)
        opd_err_set(err, OPD_E_not_found,
                    "this connection has no graph %" PRId64 " (never made, or freed)",
                    value_int(id));
    return g;
}

enum request_status request_graph_begin(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct conn *c = req->conn;
    char name[REQUEST_MAX_NAME];
    if (c->capture)
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "a graph is being captured already; end that one first");
    if (!new_id(req, value_at(params, 0), err) ||
        !read_name(req, value_get(value_at(params, 1), "name"), name, err))
        return REQUEST_ERROR;
    if (c->n_flight > 0)
        return REQUEST_WAIT; // a failure from now on is one of the graph
    lane_disarm_conn(c);     // replays are refused while it is captured
    c->capture = graph_new(req->broker);
    if (name[0])
        graph_set_name(req->broker, c->capture, name);
    map_put(&c->graphs, (uint64_t)value_int(value_at(params, 0)), c->capture);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

static bool check_captured(const struct graph *g, struct opd_err *err)
{
    if (g->failed)
        return opd_err_set(err, OPD_E_invalid_argument, "the graph was not captured: %s",
                           g->failed);
    return g->device || opd_err_set(err, OPD_E_invalid_argument,
                                    "nothing has run since the graph was begun; it would do "
                                    "nothing");
}

static void give_up(struct request *req, uint64_t id)
{
    struct graph *g = map_remove(&req->conn->graphs, id);
    req->conn->capture = NULL;
    graph_drop_name(req->broker, g);
    graph_unref(g);
}

enum request_status request_graph_end(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    struct graph *g = find_graph(req, value_at(params, 0), err);
    if (g && g != c->capture)
        opd_err_set(err, OPD_E_invalid_argument, "this graph is not being captured");
    if (!g || g != c->capture)
        return REQUEST_ERROR;
    if (c->n_flight > 0)
        return REQUEST_WAIT; // a completion of this connection's last request tries again
    enum request_status status = check_captured(g, err) ? graph_prepare(g, req, err)
                                                        : REQUEST_ERROR;
    if (status == REQUEST_ERROR)
        give_up(req, (uint64_t)value_int(value_at(params, 0)));
    if (status != REQUEST_ANSWERED)
        return status;
    c->capture = NULL;
    g->capturing = false;
    size_t map = pack_map_begin(&req->reply);
    pack_key_uint(&req->reply, "calls", g->launch->n_parts);
    pack_key_str(&req->reply, "device", g->device->name);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

// Who attaches to it writes what it writes.
static void share_memory(struct graph *g)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_places; k++)
            g->nodes[i].places[k].storage->shared = true;
}

enum request_status request_graph_attach(struct request *req, const value *params,
                                         struct opd_err *err)
{
    char name[REQUEST_MAX_NAME] = "";
    if (!new_id(req, value_at(params, 0), err))
        return REQUEST_ERROR;
    value_copy_str(value_at(params, 1), name, sizeof name);
    struct graph *g = graph_find(req->broker, name);
    if (!g || g->capturing)
        return REQUEST_FAIL(err, OPD_E_not_found, "there is no graph named '%s'%s", name,
                            g ? " yet: it is being captured" : "");
    share_memory(g);
    if (!lane_leave_shared(req->broker, g->device)) // what other graphs use of that
        return REQUEST_WAIT;
    map_put(&req->conn->graphs, (uint64_t)value_int(value_at(params, 0)), graph_ref(g));
    size_t map = pack_map_begin(&req->reply);
    pack_key_str(&req->reply, "device", g->device->name);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

// --- replay

static bool read_options(const value *options, struct replay_options *out, struct opd_err *err)
{
    *out = (struct replay_options){ 0 };
    return request_flag(options, "replay", "debug", &out->debug, err) &&
           request_deadline(options, &out->deadline, err);
}

bool graph_may_read(const struct graph_launch *launch, struct opd_err *err)
{
    for (size_t i = 0; i < launch->reads.n; i++) {
        const struct graph_piece *r = &launch->reads.list[i];
        const char *why = r->storage->writes ? writes_suspect(r->storage, r->begin, r->end) : NULL;
        if (why)
            return writes_refuse("a tensor that the graph reads", why, err);
    }
    return true;
}

static void note_pieces(struct request *req, const struct graph_launch *launch)
{
    request_reserve_writes(req, launch->writes.n);
    for (size_t i = 0; i < launch->reads.n; i++)
        request_needs(req, launch->reads.list[i].storage, launch->reads.list[i].begin,
                      launch->reads.list[i].end);
    for (size_t i = 0; i < launch->writes.n; i++) {
        const struct graph_piece *w = &launch->writes.list[i];
        request_needs(req, w->storage, 0, 0); // that it was made
        request_writes(req, w->storage, w->begin, w->end);
        w->storage->version++;
    }
}

struct command *graph_command(struct request *req, struct graph_launch *launch,
                              const struct replay_options *options)
{
    note_pieces(req, launch);
    launch->refs++;
    req->launch = launch;
    bool alone = launch->alone || options->debug || req->broker->options.debug;
    struct command *c = device_new_run(req->device);
    struct dev_command *head = (struct dev_command *)(void *)c->bytes.bytes;
    bool whole = !alone && !launch->by_call && !launch->call && launch->n_steps >= LEAST_WHOLE;
    head->id = alone ? DEV_RUN_ALONE : whole ? DEV_RUN_REPLAY : 0;
    head->size = launch->n_steps;
    buf_append(&c->bytes, launch->steps.bytes, launch->steps.size);
    c->parts = launch->parts;
    c->n_parts = launch->n_parts;
    c->deadline = options->deadline > 0 ? options->deadline : launch->deadline;
    c->repeatable = launch->repeatable;
    return c;
}

static uint32_t flags_of(const struct command *c)
{
    return ((const struct dev_command *)(const void *)c->bytes.bytes)->id;
}

// What this connection has not heard of yet: nodes that an edit has left behind.
static const char *take_warning(struct conn *c, const struct graph *g)
{
    uint64_t key = hash_bytes(&g->serial, sizeof g->serial, 1);
    if (!g->left || (uint64_t)(uintptr_t)map_get(&c->warnings, key) == g->n_left)
        return NULL;
    map_put(&c->warnings, key, (void *)(uintptr_t)g->n_left);
    return g->left;
}

// False: it has warnings.
static bool pack_replayed(struct request *req, const struct graph *g)
{
    struct buf texts = { 0 };
    size_t n = 0;
    const char *text = take_warning(req->conn, g);
    for (size_t i = 0; text || i < g->n_nodes; text = NULL) {
        const struct version *v = text ? NULL : g->nodes[i++].version;
        if (v)
            text = run_take_warning(req, v->of);
        if (!text)
            continue;
        pack_str(&texts, text);
        n++;
    }
    pack_map(&req->reply, n > 0);
    if (n > 0) {
        pack_key_array(&req->reply, "warnings", n);
        buf_append(&req->reply, texts.bytes, texts.size);
    }
    buf_finish(&texts);
    return n == 0;
}

enum request_status request_replay(struct request *req, const value *params, struct opd_err *err)
{
    struct graph *g = find_graph(req, value_at(params, 0), err);
    struct replay_options options;
    if (!g || !read_options(value_at(params, 1), &options, err))
        return REQUEST_ERROR;
    if (g->capturing || req->conn->capture)
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "a graph is being captured; replay when that has ended");
    enum request_status status = graph_prepare(g, req, err);
    if (status != REQUEST_ANSWERED)
        return status;
    struct graph_launch *launch = g->launch;
    if (!graph_may_read(launch, err))
        return REQUEST_ERROR;
    bool plain = pack_replayed(req, g);
    if (launch->n_steps == 0)
        return REQUEST_ANSWERED;
    req->device = g->device;
    struct command *c = graph_command(req, launch, &options);
    if (req->broker->clients.n_tracers > 0)
        req->trace = trace_begin(c, req->conn);
    if (plain && !options.debug && options.deadline <= 0 && lane_arm(req, g, flags_of(c))) {
        req->reply.size = 0;
        lane_pack_arm(&req->reply, g);
    } else if (plain && !launch->reports) {
        request_tell(req, g->device, c, 0);
    }
    return request_submit(req, g->device, c);
}

static void pack_begun(struct request *req, const struct graph_launch *launch)
{
    pack_map(&req->reply, launch->call);
    if (!launch->call)
        return;
    pack_key_int(&req->reply, "version", launch->parts[0].version);
    memcpy(req->op, launch->bound[0]->request->op->name, sizeof req->op);
}

// The same, of what a client has put into its lane.
struct command *graph_begun(struct device *d, const struct dev_begun *begun)
{
    struct broker *b = d->all->owner;
    const struct lane_arm *arm = lane_find_arm(d, begun->slot, begun->serial);
    if (!arm) {
        log_error("device %s has begun what nobody has armed", d->name);
        return command_new(DEV_RUN, 0, 0);
    }
    struct request *req = request_new(arm->lane->conn);
    req->id = req->conn->lane_begun = begun->request;
    if (stream_unsent(&req->conn->stream) >= CONN_MAX_UNSENT)
        lane_disarm_conn(req->conn); // who reads no replies
    req->device = d;
    b->counters.requests++;
    b->counters.calls[arm->launch->call ? METHOD_call : METHOD_replay]++;
    pack_begun(req, arm->launch);
    struct command *c = graph_command(req, arm->launch, &(struct replay_options){ 0 });
    request_adopt(req, d, c);
    return c;
}
