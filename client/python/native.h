#pragma once

// opd_native: native.c, which is the module, and the native_*.c beside it.

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

// Kernels of libopd_torch as functions (native_torch.c). Docstrings say what they take.
PyObject *torch_set_up(PyObject *module, PyObject *given);
PyObject *torch_make_kernel(PyObject *module, PyObject *given);
// A gradient of such kernels, as autograd calls it (native_gradient.c).
PyObject *torch_make_gradient(PyObject *module, PyObject *given);
