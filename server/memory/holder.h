#pragma once

// Who holds device memory: each client for itself, named tensors for all. For the limit of each
// client, and for whoever asks where the memory went.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "executor/devwire.h"

struct buf;
struct space;
struct storage;

// A connection as a holder of memory; outlives it for as long as something that it made is there.
struct holder {
    int refs;
    struct holders *list;            // of the connected ones; NULL: it has gone
    struct holder *prev, *next;      // in it
    uint64_t id;                     // its connection's
    int pid;                         // 0: unknown
    char client[64];                 // as it called itself in hello
    uint64_t bytes[DEV_MAX_DEVICES]; // of all that it made and that is still there
    uint64_t named[DEV_MAX_DEVICES]; // of that: with a name
};

// The holders whose connections are there. Zeroed is none.
struct holders {
    struct holder *first;
};

struct holder *holder_new(int pid);
struct holder *holder_ref(struct holder *h);
void holder_unref(struct holder *h); // NULL is fine
void holder_enter(struct holder *h, struct holders *list, uint64_t id);
void holder_leave(struct holder *h); // its connection has ended; nothing if it was not there

// Whether a holder may make so much more. Errors: out_of_memory.
bool holder_allows(const struct holder *h, const struct space *space, uint64_t size,
                   struct opd_err *err);

// A storage is made (sign 1) or freed (-1); gets its first name (1) or loses its last (-1).
void holder_count(const struct storage *s, int sign);
void holder_count_name(struct storage *s, int sign);

// "90 MiB in 3 tensors: 60 MiB by python train.py (pid 12), 30 MiB in 1 named tensor".
void holder_report(const struct space *space, struct buf *out);

// "1.5 GiB"; buf has 32 bytes at least. Returns it.
const char *holder_size(uint64_t bytes, char *buf);

// "python train.py (pid 12)", "a client" where h is NULL; exact where it is cut short by `size`.
// Returns out.
const char *holder_name(const struct holder *h, char *out, size_t size);
