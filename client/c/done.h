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
    unsigned n_asked;  // waits, ever
    unsigned n_missed; // in a row: waits that a reply has ended
    unsigned n_passed; // waits that are left to replies after some of these
};

void done_finish(struct done *done);

// Before a request is sent. False: the reply is all there will be.
bool done_begin(struct opd_client *client);
// Once it is sent: waits for a moment. True: it is done, and no reply comes.
bool done_wait(struct opd_client *client);
