// Requests about devices.

#include "request/request.h"

static void restarted(void *data, const struct opd_err *err)
{
    struct request *req = data;
    if (!err->code)
        request_pack_device(&req->reply, req->device);
    request_finish(req, err);
}

enum request_status request_device_restart(struct request *req, const value *params,
                                           struct opd_err *err)
{
    struct device *d = request_device(req, value_at(params, 0), err);
    if (!d)
        return REQUEST_ERROR;
    struct request *kept = request_defer(req);
    kept->device = d;
    device_restart(d, restarted, kept);
    return REQUEST_SUBMITTED;
}
