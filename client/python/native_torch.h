#pragma once

// What native_gradient.c needs of native_torch.c. All with Python's lock held.

#include <stdbool.h>
#include <stdint.h>

#include "native.h"

enum { TORCH_MAX_ARGS = 160 };

// Does the thread as torch does by default, as far as torch and Python know?
bool torch_is_plain(void);
bool torch_is_grad_enabled(void);
bool torch_is_tensor(PyObject *value); // of torch's own classes
// Takes the tensor, which becomes an object of Python's or None; NULL: an error.
PyObject *torch_wrap(uint64_t tensor);

// False without an error: the call is not for here.
bool torch_run(int number, void *const *objects, const uint64_t *words, unsigned n_words,
               uint64_t *results);
// The kernel of a function that torch_make_kernel() made, with the arguments of the call that its
// thread has handed to autograd with this dict. NULL without an error: not that call, or it is not
// for here.
PyObject *torch_run_handed(PyObject *function, PyObject *kwargs);
// The kernel of such a function, whatever its tensors want of autograd.
// NULL without an error: it is not for here.
PyObject *torch_try(PyObject *function, PyObject *const *given, Py_ssize_t n, PyObject *names);
