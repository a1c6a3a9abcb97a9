#pragma once

// What native.c, native_tensor.c and native_exchange.c share. All with Python's lock held.

#include <stdbool.h>
#include <stdint.h>

#include "native.h"

// Attributes and methods that are looked up often: texts of Python's, made by native.c.
// clang-format off
#define CALL_NAMES(X)                                                                              \
    X(_arm) X(_ask_begun) X(_collect) X(_exchange_slowly) X(_expected) X(_hear) X(_hear_begun)     \
    X(_hear_first) X(_hurry) X(_keep_reply) X(_live_id) X(_make_told) X(conn) X(drop)              \
    X(make_wires) X(parts) X(patience) X(poll)
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

// What a handle's `parts` are, in this order; no new references.
// clang-format off
enum part {
    KIND, HEAD, NILS, DEADLINE, LINK, WIRES, BATCHES, CONN, ACQUIRE, RELEASE, FILENO, REPLIES,
    DROPPED, APPEND, WORD, N_PARTS
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
PyObject *tensor_make(PyObject *const parts[N_PARTS], PyObject *wire);

// A call's request. Of a handle's parts it is not known what they are.
PyObject *call_pack(PyObject *const parts[N_PARTS], PyObject *args, PyObject *wire);
// The next of the ids that are ready; makes some where there is none.
PyObject *call_take_wire(PyObject *const parts[N_PARTS]);

// Makes a handle's call and waits. None: the reply was as the last one; else it, done.
PyObject *exchange_request(PyObject *const parts[N_PARTS], PyObject *handle, PyObject *args,
                           struct tensor *made);
// Where nothing else is in flight, the socket; else -1, perhaps with an error.
int exchange_find_socket(PyObject *const parts[N_PARTS]);
// Of a request that no code in Python sends: of its own, and none of theirs. After a signal, or
// should a device end, there may be a reply that nobody waits for any more.
uint32_t exchange_number(void);
// What a word has told, of the version that ran: None, or the reply that would have said so.
PyObject *exchange_told(PyObject *const parts[N_PARTS], PyObject *expected, uint32_t ran);
