#pragma once

// Children whose end nobody waits for: those of the program before an upgrade, and executors that
// are on their way out while their successor already starts.

#include <stdbool.h>

struct broker;

void orphans_init(struct broker *b);
void orphans_close(struct broker *b);
void orphans_start(struct broker *b); // reaps those that are in b->orphans
// False: there are too many, and the caller waits itself. `kill`: it does not end by itself.
bool orphans_add(struct broker *b, int pid, bool kill);
