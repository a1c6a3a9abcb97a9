// Requests about devices.

#include <stdlib.h>

#include "request/lane.h"
#include "request/request.h"

// Copies of half of a piece of memory to its other half. The first ones touch it; then the least
// counts.
enum {
    SPEED_COPIES = 6,
    SPEED_BYTES_CPU = 256 << 20,
    SPEED_BYTES_CUDA = 512 << 20,
    SPEED_LEAST = 1 << 16
};

struct speed {
    struct request *req;
    struct storage *memory; // a reference
    int left;
    uint64_t least; // nanoseconds; 0: none yet
};

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
    lane_disarm_device(req->broker, d); // before nothing more is sent to it
    device_restart(d, restarted, kept);
    return REQUEST_SUBMITTED;
}

static void submit_speed(struct speed *s);

static void pack_speed(struct buf *out, const struct device *d)
{
    size_t map = pack_map_begin(out);
    pack_key_float(out, "copy", device_copy_speed(d));
    pack_map_end(out, map);
}

static void copied(struct command *c, const struct opd_err *err)
{
    struct speed *s = c->data;
    struct device *d = s->req->device;
    if (c->ran && (!s->least || c->ran < s->least))
        s->least = c->ran;
    if (!err->code && --s->left > 0) {
        submit_speed(s);
        return;
    }
    if (!err->code && s->least)
        d->copy_ns_per_byte = (double)s->least / (double)s->memory->size;
    pack_speed(&s->req->reply, d);
    storage_unref(s->memory);
    device_drop_empty(d);
    request_finish(s->req, err);
    free(s);
}

static void submit_speed(struct speed *s)
{
    uint64_t half = s->memory->size / 2;
    struct command *c = command_new(DEV_RUN, DEV_RUN_TIMED, 1);
    struct dev_copy copy = { .step = { DEV_STEP_COPY, sizeof copy }, .size = half };
    storage_address(s->memory, 0, &copy.src);
    storage_address(s->memory, half, &copy.dst);
    buf_append(&c->bytes, &copy, sizeof copy);
    c->label = "device_speed";
    c->repeatable = true;
    c->done = copied;
    c->data = s;
    device_submit(s->req->device, c);
}

enum request_status request_device_speed(struct request *req, const value *params,
                                         struct opd_err *err)
{
    struct device *d = request_device(req, value_at(params, 0), err);
    if (!d)
        return REQUEST_ERROR;
    if (d->copy_ns_per_byte > 0) {
        pack_speed(&req->reply, d);
        return REQUEST_ANSWERED;
    }
    uint64_t size = d->is_cpu ? SPEED_BYTES_CPU : SPEED_BYTES_CUDA;
    uint64_t most = device_memory_limit(d) / 8 / SPEED_LEAST * SPEED_LEAST;
    most = most > SPEED_LEAST ? most : SPEED_LEAST;
    struct storage *memory;
    enum request_status status = request_storage(req, d, size < most ? size : most, &memory, err);
    if (status != REQUEST_ANSWERED)
        return status;
    struct speed *s = mem_alloc(sizeof *s);
    *s = (struct speed){ .req = request_defer(req), .memory = memory, .left = SPEED_COPIES };
    s->req->device = d;
    submit_speed(s);
    return REQUEST_SUBMITTED;
}
