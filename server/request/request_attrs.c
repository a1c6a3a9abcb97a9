// The attributes of an operator, read from a request's map.

#include "request/request.h"

static bool set_attr_list(const struct op *op, int attr, const value *array, struct op_value *out,
                          struct opd_err *err)
{
    int64_t ints[OP_MAX_LIST];
    double floats[OP_MAX_LIST];
    size_t n = value_count(array);
    bool all_ints = true;
    for (size_t i = 0; i < n; i++) {
        const value *v = value_at(array, i);
        if (i == OP_MAX_LIST || (value_type(v) != VALUE_INT && value_type(v) != VALUE_FLOAT))
            return opd_err_set(
                err, OPD_E_invalid_argument, "%s: %s is %s, expected %s of at most %d numbers",
                op->name, op->attrs[attr].name, i == OP_MAX_LIST ? "longer" : "no list of numbers",
                "one", OP_MAX_LIST);
        all_ints = all_ints && value_type(v) == VALUE_INT;
        ints[i] = value_type(v) == VALUE_INT ? value_int(v) : 0;
        floats[i] = value_float(v);
    }
    return all_ints ? op_attr_set_ints(op, attr, ints, (int)n, out, err)
                    : op_attr_set_floats(op, attr, floats, (int)n, out, err);
}

static bool set_attr(const struct op *op, int attr, const value *v, struct op_value *out,
                     struct opd_err *err)
{
    int64_t i;
    double f;
    size_t size;
    const char *text;
    switch (value_type(v)) {
    case VALUE_NIL:
        return op_attr_set_none(op, attr, out, err);
    case VALUE_BOOL:
        return op_attr_set_bool(op, attr, value_bool(v), out, err);
    case VALUE_INT:
        i = value_int(v);
        return op_attr_set_ints(op, attr, &i, 1, out, err);
    case VALUE_FLOAT:
        f = value_float(v);
        return op_attr_set_floats(op, attr, &f, 1, out, err);
    case VALUE_STR:
    case VALUE_BIN:
        text = value_bytes(v, &size);
        return op_attr_set_str(op, attr, text, size, out, err);
    case VALUE_ARRAY:
        return set_attr_list(op, attr, v, out, err);
    default:
        return opd_err_set(err, OPD_E_invalid_argument, "%s: %s is %s, which no attribute takes",
                           op->name, op->attrs[attr].name, value_type_name(v));
    }
}

static bool unknown_attr(const struct op *op, const char *name, struct opd_err *err)
{
    struct buf names = { 0 };
    for (int i = 0; i < op->n_attrs; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", op->attrs[i].name);
    opd_err_set(err, OPD_E_invalid_argument, "%s has no attribute '%s'; it has %s", op->name, name,
                op->n_attrs ? buf_str(&names) : "none");
    buf_finish(&names);
    return false;
}

bool request_attrs(const struct op *op, const value *map, struct op_value *out, struct opd_err *err)
{
    bool given[OP_MAX_ATTRS] = { false };
    for (int i = 0; i < op->n_attrs; i++)
        out[i] = op->attrs[i].value;
    for (size_t i = 0; i < value_count(map); i++) {
        const value *key = value_key_at(map, i);
        char name[OP_MAX_NAME] = "";
        if (value_is_text(key))
            value_copy_str(key, name, sizeof name);
        int attr = op_attr_index(op, name);
        if (attr < 0)
            return unknown_attr(op, name, err);
        if (!set_attr(op, attr, value_value_at(map, i), &out[attr], err))
            return false;
        given[attr] = true;
    }
    for (int i = 0; i < op->n_attrs; i++)
        if (op->attrs[i].required && !given[i])
            return opd_err_set(err, OPD_E_invalid_argument, "%s: %s is missing", op->name,
                               op->attrs[i].name);
    return true;
}
