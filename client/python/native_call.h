#pragma once

// What native.c, native_tensor.c and native_exchange.c share. All with Python's lock held.

#include <stdbool.h>
#include <stdint.h>

#include "native.h"

// Attributes and methods that are looked up often: texts of Python's, made by native.c.
// clang-format off
#define CALL_NAMES(X)                                                                              \
    X(_arm) X(_ask_begun) X(_collect) X(_exchange_slowly) X(_expected) X(_hear) X(_hear_begun)     \
    X(_hear_first) X(_hurry) X(_keep_reply) X(_live_id) X(_make_told) X(_offer) X(armed) X(conn)   \
    X(drop) X(make_wires) X(parts) X(patience) X(poll)
#define CALL_DECLARE(name) PyObject *name;
// clang-format on
struct call_names {
    CALL_NAMES(CALL_DECLARE)
};
extern struct call_names names;

// The value of an attribute that its owner keeps as long as the lock is held; NULL: an error.
static inline PyObject *peek(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    Py_XDECREF(value);
    return value;
}

// What a handle's `parts` are, in this order, or a graph's, which has those before KIND alone; no
// new references.
// clang-format off
enum part {
    HEAD, AGAIN, CONN, ACQUIRE, RELEASE, FILENO, REPLIES, APPEND, WORD,
    KIND, NILS, DROPPED, LINK, WIRES, BATCHES, N_PARTS, N_GRAPH_PARTS = KIND
};
// clang-format on

// The base of opd.Tensor, whose attributes of these names they are.
struct tensor {
    PyObject_HEAD PyObject *link, *wire, *kind, *reply;
    PyObject *dropped; // the list to which the id goes at the end; NULL: where its kind says
    PyObject *lane;    // where it is kept instead, as long as that knows `tie` (native_lane.h)
    uint64_t tie;      // 0: it is not
};

extern PyTypeObject *tensor_base;  // of struct tensor
extern PyTypeObject *tensor_final; // opd.Tensor; NULL until tensor_set_final()

bool tensor_make_base(void);
// False, with an error: the class is not made of the base.
bool tensor_set_final(PyObject *type);
// A tensor of a known kind, whose id is yet to be sent. Takes the reference to `wire`.
PyObject *tensor_make(PyObject *const parts[], PyObject *wire);

// What such parts are made of. False, with an error: `all` is no n of them.
bool call_take_parts(PyObject *all, Py_ssize_t n, PyObject *parts[]);
// A call's request. Of a handle's parts it is not known what they are.
PyObject *call_pack(PyObject *const parts[], PyObject *args, PyObject *wire);
// The next of the ids that are ready; makes some where there is none.
PyObject *call_take_wire(PyObject *const parts[]);

// Makes a handle's call and waits. None: the reply was as the last one; else it, done.
PyObject *exchange_request(PyObject *const parts[], PyObject *handle, PyObject *args,
                           struct tensor *made);
// given: a graph and its parts. The same of its replay.
PyObject *exchange_replay(PyObject *module, PyObject *const *given, Py_ssize_t n_given);
// Where nothing else is in flight, the socket; else -1, perhaps with an error.
int exchange_find_socket(PyObject *const parts[]);
// Of a request that no code in Python sends: of its own, and none of theirs. After a signal, or
// should a device end, there may be a reply that nobody waits for any more.
uint32_t exchange_number(void);
// What a word has told, of the version that ran, or of a replay (0): None, or the reply that would
// have said so.
PyObject *exchange_told(PyObject *const parts[], PyObject *expected, uint32_t ran);
