#pragma once

// Requests: one function for each row of protocol.def. A function checks everything before it
// changes anything, then either answers at once, or submits work to a device and is answered when
// that is done, or asks to be tried again.

#include <stdbool.h>
#include <stdint.h>

#include "request/conn.h"
#include "device/device.h"
#include "base/err.h"
#include "op/arena.h"
#include "wire/msg.h"
#include "options.h"
#include "memory/context.h"
#include "memory/shm.h"
#include "memory/tensor.h"

struct graph_launch;
struct opd_operator;
struct version;

// Limits of what one connection holds, beside memory on devices.
enum { REQUEST_FEW_MADE = OP_MAX_OUTPUTS + OP_MAX_TEMPS }; // at least OP_MAX_INPUTS
enum {
    REQUEST_MAX_TENSORS = 1 << 20,
    REQUEST_MAX_CONTEXTS = 1 << 14,
    REQUEST_MAX_SHMS = 64,
    REQUEST_MAX_EXPORTS = 1 << 14,
    REQUEST_MAX_IMPORTS = 1 << 10,
    REQUEST_MAX_PREPARED = 1 << 12,
    REQUEST_MAX_PREPARED_SIZE = 4 << 20,
    REQUEST_MAX_GRAPHS = 1 << 10,
};

enum request_status {
    REQUEST_ERROR,     // err is filled; the caller replies
    REQUEST_ANSWERED,  // the result is in req->reply
    REQUEST_SUBMITTED, // request_done() comes with the device's completion
    REQUEST_WAIT,      // nothing has changed; try again after turn_retry()
    REQUEST_AGAIN,     // a part is done: call again in the next turn; see parted.h
};

// Another request, not ended or failed, that one depends on.
enum request_need_kind {
    NEED_MADE,     // makes what this one reads
    NEED_WRITTEN,  // writes what this one reads, which was there before
    NEED_REPLACED, // writes what this one writes: if both fail, it is suspect
};
struct request_need {
    enum request_need_kind kind;
    struct fate *fate; // a reference
};

// A piece of memory that was there before, and that a request writes.
struct request_write {
    struct storage *storage; // a reference, once it is submitted
    uint64_t begin, end;
};

// A tensor that a request makes.
struct request_made {
    uint64_t id;
    struct tensor *tensor; // NULL: given up since it was submitted, and its memory too, which the
                           // device uses in the order of commands
    bool view;             // in memory that was there before
};

// Those that have ended are kept for others: see request_new().
struct request {
    struct request *next; // of the spare ones
    struct buf reply;     // the result, packed
    struct conn *conn;
    struct broker *broker;
    uint32_t id;
    bool notification;
    int *fd;        // that came with it; closed when its method returns, unless that has made it -1
    int reply_fd;   // goes with the reply; -1: none
    uint64_t since; // clock_ns() when it was first tried
    uint64_t reply_size;  // that it will have, about; counted by its connection
    size_t reply_start;   // of a reply that is packed whole, head and all: see parted.h
    char op[OP_MAX_NAME]; // for errors; "" if none

    struct arena room; // for what its run lists; goes with it
    int n_made, made_capacity;
    struct request_made *made; // `few_made`, or where there are many in its room
    uint64_t made_context, made_serial;
    uint64_t made_export; // id; 0: none
    struct storage *exported;
    // The fate that all it makes shares; what it reads may have one that is open.
    struct fate *fate;
    struct request_need *needs; // on the heap
    size_t n_needs;
    // Writes into what was there before have a fate of their own: where the request fails before it
    // has begun, nothing has happened to that.
    int n_writes;
    struct request_write *writes; // `few`, or where there are many on the heap
    struct fate *write_fate;
    bool begun; // though it failed
    bool told;  // the client knows that it is done
    // Of one that is done in parts: where the next begins, and what is left to be told of.
    size_t at;
    struct buf rest;
    struct request *next_packing;
    // Staging memory that it uses, and how much of it is the result (tensor_read).
    struct device *device;
    struct suballoc_block *staged;
    uint64_t read_size;
    // An operator's run: what its command reads until it is done, and who wants to know how long it
    // took (or NULL).
    struct bound_plan *bound;    // a reference
    struct graph_launch *launch; // of a replay; a reference
    struct trace *trace;         // owned
    struct postmortem *after;    // it waits for that one's words on its fault; NULL: it does not

    // Tensors that the request has made, taken back if the device's work fails; and its writes.
    // From here on what is not used is not initialised.
    struct request_made few_made[REQUEST_FEW_MADE];
    struct request_write few[2 * OP_MAX_INPUTS + OP_MAX_TEMPS];
};

// A request of a connection, from the spare ones where there is one.
struct request *request_new(struct conn *c);
void request_release(struct request *req); // what it holds is let go of before
void request_drop_spare(struct broker *b);

typedef enum request_status request_fn(struct request *req, const value *params,
                                       struct opd_err *err);

// Carries out the request of a message. `again`: it was begun before and has waited.
enum request_status request_dispatch(struct request *req, const struct msg *msg, bool again,
                                     struct opd_err *err);

// From now on the request is answered later, by request_finish() with the result in its reply, or
// with an error: its function returns REQUEST_SUBMITTED. Returns req.
struct request *request_defer(struct request *req);
void request_finish(struct request *kept, const struct opd_err *err); // frees it
void request_end(struct request *kept);    // the same, its reply has been packed
void request_discard(struct request *req); // lets go of what one holds that is not done to its end

// The request, about to be submitted, reads this: where that is made or written by one that fails,
// it fails too. NULL is fine.
void request_needs(struct request *req, const struct storage *s, uint64_t begin, uint64_t end);
void request_needs_tensor(struct request *req, const struct tensor *t);
// Room for so many pieces that the request writes, where they may be more than a run has.
void request_reserve_writes(struct request *req, size_t n);
// The request writes these bytes, which were there before.
void request_writes(struct request *req, struct storage *s, uint64_t begin, uint64_t end);
// False, with an error, where a tensor is suspect. `what` names it.
bool request_may_read(const struct tensor *t, const char *what, struct opd_err *err);

// Submits a command whose completion answers the request.
enum request_status request_submit(struct request *req, struct device *d, struct command *c);

// The same of one that the device has begun already, for an entry of a lane.
void request_adopt(struct request *req, struct device *d, struct command *c);

// Its client may be told by its word that the command is done, in place of a reply that says no
// more than the version. Nothing where it has no word, or where more than the command decides.
void request_tell(const struct request *req, struct device *d, struct command *c, int version);

// --- what several request files use

// Bytes of a shared memory of the connection, where they are for a device.
bool request_shm(const struct request *req, int64_t id, int64_t at, uint64_t size, struct device *d,
                 struct dev_ref *out, struct opd_err *err);

// The descriptor of the chunk in which a storage is; NULL: it is in none.
const struct device_region *request_chunk(const struct storage *s);
void request_unload_all(struct conn *c);               // the operators that it has loaded
void request_drop_export(struct conn *c, uint64_t id); // nothing if it is not there

// What parameters name (request_params.c).

struct tensor *request_find_tensor(const struct request *req, const value *id); // or NULL
struct tensor *request_tensor(struct request *req, const value *id, const char *what,
                              struct opd_err *err);
bool request_new_id(struct request *req, int64_t id, struct opd_err *err); // is it free?
void request_make(struct request *req, uint64_t id, struct tensor *t); // takes the reference over
void request_drop_id(struct conn *c, uint64_t id);                     // nothing if it is not there
bool request_dtype(const value *name, enum opd_dtype *out, struct opd_err *err);
// The operator of that name, which is served, and is the request's from now on; the device of that
// name, nil: the default one; the version of that number. NULL: not_found, and the message repeats
// what was asked for.
struct opd_operator *request_operator(struct request *req, const value *name, struct opd_err *err);
struct device *request_device(struct request *req, const value *name, struct opd_err *err);
struct version *request_version(const struct opd_operator *o, const value *number,
                                struct opd_err *err);
// The version of that number, nil: the one that is served, of the operator of that name, or of a
// derivative of one: "silu.backward".
struct version *request_derived(struct request *req, const value *name, const value *number,
                                struct opd_err *err);
bool request_shape(const value *array, struct tensor_desc *desc, struct opd_err *err);
// Behind its shape; nil: it is contiguous.
bool request_strides(const value *array, struct tensor_desc *desc, struct opd_err *err);
// Every attribute of an operator: what the map gives, else the defaults.
bool request_attrs(const struct op *op, const value *map, struct op_value *out,
                   struct opd_err *err);
// Options of the request `of`: one that is true or false, and a deadline. What is not there leaves
// *out as it is.
bool request_flag(const value *options, const char *of, const char *name, bool *out,
                  struct opd_err *err);
bool request_deadline(const value *options, double *out, struct opd_err *err);
// The name of a tensor or graph; "": nil.
enum { REQUEST_MAX_NAME = 256 };
bool request_name(const value *v, char name[REQUEST_MAX_NAME], struct opd_err *err);

// The error of a request: return REQUEST_FAIL(err, OPD_E_not_found, "...").
#define REQUEST_FAIL(err, ...) (opd_err_set((err), __VA_ARGS__), REQUEST_ERROR)

void request_pack_device(struct buf *out, struct device *d); // the map that clients get
// Memory for the connection; a reference is the caller's. ANSWERED: it is there. WAIT, or ERROR.
enum request_status request_storage(struct request *req, struct device *d, uint64_t size,
                                    struct storage **out, struct opd_err *err);
enum request_status request_wait_memory(struct request *req, struct device *d);
// The device's hooks: what waits is told that no memory comes; whether memory is wanted.
void request_memory_failed(struct device *d, const struct opd_err *err);
bool request_memory_wanted(const struct device *d);

#define REQUEST(name, since, params, result, doc) request_fn request_##name;
#include "../../protocol/protocol.def"
#undef REQUEST
