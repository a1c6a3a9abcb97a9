// opd_native: the quick path of a prepared call, for the Python package (opd/_native.py says where
// it is used, and _prepared.py and _conn.py do the same without it). It knows the one case that is
// worth it: one result, nothing else in flight, a reply as the last one. Whatever else comes is
// left to the methods of those classes, by the names below.
//
// Limited API: one binary for every CPython from 3.10 on. There is one interpreter.

#include "native.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/word.h"
#include "copying.h"

enum { ABI = 6, REPLY_SIZE = 512 };

// clang-format off
// Attributes and methods that are looked up often.
#define NAMES(X)                                                                                   \
    X(_collect) X(_exchange_slowly) X(_expected) X(_hear) X(_hear_first) X(_hurry)                 \
    X(_keep_reply) X(_live_id) X(_make_told) X(conn) X(drop) X(make_wires) X(parts) X(patience)
#define DECLARE(name) PyObject *name;
static struct {
    NAMES(DECLARE)
} names;

// What a handle's `parts` are, in this order; no new references.
enum part {
    KIND, HEAD, NILS, DEADLINE, LINK, WIRES, BATCHES, CONN, ACQUIRE, RELEASE, FILENO, REPLIES,
    DROPPED, APPEND, WORD, N_PARTS
};
// clang-format on

static PyObject *dumps; // marshal's

// ---- memory in which a device tells that a call is done (base/word.h) ---------------------------

static const char SHARED[] = "opd_native.shared";
enum { SHARED_SIZE = 4096 };

struct shared {
    struct word *word;
    struct word_waits waits;
};

static void free_shared(PyObject *capsule)
{
    struct shared *shared = PyCapsule_GetPointer(capsule, SHARED);
    munmap(shared->word, SHARED_SIZE);
    free(shared);
}

// given: a descriptor of that many bytes.
static PyObject *share_word(PyObject *module, PyObject *given)
{
    (void)module;
    int fd = (int)PyLong_AsLong(given);
    if (PyErr_Occurred())
        return NULL;
    void *memory = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    struct shared *shared = calloc(1, sizeof *shared);
    PyObject *capsule = NULL;
    if (shared) {
        shared->word = memory;
        capsule = PyCapsule_New(shared, SHARED, free_shared);
    } else {
        PyErr_NoMemory();
    }
    if (!capsule) {
        munmap(memory, SHARED_SIZE);
        free(shared);
    }
    return capsule;
}

// ---- tensors ------------------------------------------------------------------------------------

// The base of opd.Tensor, whose attributes of these names they are.
struct tensor {
    PyObject_HEAD PyObject *link, *wire, *kind, *reply;
    PyObject *dropped; // the list to which the id goes at the end; NULL: where its kind says
};

static PyTypeObject *base_type;  // of struct tensor
static PyTypeObject *final_type; // opd.Tensor
static PyObject *call_prepared;  // of _prepared.py: what call() does, in Python

static PyMemberDef tensor_members[] = {
    { "_link", T_OBJECT_EX, offsetof(struct tensor, link), 0, NULL },
    { "_wire", T_OBJECT_EX, offsetof(struct tensor, wire), 0, NULL },
    { "_kind", T_OBJECT_EX, offsetof(struct tensor, kind), 0, NULL },
    { "_reply", T_OBJECT_EX, offsetof(struct tensor, reply), 0, NULL },
    { NULL, 0, 0, 0, NULL },
};

static int tensor_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct tensor *t = (struct tensor *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(t->link);
    Py_VISIT(t->kind);
    Py_VISIT(t->reply);
    return 0;
}

static int tensor_clear(PyObject *self)
{
    struct tensor *t = (struct tensor *)self;
    Py_CLEAR(t->link);
    Py_CLEAR(t->wire);
    Py_CLEAR(t->kind);
    Py_CLEAR(t->reply);
    Py_CLEAR(t->dropped);
    return 0;
}

// By what the kind says, or the connection where that is not known.
static bool give_up(struct tensor *t)
{
    PyObject *owner = NULL, *done = NULL;
    if (t->kind && t->kind != Py_None) {
        owner = Py_NewRef(t->kind);
    } else if (t->link) {
        owner = PyObject_GetAttr(t->link, names.conn);
    }
    PyObject *drop = owner ? PyObject_GetAttr(owner, names.drop) : NULL;
    if (drop)
        done = PyObject_CallFunctionObjArgs(drop, t->wire, NULL);
    Py_XDECREF(done);
    Py_XDECREF(drop);
    Py_XDECREF(owner);
    return done != NULL;
}

static void tensor_finalize(PyObject *self)
{
    struct tensor *t = (struct tensor *)self;
    PyObject *type, *value, *trace;
    if (!t->wire || t->wire == Py_None)
        return;
    PyErr_Fetch(&type, &value, &trace); // of whatever goes on around
    if (t->dropped ? PyList_Append(t->dropped, t->wire) < 0 : !give_up(t))
        PyErr_WriteUnraisable(self);
    PyErr_Restore(type, value, trace);
}

static void tensor_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self); // its finalizer has run: that of a class made by Python
    tensor_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot tensor_slots[] = {
    { Py_tp_members, tensor_members }, { Py_tp_traverse, tensor_traverse },
    { Py_tp_clear, tensor_clear },     { Py_tp_finalize, tensor_finalize },
    { Py_tp_dealloc, tensor_dealloc }, { 0, NULL },
};

static PyType_Spec tensor_spec = {
    .name = "opd_native.Tensor",
    .basicsize = sizeof(struct tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = tensor_slots,
};

// A tensor of a known kind, whose id is yet to be sent. Takes the reference to `wire`.
static PyObject *make_tensor(PyObject *const parts[N_PARTS], PyObject *wire)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(final_type, Py_tp_alloc);
    PyObject *made = allocate(final_type, 0);
    if (!made) {
        Py_DECREF(wire);
        return NULL;
    }
    struct tensor *t = (struct tensor *)made;
    t->link = Py_NewRef(parts[LINK]);
    t->wire = wire;
    t->kind = Py_NewRef(parts[KIND]);
    t->reply = Py_NewRef(Py_None);
    t->dropped = PyList_Check(parts[DROPPED]) ? Py_NewRef(parts[DROPPED]) : NULL;
    return made;
}

// ---- what is called -----------------------------------------------------------------------------

// As make_key() in _prepared.py: a new reference; NULL: there is none, perhaps with an error.
static PyObject *make_key(PyObject *args, PyObject *kwargs)
{
    Py_ssize_t n = PyTuple_Size(args), first = PyDict_Size(kwargs) > 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const struct tensor *t = (const struct tensor *)PyTuple_GetItem(args, i);
        if (!PyObject_TypeCheck((PyObject *)t, base_type) || !t->kind || !t->wire ||
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

// The request: what the handle begins it with, the ids of args, nil for the inputs that are absent,
// the id of the result. Of handle's attributes it is not known what they are.
static PyObject *pack(PyObject *head, PyObject *args, PyObject *nils, PyObject *wire)
{
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

// The value of an attribute that its owner keeps as long as the lock is held; NULL: an error.
static PyObject *peek(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    Py_XDECREF(value);
    return value;
}

// False, with an error: they are no such parts.
static bool look_up(PyObject *handle, PyObject *parts[N_PARTS])
{
    PyObject *all = peek(handle, names.parts); // the handle's for its life
    if (!all || !PyTuple_Check(all) || PyTuple_Size(all) != N_PARTS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a handle has other parts");
        return false;
    }
    for (int i = 0; i < N_PARTS; i++)
        parts[i] = PyTuple_GetItem(all, i);
    return true;
}

// Where nothing else is in flight, the socket; else -1, perhaps with an error.
static int find_free_socket(PyObject *const parts[N_PARTS])
{
    PyObject *conn = parts[CONN];
    PyObject *hurry = peek(conn, names._hurry);
    if (hurry == Py_True) {
        PyObject *done = PyObject_CallMethodObjArgs(conn, names._collect, NULL);
        Py_XDECREF(done);
        hurry = done;
    }
    if (!hurry || PyDict_Size(parts[REPLIES]) != 0)
        return -1;
    PyObject *number = PyObject_CallNoArgs(parts[FILENO]); // -1: it is closed
    long fd = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return (int)fd;
}

// Waits for something to come, for so many milliseconds (-1: for ever). Returns its size; -1, with
// errno, or, where a signal's handler has raised it, with an error. poll() sleeps on where the
// other side has only made room by reading, which would wake a recv() for nothing.
static ssize_t receive(int fd, int patience, char reply[REPLY_SIZE])
{
    ssize_t n;
    int ready, number;
    do {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        PyThreadState *state = PyEval_SaveThread();
        ready = poll(&p, 1, patience);
        n = ready > 0 ? recv(fd, reply, REPLY_SIZE, MSG_DONTWAIT) : -1;
        number = ready == 0 ? EAGAIN : errno;
        PyEval_RestoreThread(state);
    } while (n < 0 &&
             (number == EINTR ? PyErr_CheckSignals() == 0 : ready > 0 && number == EAGAIN));
    errno = number;
    return n;
}

// The reply to a request that has gone, where receive() has got something else than is expected.
static PyObject *hear_first(PyObject *const parts[N_PARTS], uint32_t request, ssize_t n,
                            const char *received)
{
    PyObject *type, *value, *trace;
    PyObject *conn = parts[CONN], *deadline = parts[DEADLINE], *heard = NULL;
    if (PyErr_Occurred()) { // the reply will come, and nobody waits for it
        PyErr_Fetch(&type, &value, &trace);
        PyObject *number = PyLong_FromUnsignedLong(request);
        Py_XDECREF(PyObject_CallMethodObjArgs(conn, names._keep_reply, deadline, number, NULL));
        Py_XDECREF(number);
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    PyObject *silence = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Py_True : Py_False;
    PyObject *bytes = n < 0 ? NULL : PyBytes_FromStringAndSize(received, n);
    PyObject *done = bytes ? PyObject_CallFunctionObjArgs(parts[APPEND], bytes, NULL) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(done);
    if (n >= 0 && !done)
        return NULL;
    PyObject *number = PyLong_FromUnsignedLong(request);
    if (number)
        heard = PyObject_CallMethodObjArgs(conn, names._hear_first, deadline, silence, number,
                                           NULL);
    Py_XDECREF(number);
    return heard;
}

// A request, or its reply, as bytes.
struct message {
    const char *bytes;
    size_t size;
    char own[REPLY_SIZE];
};

// With that number in place of the 0 at its third byte. False: it is no such message, or too long.
static bool number_message(struct message *m, PyObject *bytes, uint32_t request)
{
    enum { AT = 2, NUMBER = 5 };
    const char *from = PyBytes_Check(bytes) ? PyBytes_AsString(bytes) : "";
    size_t size = PyBytes_Check(bytes) ? (size_t)PyBytes_Size(bytes) : 0;
    m->bytes = from;
    m->size = size;
    if (request == 0 || size <= AT || size + NUMBER > REPLY_SIZE)
        return request == 0 && size > 0;
    memcpy(m->own, from, AT);
    m->own[AT] = (char)0xce;
    for (int i = 1; i < NUMBER; i++)
        m->own[AT + i] = (char)(unsigned char)(request >> 8 * (NUMBER - 1 - i));
    memcpy(m->own + AT + NUMBER, from + AT + 1, size - AT - 1);
    m->bytes = m->own;
    m->size = size - 1 + NUMBER;
    return true;
}

// What a word has told: None, or the reply that would have said so.
static PyObject *take_word(PyObject *const parts[N_PARTS], PyObject *expected,
                           const struct shared *shared)
{
    static const char begin[] = "\x94\x01\x00\xc0\x81\xa7version"; // then a number below 128
    uint32_t ran = atomic_load(&shared->word->version);
    const char *like = PyBytes_AsString(expected);
    if (ran < 128 && PyBytes_Size(expected) == sizeof begin &&
        memcmp(like, begin, sizeof begin - 1) == 0 && like[sizeof begin - 1] == (char)ran)
        Py_RETURN_NONE;
    PyObject *number = PyLong_FromUnsignedLong(ran), *reply = NULL;
    if (number)
        reply = PyObject_CallMethodObjArgs(parts[CONN], names._make_told, number, NULL);
    Py_XDECREF(number);
    return reply;
}

static bool wait_for_word(struct shared *shared)
{
    PyThreadState *state = PyEval_SaveThread();
    bool told = word_wait(shared->word, &shared->waits);
    PyEval_RestoreThread(state);
    return told;
}

// The memory by which the next call may be told to be done; NULL: its reply will be.
static struct shared *begin_word(PyObject *const parts[N_PARTS], PyObject *expected)
{
    struct shared *shared = parts[WORD] == Py_None ? NULL
                                                   : PyCapsule_GetPointer(parts[WORD], SHARED);
    if (!shared)
        PyErr_Clear(); // of what is no such thing
    bool known = PyBytes_Check(expected) && PyBytes_Size(expected) > 1;
    return shared && known && word_begin(shared->word, &shared->waits) ? shared : NULL;
}

// With the connection locked. None: the reply was as expected; else it, done. One that is not by a
// word has the number 0. The others have their own, which no request of Python's ever has: should a
// device end, there may be a reply that nobody waits for any more.
static PyObject *exchange(PyObject *const parts[N_PARTS], PyObject *expected, PyObject *data)
{
    static uint32_t last;
    char received[REPLY_SIZE];
    struct message message;
    int fd = find_free_socket(parts);
    if (fd < 0 && PyErr_Occurred())
        return NULL;
    struct shared *shared = fd < 0 ? NULL : begin_word(parts, expected);
    uint32_t request = shared ? 0x80000000 | ++last : 0;
    // A page or less goes as a whole, or not at all.
    if (fd < 0 || !number_message(&message, data, request) ||
        send(fd, message.bytes, message.size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (shared)
            word_leave(shared->word);
        return PyObject_CallMethodObjArgs(parts[CONN], names._exchange_slowly, data,
                                          parts[DEADLINE], NULL);
    }
    if (shared && wait_for_word(shared))
        return take_word(parts, expected, shared);
    PyObject *patience = peek(parts[CONN], names.patience);
    ssize_t n = receive(fd, patience ? (int)PyLong_AsLong(patience) : 0, received);
    if (n < 0 || !number_message(&message, expected, request) || (size_t)n != message.size ||
        memcmp(received, message.bytes, message.size) != 0)
        return hear_first(parts, request, n, received);
    Py_RETURN_NONE;
}

static PyObject *exchange_locked(PyObject *const parts[N_PARTS], PyObject *handle, PyObject *data)
{
    PyObject *type, *value, *trace;
    PyObject *locked = PyObject_CallNoArgs(parts[ACQUIRE]);
    if (!locked)
        return NULL;
    PyObject *expected = PyObject_GetAttr(handle, names._expected);
    PyObject *reply = expected ? exchange(parts, expected, data) : NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *released = PyObject_CallNoArgs(parts[RELEASE]);
    PyErr_Restore(type, value, trace);
    Py_XDECREF(released);
    Py_XDECREF(expected);
    Py_DECREF(locked);
    return reply;
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

// The next of the ids that are ready; makes some where there is none.
static PyObject *take_wire(PyObject *link, PyObject *wires)
{
    Py_ssize_t n;
    while ((n = PyList_Size(wires)) == 0) {
        PyObject *done = PyObject_CallMethodObjArgs(link, names.make_wires, NULL);
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

static PyObject *run(PyObject *const parts[N_PARTS], PyObject *handle, PyObject *args)
{
    PyObject *wire = take_wire(parts[LINK], parts[WIRES]), *reply = NULL;
    if (!wire)
        return NULL;
    PyObject *data = pack(parts[HEAD], args, parts[NILS], wire);
    if (!data) {
        Py_DECREF(wire);
        return NULL;
    }
    PyObject *made = make_tensor(parts, wire);
    if (made)
        reply = exchange_locked(parts, handle, data);
    bool good = reply && take_up(handle, reply, made);
    Py_XDECREF(reply);
    Py_DECREF(data);
    if (!good)
        Py_CLEAR(made);
    return made;
}

// given: quick, args, kwargs.
static PyObject *call(PyObject *module, PyObject *const *given, Py_ssize_t n_given)
{
    PyObject *parts[N_PARTS];
    (void)module;
    if (n_given != 3 || !final_type || !PyDict_Check(given[0]) || !PyTuple_Check(given[1]) ||
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
    if (look_up(handle, parts)) {
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
    if (!PyArg_ParseTuple(given, "O!O", &PyType_Type, &type, &function))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, base_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a class that is made of opd_native.Tensor");
        return NULL;
    }
    Py_XDECREF(final_type);
    Py_XDECREF(call_prepared);
    final_type = (PyTypeObject *)Py_NewRef(type);
    call_prepared = Py_NewRef(function);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    { "call", (PyCFunction)(void (*)(void))call, METH_FASTCALL,
      "call(quick, args, kwargs): as opd._prepared.call_prepared()." },
    { "copy", copying_copy, METH_VARARGS, "As copying.h says." },
    { "share_word", share_word, METH_O,
      "share_word(fd): a page of shared memory, for the request done_word." },
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
    base_type = (PyTypeObject *)PyType_FromSpec(&tensor_spec);
    PyObject *marshal = PyImport_ImportModule("marshal");
    dumps = marshal ? PyObject_GetAttrString(marshal, "dumps") : NULL;
    Py_XDECREF(marshal);
    if (!base_type || !dumps)
        return false;
#define INTERN(name)                                                                               \
    if (!(names.name = PyUnicode_InternFromString(#name)))                                         \
        return false;
    NAMES(INTERN)
    return PyModule_AddObjectRef(module, "Tensor", (PyObject *)base_type) == 0 &&
           PyModule_AddIntConstant(module, "ABI", ABI) == 0;
}

PyMODINIT_FUNC PyInit_opd_native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && !fill(module))
        Py_CLEAR(module);
    return module;
}
