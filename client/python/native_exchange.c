// The exchange of a prepared call: its request goes, and its reply comes, or a word in shared
// memory that says as much (base/word.h). What is not as the last time goes to the connection's
// methods.

#include "native_lane.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { REPLY_SIZE = 512, MOST_SIGNALS = 1000 };

// ---- the exchange -------------------------------------------------------------------------------

int exchange_find_socket(PyObject *const parts[])
{
    PyObject *conn = parts[CONN];
    PyObject *hurry = peek(conn, names._hurry);
    if (hurry == Py_True) {
        PyObject *done = PyObject_CallMethodObjArgs(conn, names._collect, parts[AGAIN], NULL);
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
static PyObject *hear_first(PyObject *const parts[], uint32_t request, ssize_t n,
                            const char *received)
{
    PyObject *type, *value, *trace;
    PyObject *conn = parts[CONN], *again = parts[AGAIN], *heard = NULL;
    if (PyErr_Occurred()) { // the reply will come, and nobody waits for it
        PyErr_Fetch(&type, &value, &trace);
        PyObject *number = PyLong_FromUnsignedLong(request);
        // More signals may come. Were it not kept, its word would be taken for the next call's.
        for (int i = 0; number && !heard && i < MOST_SIGNALS; i++) {
            PyErr_Clear();
            heard = PyObject_CallMethodObjArgs(conn, names._keep_reply, again, number, NULL);
        }
        Py_XDECREF(heard);
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
        heard = PyObject_CallMethodObjArgs(conn, names._hear_first, again, silence, number, NULL);
    Py_XDECREF(number);
    return heard;
}

// A request, or its reply.
struct message {
    size_t size;
    char bytes[REPLY_SIZE];
};

// With that number in place of the 0 at its third byte. False: it is no such message, or too long.
static bool number_message(struct message *m, PyObject *bytes, uint32_t request)
{
    enum { AT = 2, NUMBER = 5 };
    const char *from = PyBytes_Check(bytes) ? PyBytes_AsString(bytes) : "";
    size_t size = PyBytes_Check(bytes) ? (size_t)PyBytes_Size(bytes) : 0;
    if (size <= AT || size + NUMBER > REPLY_SIZE)
        return false;
    memcpy(m->bytes, from, AT);
    m->bytes[AT] = (char)0xce;
    for (int i = 1; i < NUMBER; i++)
        m->bytes[AT + i] = (char)(unsigned char)(request >> 8 * (NUMBER - 1 - i));
    memcpy(m->bytes + AT + NUMBER, from + AT + 1, size - AT - 1);
    m->size = size - 1 + NUMBER;
    return true;
}

PyObject *exchange_told(PyObject *const parts[], PyObject *expected, uint32_t ran)
{
    static const char begin[] = "\x94\x01\x00\xc0\x81\xa7version"; // then a number below 128
    if (ran == 0)
        Py_RETURN_NONE;
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
static struct shared *begin_word(PyObject *const parts[], PyObject *expected)
{
    struct shared *shared = lane_shared(parts[WORD]);
    bool known = PyBytes_Check(expected) && PyBytes_Size(expected) > 1;
    return shared && known && word_begin(shared->word, &shared->waits) ? shared : NULL;
}

uint32_t exchange_number(void)
{
    static uint32_t last;
    return 0x80000000 | ++last;
}

// By the socket. As exchange_request().
static PyObject *send_and_wait(PyObject *const parts[], PyObject *expected, PyObject *data)
{
    char received[REPLY_SIZE];
    struct message message;
    int fd = exchange_find_socket(parts);
    if (fd < 0 && PyErr_Occurred())
        return NULL;
    struct shared *shared = fd < 0 ? NULL : begin_word(parts, expected);
    uint32_t request = exchange_number();
    // A page or less goes as a whole, or not at all.
    if (fd < 0 || !number_message(&message, data, request) ||
        send(fd, message.bytes, message.size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (shared)
            word_leave(shared->word);
        return PyObject_CallMethodObjArgs(parts[CONN], names._exchange_slowly, data,
                                          parts[AGAIN], NULL);
    }
    if (shared && wait_for_word(shared))
        return exchange_told(parts, expected, atomic_load(&shared->word->version));
    PyObject *patience = peek(parts[CONN], names.patience);
    ssize_t n = receive(fd, patience ? (int)PyLong_AsLong(patience) : 0, received);
    if (n < 0 || !number_message(&message, expected, request) || (size_t)n != message.size ||
        memcmp(received, message.bytes, message.size) != 0)
        return hear_first(parts, request, n, received);
    Py_RETURN_NONE;
}

// With the connection locked: by the lane, or else by the socket, with a result that is new.
static PyObject *exchange(PyObject *const parts[], PyObject *handle, PyObject *args,
                          struct tensor *made)
{
    PyObject *expected = PyObject_GetAttr(handle, names._expected), *reply = NULL, *data = NULL;
    bool tied = made->tie != 0;
    if (expected && tied)
        reply = lane_run(parts, handle, expected, args, made);
    if (expected && !reply && !PyErr_Occurred() && (!tied || lane_renew(parts, made)))
        data = call_pack(parts, args, made->wire);
    if (data)
        reply = send_and_wait(parts, expected, data);
    if (data && reply == Py_None && !tied)
        lane_note(parts, args, made);
    else if (!reply || (data && reply != Py_None))
        lane_cut(made);
    Py_XDECREF(data);
    Py_XDECREF(expected);
    return reply;
}

static PyObject *lock(PyObject *const parts[])
{
    return PyObject_CallNoArgs(parts[ACQUIRE]);
}

static void unlock(PyObject *const parts[], PyObject *locked)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *released = PyObject_CallNoArgs(parts[RELEASE]);
    PyErr_Restore(type, value, trace);
    Py_XDECREF(released);
    Py_DECREF(locked);
}

PyObject *exchange_request(PyObject *const parts[], PyObject *handle, PyObject *args,
                           struct tensor *made)
{
    PyObject *locked = lock(parts);
    if (!locked)
        return NULL;
    PyObject *reply = exchange(parts, handle, args, made);
    unlock(parts, locked);
    return reply;
}

// ---- replays ------------------------------------------------------------------------------------

// With the connection locked.
static PyObject *replay(PyObject *const parts[], PyObject *graph)
{
    PyObject *reply = lane_replay(parts);
    if (reply || PyErr_Occurred())
        return reply;
    PyObject *expected = PyObject_GetAttr(graph, names._expected);
    if (expected)
        reply = send_and_wait(parts, expected, parts[HEAD]);
    Py_XDECREF(expected);
    if (reply == Py_None && lane_is_wanted(parts)) {
        PyObject *done = PyObject_CallMethodObjArgs(graph, names._offer, NULL);
        if (!done)
            Py_CLEAR(reply);
        Py_XDECREF(done);
    }
    return reply;
}

PyObject *exchange_replay(PyObject *module, PyObject *const *given, Py_ssize_t n_given)
{
    PyObject *parts[N_GRAPH_PARTS];
    (void)module;
    if (n_given != 2) {
        PyErr_SetString(PyExc_TypeError, "replay() takes a graph and its parts");
        return NULL;
    }
    PyObject *locked = call_take_parts(given[1], N_GRAPH_PARTS, parts) ? lock(parts) : NULL;
    if (!locked)
        return NULL;
    PyObject *reply = replay(parts, given[0]);
    unlock(parts, locked);
    return reply;
}
