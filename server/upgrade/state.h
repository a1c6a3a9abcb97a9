#pragma once

// The broker's state as one block of bytes, for the program that takes this one's place at an
// upgrade: what clients would miss if it were lost. Programs and plans are not in it; they are made
// again when they are wanted. upgrade.h is who uses it.
//
// The block is a header (magic, format, size, hash) and the records of an archive (archive.h), with
// a file for each part of the broker: state_registry.c, state_memory.c, ...

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct broker;
struct request;

enum { STATE_FORMAT = 1, STATE_OLDEST = 1 }; // what is written; the oldest that is read

struct state_out {
    struct buf bytes;
    size_t settled_size;     // of bytes; what is behind changes by itself
    struct buf fds;          // int: descriptors that it names
    uint64_t unknown_memory; // bytes that are in use for nothing that is written
};

// The whole of it. `asked` is answered by the successor; NULL: nobody waits for that. Zeroed
// before, state_out_finish() after.
void state_write(struct state_out *out, struct broker *b, struct request *asked);
void state_out_finish(struct state_out *out);

// Whether nothing has happened between the two, but what always may.
bool state_is_same(const struct state_out *a, const struct state_out *b);

// The operators that are pinned, each with its versions: appended, nothing where there are none.
// Read into a broker that knows of no operator yet.
void state_write_pins(struct buf *out, struct broker *b);
bool state_read_pins(struct broker *b, const void *bytes, size_t size, struct opd_err *err);

// Fills a broker that has a loop and nothing else. False: `err` says what is wrong, and the broker
// holds a part. Nothing is started: connections have no stream, devices no process. `check`:
// nothing but a look, the descriptors are not there.
bool state_read(struct broker *b, const void *bytes, size_t size, bool check, struct opd_err *err);
