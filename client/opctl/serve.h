#pragma once

// Metrics by HTTP, for Prometheus: GET /metrics. Some are answered at a time, each in a thread; a
// client that is slow is given up.

#include <stdbool.h>
#include <stdio.h>

// Writes what is to be answered, in any thread. False: there is nothing, and `out` says why.
typedef bool serve_fn(FILE *out, void *data);

// "127.0.0.1:9105", "[::1]:9105"; ":9105" is of the loopback. Port 0: one that is free. Returns the
// socket, and in `url` where it is; -1: `why` says on one line what is wrong.
enum { SERVE_TEXT = 256 };
int serve_open(const char *address, char url[SERVE_TEXT], char why[SERVE_TEXT]);

// Answers those who connect, for ever; returns where no more can.
void serve_all(int fd, serve_fn *answer, void *data);
