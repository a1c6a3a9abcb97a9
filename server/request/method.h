#pragma once

// The methods of the protocol: a row of protocol.def each. What carries them out is in dispatch.c.

#include <stddef.h>

enum method_id {
#define REQUEST(name, since, params, result, doc) METHOD_##name,
#include "../../protocol/protocol.def"
#undef REQUEST
    METHOD_COUNT
};

struct method {
    const char *name;
    int since;
    const char *params, *result; // letters, as protocol.def tells them
    const char *doc;
};

extern const struct method methods[METHOD_COUNT];

int method_find(const char *name, size_t size); // -1: there is none of that name
