// opd_native: the quick path of a prepared call, for the Python package (opd/_native.py says where
// it is used, and _prepared.py and _calls.py do the same without it). It knows the one case that is
// worth it: one result, nothing else in flight, a reply as the last one. Whatever else comes is
// left to the methods of those classes, by the names below.
//
// Limited API: one binary for every CPython from 3.10 on. There is one interpreter.

#include "native_lane.h"

#include <string.h>

#include "copying.h"

enum { ABI = 9 };

struct call_names names;

static PyObject *call_prepared; // of _prepared.py: what call() does, in Python
static PyObject *dumps;         // marshal's

// As make_key() in _prepared.py: a new reference; NULL: there is none, perhaps with an error.
static PyObject *make_key(PyObject *args, PyObject *kwargs)
{
    Py_ssize_t n = PyTuple_Size(args), first = PyDict_Size(kwargs) > 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const struct tensor *t = (const struct tensor *)PyTuple_GetItem(args, i);
        if (!PyObject_TypeCheck((PyObject *)t, tensor_base) || !t->kind || !t->wire ||
            t->kind == Py_None || !PyBytes_Check(t->wire))
            return NULL;
    }
    if (n == 1 && !first) {
        return Py_NewRef(((struct tensor *)PyTuple_GetItem(args, 0))->kind);
    }
    PyObject *text = first ? PyObject_CallFunction(dumps, "Oi", kwargs, 2) : NULL;
    PyObject *key = first && !text ? NULL : PyTuple_New(n + first);
    if (!key) {
        Py_XDECREF(text);
        return NULL;
    }
    if (text)
        PyTuple_SetItem(key, 0, text);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *kind = ((struct tensor *)PyTuple_GetItem(args, i))->kind;
        PyTuple_SetItem(key, i + first, Py_NewRef(kind));
    }
    return key;
}

static char *append(char *out, PyObject *bytes)
{
    size_t n = (size_t)PyBytes_Size(bytes);
    memcpy(out, PyBytes_AsString(bytes), n);
    return out + n;
}

// Whether it has its id still: another thread, or a finalizer, may have freed it since make_key().
static bool is_live(PyObject *tensor)
{
    const PyObject *wire = ((struct tensor *)tensor)->wire;
    if (wire && PyBytes_Check(wire))
        return true;
    Py_XDECREF(PyObject_CallMethodObjArgs(tensor, names._live_id, NULL));
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a tensor's id is bytes");
    return false;
}

// What the handle begins it with, the ids of args, nil for the inputs that are absent, the id of
// the result.
PyObject *call_pack(PyObject *const parts[], PyObject *args, PyObject *wire)
{
    PyObject *head = parts[HEAD], *nils = parts[NILS];
    Py_ssize_t n = PyTuple_Size(args);
    if (!PyBytes_Check(head) || !PyBytes_Check(nils) || !PyBytes_Check(wire)) {
        PyErr_SetString(PyExc_TypeError, "a handle's parts are bytes");
        return NULL;
    }
    Py_ssize_t size = PyBytes_Size(head) + PyBytes_Size(nils) + PyBytes_Size(wire);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!is_live(PyTuple_GetItem(args, i)))
            return NULL;
        size += PyBytes_Size(((struct tensor *)PyTuple_GetItem(args, i))->wire);
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, size);
    if (!packed)
        return NULL;
    char *out = append(PyBytes_AsString(packed), head);
    for (Py_ssize_t i = 0; i < n; i++)
        out = append(out, ((struct tensor *)PyTuple_GetItem(args, i))->wire);
    append(append(out, nils), wire);
    return packed;
}

bool call_take_parts(PyObject *all, Py_ssize_t n, PyObject *parts[])
{
    if (!all || !PyTuple_Check(all) || PyTuple_Size(all) != n) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a handle or a graph has other parts");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        parts[i] = PyTuple_GetItem(all, i);
    return true;
}

// False: the handle takes up what is new in the reply, or raises its error, and that failed.
static bool take_up(PyObject *handle, PyObject *reply, PyObject *made)
{
    if (reply == Py_None)
        return true;
    PyObject *outputs = PyTuple_Pack(1, made);
    PyObject *heard = outputs
                          ? PyObject_CallMethodObjArgs(handle, names._hear, reply, outputs, NULL)
                          : NULL;
    Py_XDECREF(outputs);
    Py_XDECREF(heard);
    return heard != NULL;
}

PyObject *call_take_wire(PyObject *const parts[])
{
    PyObject *wires = parts[WIRES];
    Py_ssize_t n;
    while ((n = PyList_Size(wires)) == 0) {
        PyObject *done = PyObject_CallMethodObjArgs(parts[LINK], names.make_wires, NULL);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    PyObject *wire = n > 0 ? PyList_GetItem(wires, n - 1) : NULL;
    Py_XINCREF(wire);
    if (wire && PyList_SetSlice(wires, n - 1, n, NULL) < 0)
        Py_CLEAR(wire);
    return wire;
}

static PyObject *make_new(PyObject *const parts[])
{
    PyObject *wire = call_take_wire(parts);
    return wire ? tensor_make(parts, wire) : NULL;
}

static PyObject *run(PyObject *const parts[], PyObject *handle, PyObject *args)
{
    PyObject *made = lane_take(parts, args), *reply = NULL;
    if (!made && !PyErr_Occurred())
        made = make_new(parts);
    if (!made)
        return NULL;
    reply = exchange_request(parts, handle, args, (struct tensor *)made);
    bool good = reply && take_up(handle, reply, made);
    Py_XDECREF(reply);
    if (!good) {
        lane_cut((struct tensor *)made);
        Py_CLEAR(made);
    }
    return made;
}

// given: quick, args, kwargs.
static PyObject *call(PyObject *module, PyObject *const *given, Py_ssize_t n_given)
{
    PyObject *parts[N_PARTS];
    (void)module;
    if (n_given != 3 || !tensor_final || !PyDict_Check(given[0]) || !PyTuple_Check(given[1]) ||
        !PyDict_Check(given[2])) {
        PyErr_SetString(PyExc_TypeError, "call() takes a dict, a tuple and a dict");
        return NULL;
    }
    PyObject *args = given[1], *key = make_key(args, given[2]);
    PyObject *handle = key ? PyDict_GetItemWithError(given[0], key) : NULL;
    Py_XINCREF(handle);
    Py_XDECREF(key);
    if (!handle) {
        PyErr_Clear(); // of attributes that cannot be told apart
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *made = NULL;
    if (call_take_parts(peek(handle, names.parts), N_PARTS, parts)) { // the handle's for its life
        bool plain = parts[KIND] != Py_None && PyDict_Size(parts[BATCHES]) == 0;
        made = plain ? run(parts, handle, args)
                     : PyObject_CallFunctionObjArgs(call_prepared, given[0], args, given[2], NULL);
    }
    Py_DECREF(handle);
    return made;
}

// ---- the module ---------------------------------------------------------------------------------

static PyObject *set_up(PyObject *module, PyObject *given)
{
    PyObject *type, *function;
    (void)module;
    if (!PyArg_ParseTuple(given, "O!O", &PyType_Type, &type, &function) || !tensor_set_final(type))
        return NULL;
    Py_XDECREF(call_prepared);
    call_prepared = Py_NewRef(function);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    { "call", (PyCFunction)(void (*)(void))call, METH_FASTCALL,
      "call(quick, args, kwargs): as opd._prepared.call_prepared()." },
    { "replay", (PyCFunction)(void (*)(void))exchange_replay, METH_FASTCALL,
      "replay(graph, parts): a replay that is waited for. None: there is nothing to say; else its "
      "reply, done." },
    { "copy", copying_copy, METH_VARARGS, "As copying.h says." },
    { "share_word", lane_share, METH_O,
      "share_word(fd): a page of shared memory, for the requests done_word and lane_open." },
    { "open_lane", lane_open, METH_VARARGS,
      "open_lane(word, file, fd): in that memory, whose bell is fd, of the file; None: there is "
      "not to be any." },
    { "disarm", lane_disarm, METH_VARARGS,
      "disarm(word, open): of what the daemon has armed nothing is any more; not even the lane is "
      "open." },
    { "arm", lane_arm, METH_VARARGS,
      "arm(word, slot, serial): what the daemon has armed for a graph, as Replays.armed has it." },
    { "untie", lane_untie, METH_VARARGS,
      "untie(word, dropped): no tensor that there is will be kept for another call at its end; "
      "what is kept goes into that list." },
    { "set_up", set_up, METH_VARARGS,
      "set_up(Tensor, call_prepared): the class of results, made of Tensor, and the function for "
      "what is not for the quick path." },
    { "torch_set_up", torch_set_up, METH_VARARGS,
      "torch_set_up(call, wrap, is_plain, Tensor, Parameter, MISS, forward_ad, profiler, "
      "count_modes, is_grad_enabled): the addresses of functions of libopd_torch, and what a call "
      "asks torch." },
    { "torch_kernel", torch_make_kernel, METH_VARARGS,
      "torch_kernel(number, layout, results, names, defaults, words, other, apply): a function "
      "that calls a kernel; or else `other`, with the same arguments. Where a tensor wants a "
      "gradient, it calls apply(kwargs, *args), if that is not None." },
    { "torch_gradient", torch_make_gradient, METH_VARARGS,
      "torch_gradient(context, keep, back, (inputs, outputs, saved), able, reads, results, unread, "
      "options, default, forward, backward): a function that does as forward(ctx, kwargs, *args) "
      "of an autograd.Function; context, the class of its ctx, gets an apply() that does as "
      "backward(ctx, *grads). A call that is not for here goes to these; one that fails, too, with "
      "the error." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "opd_native",
    .m_size = -1,
    .m_methods = functions,
};

static bool fill(PyObject *module)
{
    PyObject *marshal = PyImport_ImportModule("marshal");
    dumps = marshal ? PyObject_GetAttrString(marshal, "dumps") : NULL;
    Py_XDECREF(marshal);
    if (!dumps || !tensor_make_base())
        return false;
#define INTERN(name)                                                                               \
    if (!(names.name = PyUnicode_InternFromString(#name)))                                         \
        return false;
    CALL_NAMES(INTERN)
#define SPACED(method) #method " "
    return PyModule_AddObjectRef(module, "Tensor", (PyObject *)tensor_base) == 0 &&
           PyModule_AddStringConstant(module, "HARMLESS", LANE_HARMLESS(SPACED)) == 0 &&
           PyModule_AddIntConstant(module, "ABI", ABI) == 0;
}

PyMODINIT_FUNC PyInit_opd_native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && !fill(module))
        Py_CLEAR(module);
    return module;
}
