#pragma once

// Named tensors and pinned operators that a daemon which was killed has left with its keeper
// (keeper/keeper.h), taken over by the next one.

#include <stdbool.h>

#include "base/err.h"

struct broker;
struct device;

// For devices that are there and have no executor yet. True where there is nothing, too. Errors:
// unavailable: there is something, and it cannot be taken over now.
bool recover_names(struct broker *b, struct opd_err *err);

// After an upgrade, of a broker that has its tensors: which of the list is which.
void recover_claim(struct broker *b);
// Then, where names are kept from now on: those that the list has not, as from a program before
// there was a keeper.
void recover_add(struct broker *b);

// Operators that are pinned, and their versions: the keeper has them as they are now.
void recover_keep_pins(struct broker *b);

// A device is not served after all: what is named there stays with the keeper, for another daemon.
void recover_leave(struct broker *b, struct device *d);
