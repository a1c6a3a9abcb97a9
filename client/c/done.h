#pragma once

// How a client that waits for a call or replay hears that it is done: by a word in memory that it
// shares with the devices (base/word.h), in place of a reply. The daemon may always reply instead,
// and does where there is more to say.

#include <stdbool.h>

#include "base/word.h"

struct opd_client;

struct done {
    struct word *word; // NULL: not shared yet
    bool refused;      // it cannot be
    unsigned n_asked;  // waits before it was shared
    struct word_waits waits;
};

// The shared memory that it is in: no other of the connection is called so.
#define DONE_SHM INT64_MAX

void done_finish(struct done *done);

// Before a request is sent. False: the reply is all there will be.
bool done_begin(struct opd_client *client);
void done_leave(struct opd_client *client); // it could not be sent
// Once it is sent: waits for a moment. True: it is done, and no reply comes.
bool done_wait(struct opd_client *client);
bool done_wait_for(struct opd_client *client, struct word *word, struct word_waits *waits);
