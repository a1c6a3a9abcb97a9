#pragma once

// Writes into memory that was there before the request which writes: in-place arguments,
// tensor_write. Where such a request fails after it has begun, nobody knows what the memory holds:
// it is suspect, and reading it is an error, until it is written again or accepted as it is.
//
// A storage lists the pieces of it that some request is writing or has failed to write. Pieces do
// not overlap: a later write takes the place of an earlier one.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct storage;

// The fate of a request that makes a storage: what became of it, for requests that were sent after
// it without waiting.
enum fate_state { FATE_OPEN, FATE_DONE, FATE_FAILED };
struct fate {
    int refs;
    enum fate_state state;
    char *why; // FAILED: of a write; or NULL
};
struct fate *fate_new(void); // open
struct fate *fate_ref(struct fate *f);
void fate_unref(struct fate *f); // NULL is fine

struct write {
    struct write *next;
    uint64_t begin, end; // bytes of the storage
    struct fate *fate;   // a reference
};

// A request that is sent writes this: it takes the place of earlier ones.
void writes_add(struct storage *s, uint64_t begin, uint64_t end, struct fate *fate);

// Forgets those that have succeeded.
void writes_settle(struct storage *s);

// The fate of a write that has failed (or, with `open`, may yet fail) and touches these bytes;
// NULL: there is none. Start with *cursor NULL.
struct fate *writes_next(const struct storage *s, uint64_t begin, uint64_t end,
                         const struct write **cursor);

// The failure that makes these bytes suspect, in words; NULL: they are not.
const char *writes_suspect(const struct storage *s, uint64_t begin, uint64_t end);

// These bytes are suspect no more: they are taken as they are.
void writes_accept(struct storage *s, uint64_t begin, uint64_t end);

void writes_free(struct storage *s);

// invalid_argument: what is suspect, why, and what to do.
bool writes_refuse(const char *what, const char *why, struct opd_err *err);
