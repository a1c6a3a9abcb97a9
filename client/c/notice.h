#pragma once

// The notifications that have come and not been taken.

#include "c/message.h"

struct notices { // zeroed is empty
    struct notice *first, *last;
    size_t count;
};

// Takes over the message. The oldest goes where there are too many. False: no host memory.
bool notices_add(struct notices *notices, struct message *message, struct opd_error *err);

bool notices_has(const struct notices *notices, const char *method);

// Moves the parameters of the oldest of that method to `params` (NULL: drops them). False: none.
bool notices_take(struct notices *notices, const char *method, struct opd_reply *params);

void notices_finish(struct notices *notices);
