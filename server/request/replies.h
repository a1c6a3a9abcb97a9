#pragma once

// Replies that clients have not read, over all connections. Each may have some; what is more comes
// out of a sum for all, and who wants a large reply waits until there is room for it. A connection
// that takes nothing of its own for long, while others wait for that room, is ended.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct broker;
struct conn;

struct replies {
    uv_timer_t timer;
    bool wanted; // somebody waits for room
};

void replies_init(struct broker *b);
void replies_close(struct broker *b);

// May a reply of `size` bytes be begun? False: there is no room, and turn_retry() comes.
bool replies_may_begin(struct conn *c, uint64_t size);
void replies_taken(struct conn *c); // a client has read all of its
