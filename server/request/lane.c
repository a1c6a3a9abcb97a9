#include "request/lane.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "memory/kept.h"
#include "request/graph.h"
#include "request/parts.h"

struct lanes {
    uint64_t n_armed; // ever
    struct device_lanes of[DEV_MAX_DEVICES];
};

struct device_lanes *lanes_of(const struct device *d)
{
    struct broker *b = d->all->owner;
    if (!b->lanes)
        b->lanes = mem_zalloc(1, sizeof *b->lanes);
    return &b->lanes->of[d->space.index];
}

void lanes_free(struct broker *b)
{
    free(b->lanes);
    b->lanes = NULL;
}

void lane_look(struct broker *b)
{
    for (int i = 0; b->lanes && i < b->devices.n; i++)
        if (b->lanes->of[b->devices.at[i]->space.index].n > 0)
            device_look(b->devices.at[i]);
}

// --- what may be run

// What has a name and may be written from now on is open for the keeper (memory/kept.h): should the
// broker be killed, nobody knows what was begun.
static void hold_kept(struct lane_arm *arm)
{
    const struct graph_pieces *writes = &arm->launch->writes;
    arm->kept = mem_zalloc(writes->n, sizeof *arm->kept);
    for (size_t i = 0; i < writes->n; i++) {
        struct storage *s = writes->list[i].storage;
        if (s->n_names == 0)
            continue;
        arm->kept[arm->n_kept++] = storage_ref(s);
        s->armed++;
        kept_settle(s);
    }
}

static void leave_kept(struct lane_arm *arm)
{
    for (size_t i = 0; i < arm->n_kept; i++) {
        arm->kept[i]->armed--;
        kept_settle(arm->kept[i]);
        storage_unref(arm->kept[i]);
    }
    free(arm->kept);
}

// The executor has heard: nothing of it is begun, or was that is not told.
static void disarmed(struct command *c, const struct opd_err *err)
{
    (void)err;
    struct lane_arm *arm = c->data, **at = arm->graph ? &arm->graph->arms : NULL;
    while (at && *at != arm)
        at = &(*at)->next;
    if (at)
        *at = arm->next;
    lanes_of(arm->device)->arms[arm->slot] = NULL;
    leave_kept(arm);
    arm->released(arm->launch);
    free(arm);
}

static void disarm(struct lane_arm *arm)
{
    if (!arm->live)
        return;
    arm->live = false;
    const struct device_link *link = arm->device->link;
    if (link && link->lanes)
        atomic_store(&link->lanes->armed[arm->slot], 0);
    struct command *c = command_new(DEV_LANE_DISARM, arm->slot, 0);
    c->done = disarmed;
    c->data = arm;
    device_submit(arm->device, c);
}

static void disarm_lane(const struct client_lane *lane)
{
    struct device_lanes *l = lanes_of(lane->device);
    for (uint32_t i = lane->number * DEV_LANE_ARMS; i < (lane->number + 1) * DEV_LANE_ARMS; i++)
        if (l->arms[i])
            disarm(l->arms[i]);
}

void lane_disarm_conn(struct conn *c)
{
    if (c->lane)
        disarm_lane(c->lane);
}

void lane_disarm_device(struct broker *b, const struct device *d)
{
    for (uint32_t i = 0; b->lanes && i < DEV_MAX_LANES; i++)
        if (lanes_of(d)->list[i])
            disarm_lane(lanes_of(d)->list[i]);
}

void lane_rest(struct broker *b, const struct device *d)
{
    for (uint32_t i = 0; b->lanes && i < LANE_ARMS; i++) {
        struct lane_arm *arm = lanes_of(d)->arms[i];
        if (arm && arm->n_kept > 0)
            disarm(arm);
    }
}

static bool are_private(const struct graph_pieces *pieces)
{
    for (size_t i = 0; i < pieces->n; i++)
        if (pieces->list[i].storage->shared || pieces->list[i].storage->import)
            return false;
    return true;
}

bool lane_is_private(const struct graph_launch *launch)
{
    return are_private(&launch->reads) && are_private(&launch->writes);
}

bool lane_leave_shared(struct broker *b, const struct device *d)
{
    bool none = true;
    for (uint32_t i = 0; b->lanes && i < LANE_ARMS; i++) {
        struct lane_arm *arm = lanes_of(d)->arms[i];
        if (!arm || lane_is_private(arm->launch))
            continue;
        disarm(arm);
        none = false;
    }
    return none;
}

void lane_disarm_all(void *broker)
{
    struct broker *b = broker;
    for (int i = 0; b->lanes && i < b->devices.n; i++)
        lane_disarm_device(b, b->devices.at[i]);
}

void lane_disarm_graph(struct graph *g)
{
    for (struct lane_arm *arm = g->arms, *next; arm; arm = next) {
        next = arm->next;
        disarm(arm);
    }
}

static bool keeps(const struct lane_arm *arm, const struct storage *s)
{
    size_t i = 0;
    while (i < arm->n_kept && arm->kept[i] != s)
        i++;
    return i < arm->n_kept;
}

static void leave_pieces(struct graph_pieces *p, const struct lane_arm *arm)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (keeps(arm, p->list[i].storage))
            p->list[n++] = p->list[i];
    p->n = n;
}

// What was begun and is not told yet finds no memory of it any more but what has a name: others may
// come to read that.
void lane_leave_graph(struct graph *g)
{
    while (g->arms) {
        struct lane_arm *arm = g->arms;
        g->arms = arm->next;
        arm->graph = NULL;
        leave_pieces(&arm->launch->reads, arm);
        leave_pieces(&arm->launch->writes, arm);
        disarm(arm);
    }
}

// --- calls

bool lane_is_armed(const struct graph *g)
{
    const struct lane_arm *arm = g->arms;
    while (arm && !arm->live)
        arm = arm->next;
    return arm != NULL;
}

static void drop_call(struct graph **call)
{
    struct graph *g = *call;
    *call = NULL;
    graph_unref(g);
}

struct graph **lane_call_room(struct client_lane *lane)
{
    struct graph **room = NULL;
    for (int i = 0; i < DEV_LANE_ARMS; i++) {
        if (lane->calls[i] && !lane_is_armed(lane->calls[i]))
            drop_call(&lane->calls[i]);
        if (!lane->calls[i])
            room = &lane->calls[i];
    }
    return room;
}

static void drop_calls(struct client_lane *lane)
{
    for (int i = 0; i < DEV_LANE_ARMS; i++)
        drop_call(&lane->calls[i]);
}

void lane_drop_calls(struct conn *c)
{
    if (c->lane)
        drop_calls(c->lane);
}

static bool names(const struct graph *g, const struct storage *s)
{
    const struct graph_node *node = g->nodes;
    int i = 0;
    while (i < node->n_places && node->places[i].storage != s)
        i++;
    return i < node->n_places;
}

void lane_drop_all_calls(struct broker *b)
{
    for (int i = 0; b->lanes && i < b->devices.n; i++)
        for (uint32_t k = 0; k < DEV_MAX_LANES; k++) {
            struct client_lane *lane = lanes_of(b->devices.at[i])->list[k];
            if (lane)
                drop_calls(lane);
        }
}

void lane_leave_storage(struct conn *c, const struct storage *s)
{
    for (int i = 0; c->lane && i < DEV_LANE_ARMS; i++)
        if (c->lane->calls[i] && names(c->lane->calls[i], s))
            drop_call(&c->lane->calls[i]);
}

// --- lanes

static void forgotten(struct command *c, const struct opd_err *err)
{
    (void)err;
    struct client_lane *lane = c->data;
    struct device_lanes *l = lanes_of(lane->device);
    l->list[lane->number] = NULL;
    l->n--;
    drop_calls(lane);
    close(lane->bell);
    lane->released(lane->conn);
    free(lane);
}

void lane_close(struct conn *c)
{
    struct client_lane *lane = c->lane;
    if (!lane)
        return;
    c->lane = NULL;
    disarm_lane(lane);
    lane->closed = true;
    struct command *close = command_new(DEV_LANE_CLOSE, lane->number, 0);
    close->done = forgotten;
    close->data = lane;
    device_submit(lane->device, close);
}

void lane_leave_shm(struct conn *c, uint64_t shm)
{
    if (c->lane && c->lane->shm == shm)
        lane_close(c);
}

void lane_close_device(struct broker *b, const struct device *d)
{
    for (uint32_t i = 0; b->lanes && i < DEV_MAX_LANES; i++) {
        struct client_lane *lane = lanes_of(d)->list[i];
        if (lane && !lane->closed)
            lane_close(lane->conn);
    }
}

struct client_lane *lane_add(struct conn *c, struct device *d, void (*released)(struct conn *c))
{
    struct device_lanes *l = lanes_of(d);
    struct client_lane *lane = mem_alloc(sizeof *lane);
    *lane = (struct client_lane){ .conn = c, .device = d, .bell = -1, .released = released };
    while (l->list[lane->number])
        lane->number++;
    l->list[lane->number] = lane;
    l->n++;
    c->refs++;
    c->lane = lane;
    return lane;
}

struct lane_arm *lane_add_arm(struct client_lane *lane, struct graph *g,
                              void (*released)(struct graph_launch *launch))
{
    struct broker *b = lane->device->all->owner;
    struct device_lanes *l = lanes_of(lane->device);
    uint32_t slot = lane->number * DEV_LANE_ARMS, end = slot + DEV_LANE_ARMS;
    while (slot < end && l->arms[slot])
        slot++;
    if (slot == end)
        return NULL;
    struct lane_arm *arm = mem_alloc(sizeof *arm);
    *arm = (struct lane_arm){ .next = g->arms,
                              .lane = lane,
                              .graph = g,
                              .launch = g->launch,
                              .released = released,
                              .device = lane->device,
                              .slot = slot,
                              .serial = ++b->lanes->n_armed,
                              .live = true };
    g->launch->refs++;
    g->arms = l->arms[slot] = arm;
    hold_kept(arm);
    return arm;
}

const struct lane_arm *lane_find_arm(const struct device *d, uint32_t slot, uint64_t serial)
{
    const struct lane_arm *arm = slot < LANE_ARMS ? lanes_of(d)->arms[slot] : NULL;
    return arm && arm->serial == serial ? arm : NULL;
}

bool lane_is_disarmed(const struct client_lane *lane)
{
    const struct device_lanes *l = lanes_of(lane->device);
    for (uint32_t i = 0; i < DEV_LANE_ARMS; i++)
        if (l->arms[lane->number * DEV_LANE_ARMS + i])
            return false;
    return true;
}
