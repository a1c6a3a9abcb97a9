#pragma once

// The archive in which the state is written and read, by the same functions: one for each kind of
// record, that names the record's fields once.
//
//     archive_int(a, "serial", &r->serial, 1, INT64_MAX);
//
// writes r->serial, or fills it with what was written; what is read is checked against the bounds.
// A field that is absent or wrong becomes a harmless value (the least, false, NULL), and the first
// such fills a->err: a function looks at archive_good() before it relies on what it has read.
//
// A record is a MessagePack-RPC notification [2, name, [fields]], the fields a map, so that mpscan
// and msg check it as if it came from outside. Things are numbered from 1 in the order of their
// records, each kind by itself. A record refers to others by number, 0 is none: what it refers to
// is written before it, if it has not been.
// Descriptors are named by their number: they stay open while the program is replaced.
//
// A field is added by a line; raise STATE_FORMAT with it, unless one that is absent (archive_has())
// reads as what it was before.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "op/plan.h"
#include "wire/map.h"
#include "wire/msg.h"

struct broker;
struct conn;
struct device;
struct graph;
struct plan_request;
struct storage;
struct suballoc_block;
struct version;
struct archive;

// Bytes of memory; what fits into no address space is wrong.
static const int64_t ARCHIVE_MAX_SIZE = (int64_t)1 << 47;

enum { ARCHIVE_DEPTH = 3 }; // lists inside each other

// --- records: records.def lists them

// The fields of each: of `thing`, or, where the archive reads, of one that the function makes.
// False: what was read makes no sense, and a->err says why.
typedef bool archive_fields(struct archive *a, void *thing);
#define RECORD(what, name, of) archive_fields state_##what;
#include "upgrade/records.def"
#undef RECORD

enum archive_record {
#define RECORD(what, name, of) RECORD_##what,
#include "upgrade/records.def"
#undef RECORD
    N_RECORDS
};

// Things of one kind: number i is items[i - 1]. An archive that reads has a reference of each.
struct archive_table {
    void **items;
    size_t n;
    struct map numbers; // writing: by the thing's address; of a text: by its hash
};

struct archive {
    bool reading;        // else it writes
    bool check;          // nothing but a look: descriptors are not there
    bool part;           // of a state: it has no end, and is of another daemon
    struct opd_err *err; // the first thing that is wrong
    const char *record;  // whose fields these are

    struct broker *broker;
    struct device *device;   // the last one: regions are of it
    struct storage *storage; // writes are of it
    struct graph *graph;     // nodes are of it
    struct conn *conn;       // all that is a client's own is of it
    struct archive_table tables[N_RECORDS];

    // Writing.
    struct buf bytes, fields; // whole records; the fields of those that are not
    size_t n_fields;          // of the innermost
    struct buf fds;           // int: descriptors that it names
    struct map reached;       // storages that something refers to
    uint64_t reached_size;    // bytes of their memory

    // Reading.
    const value *map; // the record's fields
    struct archive_list {
        const value *values;
        size_t next;
    } lists[ARCHIVE_DEPTH]; // that are open, the innermost last
    int depth;
    struct suballoc_block *cursor; // the last piece of device memory
    bool over;
};

void archive_put(struct archive *a, enum archive_record kind, void *thing);
bool archive_read(struct archive *a, const uint8_t *bytes, size_t size); // all of it
void archive_finish(struct archive *a);

bool archive_fail(struct archive *a, const char *what); // always false
bool archive_good(const struct archive *a);

// --- fields. The key is NULL for the next element of the list that is open.

bool archive_has(const struct archive *a, const char *key); // true where it writes
int64_t archive_number(struct archive *a, const char *key, int64_t v, int64_t least, int64_t most);
// *v is of any integer or enum type that holds all between the bounds.
#define archive_int(a, key, v, least, most)                                                        \
    (*(v) = (__typeof__(*(v)))archive_number(a, key, (int64_t)(*(v) | 0), (int64_t)(least), most))
#define archive_count(a, key, v) archive_int(a, key, v, 0, INT64_MAX)
#define archive_bits(a, key, v) archive_int(a, key, v, INT64_MIN, INT64_MAX) // all 64 bits
void archive_bool(struct archive *a, const char *key, bool *v);
void archive_float(struct archive *a, const char *key, double *v);
void archive_buf(struct archive *a, const char *key, struct buf *v);          // read: appended
void archive_chars(struct archive *a, const char *key, char *v, size_t size); // terminated
void archive_fd(struct archive *a, const char *key, int *v);                  // -1: none

// A string on the heap, or NULL; what is read takes the place of what was there.
void archive_str(struct archive *a, const char *key, char **v);
void archive_path(struct archive *a, const char *key, char **v); // absolute
void archive_text(struct archive *a, const char *key, char **v); // long: each is written once

// A list of n elements, or of as many as were written, within the bounds: returns how many.
size_t archive_open(struct archive *a, const char *key, size_t n, size_t least, size_t most);
void archive_close(struct archive *a);

// --- references

// A thing, or the one that was referred to; NULL: none.
void *archive_ref(struct archive *a, const char *key, enum archive_record kind, void *thing);
// Writes a thing, unless it has been written: false.
bool archive_need(struct archive *a, enum archive_record kind, void *thing);
// A thing that was read, from now on to be referred to; takes a reference over.
void archive_made(struct archive *a, enum archive_record kind, void *thing);

// --- the parts: each writes all of its records

void state_write_broker(struct archive *a);
void state_write_registry(struct archive *a);
void state_write_memory(struct archive *a);
void state_write_graphs(struct archive *a);
void state_write_conns(struct archive *a);
void state_write_children(struct archive *a);

void state_write_chunks(struct archive *a, const struct device *d); // the storages in them
struct storage *state_storage_ref(struct archive *a, const char *key, struct storage *s);
void state_attrs(struct archive *a, struct plan_request *pr);   // of pr->op
void state_lists(struct archive *a, struct plan_request *pr);   // the same
void state_keep_operator(struct archive *a, struct version *v); // it has one, in no list
void state_desc(struct archive *a, const char *key, struct tensor_desc *desc); // nil: none
void state_device_ref(struct archive *a, const char *key, struct device **d);  // by its index
