#pragma once

// What happened, kept: the last runs that faulted or missed their deadline, each a file
// (op/bundle.h) in the folder "faults" of the cache. `opctl faults` lists them, `opctl replay` runs
// one again.

#include "base/err.h"

struct command;
struct request;

// A command of a request has failed: where it is to blame, it is kept. The bytes of its inputs are
// read before anything else runs on the device, where they are in memory of the daemon's, and as
// many as --fault-size says. What cannot be written is told in the log and costs nothing else.
void faults_keep(const struct request *req, const struct command *c, const struct opd_err *err);
