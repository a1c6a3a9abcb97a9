// Graphs: calls that are recorded once and run again by one request.

#include "c/client.h"

static void pack_name_option(struct pack *p, const char *name)
{
    bool named = name && name[0];
    pack_map(p, named);
    if (!named)
        return;
    pack_str(p, "name");
    pack_str(p, name);
}

bool opd_graph_begin(struct opd_client *c, int64_t id, const char *name, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 2);
    pack_int(&p, id);
    pack_name_option(&p, name);
    return client_call(c, "graph_begin", &p, NULL, err);
}

bool opd_graph_end(struct opd_client *c, int64_t id, struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    pack_init(&p, 1);
    pack_int(&p, id);
    bool good = client_call(c, "graph_end", &p, &reply, err);
    if (good)
        lane_use_device(c, &reply);
    opd_reply_clear(&reply);
    return good;
}

bool opd_graph_attach(struct opd_client *c, int64_t id, const char *name, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 2);
    pack_int(&p, id);
    pack_str(&p, name);
    return client_call(c, "graph_attach", &p, NULL, err);
}

bool opd_replay(struct opd_client *c, int64_t id, double deadline, struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    enum lane_result by_lane = deadline > 0 ? LANE_NOT : lane_replay(c, id, err);
    if (by_lane != LANE_NOT)
        return by_lane == LANE_DONE;
    pack_init(&p, 2);
    pack_int(&p, id);
    pack_map(&p, deadline > 0);
    if (deadline > 0) {
        pack_str(&p, "deadline");
        msgpack_pack_double(&p.mp, deadline);
    }
    bool good = done_run(c, "replay", &p, deadline, &reply, err);
    if (good)
        lane_hear(c, id, &reply);
    opd_reply_clear(&reply);
    return good;
}

bool opd_graph_free(struct opd_client *c, const int64_t *ids, size_t count, struct opd_error *err)
{
    for (size_t i = 0; i < count; i++)
        lane_forget(c, ids[i]);
    return client_free(c, "graph", ids, count, err);
}
