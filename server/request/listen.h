#pragma once

// The listening socket: its folder, its lock, and who may connect. A lock beside the socket, held
// for the daemon's life, tells a live daemon from a socket that a killed one left behind; the
// kernel drops it with the process.

#include <stdbool.h>
#include <uv.h>

#include "base/err.h"

struct broker;

struct listener {
    uv_poll_t poll;
    int fd, lock_fd;
    int spare_fd; // given up for a moment to refuse a connection when there is no other
    bool open;    // connections are taken
    bool lent;    // the socket is a service manager's, who keeps it when we end
};

// The process may have as many descriptors as it can; fewer connections, where those are too few.
struct options;
void listen_raise_limit(struct options *o);

// The socket that a service manager has handed over, whose path it is from then on, or else one at
// --socket. Errors: unavailable, where another daemon serves there; invalid_argument, where the
// path is no place for a socket.
bool listen_open(struct broker *b, struct opd_err *err);
void listen_start(struct broker *b);              // connections are taken from now on
void listen_pause(struct broker *b, bool paused); // who connects meanwhile waits
// Removes the socket, if it is not lent; the lock stays until the process ends.
void listen_close(struct broker *b);
