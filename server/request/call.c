// What carries out the methods of the protocol: a function for each.

#include <string.h>
#include <unistd.h>

#include "request/method.h"
#include "request/parts.h"
#include "request/request.h"

static request_fn *const functions[METHOD_COUNT] = {
#define REQUEST(name, since, where, params, result, doc) request_##name,
#include "../../protocol/protocol.def"
#undef REQUEST
};

static bool takes_fd(int method, const value *params)
{
    char text[16];
    const value *kind = value_at(params, 2); // the parameters may be wrong ones
    return method == METHOD_shm_open ||
           (method == METHOD_import_open && kind && value_copy_str(kind, text, sizeof text) &&
            strcmp(text, "memfd") == 0);
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

enum request_status request_call(struct request *req, const struct msg *msg, bool again,
                                 struct opd_err *err)
{
    int method = method_find(msg->method, msg->method_size);
    if (method < 0) {
        opd_err_set(err, OPD_E_unknown_method, "there is no request '%.*s'; see protocol/README.md",
                    (int)(msg->method_size < 64 ? msg->method_size : 64), msg->method);
        return REQUEST_ERROR;
    }
    if (!may_begin(req, &methods[method], msg->params, again, err)) {
        int fd = takes_fd(method, msg->params) ? stream_take_fd(&req->conn->stream) : -1;
        if (fd >= 0)
            close(fd); // it belongs to this message, not to the next
        return REQUEST_ERROR;
    }
    enum request_status status = functions[method](req, msg->params, err);
    if (status == REQUEST_AGAIN)
        req->broker->counters.parts++;
    else if (status != REQUEST_WAIT) {
        req->broker->counters.calls[method]++;
        req->broker->counters.requests++;
    }
    return status;
}
