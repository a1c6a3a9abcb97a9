// What carries out the methods of the protocol: a function for each.

#include <string.h>
#include <unistd.h>

#include "request/method.h"
#include "request/parts.h"
#include "request/request.h"

static request_fn *const functions[METHOD_COUNT] = {
#define REQUEST(name, since, params, result, doc) request_##name,
#include "../../protocol/protocol.def"
#undef REQUEST
};

// The descriptor that belongs to this message, not to the next. -1: none does, or none came.
static int take_fd(struct request *req, const char *letters, const value *params)
{
    char text[8];
    if (req->conn->stream.n_fds == 0)
        return -1;
    for (size_t i = 0; *letters; letters++) {
        if (*letters == '|')
            continue;
        const value *v = value_at(params, i++); // the parameters may be wrong ones
        if (*letters == 'f' || (*letters == 'm' && v && value_copy_str(v, text, sizeof text) &&
                                strcmp(text, "memfd") == 0))
            return stream_take_fd(&req->conn->stream);
    }
    return -1;
}

// Most requests are as the one before.
static int find_method(struct conn *c, const struct msg *msg)
{
    const char *last = methods[c->last_method].name;
    if (strlen(last) == msg->method_size && memcmp(last, msg->method, msg->method_size) == 0)
        return c->last_method;
    int method = method_find(msg->method, msg->method_size);
    if (method >= 0)
        c->last_method = method;
    return method;
}

static bool may_begin(const struct request *req, const struct method *m, const value *params,
                      bool again, struct opd_err *err)
{
    if (!msg_check_params(m->name, m->params, params, err))
        return false;
    if (req->conn->wait_err.code) {
        opd_err_copy(err, &req->conn->wait_err);
        return false;
    }
    return !req->broker->stopping || again ||
           opd_err_set(err, OPD_E_unavailable, "the daemon is stopping");
}

enum request_status request_dispatch(struct request *req, const struct msg *msg, bool again,
                                     struct opd_err *err)
{
    int method = find_method(req->conn, msg);
    if (method < 0)
        return REQUEST_FAIL(err, OPD_E_unknown_method,
                            "there is no request '%.*s'; see protocol/README.md",
                            (int)(msg->method_size < 64 ? msg->method_size : 64), msg->method);
    enum request_status status = REQUEST_ERROR;
    struct broker *b = req->broker; // once it is submitted the request may be gone
    int fd = take_fd(req, methods[method].params, msg->params);
    req->fd = &fd;
    bool begins = may_begin(req, &methods[method], msg->params, again, err);
    if (begins)
        status = functions[method](req, msg->params, err);
    if (fd >= 0)
        close(fd);
    if (!begins)
        return REQUEST_ERROR;
    if (status == REQUEST_AGAIN)
        b->counters.parts++;
    else if (status != REQUEST_WAIT) {
        b->counters.calls[method]++;
        b->counters.requests++;
    }
    return status;
}
