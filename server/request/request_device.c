// Requests about devices.

#include "request/parts.h"
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
    char name[16];
    struct device *d = NULL;
    if (value_copy_str(value_at(params, 0), name, sizeof name))
        d = devices_find(&req->broker->devices, name);
    if (!d) {
        opd_err_set(err, OPD_E_not_found,
                    "device_restart: no such device is served; opctl status lists them");
        return REQUEST_ERROR;
    }
    struct request *kept = request_defer(req);
    kept->device = d;
    device_restart(d, restarted, kept);
    return REQUEST_SUBMITTED;
}
