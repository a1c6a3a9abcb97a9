// Kernels of libopd_torch (client/torch/opd_torch.h) as functions of Python, which do not go
// through torch's dispatcher where that would do nothing for a call (client/torch/direct.h). Here
// is what Python knows of that: the classes of arguments, and torch's modes. A call that is not for
// here is left to `other`, the kernel as torch has it, or is MISS.

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "native_torch.h"

enum { MAX_ARGS = TORCH_MAX_ARGS, MAX_WORDS = 512, MAX_RESULTS = 64 };

struct kernel {
    int number;
    PyObject *given;    // holds all that follows
    PyObject *layout;   // bytes: of call.h
    PyObject *results;  // bytes: t(ensor) or i(nt)
    PyObject *names;    // of the arguments
    PyObject *defaults; // a dict by name
    PyObject *words;    // a dict by name: texts, of which the number is given
    PyObject *other;    // or MISS
    PyObject *apply;    // where a gradient is wanted, or MISS; None: that is no matter here
    const char *letters, *result_letters;
    Py_ssize_t n_args, n_results;
    Py_ssize_t n_positional; // arguments that come by position, at most
};

static struct {
    int (*call)(int number, void *const *objects, const uint64_t *words, unsigned n_words,
                uint64_t *results, const char **error);
    PyObject *(*wrap)(uint64_t tensor);
    bool (*is_plain)(void), (*is_grad_enabled)(void);
    PyTypeObject *tensor, *parameter;
    PyObject *miss;
    PyObject *forward_ad, *profiler; // dicts of modules
    PyObject *current_level, *is_profiler_enabled, *requires_grad; // names
} torch;

// --- what a call is given

struct arguments {
    PyObject *values[MAX_ARGS];
    bool given[MAX_ARGS]; // and no default
    void *objects[MAX_ARGS];
    uint64_t words[MAX_WORDS];
    unsigned n_objects, n_words;
    bool want_grad; // some of the tensors
    bool has_words; // an attribute is a text of which the number is given
};

static Py_ssize_t find_name(const struct kernel *k, PyObject *name)
{
    for (Py_ssize_t i = 0; i < k->n_args; i++)
        if (PyTuple_GetItem(k->names, i) == name)
            return i;
    for (Py_ssize_t i = 0; i < k->n_args; i++)
        if (PyUnicode_Compare(PyTuple_GetItem(k->names, i), name) == 0)
            return i;
    return -1;
}

static bool place(const struct kernel *k, struct arguments *a, PyObject *const *given, Py_ssize_t n,
                  PyObject *names)
{
    Py_ssize_t n_named = names ? PyTuple_Size(names) : 0;
    if (n > k->n_positional || n + n_named > k->n_args)
        return false;
    memcpy(a->values, given, (size_t)n * sizeof *given);
    memset(a->values + n, 0, (size_t)(k->n_args - n) * sizeof *given);
    for (Py_ssize_t i = 0; i < n_named; i++) {
        Py_ssize_t at = find_name(k, PyTuple_GetItem(names, i));
        if (at < n || a->values[at])
            return false;
        a->values[at] = given[n + i];
    }
    for (Py_ssize_t i = 0; i < k->n_args; i++) {
        a->given[i] = a->values[i] != NULL;
        if (!a->given[i] &&
            !(a->values[i] = PyDict_GetItem(k->defaults, PyTuple_GetItem(k->names, i))))
            return false;
    }
    return true;
}

bool torch_is_tensor(PyObject *value)
{
    return Py_TYPE(value) == torch.tensor || Py_TYPE(value) == torch.parameter;
}

static bool wants_grad(PyObject *tensor)
{
    PyObject *wants = PyObject_GetAttr(tensor, torch.requires_grad);
    Py_XDECREF(wants);
    return wants != Py_False;
}

static bool add_tensor(const struct kernel *k, struct arguments *a, PyObject *value, bool optional)
{
    if (value == Py_None && optional) {
        a->objects[a->n_objects++] = NULL;
        return true;
    }
    if (!torch_is_tensor(value))
        return false;
    a->objects[a->n_objects++] = value;
    a->want_grad = a->want_grad || (k->apply != Py_None && wants_grad(value));
    return true;
}

static bool add_word(struct arguments *a, const void *word)
{
    if (a->n_words == MAX_WORDS)
        return false;
    memcpy(&a->words[a->n_words++], word, sizeof *a->words);
    return true;
}

static bool add_int(struct arguments *a, PyObject *value)
{
    int overflow;
    long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow)
                                                : (overflow = 1);
    return overflow == 0 && add_word(a, &number);
}

static bool add_float(struct arguments *a, PyObject *value)
{
    double number;
    if (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value))
        return false;
    number = PyFloat_AsDouble(value);
    return !PyErr_Occurred() && add_word(a, &number);
}

static bool add_text(struct arguments *a, PyObject *value)
{
    Py_ssize_t length = 0;
    const char *text = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &length) : NULL;
    uint64_t size = (uint64_t)length;
    bool ok = text && add_word(a, &size);
    for (Py_ssize_t at = 0; ok && at < length; at += (Py_ssize_t)sizeof size) {
        uint64_t word = 0;
        size_t rest = (size_t)(length - at);
        memcpy(&word, text + at, rest < sizeof word ? rest : sizeof word);
        ok = add_word(a, &word);
    }
    return ok;
}

static bool add_number_of(struct arguments *a, PyObject *word, PyObject *words)
{
    Py_ssize_t n = PyTuple_Size(words);
    a->has_words = true;
    for (int64_t i = 0; i < n; i++)
        if (PyUnicode_Compare(PyTuple_GetItem(words, i), word) == 0)
            return add_word(a, &i);
    return false;
}

static bool add_value(struct arguments *a, char letter, PyObject *value)
{
    uint64_t is = value == Py_True;
    switch (letter) {
    case 'i':
        return add_int(a, value);
    case 'f':
        return add_float(a, value);
    case 'b':
        return PyBool_Check(value) && add_word(a, &is);
    default:
        return add_text(a, value);
    }
}

static bool add_list(struct arguments *a, char letter, PyObject *list)
{
    bool is_tuple = PyTuple_CheckExact(list), ok = is_tuple || PyList_CheckExact(list);
    Py_ssize_t n = !ok ? 0 : is_tuple ? PyTuple_Size(list) : PyList_Size(list);
    uint64_t size = (uint64_t)n;
    ok = ok && add_word(a, &size);
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = add_value(a, letter, is_tuple ? PyTuple_GetItem(list, i) : PyList_GetItem(list, i));
    return ok;
}

static bool add_attr(const struct kernel *k, struct arguments *a, const char *letters,
                     bool optional, Py_ssize_t i)
{
    PyObject *value = a->values[i], *words = NULL;
    uint64_t there = value != Py_None;
    if (optional && !(add_word(a, &there) && there))
        return !there;
    if (*letters == '*')
        return add_list(a, letters[1], value);
    // A default is a number already, which is nobody's to give.
    if (a->given[i])
        words = PyDict_GetItem(k->words, PyTuple_GetItem(k->names, i));
    if (words)
        return PyUnicode_CheckExact(value) && add_number_of(a, value, words);
    return add_value(a, *letters, value);
}

// As call.h has it. False: torch is to read them, and perhaps to say what is wrong with them.
static bool read_all(const struct kernel *k, struct arguments *a)
{
    const char *at = k->letters;
    a->n_objects = a->n_words = 0;
    a->want_grad = a->has_words = false;
    for (Py_ssize_t i = 0; i < k->n_args; i++) {
        bool optional = *at == '?', ok;
        at += optional;
        if (*at == 't' || *at == 'v')
            ok = add_tensor(k, a, a->values[i], optional);
        else
            ok = add_attr(k, a, at, optional, i);
        if (!ok)
            return false;
        at += *at == '*' ? 2 : 1;
    }
    return true;
}

// --- calls

// What only Python knows that torch's functions do more than they do by themselves.
static bool is_watched(void)
{
    PyObject *level = PyDict_GetItem(torch.forward_ad, torch.current_level);
    PyObject *profiled = PyDict_GetItem(torch.profiler, torch.is_profiler_enabled);
    return !level || PyLong_AsLong(level) >= 0 || profiled != Py_False;
}

bool torch_is_plain(void)
{
    return torch.is_plain() && !is_watched();
}

PyObject *torch_wrap(uint64_t tensor)
{
    return torch.wrap(tensor);
}

static PyObject *make_results(const struct kernel *k, const uint64_t *results)
{
    if (k->n_results == 0)
        return Py_NewRef(Py_None);
    if (k->n_results == 1)
        return torch.wrap(results[0]);
    PyObject *all = PyTuple_New(k->n_results);
    for (Py_ssize_t i = 0; i < k->n_results; i++) {
        PyObject *one = k->result_letters[i] == 'i' ? PyLong_FromUnsignedLongLong(results[i])
                                                    : torch.wrap(results[i]);
        if (!all || !one || PyTuple_SetItem(all, i, one) < 0)
            Py_CLEAR(all);
    }
    return all;
}

// A call that is with autograd, which gives its thread the same arguments back.
struct handed {
    const struct arguments *read;
    PyObject *kwargs; // the call's own
};

static _Thread_local struct handed handed;

// `function` of the same; of what was `read`, if that is given: of the named ones as a dict first.
static PyObject *pass_on(PyObject *function, const struct arguments *read, PyObject *const *given,
                         Py_ssize_t n, PyObject *names)
{
    bool with_dict = read != NULL;
    Py_ssize_t n_named = names ? PyTuple_Size(names) : 0;
    PyObject *args = PyTuple_New(n + with_dict), *kwargs = PyDict_New(), *made = NULL;
    bool ok = args && kwargs;
    if (ok && with_dict)
        ok = PyTuple_SetItem(args, 0, Py_NewRef(kwargs)) == 0;
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = PyTuple_SetItem(args, i + with_dict, Py_NewRef(given[i])) == 0;
    for (Py_ssize_t i = 0; ok && i < n_named; i++)
        ok = PyDict_SetItem(kwargs, PyTuple_GetItem(names, i), given[n + i]) == 0;
    if (ok) {
        struct handed before = handed;
        handed = (struct handed){ read, read ? kwargs : NULL };
        made = PyObject_Call(function, args, with_dict ? NULL : kwargs);
        handed = before;
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return made;
}

bool torch_is_grad_enabled(void)
{
    return torch.is_grad_enabled();
}

bool torch_run(int number, void *const *objects, const uint64_t *words, unsigned n_words,
               uint64_t *results)
{
    const char *error = NULL;
    PyThreadState *state = PyEval_SaveThread();
    int done = torch.call(number, objects, words, n_words, results, &error);
    PyEval_RestoreThread(state);
    if (done < 0)
        PyErr_SetString(PyExc_RuntimeError, error);
    return done > 0;
}

static PyObject *run(const struct kernel *k, const struct arguments *a)
{
    uint64_t results[MAX_RESULTS];
    return torch_run(k->number, a->objects, a->words, a->n_words, results)
               ? make_results(k, results)
               : NULL;
}

static bool read_call(const struct kernel *k, struct arguments *a, PyObject *const *given,
                      Py_ssize_t n, PyObject *names)
{
    bool ok = place(k, a, given, n, names) && read_all(k, a);
    PyErr_Clear(); // of arguments that are not as expected
    return ok && torch_is_plain();
}

PyObject *torch_run_handed(PyObject *function, PyObject *kwargs)
{
    const struct kernel *k = PyCapsule_GetPointer(PyCFunction_GetSelf(function), NULL);
    return k && kwargs && handed.kwargs == kwargs ? run(k, handed.read) : NULL;
}

PyObject *torch_try(PyObject *function, PyObject *const *given, Py_ssize_t n, PyObject *names)
{
    const struct kernel *k = PyCapsule_GetPointer(PyCFunction_GetSelf(function), NULL);
    struct arguments a;
    return k && read_call(k, &a, given, n, names) ? run(k, &a) : NULL;
}

static PyObject *call(PyObject *self, PyObject *const *given, Py_ssize_t n, PyObject *names)
{
    const struct kernel *k = PyCapsule_GetPointer(self, NULL);
    struct arguments a;
    PyObject *made = NULL;
    if (read_call(k, &a, given, n, names)) {
        if (!a.want_grad || !torch_is_grad_enabled())
            made = run(k, &a);
        else if (k->apply != torch.miss && !a.has_words && n >= a.n_objects)
            made = pass_on(k->apply, &a, given, n, names); // autograd sees those by position
    }
    if (made || PyErr_Occurred())
        return made;
    return k->other == torch.miss ? Py_NewRef(torch.miss)
                                  : pass_on(k->other, NULL, given, n, names);
}

// --- setting up

static PyMethodDef method = { "kernel", (PyCFunction)(void (*)(void))call,
                              METH_FASTCALL | METH_KEYWORDS, NULL };

static void free_kernel(PyObject *capsule)
{
    struct kernel *k = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(k->given);
    free(k);
}

PyObject *torch_make_kernel(PyObject *module, PyObject *given)
{
    (void)module;
    struct kernel *k = calloc(1, sizeof *k);
    if (!k)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(given, "iSSO!nO!O!OO", &k->number, &k->layout, &k->results, &PyTuple_Type,
                          &k->names, &k->n_positional, &PyDict_Type, &k->defaults, &PyDict_Type,
                          &k->words, &k->other, &k->apply)) {
        free(k);
        return NULL;
    }
    k->given = Py_NewRef(given);
    k->letters = PyBytes_AsString(k->layout);
    k->result_letters = PyBytes_AsString(k->results);
    k->n_args = PyTuple_Size(k->names);
    k->n_results = PyBytes_Size(k->results);
    PyObject *self = PyCapsule_New(k, NULL, free_kernel);
    if (self && (k->n_args > MAX_ARGS || k->n_results > MAX_RESULTS)) {
        PyErr_SetString(PyExc_ValueError, "a kernel with so many arguments or results");
        Py_CLEAR(self);
    }
    PyObject *made = self ? PyCFunction_NewEx(&method, self, NULL) : NULL;
    Py_XDECREF(self);
    return made;
}

PyObject *torch_set_up(PyObject *module, PyObject *given)
{
    unsigned long long call_at, wrap_at, is_plain_at, is_grad_enabled_at;
    (void)module;
    if (!PyArg_ParseTuple(given, "KKKKO!O!OO!O!", &call_at, &wrap_at, &is_plain_at,
                          &is_grad_enabled_at, &PyType_Type, &torch.tensor, &PyType_Type,
                          &torch.parameter, &torch.miss, &PyDict_Type, &torch.forward_ad,
                          &PyDict_Type, &torch.profiler))
        return NULL;
    // For the process's life, as torch is.
    Py_INCREF(torch.tensor);
    Py_INCREF(torch.parameter);
    Py_INCREF(torch.miss);
    Py_INCREF(torch.forward_ad);
    Py_INCREF(torch.profiler);
    torch.call = (int (*)(int, void *const *, const uint64_t *, unsigned, uint64_t *,
                          const char **))(uintptr_t)call_at;
    torch.wrap = (PyObject * (*)(uint64_t))(uintptr_t)wrap_at;
    torch.is_plain = (bool (*)(void))(uintptr_t)is_plain_at;
    torch.is_grad_enabled = (bool (*)(void))(uintptr_t)is_grad_enabled_at;
    torch.current_level = PyUnicode_InternFromString("_current_level");
    torch.is_profiler_enabled = PyUnicode_InternFromString("_is_profiler_enabled");
    torch.requires_grad = PyUnicode_InternFromString("requires_grad");
    if (!torch.current_level || !torch.is_profiler_enabled || !torch.requires_grad)
        return NULL;
    Py_RETURN_NONE;
}
