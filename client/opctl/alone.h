#pragma once

// What needs no daemon: this process becomes another role of opd, or has a daemon to itself.

#include "opctl/args.h"

int alone_check(const struct args *args); // check --run, --grad: becomes `opd trial`

// faults, replay: becomes `opd trial`. `cache`: of the daemon that runs; "": the default.
int alone_faults(const struct args *args, const char *cache);

int alone_new(const struct args *args); // new: becomes `opd new`

// A daemon of this process's own, until alone_stop(), or until a signal ends this process: then it
// ends too, and leaves nothing behind. The socket; NULL: none starts, and it has said why.
const char *alone_start(void);
void alone_stop(void);
