#pragma once

// Memory of a client's own that tensors are in: a memfd that it gave, or memory on the GPU behind a
// handle.

#include <stdint.h>

#include "executor/devwire.h"
#include "memory/space.h"
#include "memory/writes.h"

// A client's own memory, mapped by a device. Counted: by the connection that opened it and by each
// storage in it; unmapped with the last.
struct import {
    int refs;
    struct fate *fate;   // a reference: whether it could be opened
    struct space *space; // of the device that maps it
    uint32_t region;     // IMPORT_UNMAPPED: not asked for
    uint64_t size;
};
enum { IMPORT_UNMAPPED = DEV_MAX_REGIONS };
struct import *import_ref(struct import *m);
void import_unref(struct import *m);                           // NULL is fine
struct import *import_new(struct space *space, uint64_t size); // not mapped; its fate is open
