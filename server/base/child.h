#pragma once

// Another program, run to its end.

#include "base/err.h"
#include "base/mem.h"

// Runs argv[0], which is looked for on $PATH, in folder `cwd` (NULL: here), and collects what it
// prints, both streams, cut at `limit` bytes. False only if it could not be run, took longer than
// limit_ms, or something came from the watched socket: then it was killed, with what it had
// started. *out_status is waitpid()'s.
bool child_run(char *const argv[], const char *cwd, int limit_ms, size_t limit, struct buf *output,
               int *out_status, struct opd_err *err);

// From here on what runs is killed when the other side of this socket hangs up, or writes to it.
void child_watch(int socket);
