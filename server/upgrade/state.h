#pragma once

// The broker's state as one block of bytes, for the program that takes this one's place at an
// upgrade: what clients would miss if it were lost. Programs and plans are not in it; they are made
// again when they are wanted. upgrade.h is who uses it.
//
// The block is a header (magic, format, size, hash) and records. A record is a MessagePack-RPC
// notification [2, name, [fields]], the fields a map, so that mpscan and msg check it as if it came
// from outside. Things are numbered from 1 in the order of their records, each kind by itself, and
// records that come later refer to them by number; 0 is none. Descriptors are named by their
// number: they stay open while the program is replaced.
//
// One file for each part of the broker (state_registry.c, state_memory.c, ...) with a function that
// writes it, and one that reads each of its records. A field is added by a line in both; raise
// STATE_FORMAT with it, unless one that is absent reads as what it was before.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/map.h"
#include "base/mem.h"
#include "wire/msg.h"
#include "op/plan.h"

struct broker;
struct conn;
struct device;
struct request;

enum { STATE_FORMAT = 1, STATE_OLDEST = 1 }; // what is written; the oldest that is read

// Bytes of memory; what fits into no address space is wrong.
static const int64_t STATE_MAX_SIZE = (int64_t)1 << 47;

// --- writing

struct state_numbers {
    struct map of; // pointer -> number
    uint64_t n;
};

struct state_out {
    struct buf bytes;
    size_t settled_size; // of bytes; what is behind changes by itself
    struct state_numbers versions, holders, imports, storages, tensors;
    struct map texts; // hash -> list of those written
    struct state_text *all_texts;
    uint64_t n_texts;
    int *fds; // that it names
    int n_fds;
    uint64_t unknown_memory; // bytes that are in use for nothing that is written
};

// The whole of it. `asked` is answered by the successor. Zeroed before, state_out_finish() after.
void state_write(struct state_out *out, struct broker *b, const struct request *asked,
                 uint64_t held_since);
void state_out_finish(struct state_out *out);

// Whether nothing has happened between the two, but what always may.
bool state_is_same(const struct state_out *a, const struct state_out *b);

// --- reading

struct state_table {
    void **items;
    size_t n;
};

struct state_in {
    struct broker *broker;
    bool check;         // nothing but a look: descriptors are not there
    const char *record; // whose fields are read, for messages
    const value *fields;
    struct state_table texts, versions, holders, imports, storages, tensors; // a reference each
    struct conn *conn;                                                       // the last one
    struct suballoc_block *cursor; // the last piece of device memory
    const struct device *cursor_device;
    bool over;
    struct opd_err *err; // the first thing that is wrong
};

// Fills a broker that has a loop and nothing else. False: `err` says what is wrong, and the broker
// holds a part. Nothing is started: connections have no stream, devices no process.
bool state_read(struct broker *b, const void *bytes, size_t size, bool check, struct opd_err *err);

// Reads the block behind a descriptor, which stays open. NULL with an error.
uint8_t *state_load(int fd, size_t *out_size, struct opd_err *err);

// --- for the parts: fields

void state_begin(struct state_out *out, const char *record, size_t n_fields);
void state_put_str(struct state_out *out, const char *key, const char *s); // any bytes; NULL: nil
void state_put_fd(struct state_out *out, const char *key, int fd);         // -1: none
void state_put_bytes(struct state_out *out, const char *key, const void *bytes, size_t size);
void state_put_hash(struct state_out *out, const char *key, uint64_t hash);    // all 64 bits
uint64_t state_number(const struct state_numbers *numbers, const void *thing); // 0: none, or NULL
bool state_add(struct state_numbers *numbers, const void *thing); // false: it has a number
uint64_t state_text(struct state_out *out, const char *text); // written where it is new; NULL: 0

// Where a field is absent or wrong these give a harmless value and fill in->err, once; the record's
// reader looks at it before it uses them.
bool state_fail(struct state_in *in, const char *what); // always false
bool state_good(const struct state_in *in);
const value *state_get(struct state_in *in, const char *key); // NULL: absent
int64_t state_int(struct state_in *in, const char *key, int64_t least, int64_t most);
int64_t state_int_of(struct state_in *in, const value *v, int64_t least, int64_t most);
uint64_t state_uint(struct state_in *in, const char *key);
uint64_t state_hash(struct state_in *in, const char *key);
bool state_bool(struct state_in *in, const char *key);
double state_float(struct state_in *in, const char *key);
char *state_str(struct state_in *in, const char *key); // the caller frees it; NULL: nil, or wrong
void state_copy_str(struct state_in *in, const char *key, char *out, size_t size);
const void *state_bytes(struct state_in *in, const char *key, size_t *out_size); // of the message
int state_fd(struct state_in *in, const char *key);                              // -1: none
void *state_thing(struct state_in *in, const char *key, const struct state_table *table); // or NULL
void *state_thing_of(struct state_in *in, const value *v, const struct state_table *table);
void state_keep(struct state_table *table, void *thing);
const char *state_text_of(struct state_in *in, const char *key); // borrowed; NULL: none

void state_put_desc(struct state_out *out, const struct tensor_desc *desc);
void state_desc_of(struct state_in *in, const value *v, struct tensor_desc *out); // nil: absent

// --- the parts: each function writes all records of its part, or reads one

typedef bool state_read_fn(struct state_in *in);

void state_write_broker(struct state_out *out, struct broker *b, uint64_t held_since);
state_read_fn state_read_broker, state_read_count, state_read_event;

void state_write_registry(struct state_out *out, struct broker *b);
state_read_fn state_read_version, state_read_operator, state_read_common, state_read_source;

void state_write_memory(struct state_out *out, struct broker *b);
state_read_fn state_read_device, state_read_region, state_read_tensor;

// All that holds memory. The tensors, which are not written, are listed in *out_tensors, whose
// items the caller frees.
void state_write_storages(struct state_out *out, const struct broker *b,
                          struct state_table *out_tensors);
state_read_fn state_read_holder, state_read_import, state_read_storage, state_read_write;

void state_write_conns(struct state_out *out, struct broker *b, const struct request *asked);
state_read_fn state_read_conn, state_read_conn_fd, state_read_conn_bytes, state_read_conn_out_fd,
    state_read_id, state_read_shm, state_read_export, state_read_conn_import, state_read_told,
    state_read_reply;

void state_write_contexts(struct state_out *out, const struct conn *c);
state_read_fn state_read_context;

void state_write_now(struct state_out *out, struct broker *b);
state_read_fn state_read_now;

void state_write_children(struct state_out *out, struct broker *b);
state_read_fn state_read_child;
