#pragma once

// The broker process: everything that must last. It owns the loop, the connections, the operators,
// the tensors, and the descriptors of all device memory; it contains no CUDA, no kernel and no user
// code. Its parts are in request/parts.h; here is its life.

#include "options.h"

struct broker;

// The process's exit status; takes the options over. `program`: the path that this was started
// from, `args`: what it was started with, behind its name, to the end: both for a successor.
int broker_main(const struct options *options, const char *program, char **args);

// The steps of it. A broker has a loop and nothing else; is served when its devices are there; is
// run to its end; or goes without having been served.
struct broker *broker_new(const struct options *options);
void broker_serve(struct broker *b);
int broker_run(struct broker *b); // the process's exit status; frees it
void broker_discard(struct broker *b);
