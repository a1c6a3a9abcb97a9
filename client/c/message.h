#pragma once

// One message of the daemon, decoded.

#include "c/opd.h"

struct message {
    bool response;         // else a notification
    msgpack_object method; // of a notification: a string
    bool has_id;           // a response to what could not be read has none
    uint32_t id;
    msgpack_object error;   // nil: none
    struct opd_reply reply; // its result, or the parameters; owns all the memory
};

// Takes over `bytes`, which hold exactly one object. False: not a message.
bool message_read(struct message *message, char *bytes, size_t size, struct opd_error *err);

// A notification of that method.
bool message_is(const struct message *message, const char *method);

void message_clear(struct message *message);
