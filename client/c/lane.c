#include "c/lane.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>

#include "c/client.h"

enum { OPENED_MOST = 100 }; // executors that end are not for ever
enum { UNTOLD = 4, MOST_LOOKED = 10 };

void lane_close(struct opd_client *c)
{
    if (c->lane.at)
        close(c->lane.bell);
    c->lane.at = NULL;
    c->lane.n_graphs = 0;
    c->lane.epoch++;
}

void lane_use_device(struct opd_client *c, const struct opd_reply *reply)
{
    opd_map_str(&reply->result, "device", c->lane.device, sizeof c->lane.device);
}

static struct lane_graph *find_graph(struct opd_client *c, int64_t id)
{
    for (struct lane_graph *g = c->lane.graphs; g < c->lane.graphs + c->lane.n_graphs; g++)
        if (g->id == id)
            return g;
    return NULL;
}

void lane_forget(struct opd_client *c, int64_t id)
{
    struct lane_graph *g = find_graph(c, id);
    if (g)
        *g = c->lane.graphs[--c->lane.n_graphs];
}

// --- opening

static void open_lane(struct opd_client *c, const char *device)
{
    struct client_lane *lane = &c->lane;
    struct pack p;
    uint32_t request;
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lane->refused = bell < 0 || ++lane->n_opened == OPENED_MOST;
    if (bell < 0)
        return;
    pack_init(&p, 3);
    pack_int(&p, DONE_SHM);
    pack_int(&p, LANE_ALIGNED);
    pack_str(&p, device);
    struct iovec parts[2] = { { p.bytes.data, p.bytes.size } };
    bool good = !p.failed && client_send(c, "lane_open", parts, bell, &request, NULL) &&
                client_wait(c, request, 0, NULL, NULL);
    pack_finish(&p);
    if (!good) {
        close(bell);
        lane->refused = true;
        return;
    }
    lane->bell = bell;
    lane->at = (struct lane *)(void *)((char *)c->done.word + LANE_ALIGNED);
    lane->epoch++;
}

bool lane_ready(struct opd_client *c, const char *device)
{
    if (!c->lane.at && c->done.word && !c->lane.refused && device[0])
        open_lane(c, device);
    return c->lane.at != NULL;
}

bool lane_read_entry(const struct opd_reply *reply, struct lane_entry *out)
{
    const msgpack_object *told = opd_map_get(&reply->result, "lane");
    if (!told || told->type != MSGPACK_OBJECT_ARRAY || told->via.array.size != 2)
        return false;
    *out = (struct lane_entry){ .slot = (uint32_t)told->via.array.ptr[0].via.u64,
                                .serial = told->via.array.ptr[1].via.u64 };
    return true;
}

void lane_hear(struct opd_client *c, int64_t id, const struct opd_reply *reply)
{
    struct client_lane *lane = &c->lane;
    struct lane_entry entry;
    if (!lane_ready(c, lane->device))
        return;
    if (!lane_read_entry(reply, &entry)) {
        if (++lane->n_untold > (unsigned)UNTOLD << lane->n_looked)
            lane_look(c);
        return;
    }
    struct lane_graph *g = find_graph(c, id);
    if (!g && lane->n_graphs < LANE_GRAPHS)
        g = &lane->graphs[lane->n_graphs++];
    if (!g)
        g = &lane->graphs[lane->next++ % LANE_GRAPHS];
    *g = (struct lane_graph){ id, entry };
}

// --- running

static bool is_told(struct opd_client *c, struct word *word)
{
    return done_wait_for(c, word, &c->lane.waits);
}

// After the word has told nothing for a while: was it begun? Then its reply comes.
static bool ask_begun(struct opd_client *c, uint32_t request, bool *out_begun,
                      struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    pack_init(&p, 1);
    pack_int(&p, request);
    if (!client_call(c, "lane_wait", &p, &reply, err))
        return false;
    const msgpack_object *begun = opd_map_get(&reply.result, "begun"),
                         *open = opd_map_get(&reply.result, "open");
    *out_begun = begun && begun->type == MSGPACK_OBJECT_BOOLEAN && begun->via.boolean;
    if (!open || open->type != MSGPACK_OBJECT_BOOLEAN || !open->via.boolean)
        lane_close(c);
    opd_reply_clear(&reply);
    c->lane.n_graphs = 0;
    c->lane.epoch++;
    return true;
}

void lane_look(struct opd_client *c)
{
    struct client_lane *lane = &c->lane;
    bool begun;
    lane->n_untold = 0;
    lane->n_looked += lane->n_looked < MOST_LOOKED;
    if (lane->at && ask_begun(c, 0, &begun, NULL) && !lane->at)
        lane->n_looked = 0;
}

// The reply comes, or it was not begun.
static enum lane_result hear(struct opd_client *c, uint32_t request, double more,
                             struct opd_error *err)
{
    bool begun;
    if (!ask_begun(c, request, &begun, err)) {
        client_forget(c, request);
        return LANE_FAILED;
    }
    if (begun)
        return client_wait(c, request, more, NULL, err) ? LANE_DONE : LANE_FAILED;
    client_drop(c, request);
    return LANE_REFUSED;
}

static bool begin(struct opd_client *c)
{
    struct client_lane *lane = &c->lane;
    if (lane_is_to_look(&lane->waits) || c->requests)
        client_look(c);
    return !c->requests && !c->broken.code && word_begin(&lane->at->word, &lane->waits);
}

enum lane_result lane_run(struct opd_client *c, const struct lane_entry *armed, double more,
                          struct opd_error *err)
{
    struct client_lane *lane = &c->lane;
    struct lane_entry entry = *armed;
    if (!begin(c))
        return LANE_NOT;
    if (!client_await(c, &entry.request, err)) {
        word_leave(&lane->at->word);
        return LANE_FAILED;
    }
    uint32_t number = lane_enter(lane->at, &entry, lane->bell);
    if (is_told(c, &lane->at->word)) {
        client_drop(c, entry.request);
        return LANE_DONE;
    }
    if (!lane_was_refused(lane->at, number, &lane->waits))
        return hear(c, entry.request, more, err);
    client_drop(c, entry.request);
    return LANE_REFUSED;
}

enum lane_result lane_replay(struct opd_client *c, int64_t id, struct opd_error *err)
{
    const struct lane_graph *g = c->lane.at ? find_graph(c, id) : NULL;
    enum lane_result result = g ? lane_run(c, &g->entry, 0, err) : LANE_NOT;
    if (result == LANE_REFUSED)
        lane_forget(c, id);
    return result == LANE_REFUSED ? LANE_NOT : result;
}
