#pragma once

// A compiler process, which has one job at a time. Part of the pool (pool.h).

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "compiler/job.h"
#include "wire/stream.h"

struct turn;
struct worker;

enum worker_state {
    WORKER_NONE, // no process, and no handle
    WORKER_IDLE,
    WORKER_BUSY,
    WORKER_CANCELLED, // at work on what nobody wants; its answer is not told of
    WORKER_ENDING,    // NONE is next
};

struct worker_events {
    // An answer has come, the worker is BUSY no more. `fd`: the image, or -1; taken over.
    void (*answered)(struct worker *w, const struct job_frame *frame, int fd);
    void (*failed)(struct worker *w, const struct opd_err *err); // BUSY has become ENDING
    void (*changed)(struct worker *w);                           // it has become IDLE or NONE
};

struct worker {
    struct turn *turn;
    const struct worker_events *events;
    void *owner;
    bool low; // its priority
    enum worker_state state;
    bool alive;    // the process runs
    int n_handles; // open ones
    struct stream stream;
    uv_process_t process;
    uv_timer_t timer;
    const char *why; // it was told to end; NULL: it was not
    int n_clears;    // looks at what it has left running
};

void worker_start(struct worker *w); // NONE becomes IDLE; where it cannot, its first job fails
void worker_give(struct worker *w, const struct buf *job, double deadline); // IDLE becomes BUSY
void worker_cancel(struct worker *w);                                       // BUSY: CANCELLED
void worker_end(struct worker *w, const char *why); // a running one becomes ENDING
