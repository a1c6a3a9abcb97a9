#pragma once

// What goes by a lane (base/lane.h), where the daemon has one to give: a graph that was replayed by
// a request can be replayed without one, until something changes; and so can calls (lane_call.h).

#include <stdbool.h>
#include <stdint.h>

#include "base/lane.h"
#include "c/opd.h"

struct opd_client;

enum { LANE_GRAPHS = 16 };

struct client_lane {
    struct lane *at; // behind the word of done.h; NULL: none is open
    int bell;
    bool refused;
    unsigned n_opened;
    unsigned epoch; // another whenever nothing that was armed is so any more; not 0 if one is open
    char device[32]; // of the last graph
    struct word_waits waits;
    unsigned n_untold, n_looked; // requests of which none was told how to go by the lane
    size_t n_graphs, next;
    struct lane_graph {
        int64_t id;
        struct lane_entry entry;
    } graphs[LANE_GRAPHS];
};

void lane_close(struct opd_client *client);

// A graph is made, or given up.
void lane_use_device(struct opd_client *client, const struct opd_reply *reply);
void lane_forget(struct opd_client *client, int64_t graph);

// What waits. NOT: it did not go by the lane, and has not happened. REFUSED: the same, and it is
// armed no more.
enum lane_result { LANE_NOT, LANE_REFUSED, LANE_DONE, LANE_FAILED };
bool lane_ready(struct opd_client *client, const char *device); // opens one where there is none
bool lane_read_entry(const struct opd_reply *reply, struct lane_entry *out); // False: none is told
// What was to be armed was not: is it open still? All that was armed is so no more.
void lane_look(struct opd_client *client);
// more: seconds beyond the timeout.
enum lane_result lane_run(struct opd_client *client, const struct lane_entry *entry, double more,
                          struct opd_error *err);
enum lane_result lane_replay(struct opd_client *client, int64_t graph, struct opd_error *err);
// It went by a request: what the reply says, perhaps nothing.
void lane_hear(struct opd_client *client, int64_t graph, const struct opd_reply *reply);
