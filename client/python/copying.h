#pragma once

// A large copy by several threads, which end with it.

#include <Python.h>

// copy(to, from, size, piece, threads, copied): addresses, bytes, how many threads. Calls
// copied(at) for each piece, in their order, once it is there; its error ends the copy early.
// Nobody may write to either memory meanwhile; copied() runs with the interpreter, the rest without
// it.
PyObject *copying_copy(PyObject *module, PyObject *given);
