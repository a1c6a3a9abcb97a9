#pragma once

// What happened, kept: the last runs that faulted or missed their deadline, each a file
// (op/bundle.h) in the folder "faults" of the cache. `opctl faults` lists them, `opctl replay` runs
// one again.

#include "base/err.h"

struct command;
struct keeping;
struct request;

// A command of a request has failed: where it is to blame, it is kept. The bytes of its inputs are
// read before anything else runs on the device, where they are in memory of the daemon's, and as
// many as --fault-size says. What cannot be written is told in the log and costs nothing else.
// `more`: the message is not whole yet; what comes back, if anything, waits for faults_complete().
struct keeping *faults_keep(const struct request *req, const struct command *c,
                            const struct opd_err *err, bool more);
void faults_complete(struct keeping *k, const struct opd_err *err); // NULL is fine
