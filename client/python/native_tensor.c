// Tensors of opd_native: the base of opd.Tensor. One that ends gives its id up without Python code.

#include "native_lane.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *tensor_base, *tensor_final;

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
    Py_CLEAR(t->lane);
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
    if (t->tie && lane_give_back(t))
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

bool tensor_make_base(void)
{
    tensor_base = (PyTypeObject *)PyType_FromSpec(&tensor_spec);
    return tensor_base != NULL;
}

bool tensor_set_final(PyObject *type)
{
    if (!PyType_IsSubtype((PyTypeObject *)type, tensor_base)) {
        PyErr_SetString(PyExc_TypeError, "expected a class that is made of opd_native.Tensor");
        return false;
    }
    Py_XDECREF(tensor_final);
    tensor_final = (PyTypeObject *)Py_NewRef(type);
    return true;
}

PyObject *tensor_make(PyObject *const parts[], PyObject *wire)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(tensor_final, Py_tp_alloc);
    PyObject *made = allocate(tensor_final, 0);
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
