// Requests about lanes, and what may be run by them.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fdpass.h"
#include "base/lane.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"

// An eventfd, and nothing else: what other files do when a device's process waits for them is
// anybody's guess.
static bool check_bell(int fd, struct opd_err *err)
{
    char path[64], found[32] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool good = fd >= 0 && readlink(path, found, sizeof found - 1) > 0 &&
                strcmp(found, "anon_inode:[eventfd]") == 0;
    if (!good)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "lane_open: no eventfd came with the message (SCM_RIGHTS)");
    return fdpass_left(fd) >= FDPASS_KEPT_BACK ||
           opd_err_set(err, OPD_E_out_of_memory,
                       "lane_open: the daemon keeps its last %d file descriptors for itself",
                       FDPASS_KEPT_BACK);
}

static bool check_lane(const struct request *req, const struct device *d, int64_t at,
                       struct opd_err *err)
{
    if (req->conn->lane)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "lane_open: this connection has a lane; free the shared memory that it "
                           "is in first");
    if (at % LANE_ALIGNED != 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "lane_open: offset %" PRId64 ", expected a multiple of %d", at,
                           LANE_ALIGNED);
    return lanes_of(d)->n < DEV_MAX_LANES ||
           opd_err_set(err, OPD_E_out_of_memory,
                       "lane_open: %s has %d lanes, which is all; send requests", d->name,
                       DEV_MAX_LANES);
}

enum request_status request_lane_open(struct request *req, const value *params, struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), at = value_int(value_at(params, 1));
    struct device *d = request_device(req, value_at(params, 2), err);
    struct dev_ref ref;
    if (!d || !check_lane(req, d, at, err) || !check_bell(*req->fd, err) ||
        !request_shm(req, id, at, sizeof(struct lane), d, &ref, err))
        return REQUEST_ERROR;
    struct client_lane *lane = lane_add(req->conn, d, conn_unref);
    lane->bell = *req->fd;
    *req->fd = -1;
    lane->shm = (uint64_t)id;
    struct command *c = command_new(DEV_LANE_OPEN, lane->number, 0);
    buf_append(&c->bytes, &ref, sizeof ref);
    c->fd = lane->bell;
    device_submit(d, c);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

// What is not begun by now, and not armed any more, never is.
enum request_status request_lane_wait(struct request *req, const value *params, struct opd_err *err)
{
    (void)err;
    struct conn *c = req->conn;
    lane_disarm_conn(c);
    if (c->lane && !lane_is_disarmed(c->lane))
        return REQUEST_WAIT;
    size_t map = pack_map_begin(&req->reply);
    pack_key_bool(&req->reply, "begun",
                  value_int(value_at(params, 0)) == (int64_t)c->lane_begun);
    pack_key_bool(&req->reply, "open", c->lane != NULL);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

// --- arming

static bool may_arm(const struct request *req, const struct graph *g)
{
    const struct broker *b = req->broker;
    const struct graph_launch *launch = g->launch;
    const struct client_lane *lane = req->conn->lane;
    return lane && lane->device == g->device && !req->notification && g->refs == 1 && !g->name &&
           launch->n_steps > 0 && launch->steps.size <= DEV_MAX_ARMED && !launch->alone &&
           !launch->by_call && !b->options.debug &&
           b->clients.n_tracers == 0 && !g->device->restart.wanted &&
           g->device->state == DEVICE_READY &&
           g->device->n_writing == 0 && lane_is_private(launch);
}

static void send_arm(const struct lane_arm *arm, uint32_t flags)
{
    const struct dev_arm head = { .serial = arm->serial, .flags = flags };
    struct command *c = command_new(DEV_LANE_ARM, arm->slot, arm->launch->n_steps);
    buf_append(&c->bytes, &head, sizeof head);
    buf_append(&c->bytes, arm->launch->steps.bytes, arm->launch->steps.size);
    device_submit(arm->device, c);
    atomic_store(&arm->device->link->lanes->armed[arm->slot], arm->serial);
}

bool lane_arm(struct request *req, struct graph *g, uint32_t flags)
{
    if (!may_arm(req, g) || lane_is_armed(g))
        return false;
    const struct lane_arm *arm = lane_add_arm(req->conn->lane, g, graph_launch_unref);
    if (arm)
        send_arm(arm, flags);
    return arm != NULL;
}

void lane_pack_arm(struct buf *out, const struct graph *g)
{
    pack_map(out, 1u + g->launch->call);
    pack_key_array(out, "lane", 2);
    pack_uint(out, g->arms->slot);
    pack_uint(out, g->arms->serial);
    if (g->launch->call)
        pack_key_int(out, "version", g->launch->parts[0].version);
}
