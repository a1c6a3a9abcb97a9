#pragma once

// Calls of opd_forward() that are like one before: the daemon has checked that (the request
// `prepare`), and takes the ids of their tensors alone (`call`). What a call is like is its
// operator, attributes and options, and the dtypes and shapes of its inputs, as far as this side
// knows them.

#include "c/known.h"
#include "c/opd.h"
#include "c/pack.h"

// Zeroed is empty.
struct prepared {
    struct known known;
    struct prepared_call *calls; // each in the place of its hash; a newer one takes it over
    int64_t last_id;
    bool refused; // the daemon is from before there were prepared calls
};

void prepared_finish(struct prepared *prepared);

// A tensor that a reply has described; tensors that were freed.
void prepared_know(struct opd_client *client, const struct opd_tensor *tensor);
void prepared_forget(struct opd_client *client, const int64_t *ids, size_t count);

enum prepared_result {
    PREPARED_DONE,
    PREPARED_FAILED, // the error is the forward's
    PREPARED_NOT,    // nothing was done: it is to be made without
};

// From the second forward on that is like another. `attrs` packs what forward sends of attributes.
enum prepared_result prepared_forward(
    struct opd_client *client, const struct opd_forward_params *params,
    void (*attrs)(struct pack *p, const struct opd_forward_params *params), struct opd_error *err);
