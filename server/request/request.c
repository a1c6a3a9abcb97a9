#include "request/request.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/kept.h"
#include "request/faults.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parted.h"
#include "request/parts.h"
#include "request/postmortem.h"
#include "request/printed.h"
#include "request/trace.h"

// --- in memory

enum { SPARE_MOST = 256, REPLY_KEPT = 4096 };

struct request *request_new(struct conn *c)
{
    struct request *req = c->broker->spare;
    struct buf reply = { 0 };
    if (req) {
        c->broker->spare = req->next;
        c->broker->n_spare--;
        reply = req->reply;
    } else {
        req = mem_alloc(sizeof *req);
    }
    memset(req, 0, offsetof(struct request, few_made));
    req->reply = reply;
    req->reply_fd = -1;
    req->writes = req->few;
    req->made = req->few_made;
    req->made_capacity = REQUEST_FEW_MADE;
    req->conn = c;
    req->broker = c->broker;
    return req;
}

void request_release(struct request *req)
{
    struct broker *b = req->broker;
    if (req->writes != req->few)
        free(req->writes);
    arena_finish(&req->room);
    req->reply.size = 0;
    if (req->reply.capacity > REPLY_KEPT || b->n_spare == SPARE_MOST)
        buf_finish(&req->reply);
    if (b->n_spare == SPARE_MOST) {
        free(req);
        return;
    }
    req->next = b->spare;
    b->spare = req;
    b->n_spare++;
}

void request_drop_spare(struct broker *b)
{
    for (struct request *req; (req = b->spare) != NULL;) {
        b->spare = req->next;
        buf_finish(&req->reply);
        free(req);
    }
}

// --- submitted requests

static void add_need(struct request *req, enum request_need_kind kind, struct fate *f)
{
    size_t n = req->n_needs;
    if ((n & (n - 1)) == 0) // full at 0, 1, 2, 4, ...
        req->needs = mem_realloc(req->needs, n ? 2 * n : 1, sizeof *req->needs);
    req->needs[req->n_needs++] = (struct request_need){ .kind = kind, .fate = fate_ref(f) };
}

static void add_writes(struct request *req, enum request_need_kind kind, const struct storage *s,
                       uint64_t begin, uint64_t end)
{
    const struct write *cursor = NULL;
    for (struct fate *f; (f = writes_next(s, begin, end, &cursor)) != NULL;)
        add_need(req, kind, f);
}

void request_needs(struct request *req, const struct storage *s, uint64_t begin, uint64_t end)
{
    if (s && s->fate && s->fate->state != FATE_DONE)
        add_need(req, NEED_MADE, s->fate);
    if (s)
        add_writes(req, NEED_WRITTEN, s, begin, end);
}

void request_needs_tensor(struct request *req, const struct tensor *t)
{
    if (t)
        request_needs(req, t->storage, t->offset, t->offset + t->size);
}

void request_reserve_writes(struct request *req, size_t n)
{
    if (n > sizeof req->few / sizeof req->few[0])
        req->writes = mem_alloc(n * sizeof *req->writes);
}

void request_writes(struct request *req, struct storage *s, uint64_t begin, uint64_t end)
{
    if (begin < end)
        req->writes[req->n_writes++] = (struct request_write){ s, begin, end };
}

bool request_may_read(const struct tensor *t, const char *what, struct opd_err *err)
{
    const char *why = t ? tensor_suspect(t) : NULL;
    char named[512];
    if (!why)
        return true;
    snprintf(named, sizeof named, "%s%s%.300s%s", what, t->name ? " ('" : "",
             t->name ? t->name : "", t->name ? "')" : "");
    return writes_refuse(named, why, err);
}

// The failure of a request before this one to make or to write: where this one reads that, it fails
// too, though the device did it. True: nobody knows what there is where it writes. *cause: what
// failed first, where it is that, borrowed; else NULL.
static bool inherit_failure(struct request *req, const char **cause, struct opd_err *err)
{
    bool unknown = false;
    *cause = NULL;
    for (size_t i = 0; i < req->n_needs; i++) {
        const struct request_need *need = &req->needs[i];
        if (need->fate->state != FATE_FAILED || (need->kind != NEED_REPLACED && err->code))
            continue;
        unknown = true;
        char what[sizeof req->op + 32];
        snprintf(what, sizeof what, "%s%sa tensor that it reads", req->op, req->op[0] ? ": " : "");
        if (need->kind == NEED_MADE)
            opd_err_set(err, OPD_E_not_found, "%s was to be made by a request that failed", what);
        else if (need->kind == NEED_WRITTEN)
            writes_refuse(what, *cause = need->fate->why, err);
    }
    return unknown;
}

static void drop_needs(struct request *req)
{
    for (size_t i = 0; i < req->n_needs; i++)
        fate_unref(req->needs[i].fate);
    free(req->needs);
}

// The memory that a request was to write is written, or suspect, or as it was before.
static void settle_writes(struct request *req, bool unknown, const char *cause,
                          const struct opd_err *err)
{
    struct fate *f = req->write_fate;
    if (!f)
        return;
    bool suspect = err->code && (req->begun || unknown);
    f->state = suspect ? FATE_FAILED : FATE_DONE;
    if (suspect)
        f->why = mem_strdup(cause ? cause : err->msg);
    for (int i = 0; i < req->n_writes; i++) {
        writes_settle(req->writes[i].storage);
        storage_unref(req->writes[i].storage);
    }
    fate_unref(f);
}

static void take_back(struct request *req)
{
    struct conn *c = req->conn;
    for (int i = 0; i < req->n_made; i++)
        if (req->made[i].tensor)
            tensor_drop_name(&req->broker->names, req->made[i].tensor);
    if (c->closed)
        return;
    if (req->made_export && map_get(&c->exports, req->made_export) == req->exported)
        request_drop_export(c, req->made_export);
    // The ids may have been given up meanwhile, and used for something else.
    for (int i = 0; i < req->n_made; i++)
        if (req->made[i].tensor && map_get(&c->tensors, req->made[i].id) == req->made[i].tensor)
            request_drop_id(c, req->made[i].id);
    struct context *ctx = req->made_context ? map_get(&c->contexts, req->made_context) : NULL;
    if (ctx && ctx->serial == req->made_serial)
        context_free(map_remove(&c->contexts, req->made_context));
}

// The chunk's descriptor goes with the reply's first byte.
static bool attach_chunk(struct request *req, struct opd_err *err)
{
    const struct device_region *chunk = req->exported ? request_chunk(req->exported) : NULL;
    int fd = chunk ? fcntl(chunk->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (chunk && fd < 0)
        return opd_err_errno(err, OPD_E_out_of_memory, "the descriptor of %s's memory",
                             req->device->name);
    if (fd >= 0)
        stream_attach_fd(&req->conn->stream, fd);
    return true;
}

static void pack_result(struct request *req, struct buf *out, const struct opd_err *err)
{
    if (err->code) {
        pack_reply_error(out, req->id, err, req->op[0] ? req->op : NULL);
        return;
    }
    pack_reply_ok(out, req->id);
    if (req->read_size)
        pack_bin(out, req->device->staging.memory + staging_offset(req->staged), req->read_size);
    else
        buf_append(out, req->reply.bytes, req->reply.size);
}

static void answer(struct request *req, const struct opd_err *err)
{
    struct conn *c = req->conn;
    bool wanted = !c->closed && !req->notification && !req->told;
    if (wanted && !err->code && req->read_size > PARTED_BYTES) {
        parted_pack(req);
        return;
    }
    if (wanted) {
        pack_result(req, &c->stream.out, err);
        conn_touch(c);
    }
    request_end(req);
}

void request_finish(struct request *req, const struct opd_err *device_err)
{
    struct conn *c = req->conn;
    struct opd_err own, *err = &own;
    opd_err_init(err);
    if (device_err->code)
        opd_err_copy(&own, device_err);
    const char *cause;
    bool unknown = inherit_failure(req, &cause, &own);
    if (req->fate)
        req->fate->state = err->code ? FATE_FAILED : FATE_DONE;
    for (int i = 0; i < req->n_made; i++)
        if (req->made[i].tensor)
            kept_settle(req->made[i].tensor->storage);
    if (!err->code && !c->closed && !req->notification)
        attach_chunk(req, err);
    settle_writes(req, unknown, cause, &own);
    if (err->code) {
        turn_count_error(&req->broker->turn, err);
        take_back(req);
        lane_disarm_conn(c); // what a graph reads may be suspect from now on
        graph_capture_failed(c->capture, err);
        // What somebody killed the process of has not failed by itself.
        if (req->launch && !req->device->exit.killed &&
            (err->code == OPD_E_kernel_fault || err->code == OPD_E_deadline_exceeded))
            req->launch->by_call = true;
    }
    if (!req->after)
        answer(req, err);
    opd_err_clear(&own);
}

void request_discard(struct request *req)
{
    if (req->staged)
        device_give_staging(req->device, req->staged);
    req->staged = NULL;
    req->conn->reply_size -= req->reply_size;
    req->reply_size = 0;
    if (req->reply_fd >= 0)
        close(req->reply_fd);
    req->reply_fd = -1;
    req->reply.size = 0;
    buf_finish(&req->rest);
}

void request_end(struct request *req)
{
    struct conn *c = req->conn;
    for (int i = 0; i < req->n_made; i++)
        if (req->made[i].tensor)
            req->made[i].tensor->made_at = NULL;
    storage_unref(req->exported);
    bound_plan_unref(req->bound);
    graph_launch_unref(req->launch);
    trace_free(req->trace);
    fate_unref(req->fate);
    drop_needs(req);
    c->n_flight--;
    if (req->device)
        conn_worked(c);
    c->reply_size -= req->read_size;
    request_discard(req);
    if (c->stream.over)
        conn_touch(c);
    turn_retry(&req->broker->turn);
    request_release(req);
    conn_unref(c);
}

static void finish_checkable(struct request *req, const struct command *cmd,
                             const struct opd_err *err)
{
    struct opd_err told = { 0 };
    opd_err_copy(&told, err);
    req->after = postmortem_begin(req, cmd, answer, &told);
    request_finish(req, &told);
    opd_err_clear(&told);
}

static void request_done(struct command *cmd, const struct opd_err *err)
{
    struct request *req = cmd->data;
    req->begun = cmd->begun;
    req->told = cmd->told;
    if (cmd->n_printed)
        printed_tell(req, cmd);
    if (req->trace)
        trace_end(req, cmd, err);
    if (cmd->checkable) {
        finish_checkable(req, cmd, err);
        return;
    }
    if (cmd->blamed)
        faults_keep(req, cmd, err, false);
    request_finish(req, err);
}

static void note_writes(struct request *req)
{
    if (req->n_writes == 0)
        return;
    req->write_fate = fate_new();
    for (int i = 0; i < req->n_writes; i++) {
        struct request_write *w = &req->writes[i];
        add_writes(req, NEED_REPLACED, w->storage, w->begin, w->end);
        writes_add(storage_ref(w->storage), w->begin, w->end, req->write_fate);
    }
}

struct request *request_defer(struct request *req)
{
    if (req->n_made > 0 || req->made_context)
        req->fate = fate_new();
    for (int i = 0; i < req->n_made; i++) {
        struct storage *s = req->made[i].tensor->storage;
        req->made[i].tensor->made_at = &req->made[i].tensor;
        if (!s->fate && !req->made[i].view)
            s->fate = fate_ref(req->fate);
        kept_settle(s);
    }
    struct context *ctx = req->made_context ? map_get(&req->conn->contexts, req->made_context)
                                            : NULL;
    for (int i = 0; ctx && i < OP_MAX_TEMPS; i++)
        if (ctx->saved[i])
            ctx->saved[i]->fate = fate_ref(req->fate);
    if (req->exported)
        storage_ref(req->exported);
    note_writes(req);
    req->conn->refs++;
    req->conn->n_flight++;
    req->conn->reply_size += req->read_size;
    return req;
}

void request_adopt(struct request *req, struct device *d, struct command *cmd)
{
    request_defer(req);
    req->device = d;
    cmd->done = request_done;
    cmd->data = req;
    cmd->repeatable = cmd->repeatable || req->n_writes == 0;
}

enum request_status request_submit(struct request *req, struct device *d, struct command *cmd)
{
    request_adopt(req, d, cmd);
    device_submit(d, cmd);
    return REQUEST_SUBMITTED;
}

enum request_status request_wait_memory(struct request *req, struct device *d)
{
    req->conn->memory_device = d;
    return REQUEST_WAIT;
}

enum request_status request_storage(struct request *req, struct device *d, uint64_t size,
                                    struct storage **out, struct opd_err *err)
{
    enum alloc_result result = storage_new(&d->space, size, req->conn->holder, out, err);
    return result == ALLOC_OK     ? REQUEST_ANSWERED
           : result == ALLOC_WAIT ? request_wait_memory(req, d)
                                  : REQUEST_ERROR;
}

void request_memory_failed(struct device *d, const struct opd_err *err)
{
    struct broker *b = d->all->owner;
    for (struct conn *c = b->clients.first; c; c = c->next) {
        if (!c->waiting || c->memory_device != d || c->wait_err.code)
            continue;
        opd_err_copy(&c->wait_err, err);
        if (c->wait_err.code == OPD_E_internal)
            c->wait_err.code = OPD_E_out_of_memory;
        struct buf held = { 0 };
        char has[32];
        holder_report(&d->space, &held);
        opd_err_prefix(&c->wait_err, "no more memory on %s, which has %s; held: %.600s", d->name,
                       holder_size(d->info.memory_total, has), buf_str(&held));
        buf_finish(&held);
    }
    turn_retry(&b->turn);
}

// An upgrade waits for the devices to rest. What a request that waits has let go of, it wants
// again.
bool request_memory_wanted(const struct device *d)
{
    const struct broker *b = d->all->owner;
    bool wanted = b->handover.upgrade != NULL;
    for (const struct conn *c = b->clients.first; c && !wanted; c = c->next)
        wanted = c->memory_device == d;
    return wanted;
}
