#include "c/client.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "c/error.h"
#include "c/sock.h"

// ---- what has come ------------------------------------------------------------------------------

static struct request **find_request(struct opd_client *c, uint32_t id)
{
    struct request **at = &c->requests;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void drop_request(struct opd_client *c, struct request **at)
{
    struct request *r = *at;
    *at = r->next;
    if (!r->next)
        c->end = at;
    message_clear(&r->answer);
    free(r);
}

// What a callback wants is read from the first parameter. False: none wants this notification.
static bool tell(const struct opd_client *c, const struct message *m)
{
    const msgpack_object_array *params = &m->reply.result.via.array;
    const msgpack_object *told = params->size > 0 ? params->ptr : NULL;
    if (c->print && message_is(m, "printed")) {
        const msgpack_object *text = told ? opd_map_get(told, "text") : NULL;
        if (text && text->type == MSGPACK_OBJECT_BIN)
            c->print(c->print_data, text->via.bin.ptr, text->via.bin.size);
        return true;
    }
    bool done = message_is(m, "compiled");
    if (!c->compile || !(done || message_is(m, "compiling")))
        return false;
    struct opd_compile compile = { .done = done };
    if (told) {
        const msgpack_object *ms = opd_map_get(told, "ms");
        opd_map_str(told, "op", compile.op, sizeof compile.op);
        opd_map_str(told, "dtype", compile.dtype, sizeof compile.dtype);
        opd_map_int(told, "kernels", &compile.kernels);
        if (ms && ms->type == MSGPACK_OBJECT_FLOAT64)
            compile.ms = ms->via.f64;
    }
    c->compile(c->compile_data, &compile);
    return true;
}

// Takes over the message. What answers no request is the daemon's last word on this connection.
static bool file_message(struct opd_client *c, struct message *m)
{
    if (!m->response && tell(c, m)) {
        message_clear(m);
        return true;
    }
    if (!m->response)
        return notices_add(&c->notices, m, &c->broken);
    struct request **at = find_request(c, m->id);
    if (m->has_id && *at && !(*at)->answered) {
        (*at)->answered = true;
        (*at)->answer = *m;
        if ((*at)->forgotten)
            drop_request(c, at);
        return true;
    }
    bool failed = m->error.type != MSGPACK_OBJECT_NIL;
    // A device that ends may say twice that a request is done.
    if (c->done.word && m->has_id && m->id <= c->last_request && !failed) {
        message_clear(m);
        return true;
    }
    if (failed)
        error_set_reply(&c->broken, &m->error);
    else
        error_set(&c->broken, OPD_MALFORMED_MESSAGE, "a reply to request %u, which was not sent",
                  m->id);
    message_clear(m);
    return false;
}

// Reads once and files what is whole. False: the connection is broken.
static bool receive(struct opd_client *c)
{
    if (c->broken.code || !inbox_receive(&c->inbox, c->fd, &c->broken))
        return false;
    for (;;) {
        char *bytes;
        size_t size;
        struct message message;
        enum mpscan_result result = inbox_take(&c->inbox, &bytes, &size, &c->broken);
        if (result != MPSCAN_DONE)
            return result == MPSCAN_MORE;
        if (!message_read(&message, bytes, size, &c->broken) || !file_message(c, &message))
            return false;
    }
}

// ---- sending ------------------------------------------------------------------------------------

struct outgoing {
    struct iovec parts[3];
    size_t count;
    size_t size; // of all parts
    size_t written;
    int fd;
};

static void consume_parts(struct outgoing *out, size_t n)
{
    out->written += n;
    for (size_t i = 0; i < out->count && n > 0; i++) {
        struct iovec *part = &out->parts[i];
        size_t taken = n < part->iov_len ? n : part->iov_len;
        part->iov_base = (char *)part->iov_base + taken;
        part->iov_len -= taken;
        n -= taken;
    }
}

static bool write_some(struct opd_client *c, struct outgoing *out)
{
    int fd = out->written == 0 ? out->fd : -1;
    ssize_t n = sock_write(c->fd, out->parts, out->count, fd);
    if (n > 0)
        consume_parts(out, (size_t)n);
    if (n >= 0)
        return true;
    // The daemon may have said why before it closed.
    struct opd_error why = { 0 };
    error_set_errno(&why, OPD_CONNECTION_LOST, "sending to the daemon");
    client_look(c);
    if (!c->broken.code)
        error_copy(&c->broken, &why);
    opd_error_clear(&why);
    return false;
}

// Writes all, and reads meanwhile: a daemon that waits for us to read does not read itself.
static bool write_all(struct opd_client *c, struct outgoing *out, struct opd_error *err)
{
    uint64_t deadline = sock_deadline(c->timeout);
    while (out->written < out->size) {
        short happened;
        size_t written = out->written;
        if (!write_some(c, out))
            return error_copy(err, &c->broken);
        if (out->written > written)
            continue;
        if (!sock_poll(c->fd, POLLIN | POLLOUT, deadline, &happened, err)) {
            if (out->written > 0)
                error_set(&c->broken, OPD_CONNECTION_LOST,
                          "a message was sent in part only, because the daemon did not read on");
            return false;
        }
        if ((happened & POLLIN) && !receive(c))
            return error_copy(err, &c->broken);
    }
    return true;
}

static bool add_request(struct opd_client *c, uint32_t id, struct opd_error *err)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(err, OPD_OUT_OF_MEMORY, "no host memory for a request");
    r->id = id;
    *c->end = r;
    c->end = &r->next;
    return true;
}

bool client_await(struct opd_client *c, uint32_t *request, struct opd_error *err)
{
    *request = ++c->last_request;
    return add_request(c, *request, err);
}

void client_drop(struct opd_client *c, uint32_t request)
{
    struct request **at = find_request(c, request);
    if (*at)
        drop_request(c, at);
}

void client_look(struct opd_client *c)
{
    short happened;
    while (!c->broken.code && sock_poll(c->fd, POLLIN, 0, &happened, NULL) && receive(c))
        continue;
}

static bool pack_head(msgpack_sbuffer *head, uint32_t id, const char *method)
{
    msgpack_packer p;
    size_t n = strlen(method);
    msgpack_packer_init(&p, head, msgpack_sbuffer_write);
    return msgpack_pack_array(&p, 4) == 0 && msgpack_pack_int(&p, 0) == 0 &&
           msgpack_pack_uint32(&p, id) == 0 && msgpack_pack_str(&p, n) == 0 &&
           msgpack_pack_str_body(&p, method, n) == 0;
}

bool client_send(struct opd_client *c, const char *method, const struct iovec params[2], int fd,
                 uint32_t *request, struct opd_error *err)
{
    c->sends(c, method);
    if (c->broken.code)
        return error_copy(err, &c->broken);
    msgpack_sbuffer head;
    msgpack_sbuffer_init(&head);
    uint32_t id = ++c->last_request;
    bool sent = false;
    if (!pack_head(&head, id, method)) {
        error_set(err, OPD_OUT_OF_MEMORY, "no host memory for a request");
        goto out;
    }
    struct outgoing out = {
        .parts = { { head.data, head.size }, params[0], params[1] },
        .count = 3,
        .size = head.size + params[0].iov_len + params[1].iov_len,
        .fd = fd,
    };
    if (out.size > c->max_message) {
        error_set(err, OPD_INVALID_ARGUMENT,
                  "%s: a message of %zu bytes, the daemon takes at most %zu: send it in pieces, or "
                  "in shared memory",
                  method, out.size, c->max_message);
        goto out;
    }
    if (!add_request(c, id, err))
        goto out;
    sent = write_all(c, &out, err);
    if (sent)
        *request = id;
    else
        drop_request(c, find_request(c, id));
out:
    msgpack_sbuffer_destroy(&head);
    return sent;
}

// ---- waiting ------------------------------------------------------------------------------------

// Empties the answer into the caller's reply or error.
static bool hand_over(struct message *answer, struct opd_reply *reply, struct opd_error *err)
{
    if (answer->error.type != MSGPACK_OBJECT_NIL)
        return error_set_reply(err, &answer->error);
    if (reply) {
        opd_reply_clear(reply);
        *reply = answer->reply;
        answer->reply = (struct opd_reply){ 0 };
    }
    return true;
}

bool client_wait(struct opd_client *c, uint32_t request, double more, struct opd_reply *reply,
                 struct opd_error *err)
{
    struct request *r = *find_request(c, request);
    if (!r || r->forgotten)
        return error_set(err, OPD_INVALID_ARGUMENT,
                         "request %u was not sent, or has been waited for already", request);
    double timeout = c->timeout > 0 ? c->timeout + (more > 0 ? more : 0) : 0;
    uint64_t deadline = sock_deadline(timeout);
    bool good = true;
    if (c->spin.wanted)
        spin_begin(&c->spin, clock_ns());
    while (good && !r->answered) {
        short happened;
        bool spins = c->spin.wanted && spin_on(&c->spin, clock_ns());
        if (!c->broken.code && !spins && !sock_poll(c->fd, POLLIN, deadline, &happened, err))
            return false;
        good = receive(c);
    }
    if (c->spin.wanted)
        spin_end(&c->spin, clock_ns());
    good = r->answered ? hand_over(&r->answer, reply, err) : error_copy(err, &c->broken);
    drop_request(c, find_request(c, request));
    return good;
}

bool client_wait_notice(struct opd_client *c, const char *method, double seconds,
                        struct opd_reply *params, struct opd_error *err)
{
    uint64_t deadline = seconds > 0 ? sock_deadline(seconds) : seconds < 0 ? UINT64_MAX : 0;
    while (!notices_take(&c->notices, method, params)) {
        short happened;
        if (!c->broken.code && !sock_poll(c->fd, POLLIN, deadline, &happened, err))
            return false;
        if (!receive(c) && !notices_has(&c->notices, method))
            return error_copy(err, &c->broken);
    }
    return true;
}

void client_forget(struct opd_client *c, uint32_t request)
{
    struct request **at = find_request(c, request);
    if (!*at)
        return;
    if ((*at)->answered)
        drop_request(c, at);
    else
        (*at)->forgotten = true;
}

bool client_send_packed(struct opd_client *c, const char *method, struct pack *params,
                        struct iovec tail, uint32_t *request, struct opd_error *err)
{
    struct iovec parts[2] = { { params->bytes.data, params->bytes.size }, tail };
    bool good = !params->failed ||
                error_set(err, OPD_OUT_OF_MEMORY, "%s: no host memory for the message", method);
    good = good && client_send(c, method, parts, -1, request, err);
    pack_finish(params);
    return good;
}

bool client_call_with(struct opd_client *c, const char *method, struct pack *params,
                      struct iovec tail, double more, struct opd_reply *reply,
                      struct opd_error *err)
{
    uint32_t request;
    if (!client_send_packed(c, method, params, tail, &request, err))
        return false;
    bool good = client_wait(c, request, more, reply, err);
    client_forget(c, request);
    return good;
}

bool client_call(struct opd_client *c, const char *method, struct pack *params,
                 struct opd_reply *reply, struct opd_error *err)
{
    return client_call_with(c, method, params, (struct iovec){ 0 }, 0, reply, err);
}

bool client_free(struct opd_client *c, const char *kind, const int64_t *ids, size_t count,
                 struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 2);
    pack_str(&p, kind);
    pack_ids(&p, ids, count);
    return client_call(c, "free", &p, NULL, err);
}
