#pragma once

// The broker process: everything that must last. It owns the loop, the connections, the operators,
// the tensors, and the descriptors of all device memory; it contains no CUDA, no kernel and no user
// code. Its parts are in request/parts.h; here is its life.

#include "options.h"

struct broker;

// Serves from start to end; the process's exit status. Takes the options over. `program`: the path
// that this was started from, `args`: what it was started with, behind its name, to the end: both
// for a successor.
int broker_main(const struct options *options, const char *program, char **args);

// The same, from where the program before has left off (upgrade.h).
int broker_resume(const struct options *options, const char *program, char **args, int state_fd);

// Nothing but a look at what that has left, with "ok" or what is wrong on standard output.
int broker_check_state(const struct options *options, int state_fd);

// A broker that has a loop and nothing else, and its end where it was never served.
struct broker *broker_new(const struct options *options);
void broker_discard(struct broker *b);
