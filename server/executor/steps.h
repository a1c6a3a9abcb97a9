#pragma once

// The steps of a command: turns slots into addresses (regions.h), program numbers into kernels
// (programs.h), and gives the device what it is to do, in order. What comes again and again is
// given as one graph (graphs.h). Nothing here waits for the device but a command that runs alone,
// for its own steps.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/word.h"
#include "executor/backend.h"
#include "executor/devwire.h"
#include "executor/graphs.h"
#include "executor/programs.h"
#include "executor/regions.h"

struct steps {
    const struct backend_ops *ops;
    struct backend *be;
    struct regions regions;
    struct programs programs;
    struct graphs graphs;
    bool shares_marks; // the device writes how far its stream has come
    bool blas_later;   // not looked for yet
    bool has_graphs;
    bool records; // what is given now becomes a graph
    struct buf args, tensors; // of a launch
    device_addr workspace;    // of a product, that goes into a graph; else 0
    uint64_t *reports;        // host memory, a ring of them, given out in turn
    bool locks_reports;       // the device has been told of it, and may write to it by itself
    size_t n_reports;         // given out, ever
    size_t n_reported;        // of these, ever: told of, so that their places are free
    // The command that is being run: how many steps have begun, and its reports.
    uint64_t seq;
    uint32_t n_begun, n_own;
    struct word *word; // of its client; NULL: none
    uint32_t version;  // that it is told with it
    struct backend_miss miss; // of a checked build, where it has failed by that
};

void steps_init(struct steps *s, const struct backend_ops *ops, struct backend *be);
// The device is at rest; or it has failed, and what it maps ends with the process.
void steps_finish(struct steps *s, bool failed);

void steps_begin(struct steps *s, uint64_t seq); // a command, of any type
// Gives the device all that one of type DEV_RUN has. False: s->n_begun of its steps had begun.
bool steps_run(struct steps *s, const struct dev_command *cmd, struct opd_err *err);

// Whether a command of type DEV_RUN has a launch that waits for its end.
bool steps_wait(const struct steps *s, const struct dev_command *cmd);

// The product that a step is.
bool steps_product(struct steps *s, const struct dev_matmul *x, struct backend_matmul *out,
                   struct opd_err *err);

// Whether a command can be run: the reports of those in flight leave room for its own.
bool steps_have_room(const struct steps *s);

// What a command's first n reports tell: the first that is not 0, and its number. Commands are told
// of in order, each once: its places are free then.
uint64_t steps_report(const struct steps *s, uint32_t n, uint32_t *out_number);
void steps_reported(struct steps *s, uint32_t n);
