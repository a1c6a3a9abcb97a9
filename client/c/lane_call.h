#pragma once

// Prepared calls that go by the lane (lane.h): those that come again on the same tensors.
//
// A result is a new tensor. So one that is freed is kept for the next call that makes it, and
// opd_new_id() gives its id again: a loop that frees what it has made comes to the same tensors
// each time. One is kept only as long as no other request may have come to hold its memory, as a
// view does, or a context; and few, which are small.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "c/lane_use.h"
#include "c/opd.h"

struct opd_client;

enum { LANE_CALL_IDS = 16, LANE_KEPT = 16, LANE_KEPT_BYTES = 256 << 10 };

struct lane_call {
    int64_t prepared; // its id
    size_t n_inputs, n_outputs;
    int64_t ids[LANE_CALL_IDS]; // of both
    struct lane_use use;
};

// Zeroed is empty.
struct lane_calls {
    size_t n, next, n_kept;
    struct lane_call list[LANE_CALLS];
    struct kept_result {
        int64_t id;
        bool given; // by opd_new_id()
    } kept[LANE_KEPT]; // in the order in which they were freed
};

// A call that waits. NOT: it has not happened, and its outputs are no longer kept.
enum lane_result lane_call_run(struct opd_client *client, int64_t prepared,
                               const struct opd_forward_params *params, struct opd_error *err);
// It went by a request, and it or its like may come again.
void lane_call_note(struct opd_client *client, int64_t prepared,
                    const struct opd_forward_params *params);

// Tensors are freed. False: not yet, some are not to be kept.
bool lane_call_keep(struct opd_client *client, const int64_t *ids, size_t count);
int64_t lane_call_id(struct opd_client *client); // that was freed; 0: none
// They are freed now, if they were kept, all of them or this one.
void lane_call_clear(struct opd_client *client);
void lane_call_release(struct opd_client *client, int64_t id);
// A request is about to be sent that may come to hold a tensor's memory, unless it is known not to.
void lane_call_sends(struct opd_client *client, const char *method);
