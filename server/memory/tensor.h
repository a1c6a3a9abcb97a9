#pragma once

// Tensors: typed, shaped views of storages; a storage is a piece of device memory. Both are
// counted. An unnamed tensor lives as long as an id of some connection (or a context) refers to it;
// a name is one more reference.

#include <stdbool.h>
#include <stdint.h>

#include "executor/devwire.h"
#include "memory/holder.h"
#include "memory/import.h"
#include "memory/space.h"
#include "memory/writes.h"
#include "op/plan.h"
#include "wire/map.h"

struct storage {
    int refs;
    struct fate *fate; // a reference; NULL: it was there before
    struct space *space;
    struct holder *holder;        // who made it; a reference
    int n_names;                  // of its tensors
    uint32_t kept;                // see kept.h; 0: it is not in the list
    struct suballoc_block *block; // NULL: of size 0, or
    struct import *import;        // a reference: in a client's memory, at
    uint64_t import_offset;
    uint64_t size;        // bytes asked for
    struct write *writes; // see writes.h
    struct write own;     // one of them, where it has a fate
    bool shared;          // others than who made it have had it
    uint32_t armed;       // how many things may write it without being asked for (request/lane.h)
    uint64_t serial;      // of its space, in the order in which they were made; 0: long ago
    uint64_t looked_at;   // the number of the last run that is not to change it twice
    uint64_t version; // grows with every write, so that backward can tell that its inputs changed
};

struct tensor {
    int refs;
    int n_ids; // of all connections
    struct storage *storage;
    uint64_t offset, size; // bytes
    struct tensor_desc desc;
    char *name;                // NULL: none
    struct tensor *next_named; // of the same hash
    struct tensor **made_at; // where the request that makes it, and has not ended, has it; or NULL
};

// A storage, of which one reference is the caller's. WAIT and FAILED as in space.h, FAILED also
// where the holder has as much as it may; *out is set only with OK.
enum alloc_result storage_new(struct space *space, uint64_t size, struct holder *holder,
                              struct storage **out, struct opd_err *err);
struct storage *storage_import(struct import *m, uint64_t offset, uint64_t size);
struct storage *storage_ref(struct storage *s);
void storage_unref(struct storage *s);

struct tensor *tensor_new(struct storage *s, uint64_t offset,
                          const struct tensor_desc *desc); // takes a reference of s
struct tensor *tensor_ref(struct tensor *t);
void tensor_unref(struct tensor *t);

// The place of its bytes, for a command. False for what is empty: that is nowhere.
bool tensor_address(const struct tensor *t, uint64_t offset, struct dev_ref *out);
bool storage_address(const struct storage *s, uint64_t offset, struct dev_ref *out);
bool tensor_overlaps(const struct tensor *a, const struct tensor *b); // some byte is of both
bool storage_overlaps(const struct storage *a, uint64_t a_offset, uint64_t a_size,
                      const struct storage *b, uint64_t b_offset, uint64_t b_size);

// The failure that makes a tensor suspect, in words; NULL: nothing of it is.
const char *tensor_suspect(const struct tensor *t);

// On the CPU a storage ends where a page does, so that the executor can put what must not be
// touched right behind it. Whole pages are its own.
uint64_t storage_place(const struct storage *s); // of its first byte in its block

// Named tensors, by the hash of their names.
struct tensor *tensor_find(const struct map *names, const char *name); // NULL: none of that name
void tensor_set_name(struct map *names, struct tensor *t,
                     const char *name); // the name must be free; takes a reference
void tensor_drop_name(struct map *names, struct tensor *t); // nothing if it has none

void tensor_pack(struct buf *out, uint64_t id, const struct tensor *t); // the map that clients get
void tensor_pack_keys(struct buf *out, uint64_t id, const struct tensor *t); // its pairs
