#pragma once

// Upgrade in place: another program takes this one's place in the same process, and goes on with
// its socket, connections, tensors and versions.
//
//   TRIAL   the program looks at the state as it is now; all goes on meanwhile
//   SETTLE  edits and checks under way end; no new ones are begun
//   DRAIN   nothing new is begun; what is in flight ends
//   CHECK   nothing changes any more, and the program looks at the state that it will get
//
// then execve(). Until that has succeeded nothing is given up: where anything fails, the daemon
// goes on as before, and whoever asked is told. The successor answers otherwise. Compilers and
// executors are started anew; the old ones are its children too (device/orphans.h).

#include <stdbool.h>

#include "options.h"

struct broker;

void upgrade_poll(struct broker *b); // goes on with it; before the loop sleeps
void upgrade_cancel(struct broker *b, const char *why);

// The successor's side: nothing but a look at the state behind a descriptor, with "ok" or what is
// wrong on standard output. The process's exit status.
int upgrade_check_state(const struct options *options, int state_fd);

// Goes on with what the program before has left. `program` and `args` as broker_main() takes them.
// The process's exit status.
int upgrade_resume(const struct options *options, const char *program, char **args, int state_fd);
