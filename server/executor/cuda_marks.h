#pragma once

// How far a stream has come, and how long it took: marks are numbers that it passes in the order in
// which they were added, stamps are its own clock. Where the driver can, the device writes each
// mark to memory of the host as it passes it; else marks are events, and are seen passed by
// looking.
//
// The stream is the backend's. Errors are the driver's; from cuda_marks_poll() they mean that the
// stream has stopped, which is asked where no mark has passed for some microseconds.

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "executor/backend.h"
#include "executor/cuda_driver.h"

enum { CUDA_MARKS_EVENTS = 64 };

struct cuda_mark_event {
    void *event;
    uint64_t mark;
};

// Zeroed, it may be finished.
struct cuda_marks {
    const struct cuda_driver *cu;
    void *stream;
    uint64_t last;
    uint64_t seen, asked_at;  // by poll: a mark, and when it passed or the driver was asked
    _Atomic uint64_t *passed; // page-locked; the device writes it, or poll does
    drv_addr passed_addr;     // 0: marks are events
    void *own_passed;         // allocated here, where it is not shared
    struct cuda_mark_event events[CUDA_MARKS_EVENTS];
    unsigned first_event, n_events; // a ring
    void *stamps[BACKEND_STAMPS];   // events that tell the time, made when they are first wanted
};

// `writes`: the device can write 64 bits in stream order. What fails has to be finished all the
// same.
bool cuda_marks_init(struct cuda_marks *m, const struct cuda_driver *cu, void *stream, bool writes,
                     struct opd_err *err);
void cuda_marks_finish(struct cuda_marks *m); // once the stream is destroyed, before its context

// As the functions of backend.h that go by these names.
bool cuda_marks_add(struct cuda_marks *m, uint64_t mark, struct opd_err *err);
bool cuda_marks_poll(struct cuda_marks *m, uint64_t *out_mark, struct opd_err *err);
bool cuda_marks_share(struct cuda_marks *m, _Atomic uint64_t *passed);
bool cuda_marks_stamp(struct cuda_marks *m, unsigned place, struct opd_err *err);
bool cuda_marks_elapsed(struct cuda_marks *m, unsigned from, unsigned to, uint64_t *out_ns,
                        struct opd_err *err);
