#pragma once

// Asks a program whether it could take this daemon's place: it is started as
// "PROGRAM check-state FD OPTIONS...", reads the whole state, and says "ok" or why not. What it
// says is not trusted to come, or to be short.

#include "base/err.h"
#include "base/mem.h"

struct broker;
struct successor;

// Calls `done` on the loop, once; err->code is 0 where the program could. False with an error: the
// program cannot be started, and `done` does not come.
struct successor *successor_start(struct broker *b, const char *program, const struct buf *state,
                                  void (*done)(void *data, const struct opd_err *err), void *data,
                                  struct opd_err *err);
void successor_drop(struct successor *t); // ends it; `done` does not come

// PROGRAM ROLE STATE_FD OPTIONS...: what a successor is run with. The caller frees the array; what
// it points to is borrowed.
char **successor_args(const struct broker *b, const char *program, const char *role,
                      const char *state_fd);

// The state in a memfd that nobody can change any more; -1 with an error.
int successor_state_fd(const struct buf *state, struct opd_err *err);
