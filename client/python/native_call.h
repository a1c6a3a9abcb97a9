#pragma once

// What native.c, native_tensor.c and native_exchange.c share. All with Python's lock held.

#include <stdbool.h>

#include "native.h"

// Attributes and methods that are looked up often: texts of Python's, made by native.c.
// clang-format off
#define CALL_NAMES(X)                                                                              \
    X(_collect) X(_exchange_slowly) X(_expected) X(_hear) X(_hear_first) X(_hurry)                 \
    X(_keep_reply) X(_live_id) X(_make_told) X(conn) X(drop) X(make_wires) X(parts) X(patience)
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
};

extern PyTypeObject *tensor_base;  // of struct tensor
extern PyTypeObject *tensor_final; // opd.Tensor; NULL until tensor_set_final()

bool tensor_make_base(void);
// False, with an error: the class is not made of the base.
bool tensor_set_final(PyObject *type);
// A tensor of a known kind, whose id is yet to be sent. Takes the reference to `wire`.
PyObject *tensor_make(PyObject *const parts[N_PARTS], PyObject *wire);

// share_word(fd) of the module.
PyObject *exchange_share_word(PyObject *module, PyObject *fd);
// Sends a handle's request and waits. None: the reply was as the last one; else it, done.
PyObject *exchange_request(PyObject *const parts[N_PARTS], PyObject *handle, PyObject *data);
