// Requests about the operators that are served: what they take, give and check, and their versions.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "kernels/source.h"
#include "request/request.h"

enum { MAX_VALUES = 1024 }; // of an example's input, that are told

static void pack_type(struct buf *out, const struct op *op, const struct op_tensor *t)
{
    const struct op_type *type = &op->types[t->type];
    pack_key_str(out, "type", type->name);
    pack_key_array(out, "dtypes", (size_t)type->n_dtypes);
    for (int i = 0; i < type->n_dtypes; i++)
        pack_str(out, dtype_name(type->dtypes[i]));
}

static void pack_input(struct buf *out, const struct op *op, const struct op_tensor *t)
{
    size_t map = pack_map_begin(out);
    pack_key_str(out, "name", t->name);
    pack_key_bool(out, "used_backward", t->used_backward);
    pack_key_bool(out, "optional", t->optional);
    pack_key_bool(out, "in_place", t->in_place);
    if (t->list)
        pack_key_bool(out, "list", true);
    pack_key_bool(out, "strided", t->strided);
    pack_key_bool(out, "differentiable", t->differentiable);
    pack_type(out, op, t);
    pack_map_end(out, map);
}

static void pack_scalar(struct buf *out, const struct op_attr *a, const struct op_value *v, int i)
{
    switch (a->type) {
    case OP_ATTR_INT:
        pack_int(out, v->i[i]);
        break;
    case OP_ATTR_FLOAT:
        pack_float(out, v->f[i]);
        break;
    case OP_ATTR_BOOL:
        pack_bool(out, v->i[i] != 0);
        break;
    case OP_ATTR_STR:
        pack_str(out, a->words[v->i[i]]);
        break;
    }
}

static void pack_value(struct buf *out, const struct op_attr *a, const struct op_value *v)
{
    if (!v->present) {
        pack_nil(out);
        return;
    }
    if (a->list)
        pack_array(out, (size_t)v->n);
    for (int i = 0; i < (a->list ? v->n : 1); i++)
        pack_scalar(out, a, v, i);
}

static void pack_attr(struct buf *out, const struct op_attr *a)
{
    size_t map = pack_map_begin(out);
    pack_key_str(out, "name", a->name);
    pack_key_str(out, "type", op_attr_types[a->type]);
    pack_key_int(out, "list", a->list);
    pack_key_bool(out, "optional", a->optional);
    pack_key_bool(out, "required", a->required);
    pack_str(out, "default");
    if (a->required)
        pack_nil(out);
    else
        pack_value(out, a, &a->value);
    pack_key_array(out, "words", (size_t)a->n_words);
    for (int i = 0; i < a->n_words; i++)
        pack_str(out, a->words[i]);
    pack_map_end(out, map);
}

static void pack_desc(struct buf *out, const struct tensor_desc *d)
{
    if (d->dtype == OPD_DTYPE_NONE) {
        pack_nil(out);
        return;
    }
    size_t map = pack_map_begin(out);
    pack_key_str(out, "dtype", dtype_name(d->dtype));
    pack_key_array(out, "shape", (size_t)d->rank);
    for (int i = 0; i < d->rank; i++)
        pack_int(out, d->shape[i]);
    if (d->strided) {
        pack_key_array(out, "strides", (size_t)d->rank);
        for (int i = 0; i < d->rank; i++)
            pack_int(out, d->strides[i]);
    }
    pack_map_end(out, map);
}

// What an example says of what an input holds: range and values; nil.
static void pack_data(struct buf *out, const struct plan_request *example, int k, int input)
{
    double low, high, *values = NULL;
    struct opd_err err = { 0 };
    int64_t n = tensor_desc_numel(&example->inputs[input]);
    double **few = n <= MAX_VALUES ? &values : NULL;
    if (!plan_example_data(example, k, input, &low, &high, few, &err)) {
        opd_err_clear(&err);
        pack_nil(out);
        return;
    }
    size_t map = pack_map_begin(out);
    pack_key_float(out, "low", low);
    pack_key_float(out, "high", high);
    if (values) {
        pack_key_array(out, "values", (size_t)n);
        for (int64_t i = 0; i < n; i++)
            pack_float(out, values[i]);
    }
    pack_map_end(out, map);
    free(values);
}

static void pack_example(struct buf *out, const struct plan_request *example, int input)
{
    int n = example->lists ? example->lists->n[input] : -1;
    if (n < 0) {
        pack_desc(out, &example->inputs[input]);
        return;
    }
    pack_array(out, (size_t)n);
    for (int k = 0; k < n; k++) {
        struct tensor_desc d = *example->lists->of[input][k];
        d.dtype = example->inputs[input].dtype;
        pack_desc(out, &d);
    }
}

static void pack_examples(struct buf *out, const struct op *op)
{
    enum opd_dtype dtype = op->types[0].dtypes[0];
    struct plan_request example;
    pack_str(out, "examples");
    size_t list = pack_array_begin(out);
    int n = 0;
    for (; plan_example(op, n, dtype, &example); n++) {
        size_t map = pack_map_begin(out);
        pack_key_array(out, "inputs", (size_t)op->n_inputs);
        for (int i = 0; i < op->n_inputs; i++)
            pack_example(out, &example, i);
        pack_key_array(out, "data", (size_t)op->n_inputs);
        for (int i = 0; i < op->n_inputs; i++)
            pack_data(out, &example, n, i);
        pack_str(out, "attrs");
        pack_map(out, (size_t)op->n_attrs);
        for (int i = 0; i < op->n_attrs; i++) {
            pack_str(out, op->attrs[i].name);
            pack_value(out, &op->attrs[i], &example.attrs[i]);
        }
        pack_map_end(out, map);
    }
    pack_array_end(out, list, (size_t)n);
}

static void pack_rule(struct buf *out, const struct op_rule *rule)
{
    static const char *const kinds[] = { "shape", "let", "require" };
    static const char *const parts[] = { "dims", "", "message" };
    size_t map = pack_map_begin(out);
    pack_key_str(out, kinds[rule->kind], rule->kind == RULE_REQUIRE ? rule->value : rule->name);
    if (rule->type)
        pack_key_str(out, "type", rule->type);
    if (rule->kind == RULE_LET)
        pack_key_str(out, "value", rule->value);
    else
        pack_key_array(out, parts[rule->kind], (size_t)rule->n);
    for (int i = 0; i < rule->n; i++)
        pack_str(out, rule->parts[i]);
    pack_map_end(out, map);
}

static void pack_places(struct buf *out, const char *key, const int8_t *places, int n)
{
    pack_key_array(out, key, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (places[i] == OP_NO_BATCH)
            pack_nil(out);
        else
            pack_int(out, places[i]);
    }
}

// What makes many calls one, and derivatives of the operator itself.
static void pack_traits(struct buf *out, const struct op *op)
{
    pack_key_bool(out, "derivable", op_is_derivable(op));
    pack_key_array(out, "linear", (size_t)op->n_linear);
    for (int k = 0; k < op->n_linear; k++) {
        pack_array(out, (size_t)__builtin_popcount(op->linear[k]));
        for (int i = 0; i < op->n_inputs; i++)
            if (op->linear[k] >> i & 1)
                pack_int(out, i);
    }
    pack_key_array(out, "batch", (size_t)op->n_batches);
    for (int k = 0; k < op->n_batches; k++) {
        const struct op_batch *batch = &op->batches[k];
        size_t map = pack_map_begin(out);
        pack_key_bool(out, "folds", batch->folds);
        pack_places(out, "inputs", batch->inputs, op->n_inputs);
        pack_places(out, "outputs", batch->outputs, op->n_outputs);
        pack_places(out, "saved", batch->saved, op->n_saved);
        pack_map_end(out, map);
    }
}

static void pack_rules(struct buf *out, const struct op *op)
{
    pack_key_bool(out, "broadcasts", op->broadcasts);
    pack_key_array(out, "rules", (size_t)op->n_rules);
    for (int i = 0; i < op->n_rules; i++)
        pack_rule(out, &op->rules[i]);
}

static void pack_version(struct buf *out, const struct opd_operator *o, const struct version *v)
{
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, v->hash);
    size_t map = pack_map_begin(out);
    pack_key_int(out, "version", v->number);
    pack_key_float(out, "time", v->time);
    pack_key_str(out, "hash", hash);
    pack_key_str(out, "state", version_state_name(v->state));
    pack_key_bool(out, "pinned", o->pinned == v->number);
    pack_key_str(out, "message", v->err.msg);
    pack_key_str(out, "log", v->err.log ? v->err.log : "");
    pack_map_end(out, map);
}

static void pack_versions(struct buf *out, const struct opd_operator *o)
{
    pack_str(out, "versions");
    size_t n = 0, list = pack_array_begin(out);
    for (const struct version *v = o->versions; v; v = v->older, n++)
        pack_version(out, o, v);
    pack_array_end(out, list, n);
}

// The files that give the same operator, and lose.
static void pack_shadowed(struct buf *out, const struct opd_operator *o, const struct reload *r)
{
    pack_str(out, "shadowed");
    size_t n = 0, list = pack_array_begin(out);
    for (size_t i = 0; i < r->sources.n; i++) {
        const struct source *s = r->sources.at[i];
        if (!s->missing_since && strcmp(s->op, o->name) == 0 &&
            strcmp(s->path, o->current->path) != 0) {
            pack_str(out, s->path);
            n++;
        }
    }
    pack_array_end(out, list, n);
}

static void pack_autocast(struct buf *out, const struct op *op)
{
    size_t map = pack_key_map_begin(out, "autocast");
    for (int i = 0; i < 2; i++)
        pack_key_str(out, op_autocast_devices[i], op->autocast[i] ? op->autocast[i] : "widest");
    pack_map_end(out, map);
}

static void pack_bits(struct buf *out, const char *key, uint32_t bits)
{
    pack_key_array(out, key, (size_t)__builtin_popcount(bits));
    for (; bits; bits &= bits - 1)
        pack_int(out, __builtin_ctz(bits));
}

static void pack_channels_last(struct buf *out, const struct op_channels_last *last)
{
    pack_str(out, "channels_last");
    if (!last->op[0]) {
        pack_nil(out);
        return;
    }
    size_t map = pack_map_begin(out);
    pack_key_str(out, "op", last->op);
    pack_bits(out, "inputs", last->inputs);
    pack_bits(out, "outputs", last->outputs);
    pack_key_str(out, "when", last->when ? last->when : "");
    pack_map_end(out, map);
}

// `reload`: with its versions, its source and the files that lose to it; NULL: without.
static void pack_operator(struct buf *out, const struct version *v, const struct reload *reload)
{
    const struct op *op = v->op;
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, v->hash);
    size_t map = pack_map_begin(out);
    pack_key_str(out, "name", op->name);
    pack_key_str(out, "schema", op->schema);
    pack_key_str(out, "doc", op->doc);
    pack_key_int(out, "version", v->number);
    pack_key_str(out, "hash", hash);
    pack_key_str(out, "file", v->path);
    pack_key_str(out, "loaded",
                 !version_is_loaded(v)          ? NULL
                 : v->of->scope == SCOPE_SHARED ? "shared"
                                                : "private");
    pack_key_array(out, "dtypes", (size_t)op->types[0].n_dtypes);
    for (int i = 0; i < op->types[0].n_dtypes; i++)
        pack_str(out, dtype_name(op->types[0].dtypes[i]));
    pack_key_bool(out, "has_backward", op->has_backward);
    pack_traits(out, op);
    pack_str(out, "deadline");
    if (op->deadline > 0)
        pack_float(out, op->deadline);
    else
        pack_nil(out);
    pack_autocast(out, op);
    pack_channels_last(out, &op->channels_last);
    pack_key_array(out, "inputs", (size_t)op->n_inputs);
    for (int i = 0; i < op->n_inputs; i++)
        pack_input(out, op, &op->inputs[i]);
    pack_key_array(out, "attrs", (size_t)op->n_attrs);
    for (int i = 0; i < op->n_attrs; i++)
        pack_attr(out, &op->attrs[i]);
    pack_key_array(out, "outputs", (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++) {
        const struct op_tensor *t = &op->outputs[i];
        size_t output = pack_map_begin(out);
        pack_key_str(out, "name", t->name);
        pack_key_str(out, "view", t->is_view ? op->inputs[t->view_of].name : NULL);
        pack_key_bool(out, "used_backward", t->used_backward);
        pack_type(out, op, t);
        if (t->reduced)
            pack_key_str(out, "reduced", t->reduced);
        if (t->list)
            pack_key_bool(out, "list", true);
        pack_map_end(out, output);
    }
    pack_key_array(out, "saved", (size_t)op->n_saved);
    for (int i = 0; i < op->n_saved; i++)
        pack_str(out, op->saved[i].name);
    pack_rules(out, op);
    pack_examples(out, op);
    if (reload) {
        pack_versions(out, v->of);
        pack_shadowed(out, v->of, reload);
        pack_key_str(out, "source", op->source);
    }
    pack_map_end(out, map);
}

enum request_status request_op_list(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    const struct registry *r = &req->broker->registry;
    size_t n = 0, list = pack_array_begin(&req->reply);
    for (size_t i = 0; i < r->n_operators; i++) {
        const struct opd_operator *o = r->operators[i];
        if (!o->current || (r->n_loaded > 0 && registry_see(r, o->name, req->conn->id) != o))
            continue;
        pack_operator(&req->reply, o->current, NULL);
        n++;
    }
    pack_array_end(&req->reply, list, n);
    return REQUEST_ANSWERED;
}

enum request_status request_op_info(struct request *req, const value *params, struct opd_err *err)
{
    const struct version *v = request_derived(req, value_at(params, 0), NULL, err);
    if (!v)
        return REQUEST_ERROR;
    pack_operator(&req->reply, v, &req->broker->reload);
    return REQUEST_ANSWERED;
}
