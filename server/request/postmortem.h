#pragma once

// After a fault by itself: a GPU has failed in a run, and no more is known than which launch it was
// in. So what that launch works on is copied on the device before anything else changes it, a
// checked build of its kernel is compiled, and when others have had their turn the launch runs
// again in that, on the copies. The request is answered then, with line, tensor and element in its
// message, or with "no bad access was found"; and after POSTMORTEM_MS at the latest. Where the
// memory for copies is not there, the build does not compile or the device fails once more, it is
// answered with what is known without, at once.
//
// Only the answer waits: that the request has failed, what it was making and what it has left
// suspect are settled before. A write that missed and went into another tensor makes that one
// suspect too.

#include <stdint.h>

#include "base/err.h"

struct broker;
struct command;
struct postmortem;
struct request;

enum { POSTMORTEM_MS = 2000 };

// A command of the request that is `checkable` has failed, and is kept (faults.h). What comes back
// calls `answer`, once and not at once; NULL: there is nothing to wait for, and the message says
// what its user can do.
typedef void postmortem_answer_fn(struct request *req, const struct opd_err *err);
struct postmortem *postmortem_begin(struct request *req, const struct command *c,
                                    postmortem_answer_fn *answer, struct opd_err *err);
void postmortem_poll(struct broker *b); // in each turn in which there are some
