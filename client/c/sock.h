#pragma once

// A Unix stream socket on which nothing waits past a deadline.

#include <sys/uio.h>

#include "c/opd.h"

// A moment so many seconds from now, in nanoseconds of the monotonic clock. 0 or less: never.
uint64_t sock_deadline(double seconds);

// Returns the socket, or -1. Whoever serves there is this user or root; or, where the caller has
// `named` the path, a user who has given the socket to a group of ours, as --group does. Root may
// name anybody's.
int sock_connect(const char *path, bool named, double timeout, struct opd_error *err);

// Waits for one of poll's events. False at the deadline or on a failure.
bool sock_poll(int fd, short events, uint64_t deadline, short *happened, struct opd_error *err);

// What the kernel takes at once: the number of bytes, 0 if it takes none now, -1 and errno if the
// connection has ended. `passed` goes with the first byte; -1: nothing.
ssize_t sock_write(int fd, const struct iovec *parts, size_t count, int passed);
