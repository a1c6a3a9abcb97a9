#include "op/op.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/body.h"
#include "base/suggest.h"
#include "op/text.h"

struct op *op_ref(struct op *op)
{
    op->refs++;
    return op;
}

void op_unref(struct op *op)
{
    if (!op)
        return;
    assert(op->refs > 0);
    if (--op->refs > 0)
        return;
    for (struct inner *in = op->body ? op->body->inners : NULL; in; in = in->next)
        op_unref(in->op);
    if (op->body) {
        struct arena arena = op->body->arena; // the body lives in it
        arena_finish(&arena);
    }
    free(op->file);
    free(op->source);
    free(op->schema);
    free(op->doc);
    free(op->warnings);
    free(op);
}

int op_input_index(const struct op *op, const char *name)
{
    for (int i = 0; i < op->n_inputs; i++)
        if (strcmp(op->inputs[i].name, name) == 0)
            return i;
    return -1;
}

int op_attr_index(const struct op *op, const char *name)
{
    for (int i = 0; i < op->n_attrs; i++)
        if (strcmp(op->attrs[i].name, name) == 0)
            return i;
    return -1;
}

bool op_type_takes(const struct op_type *type, enum opd_dtype dtype)
{
    for (int i = 0; i < type->n_dtypes; i++)
        if (type->dtypes[i] == dtype)
            return true;
    return false;
}

struct op_tensor *body_tensor(const struct op *op, int tensor)
{
    const struct op_tensor *inputs = op->inputs, *outputs = op->outputs;
    const struct op_tensor *t = tensor >= TENSOR_GRAD_INPUT ? &inputs[tensor - TENSOR_GRAD_INPUT]
                                : tensor >= TENSOR_GRAD_OUTPUT
                                    ? &outputs[tensor - TENSOR_GRAD_OUTPUT]
                                : tensor >= TENSOR_OUTPUT ? &outputs[tensor - TENSOR_OUTPUT]
                                                          : &inputs[tensor - TENSOR_INPUT];
    return (struct op_tensor *)(uintptr_t)t;
}

bool body_is_list(const struct op *op, int tensor)
{
    bool temp = tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT;
    return !temp && body_tensor(op, tensor)->list;
}

const char *body_tensor_name(const struct op *op, int tensor)
{
    if (tensor >= TENSOR_GRAD_INPUT)
        return op->body->grad_names[tensor - TENSOR_GRAD_INPUT];
    if (tensor >= TENSOR_GRAD_OUTPUT)
        return op->body->grad_names[OP_MAX_INPUTS + tensor - TENSOR_GRAD_OUTPUT];
    if (tensor >= TENSOR_TEMP)
        return op->body->temps[tensor - TENSOR_TEMP].name;
    return body_tensor(op, tensor)->name;
}

const struct node *body_find_let(const struct rule *rules, int n, int slot)
{
    for (int i = 0; i < n; i++)
        if (rules[i].kind == RULE_LET && rules[i].slot == slot)
            return rules[i].expr->root;
    return NULL;
}

const char *const op_attr_types[] = {
    [OP_ATTR_INT] = "int",
    [OP_ATTR_FLOAT] = "float",
    [OP_ATTR_BOOL] = "bool",
    [OP_ATTR_STR] = "str",
};

static bool fail_type(const struct op *op, const struct op_attr *a, const char *got,
                      struct opd_err *err)
{
    char list[32] = "";
    if (a->list)
        snprintf(list, sizeof list, " or a list of %d", a->list);
    return op_fail(err, "%s: %s is %s, expected %s %s%s%s", op->name, a->name, got,
                   a->type == OP_ATTR_INT ? "an" : "a", op_attr_types[a->type], list,
                   a->optional ? " or None" : "");
}

static bool check_length(const struct op *op, const struct op_attr *a, int n, struct opd_err *err)
{
    if (n == 1 || (n > 1 && n == a->list))
        return true;
    if (a->list > 1)
        return op_fail(err, "%s: %s has %d values, expected 1 or %d", op->name, a->name, n,
                       a->list);
    return op_fail(err, "%s: %s has %d values, expected 1", op->name, a->name, n);
}

// A value that is present; of a list, as many as that has. The values themselves follow.
static void start_value(const struct op_attr *a, struct op_value *v)
{
    *v = (struct op_value){ .present = true, .n = a->list ? a->list : 1 };
}

static bool fail_number(const struct op *op, const struct op_attr *a, const int64_t *ints,
                        const double *floats, int n, struct opd_err *err)
{
    char got[32];
    snprintf(got, sizeof got, "a list%s", ints ? "" : " of floats");
    if (n == 1 && ints)
        snprintf(got, sizeof got, "%" PRId64, ints[0]);
    else if (n == 1)
        snprintf(got, sizeof got, "%g", floats[0]);
    return fail_type(op, a, got, err);
}

// Numbers for an int or float attribute: `ints`, or `floats` where not all of them are whole.
static bool set_numbers(const struct op *op, int attr, const int64_t *ints, const double *floats,
                        int n, struct op_value *v, struct opd_err *err)
{
    const struct op_attr *a = &op->attrs[attr];
    if (a->type != OP_ATTR_FLOAT && (a->type != OP_ATTR_INT || !ints))
        return fail_number(op, a, ints, floats, n, err);
    if (!check_length(op, a, n, err))
        return false;
    start_value(a, v);
    for (int k = 0; k < v->n; k++) {
        int from = n == 1 ? 0 : k;
        if (a->type == OP_ATTR_INT)
            v->i[k] = ints[from];
        else
            v->f[k] = ints ? (double)ints[from] : floats[from];
    }
    return true;
}

bool op_attr_set_ints(const struct op *op, int attr, const int64_t *values, int n,
                      struct op_value *v, struct opd_err *err)
{
    return set_numbers(op, attr, values ? values : (int64_t[]){ 0 }, NULL, n, v, err);
}

bool op_attr_set_floats(const struct op *op, int attr, const double *values, int n,
                        struct op_value *v, struct opd_err *err)
{
    return set_numbers(op, attr, NULL, values, n, v, err);
}

bool op_attr_set_bool(const struct op *op, int attr, bool value, struct op_value *v,
                      struct opd_err *err)
{
    const struct op_attr *a = &op->attrs[attr];
    if (a->type != OP_ATTR_BOOL)
        return fail_type(op, a, value ? "True" : "False", err);
    start_value(a, v);
    v->i[0] = value;
    return true;
}

enum { SHOWN = 64 }; // characters of a value that a message shows

static const char *copy_shown(const char *value, size_t size, char out[SHOWN + 1])
{
    snprintf(out, SHOWN + 1, "%.*s", (int)(size < SHOWN ? size : SHOWN), value);
    text_clean(out);
    return out;
}

int op_attr_word(const struct op_attr *a, const char *word, size_t size, struct suggest *near)
{
    suggest_init(near, word, size);
    for (int i = 0; i < a->n_words; i++) {
        if (text_is(word, size, a->words[i]))
            return i;
        suggest_add(near, a->words[i]);
    }
    return -1;
}

bool op_attr_set_str(const struct op *op, int attr, const char *value, size_t size,
                     struct op_value *v, struct opd_err *err)
{
    const struct op_attr *a = &op->attrs[attr];
    char got[SHOWN + 3], shown[SHOWN + 1], list[512] = "";
    struct suggest near;
    snprintf(got, sizeof got, "\"%s\"", copy_shown(value, size, shown));
    if (a->type != OP_ATTR_STR)
        return fail_type(op, a, got, err);
    int word = op_attr_word(a, value, size, &near);
    if (word >= 0) {
        start_value(a, v);
        v->i[0] = word;
        return true;
    }
    for (int i = 0; i < a->n_words; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", a->words[i]);
    }
    return op_fail(err, "%s: %s is %s, expected one of %s%s", op->name, a->name, got, list,
                   suggest_text(&near));
}

bool op_attr_set_none(const struct op *op, int attr, struct op_value *v, struct opd_err *err)
{
    const struct op_attr *a = &op->attrs[attr];
    if (!a->optional)
        return fail_type(op, a, "None", err);
    *v = (struct op_value){ .present = false };
    return true;
}
