#pragma once

// First compiles, as those who wait for them see it: once a request has waited for half a second,
// its connection is told, where it has asked to be; once the kernels are there, it and all who
// follow events.

#include <uv.h>

struct bound_plan;
struct broker;
struct request;

struct compiling {
    uv_timer_t timer; // half a second of the one that has waited for longest
};

void compiling_init(struct broker *b);
void compiling_close(struct broker *b);

// A request waits for the kernels of a plan; what it has waited for, conn->compiling, is there.
void compiling_wait(struct request *req, const struct bound_plan *bound);
void compiling_end(struct request *req, const struct bound_plan *bound);
