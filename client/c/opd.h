#pragma once

// libopd: the C client of opd, a daemon that runs differentiable operators on tensors it holds.
//
//     struct opd_error err = { 0 };
//     struct opd_client *opd = opd_connect(NULL, &err);
//     struct opd_tensor x = { .dtype = "float32", .rank = 1, .shape = { 1000 } };
//     if (!opd || !opd_tensor_new(opd, &x, &err) ||
//         !opd_tensor_write(opd, x.id, 0, data, size, &err))
//         fprintf(stderr, "%s: %s\n", opd_code_name(err.code), err.message);
//     opd_error_clear(&err);
//     opd_close(opd);
//
// example.c is a whole program. Build with `pkg-config --cflags --libs opd`.
//
// Errors. A function that can fail returns false (or NULL) and fills the error, which belongs to
// the caller: zeroed before its first use, opd_error_clear() after its last. Whatever it held is
// cleared when it is filled again. NULL is taken where the reason does not matter.
//
// Time. No call outlasts the client's timeout (opd_set_timeout), whatever the daemon does.
//
// Threads. A client belongs to one thread at a time; two clients know nothing of each other.
//
// Ids. Tensors, contexts and shared memory are named by integers from 1 to 2^63-1 that this side
// chooses, so that a request can use the outputs of one that has not been answered yet. They count
// for this connection alone and end with it; a tensor with a name outlives the connection.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msgpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OPD_API __attribute__((visibility("default")))
#else
#define OPD_API
#endif

#define OPD_MAX_RANK 16
#define OPD_TIMEOUT 60.0         // seconds; see opd_set_timeout()
#define OPD_CONNECT_TIMEOUT 10.0 // for the connection and the greeting

// ---- errors -------------------------------------------------------------------------------------

// What can go wrong; errors.def says of each what the caller should do. A newer daemon may answer
// numbers that are not listed here.
enum opd_code {
    OPD_OK = 0,
    OPD_INVALID_ARGUMENT = 1,  // the request does not fit; the message says what was expected
    OPD_NOT_FOUND = 2,         // no such operator, tensor, context, name or shared memory
    OPD_COMPILE_ERROR = 3,     // the kernel does not compile; see the log
    OPD_KERNEL_FAULT = 4,      // the kernel or its device failed while the request was in flight
    OPD_DEADLINE_EXCEEDED = 5, // the request took too long
    OPD_OUT_OF_MEMORY = 6,     // no memory of that size is free
    OPD_CONNECTION_LOST = 7,   // no daemon, or the connection ended: close the client
    OPD_MALFORMED_MESSAGE = 8, // bytes that are no message: close the client
    OPD_UNKNOWN_METHOD = 9,    // the daemon has no such request
    OPD_UNAVAILABLE = 10,      // the device is absent or has failed, or the daemon is stopping
    OPD_INTERNAL = 11,         // a defect of the daemon
};

struct opd_error {
    int code;           // enum opd_code
    bool local;         // found on this side: the daemon has not answered
    bool misfit;        // of "call": nothing has run, and it may be prepared again
    char name[32];      // the code in words: "not_found"
    char message[1024]; // one line
    char op[128];       // the operator that it is about; may be empty
    char *log;          // compiler output, or NULL
};

OPD_API void opd_error_clear(struct opd_error *err); // frees the log, empties the error
OPD_API const char *opd_code_name(int code);         // "not_found"; "unknown" for what is none

// ---- connection ---------------------------------------------------------------------------------

struct opd_client;

// Writes the path of the default socket: $OPD_SOCKET, else $XDG_RUNTIME_DIR/opd/opd.sock, else
// /tmp/opd-UID/opd.sock. False if it does not fit.
OPD_API bool opd_default_socket(char *path, size_t size);

// Connects to the daemon at `path` (NULL: the default socket) and greets it. No daemon is started.
// The client is freed by opd_close(). OPD_CONNECTION_LOST: there is none; or it is another user's,
// who may have put a socket where ours would be, and nothing is sent. Trusted are this user and
// root; at a path that was named, by `path` or $OPD_SOCKET, also whoever has given the socket to a
// group of ours, as the daemon's --group does; and root may name anybody's.
OPD_API struct opd_client *opd_connect(const char *path, struct opd_error *err);

// A client on a connected stream socket, without a greeting. The client owns the socket from here
// on, and closes it too where this fails.
OPD_API struct opd_client *opd_open_fd(int fd, struct opd_error *err);

OPD_API void opd_close(struct opd_client *client); // NULL is fine; what was not answered is dropped
OPD_API int opd_fd(const struct opd_client *client); // to be polled; not to be read or closed

// How long a call waits for the daemon before it fails with OPD_DEADLINE_EXCEEDED and `local`; a
// deadline given to forward or backward is added. 0 or less: for ever. The connection stays usable
// unless the message had been sent in part (then the next call says OPD_CONNECTION_LOST).
OPD_API void opd_set_timeout(struct opd_client *client, double seconds);

// An id that this function never gave before, or the id of a tensor that opd_tensor_free() has
// freed.
OPD_API int64_t opd_new_id(struct opd_client *client);

// ---- requests -----------------------------------------------------------------------------------

// What a request returned. Zeroed is empty. `result` and all that it points to live until
// opd_reply_clear(); they survive opd_close().
struct opd_reply {
    msgpack_object result;
    msgpack_zone *zone;
    char *bytes;
};

OPD_API void opd_reply_clear(struct opd_reply *reply); // empty is fine

// Sends a request and waits for its reply. `params` holds one packed array (NULL: no parameters);
// the requests are listed in protocol.def and by the request `hello`. `reply` may be NULL; what it
// held is cleared.
OPD_API bool opd_call(struct opd_client *client, const char *method, const msgpack_sbuffer *params,
                      struct opd_reply *reply, struct opd_error *err);

// The two halves of opd_call(), for requests that overlap: requests are begun in the order in which
// they were sent, and may be waited for in any order. `fd` goes along with the message (shm_open
// wants one) and stays the caller's; -1: none. While sending, replies of earlier requests are taken
// in, so that neither side can block the other.
OPD_API bool opd_send(struct opd_client *client, const char *method, const msgpack_sbuffer *params,
                      int fd, uint32_t *request, struct opd_error *err);

// Each request is waited for once. After a timeout it may be waited for again.
OPD_API bool opd_wait(struct opd_client *client, uint32_t request, struct opd_reply *reply,
                      struct opd_error *err);

// Gives up waiting; the reply is dropped when it comes. For a request that is never waited for:
// its reply would be kept until opd_close().
OPD_API void opd_forget(struct opd_client *client, uint32_t request);

// ---- notifications ------------------------------------------------------------------------------

#define OPD_MAX_NOTIFICATIONS 1000

// Some requests make the daemon send more than a reply: after `events` with the option follow, each
// event comes as the notification "event". Notifications are taken in whenever the client reads,
// also while it waits for a reply, and are kept until they are waited for here. Of those that
// nobody waits for, the last OPD_MAX_NOTIFICATIONS are kept.
//
// Waits `seconds` for the next notification of that method, in the order in which they were sent;
// below 0: for ever; 0: takes one that has come, and reads what the socket holds. The client's
// timeout does not count here. Its parameters, an array, are `params->result`; what `params` held
// is cleared. OPD_DEADLINE_EXCEEDED and `local`: none came, which is no failure.
OPD_API bool opd_wait_notification(struct opd_client *client, const char *method, double seconds,
                                   struct opd_reply *params, struct opd_error *err);

// What the kernels of this client's requests print. `text` is not terminated and lives for the
// call; it ends in a line that says so where it was more than the daemon keeps of a request.
typedef void opd_print_fn(void *data, const char *text, size_t size);

// From now on `print` is called with what is printed by requests that are sent after this one: in
// their order, each text before the request's reply is handed over, and if the request has failed,
// too. The calls come from within the functions of this client, in the thread that has called them,
// and may not use the client. `data` is passed on; it stays the caller's. NULL: what comes is
// dropped, as before the first call of this function.
OPD_API bool opd_on_print(struct opd_client *client, opd_print_fn *print, void *data,
                          struct opd_error *err);

// Kernels that a request of this client waits for. It is told of half a second after the request
// came, if they are still being compiled then, and when they are compiled, however fast that was:
// before the request's reply.
struct opd_compile {
    char op[64], dtype[16];
    int64_t kernels; // how many
    bool done;
    double ms; // where it is done: for how long the request has waited
};
typedef void opd_compile_fn(void *data, const struct opd_compile *compile);

// As opd_on_print(). What was in the daemon's cache is not told of.
OPD_API bool opd_on_compile(struct opd_client *client, opd_compile_fn *compile, void *data,
                            struct opd_error *err);

// ---- reading results ----------------------------------------------------------------------------

// Reading a result that is a map. Nothing is assumed about what the daemon sent: `map` may be of
// any type, and a value that is absent or of another type leaves `out` as it was.
OPD_API const msgpack_object *opd_map_get(const msgpack_object *map, const char *key); // or NULL
OPD_API bool opd_map_int(const msgpack_object *map, const char *key, int64_t *out);

// The string is cut, between characters, where it does not fit.
OPD_API bool opd_map_str(const msgpack_object *map, const char *key, char *out, size_t size);

// ---- tensors ------------------------------------------------------------------------------------

struct opd_tensor {
    int64_t id;     // in: 0 takes a new id
    char dtype[16]; // "float32"
    int rank;       // 0: one element
    int64_t shape[OPD_MAX_RANK];
    uint64_t bytes;  // out; of a strided one, from its first element to the end of its last
    char device[32]; // in: empty takes the default device
    char name[256];  // in: empty for none, and the tensor ends with the connection
    bool strided;    // in, of a view; out: the elements do not lie one after the other, but so far
    int64_t strides[OPD_MAX_RANK]; // apart, in elements: an input for operators that take such
};

// Makes a zeroed tensor of the struct's dtype, shape, device and name, and fills in the rest.
OPD_API bool opd_tensor_new(struct opd_client *client, struct opd_tensor *tensor,
                            struct opd_error *err);

// A tensor on the memory of tensor `source`, from `offset` elements on: shape and rank are given,
// strides where it is `strided`.
OPD_API bool opd_tensor_view(struct opd_client *client, int64_t source, int64_t offset,
                             struct opd_tensor *tensor, struct opd_error *err);

// Gives the tensor called tensor->name an id here, and fills in the rest.
OPD_API bool opd_tensor_attach(struct opd_client *client, struct opd_tensor *tensor,
                               struct opd_error *err);

OPD_API bool opd_tensor_info(struct opd_client *client, int64_t id, struct opd_tensor *tensor,
                             struct opd_error *err);

// Copies bytes to and from a tensor, in pieces where there are many. Elements lie in row-major
// order, in this machine's byte order.
OPD_API bool opd_tensor_write(struct opd_client *client, int64_t id, uint64_t offset,
                              const void *bytes, size_t size, struct opd_error *err);
OPD_API bool opd_tensor_read(struct opd_client *client, int64_t id, uint64_t offset, void *bytes,
                             size_t size, struct opd_error *err);

// Takes tensors as they are that are suspect, because a request failed while it was writing them;
// writing all of one does so too. Until then reading or using one is OPD_INVALID_ARGUMENT.
OPD_API bool opd_tensor_accept(struct opd_client *client, const int64_t *ids, size_t count,
                               struct opd_error *err);

OPD_API bool opd_tensor_free(struct opd_client *client, const int64_t *ids, size_t count,
                             struct opd_error *err);

// ---- operators ----------------------------------------------------------------------------------

enum opd_attr_kind {
    OPD_ATTR_NIL,
    OPD_ATTR_INT,
    OPD_ATTR_FLOAT,
    OPD_ATTR_BOOL,
    OPD_ATTR_STR,
    OPD_ATTR_INTS,
    OPD_ATTR_FLOATS,
};

// One attribute of an operator, borrowed for the call; opd_int("stride", 2) makes one.
struct opd_attr {
    const char *name;
    enum opd_attr_kind kind;
    size_t count; // of a list
    union {
        int64_t integer;
        double real;
        bool boolean;
        const char *str;
        const int64_t *ints;
        const double *floats;
    } value;
};

OPD_API struct opd_attr opd_int(const char *name, int64_t value);
OPD_API struct opd_attr opd_float(const char *name, double value);
OPD_API struct opd_attr opd_bool(const char *name, bool value);
OPD_API struct opd_attr opd_str(const char *name, const char *value);
OPD_API struct opd_attr opd_ints(const char *name, const int64_t *values, size_t count);
OPD_API struct opd_attr opd_floats(const char *name, const double *values, size_t count);

// A field that is 0 takes the default: no attributes, no context, the daemon's deadline.
struct opd_forward_params {
    const char *op;        // required
    const int64_t *inputs; // in the schema's order; 0: absent; shorter where the rest is absent
    size_t input_count;
    const struct opd_attr *attrs;
    size_t attr_count;
    const int64_t *outputs; // the ids that the outputs get, one for each output of the schema
    size_t output_count;
    struct opd_tensor *tensors; // filled with output_count outputs; NULL: not wanted
    int64_t context;            // the id of a context to keep, for backward; 0: none
    double deadline;            // seconds
    const char *device;         // only for operators without inputs

    // Of an operator of lists: for each argument of the schema that is given how many of `inputs`
    // are its tensors, one after the other; OPD_SINGLE: it is no list, and has one. The same of
    // the results and `outputs`, whose descriptions `tensors` gets in that order. NULL: no lists.
    const int64_t *input_lengths, *output_lengths;
    size_t input_length_count, output_length_count;
};

#define OPD_SINGLE (-1)

OPD_API bool opd_forward(struct opd_client *client, const struct opd_forward_params *params,
                         struct opd_error *err);

struct opd_backward_params {
    int64_t context;      // required: what forward was given
    const int64_t *grads; // the gradients of the outputs; 0: zeros
    size_t grad_count;
    const int64_t *inputs; // the ids that the gradients of the inputs get; 0: not wanted
    size_t input_count;
    struct opd_tensor *tensors; // filled with input_count gradients, id 0 where there is none
    double deadline;

    // Of an operator of lists, as in struct opd_forward_params: of the outputs' gradients, and of
    // those of inputs. A list of which none is given or wanted is OPD_SINGLE, with the id 0.
    const int64_t *grad_lengths, *input_lengths;
    size_t grad_length_count, input_length_count;
};

// A context can be used again until it is freed.
OPD_API bool opd_backward(struct opd_client *client, const struct opd_backward_params *params,
                          struct opd_error *err);

OPD_API bool opd_context_free(struct opd_client *client, const int64_t *ids, size_t count,
                              struct opd_error *err);

// One of `source` and `path` is given; another field that is 0 takes the default.
struct opd_load_params {
    const char *source; // the text of an operator
    const char *path;   // of a file, which is read once; what it includes is looked up beside it
    const char *name;   // of the file that messages tell, __FILE__ say; else the path's, "<string>"
    int line;           // the number of the text's first line
    bool shared;        // every client sees it, not this one alone
    char op[64];        // out: the name in its header, for opd_forward()
    int64_t version;    // out
};

// Serves an operator, until opd_unload() or the end of the client; contexts stay good. It goes
// before a file's of its name. Loaded again, with another text, it is the next version; where that
// does not compile (OPD_COMPILE_ERROR, or OPD_INVALID_ARGUMENT for its header), the one before goes
// on.
OPD_API bool opd_load(struct opd_client *client, struct opd_load_params *params,
                      struct opd_error *err);
OPD_API bool opd_unload(struct opd_client *client, const char *op, struct opd_error *err);

// ---- graphs -------------------------------------------------------------------------------------

// Between these two the client's calls are also recorded: forwards, backwards and new tensors'
// zeros, which opd_replay() then runs again, all of them by one request, on the same tensors. Their
// memory is the graph's, whatever is freed. The id is the caller's to choose, opd_new_id() gives
// one. opd_tensor_write() is refused meanwhile, but for tensors that were made since: what is
// written to these stays. With a name (NULL or "": none) others can attach to the graph, and it
// stays after this client, as long as the daemon: one that is killed keeps named tensors, and no
// graph. Where opd_graph_end() fails there is no graph; opd_graph_free() gives up
// one that is not ended.
OPD_API bool opd_graph_begin(struct opd_client *client, int64_t id, const char *name,
                             struct opd_error *err);
OPD_API bool opd_graph_end(struct opd_client *client, int64_t id, struct opd_error *err);

// Gives the graph of that name an id here.
OPD_API bool opd_graph_attach(struct opd_client *client, int64_t id, const char *name,
                              struct opd_error *err);

// deadline: seconds; 0: those of all calls together. Replays that overlap: opd_send() "replay".
OPD_API bool opd_replay(struct opd_client *client, int64_t id, double deadline,
                        struct opd_error *err);

// Their names, too.
OPD_API bool opd_graph_free(struct opd_client *client, const int64_t *ids, size_t count,
                            struct opd_error *err);

// Waits until the daemon has answered all that was sent before.
OPD_API bool opd_sync(struct opd_client *client, struct opd_error *err);

#ifdef __cplusplus
}
#endif
