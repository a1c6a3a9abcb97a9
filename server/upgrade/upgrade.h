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

#include "base/err.h"

struct broker;

void upgrade_poll(struct broker *b); // goes on with it; before the loop sleeps
void upgrade_cancel(struct broker *b, const char *why);

// The successor's side: what the program before has left behind a descriptor, for a broker that has
// a loop and nothing else. `check`: it only looks. Then it goes on with it, and is to be served.
bool upgrade_take_state(struct broker *b, int state_fd, bool check, struct opd_err *err);
void upgrade_go_on(struct broker *b);
