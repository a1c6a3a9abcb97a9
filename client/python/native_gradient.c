// What autograd calls for kernels of libopd_torch: the forward of an autograd.Function, and the
// backward of its context, without a frame of Python's. Each does what the function of the same
// name does in client/python/opd/torch/_function.py, for calls that need nothing else; it leaves
// others to that.

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "native_torch.h"

enum { MAX_INPUTS = 32 };

struct gradient {
    PyObject *given; // holds all that follows
    PyObject *keep;  // the function of the kernel
    int back;        // the kernel's number
    int n_inputs, n_outputs, n_saved;
    unsigned able;     // bit i: input i is differentiable
    PyObject *reads;   // bytes: of the inputs those that backward reads
    PyObject *results; // bytes: of what `keep` makes
    PyObject *unread;  // bytes: the other inputs
    PyObject *options; // the thread's are an attribute of it
    PyObject *default_options;
    PyObject *forward, *backward; // for what is not for here
};

static const uint64_t SERIALS = (uint64_t)1 << 62; // of _stamps.py

static struct {
    PyObject *gradient, *to_save, *saved, *unpacked, *needs, *kept, *materialize, *options, *error;
    PyObject *dtype, *shape, *stride;
} names;

// What is passed on with an error that a kernel has raised, or with none, and with what backward
// has unpacked, or NULL: activation checkpointing lets it do so once.
static PyObject *pass_on(PyObject *function, PyObject *args, PyObject *saved)
{
    PyObject *type = NULL, *error = NULL, *trace = NULL, *kwargs = NULL, *made = NULL;
    PyErr_Fetch(&type, &error, &trace);
    if (type)
        PyErr_NormalizeException(&type, &error, &trace);
    if ((kwargs = PyDict_New()) && (!error || PyDict_SetItem(kwargs, names.error, error) == 0) &&
        (!saved || PyDict_SetItem(kwargs, names.unpacked, saved) == 0))
        made = PyObject_Call(function, args, kwargs);
    Py_XDECREF(kwargs);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return made;
}

// --- forward

// `keep` of the arguments of forward: context, named ones, the others.
static PyObject *run_keep(const struct gradient *g, PyObject *args)
{
    PyObject *given[TORCH_MAX_ARGS], *key, *value, *kwargs = PyTuple_GetItem(args, 1);
    Py_ssize_t n = PyTuple_Size(args) - 2, n_named = 0, at = 0;
    if (!kwargs || !PyDict_Check(kwargs) || n + PyDict_Size(kwargs) > TORCH_MAX_ARGS)
        return NULL;
    PyObject *keys = PyTuple_New(PyDict_Size(kwargs));
    if (!keys)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        given[i] = PyTuple_GetItem(args, i + 2);
    while (PyDict_Next(kwargs, &at, &key, &value)) {
        given[n + n_named] = value;
        PyTuple_SetItem(keys, n_named++, Py_NewRef(key));
    }
    PyObject *made = torch_try(g->keep, given, n, keys);
    Py_XDECREF(keys);
    return made;
}

static PyObject *find_input(PyObject *args, char i)
{
    return i + 2 < PyTuple_Size(args) ? PyTuple_GetItem(args, i + 2) : Py_None;
}

static bool save(const struct gradient *g, PyObject *ctx, PyObject *args, PyObject *made)
{
    const char *reads = PyBytes_AsString(g->reads), *results = PyBytes_AsString(g->results);
    Py_ssize_t n = PyBytes_Size(g->reads), n_results = PyBytes_Size(g->results);
    PyObject *saved = PyTuple_New(n + n_results);
    for (Py_ssize_t i = 0; saved && i < n; i++)
        PyTuple_SetItem(saved, i, Py_NewRef(find_input(args, reads[i])));
    for (Py_ssize_t i = 0; saved && i < n_results; i++)
        PyTuple_SetItem(saved, n + i, Py_NewRef(PyTuple_GetItem(made, results[i])));
    bool ok = saved && PyObject_SetAttr(ctx, names.to_save, saved) == 0 &&
              (g->n_outputs == 1 || PyObject_SetAttr(ctx, names.materialize, Py_False) == 0);
    Py_XDECREF(saved);
    return ok;
}

static PyObject *describe(PyObject *tensor)
{
    if (tensor == Py_None)
        return Py_NewRef(tensor);
    PyObject *dtype = PyObject_GetAttr(tensor, names.dtype);
    PyObject *shape = PyObject_GetAttr(tensor, names.shape);
    PyObject *stride = PyObject_CallMethodObjArgs(tensor, names.stride, NULL);
    PyObject *made = dtype && shape && stride ? PyTuple_Pack(3, dtype, shape, stride) : NULL;
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    return made;
}

static PyObject *describe_unread(const struct gradient *g, PyObject *args)
{
    const char *unread = PyBytes_AsString(g->unread);
    Py_ssize_t n = PyBytes_Size(g->unread);
    PyObject *all = PyTuple_New(n);
    for (Py_ssize_t i = 0; all && i < n; i++) {
        PyObject *one = describe(find_input(args, unread[i]));
        if (!one || PyTuple_SetItem(all, i, one) < 0)
            Py_CLEAR(all);
    }
    return all;
}

static bool note(const struct gradient *g, PyObject *ctx, PyObject *args, PyObject *made)
{
    PyObject *serial = PyTuple_GetItem(made, g->n_outputs + g->n_saved);
    PyObject *rest = PyTuple_GetSlice(args, 2 + g->n_inputs, PyTuple_Size(args));
    PyObject *unread = describe_unread(g, args);
    PyObject *options = PyObject_GetAttr(g->options, names.options);
    PyObject *kept = rest && unread && options
                         ? PyTuple_Pack(5, serial, rest, PyTuple_GetItem(args, 1), unread, options)
                         : NULL;
    bool ok = kept && PyObject_SetAttr(ctx, names.kept, kept) == 0;
    Py_XDECREF(rest);
    Py_XDECREF(unread);
    Py_XDECREF(options);
    Py_XDECREF(kept);
    return ok;
}

static PyObject *forward(PyObject *self, PyObject *args)
{
    const struct gradient *g = PyCapsule_GetPointer(self, NULL);
    PyObject *ctx = PyTuple_GetItem(args, 0), *result = NULL;
    PyObject *made = ctx ? torch_run_handed(g->keep, PyTuple_GetItem(args, 1)) : NULL;
    if (!made && !PyErr_Occurred())
        made = run_keep(g, args);
    if (!made)
        return pass_on(g->forward, args, NULL);
    if (save(g, ctx, args, made) && note(g, ctx, args, made))
        result = g->n_outputs == 1 ? Py_NewRef(PyTuple_GetItem(made, 0))
                                   : PyTuple_GetSlice(made, 0, g->n_outputs);
    Py_DECREF(made);
    return result;
}

// --- backward

static bool add_tensors(PyObject *tensors, void **objects, Py_ssize_t *n)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++) {
        PyObject *value = PyTuple_GetItem(tensors, i);
        if (*n == TORCH_MAX_ARGS || (value != Py_None && !torch_is_tensor(value)))
            return false;
        objects[(*n)++] = value == Py_None ? NULL : value;
    }
    return true;
}

// The gradients to make. needs: of the named arguments, then of each.
static uint64_t find_wanted(const struct gradient *g, PyObject *needs)
{
    uint64_t wanted = 0;
    Py_ssize_t n = PyTuple_Size(needs) - 1;
    for (Py_ssize_t i = 0; i < n && i < g->n_inputs; i++)
        if (g->able >> i & 1 && PyTuple_GetItem(needs, i + 1) == Py_True)
            wanted |= (uint64_t)1 << i;
    return wanted;
}

static PyObject *wrap_gradients(const struct gradient *g, const uint64_t *results, Py_ssize_t n)
{
    PyObject *all = PyTuple_New(n > g->n_inputs + 1 ? n : g->n_inputs + 1);
    for (Py_ssize_t i = 0; all && i < PyTuple_Size(all); i++)
        PyTuple_SetItem(all, i, Py_NewRef(Py_None));
    for (int i = 0; i < g->n_inputs; i++) {
        PyObject *one = torch_wrap(results[i]); // of all: each is given away with that
        if (!all)
            Py_XDECREF(one);
        else if (!one || PyTuple_SetItem(all, i + 1, one) < 0)
            Py_CLEAR(all);
    }
    return all;
}

static PyObject *run_back(const struct gradient *g, PyObject *grads, PyObject *saved,
                          PyObject *needs, uint64_t serial)
{
    void *objects[TORCH_MAX_ARGS];
    uint64_t results[MAX_INPUTS], words[2] = { find_wanted(g, needs), serial };
    Py_ssize_t n = 0, n_given = g->n_outputs + PyBytes_Size(g->reads) + PyBytes_Size(g->results);
    if (!add_tensors(grads, objects, &n) || !add_tensors(saved, objects, &n) || n != n_given ||
        !torch_is_plain() || torch_is_grad_enabled() ||
        !torch_run(g->back, objects, words, 2, results))
        return NULL;
    return wrap_gradients(g, results, PyTuple_Size(needs));
}

// saved: what was unpacked, for which nothing has been made; the caller's.
static PyObject *differentiate(const struct gradient *g, PyObject *ctx, PyObject *grads,
                               PyObject **saved)
{
    PyObject *kept = PyObject_GetAttr(ctx, names.kept), *made = NULL;
    if (kept && PyTuple_Check(kept) && PyTuple_Size(kept) == 5 &&
        PyTuple_GetItem(kept, 4) == g->default_options) {
        uint64_t serial = PyLong_AsUnsignedLongLong(PyTuple_GetItem(kept, 0));
        PyObject *needs = serial >= SERIALS ? PyObject_GetAttr(ctx, names.needs) : NULL;
        *saved = needs ? PyObject_GetAttr(ctx, names.saved) : NULL;
        if (*saved)
            made = run_back(g, grads, *saved, needs, serial);
        Py_XDECREF(needs);
    }
    Py_XDECREF(kept);
    return made;
}

static PyObject *backward(PyObject *ctx, PyObject *grads)
{
    PyObject *self = PyObject_GetAttr(ctx, names.gradient), *saved = NULL, *made = NULL;
    const struct gradient *g = self ? PyCapsule_GetPointer(self, NULL) : NULL;
    if (g)
        made = differentiate(g, ctx, grads, &saved);
    if (g && !made) {
        Py_ssize_t n = PyTuple_Size(grads);
        PyObject *args = PyTuple_New(n + 1);
        for (Py_ssize_t i = 0; args && i <= n; i++)
            PyTuple_SetItem(args, i, Py_NewRef(i ? PyTuple_GetItem(grads, i - 1) : ctx));
        made = args ? pass_on(g->backward, args, saved) : NULL;
        Py_XDECREF(args);
    }
    Py_XDECREF(saved);
    Py_XDECREF(self);
    return made;
}

// --- setting up

static PyMethodDef forward_method = { "forward", forward, METH_VARARGS, NULL };
static PyMethodDef backward_method = { "apply", backward, METH_VARARGS, NULL };

static void free_gradient(PyObject *capsule)
{
    struct gradient *g = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(g->given);
    free(g);
}

static bool intern_names(void)
{
#define INTERN(name, text)                                                                         \
    if (!names.name && !(names.name = PyUnicode_InternFromString(text)))                           \
        return false;
    INTERN(gradient, "_gradient")
    INTERN(to_save, "to_save")
    INTERN(saved, "saved_tensors")
    INTERN(unpacked, "saved")
    INTERN(needs, "needs_input_grad")
    INTERN(kept, "kept")
    INTERN(materialize, "materialize_grads")
    INTERN(options, "options")
    INTERN(error, "error")
    INTERN(dtype, "dtype")
    INTERN(shape, "shape")
    INTERN(stride, "stride")
    return true;
}

static PyObject *finish(PyObject *context, PyObject *self)
{
    PyObject *apply = PyDescr_NewMethod((PyTypeObject *)context, &backward_method), *made = NULL;
    if (apply && intern_names() && PyObject_SetAttr(context, names.gradient, self) == 0 &&
        PyObject_SetAttrString(context, "apply", apply) == 0)
        made = PyCFunction_NewEx(&forward_method, self, NULL);
    Py_XDECREF(apply);
    return made;
}

PyObject *torch_make_gradient(PyObject *module, PyObject *given)
{
    PyObject *context;
    struct gradient *g = calloc(1, sizeof *g);
    (void)module;
    if (!g)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(given, "O!O!i(iii)ISSSOOOO", &PyType_Type, &context, &PyCFunction_Type,
                          &g->keep, &g->back, &g->n_inputs, &g->n_outputs, &g->n_saved, &g->able,
                          &g->reads, &g->results, &g->unread, &g->options, &g->default_options,
                          &g->forward, &g->backward)) {
        free(g);
        return NULL;
    }
    g->given = Py_NewRef(given);
    PyObject *self = PyCapsule_New(g, NULL, free_gradient);
    PyObject *made = self ? finish(context, self) : NULL;
    Py_XDECREF(self);
    return made;
}
