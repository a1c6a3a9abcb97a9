// The request that gives up what a connection holds, of whatever kind.

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "request/graph.h"
#include "request/lane.h"
#include "request/parted.h"
#include "request/parts.h"
#include "request/prepared.h"
#include "request/request.h"

// `drop`: the name stays.
static void free_tensor(struct request *req, uint64_t id, bool drop)
{
    struct tensor *t = map_get(&req->conn->tensors, id);
    if (t && !drop)
        tensor_drop_name(&req->broker->names, t);
    request_drop_id(req->conn, id);
}

static void free_context(struct request *req, uint64_t id, bool drop)
{
    (void)drop;
    context_free(map_remove(&req->conn->contexts, id));
}

static void free_shm(struct request *req, uint64_t id, bool drop)
{
    (void)drop;
    struct shm *shm = map_remove(&req->conn->shms, id);
    lane_leave_shm(req->conn, id);
    if (shm)
        shm_free(shm);
}

static void free_export(struct request *req, uint64_t id, bool drop)
{
    (void)drop;
    request_drop_export(req->conn, id);
}

static void free_import(struct request *req, uint64_t id, bool drop)
{
    (void)drop;
    import_unref(map_remove(&req->conn->imports, id));
}

static void free_prepared(struct request *req, uint64_t id, bool drop)
{
    (void)drop;
    lane_drop_calls(req->conn); // its own among them
    prepared_free(map_remove(&req->conn->prepared, id), req->conn);
}

// One that is being captured is given up.
static void free_graph(struct request *req, uint64_t id, bool drop)
{
    struct graph *g = map_remove(&req->conn->graphs, id);
    if (!g)
        return;
    bool captured = req->conn->capture == g;
    if (captured)
        req->conn->capture = NULL;
    if (captured || !drop)
        graph_drop_name(req->broker, g);
    graph_unref(g);
}

static const struct kind {
    const char *name, *one, *many;
    size_t map;                                                // where in a connection
    void (*free)(struct request *req, uint64_t id, bool drop); // nothing if it is not there
} kinds[] = {
    { "tensor", "tensor", "tensors", offsetof(struct conn, tensors), free_tensor },
    { "context", "context", "contexts", offsetof(struct conn, contexts), free_context },
    { "shm", "shm", "shms", offsetof(struct conn, shms), free_shm },
    { "export", "export", "exports", offsetof(struct conn, exports), free_export },
    { "import", "import", "imports", offsetof(struct conn, imports), free_import },
    { "prepared", "prepared call", "prepared calls", offsetof(struct conn, prepared),
      free_prepared },
    { "graph", "graph", "graphs", offsetof(struct conn, graphs), free_graph },
};

static const struct kind *find_kind(const value *name, struct opd_err *err)
{
    char text[16] = "";
    value_copy_str(name, text, sizeof text);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(text, kinds[i].name) == 0)
            return &kinds[i];
    opd_err_set(err, OPD_E_invalid_argument,
                "free: kind '%s', expected tensor, context, shm, export, import, prepared or graph",
                text);
    return NULL;
}

struct freeing {
    const struct kind *kind;
    bool drop;
};

// An import's device must have done with it before the client is told.
static bool check_device(struct request *req, const struct import *m, struct opd_err *err)
{
    struct device *d = m->space->device;
    if (req->device && req->device != d)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "free: imports of %s and %s; free those of one device at a time",
                           req->device->name, d->name);
    req->device = d;
    return true;
}

static bool check_id(struct request *req, const value *id, size_t i, const void *data,
                     struct opd_err *err)
{
    const struct freeing *f = data;
    const struct map *held = (const struct map *)((const char *)req->conn + f->kind->map);
    bool is_int = value_type(id) == VALUE_INT;
    const void *found = is_int ? map_get(held, (uint64_t)value_int(id)) : NULL;
    if (found || f->drop)
        return !found || held != &req->conn->imports || check_device(req, found, err);
    if (!is_int)
        return opd_err_set(err, OPD_E_not_found,
                           "free: element %zu is %s, expected an id of this connection's %s", i,
                           value_type_name(id), f->kind->many);
    return opd_err_set(err, OPD_E_not_found,
                       "free: this connection has no %s %" PRId64 " (never made, or freed)",
                       f->kind->one, value_int(id));
}

static void free_id(struct request *req, const value *id, const void *data)
{
    const struct freeing *f = data;
    if (value_type(id) == VALUE_INT)
        f->kind->free(req, (uint64_t)value_int(id), f->drop);
}

static enum request_status free_each(struct request *req, const struct freeing *f, const value *ids,
                                     struct opd_err *err)
{
    struct parted_ids each = { check_id, free_id, f };
    enum request_status status = parted_each(req, ids, &each, err);
    if (status != REQUEST_ANSWERED)
        return status;
    pack_nil(&req->reply);
    // A command of no steps: it is done when all before it is.
    return req->device ? request_submit(req, req->device, command_new(DEV_RUN, 0, 0)) : status;
}

enum request_status request_free(struct request *req, const value *params, struct opd_err *err)
{
    struct freeing f = { .kind = find_kind(value_at(params, 0), err) };
    if (!f.kind || !request_flag(value_at(params, 2), "free", "drop", &f.drop, err))
        return REQUEST_ERROR;
    return free_each(req, &f, value_at(params, 1), err);
}

// --- what it was called before: an upgrade finds clients connected that say so

enum { TENSOR, CONTEXT, SHM, EXPORT, IMPORT };

#define OLD_NAME(name, kind)                                                                       \
    enum request_status request_##name(struct request *req, const value *params,                   \
                                       struct opd_err *err)                                        \
    {                                                                                              \
        return free_each(req, &(struct freeing){ &kinds[kind], false }, value_at(params, 0), err); \
    }

OLD_NAME(tensor_free, TENSOR)
OLD_NAME(context_free, CONTEXT)
OLD_NAME(export_free, EXPORT)
OLD_NAME(import_close, IMPORT)

enum request_status request_shm_close(struct request *req, const value *params, struct opd_err *err)
{
    struct freeing f = { &kinds[SHM], false };
    if (!check_id(req, value_at(params, 0), 0, &f, err))
        return REQUEST_ERROR;
    free_id(req, value_at(params, 0), &f);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_drop(struct request *req, const value *params, struct opd_err *err)
{
    struct freeing f = { &kinds[CONTEXT], true };
    const value *contexts = value_at(params, 1);
    for (size_t i = 0; req->at == 0 && i < value_count(contexts); i++)
        free_id(req, value_at(contexts, i), &f);
    return free_each(req, &(struct freeing){ &kinds[TENSOR], true }, value_at(params, 0), err);
}
