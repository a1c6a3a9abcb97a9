#include "native_lane.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char SHARED[] = "opd_native.shared";
enum { SHARED_SIZE = 4096 };

// ---- what is shared -----------------------------------------------------------------------------

static void close_lane(struct shared *s)
{
    s->lane = NULL;
    Py_CLEAR(s->file);
    s->epoch++;
}

static void forget(struct lane_call *call)
{
    for (Py_ssize_t i = 0; i < call->n_inputs; i++)
        Py_CLEAR(call->inputs[i]);
    Py_CLEAR(call->head);
    Py_CLEAR(call->wire);
    *call = (struct lane_call){ 0 };
}

static void free_shared(PyObject *capsule)
{
    struct shared *s = PyCapsule_GetPointer(capsule, SHARED);
    for (size_t i = 0; i < LANE_CALLS; i++)
        forget(&s->calls[i]);
    close_lane(s);
    munmap(s->word, SHARED_SIZE);
    free(s);
}

// given: a descriptor of that many bytes.
PyObject *lane_share(PyObject *module, PyObject *given)
{
    (void)module;
    int fd = (int)PyLong_AsLong(given);
    if (PyErr_Occurred())
        return NULL;
    void *memory = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    struct shared *s = calloc(1, sizeof *s);
    PyObject *capsule = NULL;
    if (s) {
        s->word = memory;
        capsule = PyCapsule_New(s, SHARED, free_shared);
    } else {
        PyErr_NoMemory();
    }
    if (!capsule) {
        munmap(memory, SHARED_SIZE);
        free(s);
    }
    return capsule;
}

struct shared *lane_shared(PyObject *capsule)
{
    struct shared *s = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, SHARED);
    if (!s)
        PyErr_Clear(); // of what is no such thing
    return s;
}

PyObject *lane_open(PyObject *module, PyObject *given)
{
    PyObject *capsule, *file;
    int bell;
    (void)module;
    if (!PyArg_ParseTuple(given, "OOi", &capsule, &file, &bell))
        return NULL;
    struct shared *s = PyCapsule_GetPointer(capsule, SHARED);
    if (!s)
        return NULL;
    close_lane(s);
    s->refused = file == Py_None;
    s->n_offered = 0;
    if (!s->refused) {
        s->file = Py_NewRef(file);
        s->bell = bell;
        s->lane = (struct lane *)(void *)((char *)s->word + LANE_ALIGNED);
    }
    Py_RETURN_NONE;
}

PyObject *lane_disarm(PyObject *module, PyObject *given)
{
    PyObject *capsule;
    int open;
    (void)module;
    if (!PyArg_ParseTuple(given, "Op", &capsule, &open))
        return NULL;
    struct shared *s = PyCapsule_GetPointer(capsule, SHARED);
    if (!s)
        return NULL;
    s->epoch++;
    if (!open)
        close_lane(s);
    Py_RETURN_NONE;
}

// ---- results that are kept ----------------------------------------------------------------------

// Its result, if it is kept, is given up.
static bool give_up(struct lane_call *call, PyObject *dropped)
{
    bool good = !call->wire || PyList_Append(dropped, call->wire) == 0;
    forget(call);
    return good;
}

PyObject *lane_untie(PyObject *module, PyObject *given)
{
    PyObject *capsule, *dropped;
    (void)module;
    if (!PyArg_ParseTuple(given, "OO!", &capsule, &PyList_Type, &dropped))
        return NULL;
    struct shared *s = PyCapsule_GetPointer(capsule, SHARED);
    if (!s)
        return NULL;
    bool good = true;
    for (size_t i = 0; i < LANE_CALLS; i++)
        good = give_up(&s->calls[i], dropped) && good;
    return good ? Py_NewRef(Py_None) : NULL;
}

static PyObject *wire_of(PyObject *args, Py_ssize_t i)
{
    return ((struct tensor *)PyTuple_GetItem(args, i))->wire;
}

static bool is_same(const struct lane_call *call, PyObject *head, PyObject *args)
{
    Py_ssize_t i = 0;
    if (call->head != head || call->n_inputs != PyTuple_Size(args))
        return false;
    while (i < call->n_inputs && call->inputs[i] == wire_of(args, i))
        i++;
    return i == call->n_inputs;
}

// The call whose result that tensor is; NULL: none any more.
static struct lane_call *find_tied(struct shared *s, const struct tensor *made)
{
    for (struct lane_call *call = s->calls; made->tie && call < s->calls + LANE_CALLS; call++)
        if (call->tie == made->tie)
            return call;
    return NULL;
}

static void tie(struct shared *s, struct lane_call *call, struct tensor *made, PyObject *capsule)
{
    call->tie = made->tie = ++s->ties;
    Py_XDECREF(made->lane);
    made->lane = Py_NewRef(capsule);
}

void lane_cut(struct tensor *tensor)
{
    tensor->tie = 0;
}

bool lane_renew(PyObject *const parts[], struct tensor *made)
{
    struct shared *s = lane_shared(parts[WORD]);
    struct lane_call *call = s ? find_tied(s, made) : NULL;
    PyObject *wire = call_take_wire(parts), *was = made->wire;
    if (!wire || PyList_Append(made->dropped, was) < 0) {
        Py_XDECREF(wire);
        return false;
    }
    made->wire = wire;
    Py_DECREF(was);
    if (call)
        call->use.armed = 0;
    return true;
}

bool lane_give_back(struct tensor *tensor)
{
    struct shared *s = PyCapsule_GetPointer(tensor->lane, SHARED);
    struct lane_call *call = s && !s->refused ? find_tied(s, tensor) : NULL;
    if (!call || call->wire)
        return false;
    call->wire = tensor->wire;
    tensor->wire = Py_NewRef(Py_None); // should it come back to life
    return true;
}

PyObject *lane_take(PyObject *const parts[], PyObject *args)
{
    struct shared *s = lane_shared(parts[WORD]);
    struct lane_call *call = s ? s->calls : NULL;
    while (call && !(call->wire && is_same(call, parts[HEAD], args)))
        call = ++call < s->calls + LANE_CALLS ? call : NULL;
    if (!call)
        return NULL;
    PyObject *wire = call->wire;
    call->wire = NULL;
    call->tie = ++s->ties;
    uint64_t given = call->tie; // collecting garbage may run anything
    struct tensor *made = (struct tensor *)tensor_make(parts, wire);
    if (made) {
        made->tie = given;
        made->lane = Py_NewRef(parts[WORD]);
    }
    return (PyObject *)made;
}

// Are there so many of it? By their addresses: another call may be taken for one.
static bool is_steady(struct shared *s, PyObject *head, PyObject *args)
{
    uintptr_t hash = (uintptr_t)head;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++)
        hash = (hash ^ (uintptr_t)wire_of(args, i)) * 0x9e3779b97f4a7c15u;
    size_t at = 0;
    while (at < LANE_RECENT && s->recent[at].hash != hash)
        at++;
    if (at == LANE_RECENT) {
        at = s->next_recent++ % LANE_RECENT;
        s->recent[at].hash = hash;
        s->recent[at].n = 0;
    }
    return ++s->recent[at].n > LANE_STEADY;
}

// Where such a call is noted: a free place, or that of the one longest ago; and not too many.
static struct lane_call *find_room(struct shared *s, PyObject *head, PyObject *args)
{
    struct lane_call *alike = NULL, *oldest = s->calls;
    int n_alike = 0;
    for (struct lane_call *call = s->calls; call < s->calls + LANE_CALLS; call++) {
        if (call->tie < oldest->tie)
            oldest = call;
        if (!is_same(call, head, args))
            continue;
        n_alike++;
        if (!alike || call->tie < alike->tie)
            alike = call;
    }
    return n_alike < LANE_ALIKE ? oldest : alike;
}

void lane_note(PyObject *const parts[], PyObject *args, struct tensor *made)
{
    struct shared *s = lane_shared(parts[WORD]);
    Py_ssize_t n = PyTuple_Size(args);
    bool fits = s && !s->refused && made->dropped && n > 0 && n <= LANE_INPUTS;
    if (!fits || !is_steady(s, parts[HEAD], args))
        return;
    struct lane_call *call = find_room(s, parts[HEAD], args);
    if (!give_up(call, made->dropped))
        PyErr_Clear(); // the daemon has it until the connection ends
    call->head = Py_NewRef(parts[HEAD]);
    call->n_inputs = n;
    for (Py_ssize_t i = 0; i < n; i++)
        call->inputs[i] = Py_XNewRef(wire_of(args, i));
    tie(s, call, made, parts[WORD]);
}

// ---- running ------------------------------------------------------------------------------------

// Whether it may be entered. False with an error, too.
static bool make_ready(PyObject *const parts[], PyObject *handle, PyObject *args,
                       struct shared *s, struct tensor *made)
{
    struct lane_call *call = find_tied(s, made);
    if (!call || s->asks || lane_use_passes(&call->use, &s->lane_waits))
        return false;
    if (s->lane && call->use.armed == s->epoch)
        return true;
    PyObject *told = PyObject_CallMethodObjArgs(parts[CONN], names._arm, handle, args, made, NULL);
    unsigned slot, version;
    unsigned long long serial;
    bool good = told && told != Py_None &&
                PyArg_ParseTuple(told, "IKI", &slot, &serial, &version);
    Py_XDECREF(told);
    call = find_tied(s, made); // anything may have run
    if (PyErr_Occurred() || !call)
        return false;
    if (!good || !s->lane) {
        lane_use_leave(&call->use, false);
        return false;
    }
    call->use.entry = (struct lane_entry){ .slot = slot, .serial = serial };
    call->use.armed = s->epoch;
    call->version = version;
    return true;
}

static bool look(PyObject *const parts[])
{
    PyObject *done = PyObject_CallMethodObjArgs(parts[CONN], names.poll, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

// After the word has told nothing for a while: the reply, if it was begun; else NULL without an
// error. Whatever a signal's handler raises meanwhile, the daemon is asked first: what is sent from
// then on comes after it.
static PyObject *hear(PyObject *const parts[], struct shared *s, uint32_t request)
{
    enum { MOST_SIGNALS = 1000 };
    PyObject *type = NULL, *value = NULL, *trace = NULL, *asked = NULL;
    PyObject *number = PyLong_FromUnsignedLong(request);
    s->asks = true;
    for (int i = 0; number && !asked && i < MOST_SIGNALS; i++) {
        asked = PyObject_CallMethodObjArgs(parts[CONN], names._ask_begun, parts[AGAIN], number,
                                           NULL);
        if (!asked && !type)
            PyErr_Fetch(&type, &value, &trace);
        else if (!asked)
            PyErr_Clear();
    }
    s->asks = false;
    Py_XDECREF(number);
    PyObject *heard = NULL;
    if (type)
        PyErr_Restore(type, value, trace);
    else if (asked)
        heard = PyObject_CallMethodObjArgs(parts[CONN], names._hear_begun, asked, NULL);
    Py_XDECREF(asked);
    if (heard == Py_None)
        Py_CLEAR(heard);
    return heard;
}

static bool wait_for_word(struct shared *s)
{
    PyThreadState *state = PyEval_SaveThread();
    bool told = word_wait(&s->lane->word, &s->lane_waits);
    PyEval_RestoreThread(state);
    return told;
}

// Is nothing in the way of an entry? Anything may have run by then. False with an error, too.
static bool is_clear(PyObject *const parts[], struct shared *s)
{
    return (!lane_is_to_look(&s->lane_waits) || look(parts)) && exchange_find_socket(parts) >= 0;
}

// What became of an entry. HEARD: the reply, or none, if it was not begun or with an error.
enum fate { REFUSED, TOLD, HEARD };

static enum fate enter(PyObject *const parts[], struct shared *s, struct lane_entry entry,
                       PyObject **out_reply)
{
    entry.request = exchange_number();
    uint32_t number = lane_enter(s->lane, &entry, s->bell);
    *out_reply = NULL;
    if (wait_for_word(s))
        return TOLD;
    if (lane_was_refused(s->lane, number, &s->lane_waits))
        return REFUSED;
    *out_reply = hear(parts, s, entry.request);
    return HEARD;
}

PyObject *lane_run(PyObject *const parts[], PyObject *handle, PyObject *expected, PyObject *args,
                   struct tensor *made)
{
    struct shared *s = lane_shared(parts[WORD]);
    if (!s || !made->tie || !make_ready(parts, handle, args, s, made) || !is_clear(parts, s))
        return NULL;
    struct lane_call *call = find_tied(s, made);
    if (!call || !s->lane || call->use.armed != s->epoch ||
        !word_begin(&s->lane->word, &s->lane_waits))
        return NULL;
    PyObject *reply;
    uint32_t version = call->version;
    enum fate fate = enter(parts, s, call->use.entry, &reply);
    call = find_tied(s, made);
    if (call && fate == TOLD)
        call->use.n_failed = 0;
    else if (call && fate == REFUSED)
        lane_use_leave(&call->use, true);
    return fate == TOLD ? exchange_told(parts, expected, version) : reply;
}

// ---- replays ------------------------------------------------------------------------------------

struct armed {
    struct lane_entry entry;
    unsigned epoch; // as of a call
};

PyObject *lane_arm(PyObject *module, PyObject *given)
{
    PyObject *capsule;
    unsigned slot;
    unsigned long long serial;
    (void)module;
    if (!PyArg_ParseTuple(given, "OIK", &capsule, &slot, &serial))
        return NULL;
    const struct shared *s = PyCapsule_GetPointer(capsule, SHARED);
    if (!s)
        return NULL;
    struct armed armed;
    memset(&armed, 0, sizeof armed);
    armed.entry.slot = slot;
    armed.entry.serial = serial;
    armed.epoch = s->epoch;
    return PyBytes_FromStringAndSize((const char *)&armed, sizeof armed);
}

// False with an error, too.
static bool find_armed(PyObject *const parts[], const struct shared *s, struct armed *out)
{
    PyObject *armed = peek(parts[AGAIN], names.armed);
    if (!armed || !PyBytes_Check(armed) || PyBytes_Size(armed) != sizeof *out)
        return false;
    memcpy(out, PyBytes_AsString(armed), sizeof *out);
    return s->lane && !s->asks && out->epoch == s->epoch;
}

PyObject *lane_replay(PyObject *const parts[])
{
    struct shared *s = lane_shared(parts[WORD]);
    struct armed armed;
    PyObject *reply;
    if (!s || !find_armed(parts, s, &armed) || !is_clear(parts, s) ||
        !find_armed(parts, s, &armed) || !word_begin(&s->lane->word, &s->lane_waits))
        return NULL;
    enum fate fate = enter(parts, s, armed.entry, &reply);
    if (fate == TOLD)
        return exchange_told(parts, NULL, 0);
    if (fate == REFUSED)
        PyObject_SetAttr(parts[AGAIN], names.armed, Py_None);
    return reply;
}

bool lane_is_wanted(PyObject *const parts[])
{
    struct shared *s = lane_shared(parts[WORD]);
    if (!s || s->refused || s->asks || ++s->n_replays <= (unsigned)LANE_STEADY << s->n_offered)
        return false;
    s->n_replays = 0;
    s->n_offered += s->n_offered < LANE_MOST_FAILED;
    return true;
}
