#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "copying.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/stream_copy.h"

// GRAIN: bytes that a thread copies at a time, so that all of them work at the first piece.
enum { MOST_THREADS = 16, GRAIN = 256 << 10 };

struct copy {
    char *to;
    const char *from;
    size_t size;
    _Atomic size_t next;  // the first grain that nobody has taken
    pthread_mutex_t lock; // of all below
    pthread_cond_t more;  // n_copied has changed
    size_t n_copied;      // the first so many are there
    bool *copied;         // each grain
};

static size_t count_grains(const struct copy *c)
{
    return (c->size + GRAIN - 1) / GRAIN;
}

static void note_grain(struct copy *c, size_t grain)
{
    pthread_mutex_lock(&c->lock);
    c->copied[grain] = true;
    while (c->n_copied < count_grains(c) && c->copied[c->n_copied])
        c->n_copied++;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->lock);
}

static void *work(void *data)
{
    struct copy *c = data;
    for (size_t grain; (grain = atomic_fetch_add(&c->next, 1)) < count_grains(c);) {
        size_t at = grain * GRAIN, left = c->size - at;
        stream_copy(c->to + at, c->from + at, left < GRAIN ? left : GRAIN);
        note_grain(c, grain);
    }
    return NULL;
}

static void wait_for(struct copy *c, size_t n_grains)
{
    PyThreadState *state = PyEval_SaveThread();
    pthread_mutex_lock(&c->lock);
    while (c->n_copied < n_grains)
        pthread_cond_wait(&c->more, &c->lock);
    pthread_mutex_unlock(&c->lock);
    PyEval_RestoreThread(state);
}

static bool tell(struct copy *c, size_t piece, PyObject *copied)
{
    for (size_t at = 0; at < c->size; at += piece) {
        size_t end = c->size - at < piece ? c->size : at + piece;
        wait_for(c, (end + GRAIN - 1) / GRAIN);
        PyObject *done = PyObject_CallFunction(copied, "n", (Py_ssize_t)at);
        Py_XDECREF(done);
        if (!done)
            return false;
    }
    return true;
}

static bool copy(struct copy *c, size_t piece, int n_threads, PyObject *copied)
{
    pthread_t threads[MOST_THREADS];
    int n = 0;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->more, NULL);
    while (n < n_threads && n < MOST_THREADS && pthread_create(&threads[n], NULL, work, c) == 0)
        n++;
    if (n == 0)
        work(c);
    bool good = tell(c, piece, copied);
    atomic_store(&c->next, count_grains(c)); // no more of them, where it ends early
    PyThreadState *state = PyEval_SaveThread();
    while (n > 0)
        pthread_join(threads[--n], NULL);
    PyEval_RestoreThread(state);
    pthread_cond_destroy(&c->more);
    pthread_mutex_destroy(&c->lock);
    return good;
}

PyObject *copying_copy(PyObject *module, PyObject *given)
{
    unsigned long long to, from;
    Py_ssize_t size, piece;
    int n_threads;
    PyObject *copied;
    (void)module;
    if (!PyArg_ParseTuple(given, "KKnniO", &to, &from, &size, &piece, &n_threads, &copied))
        return NULL;
    if (size < 0 || piece <= 0) {
        PyErr_SetString(PyExc_ValueError, "copy: a size below 0, or pieces of nothing");
        return NULL;
    }
    struct copy c = { .to = (char *)(uintptr_t)to, .from = (const char *)(uintptr_t)from };
    c.size = (size_t)size;
    c.copied = calloc(count_grains(&c) + 1, 1);
    if (!c.copied)
        return PyErr_NoMemory();
    bool good = copy(&c, (size_t)piece, n_threads, copied);
    free(c.copied);
    return good ? Py_NewRef(Py_None) : NULL;
}
