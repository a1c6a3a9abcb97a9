#pragma once

// How a client that waits for a call or replay hears that it is done: by a word in memory that it
// shares with the devices (base/word.h), in place of a reply. The daemon may always reply instead,
// and does where there is more to say.

#include <stdbool.h>

#include "base/word.h"

struct opd_client;
struct opd_error;
struct opd_reply;
struct pack;

struct done {
    struct word *word; // NULL: not shared yet
    bool refused;      // it cannot be
    unsigned n_asked;  // waits before it was shared
    struct word_waits waits;
};

// The shared memory that it is in: no other of the connection is called so.
#define DONE_SHM INT64_MAX

void done_finish(struct done *done);

// As client_call(), of a call or replay: where there is nothing to say but that it is done, there
// may be no reply, and *reply stays as it is.
bool done_run(struct opd_client *client, const char *method, struct pack *params, double more,
              struct opd_reply *reply, struct opd_error *err);

// Waits for a moment. True: it is done, and no reply comes.
bool done_wait_for(struct opd_client *client, struct word *word, struct word_waits *waits);
