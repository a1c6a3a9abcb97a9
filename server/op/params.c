#include "op/params.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void packed_start(struct packed *p)
{
    p->n_params = p->n_slots = p->n_values = p->n_arrays = p->depth = 0;
    p->size = 0;
}

void *packed_put(struct packed *p, uint32_t size, uint32_t align)
{
    uint32_t at = (p->size + align - 1) & ~(align - 1);
    if (at + size > OP_MAX_ARGS_SIZE)
        return NULL;
    memset(p->bytes + p->size, 0, at + size - p->size);
    p->size = at + size;
    return p->bytes + at;
}

bool packed_put_slot(struct packed *p, int tensor)
{
    if (p->n_slots == SIGNATURE_MAX_PARAMS || !packed_put(p, 8, 8))
        return false;
    p->slots[p->n_slots++] = (struct plan_slot){ .arg_offset = p->size - 8,
                                                 .operand = (uint32_t)tensor };
    return true;
}

void packed_note_value(struct packed *p, const void *at, struct cnumber type, const struct expr *e,
                       uint64_t reads, const struct env *env)
{
    bool varies = reads && !(reads & READS_PLACE);
    if (varies && p->n_values == SIGNATURE_MAX_PARAMS) // members of structs
        env->reads->fixed |= reads;
    else if (varies)
        p->values[p->n_values++] =
            (struct packed_value){ (uint32_t)((const uint8_t *)at - p->bytes), type, e };
}

static void *reserve(const struct step *launch, struct packed *out, uint32_t size, uint32_t align,
                     struct opd_err *err)
{
    uint8_t *at = packed_put(out, size, align);
    if (!at)
        op_fail(err, "kernel %s takes more than %d bytes of parameters", launch->name,
                OP_MAX_ARGS_SIZE);
    else
        out->last = (uint32_t)(at - out->bytes);
    if (at && out->depth == 0)
        out->params[out->n_params++] = (struct plan_param){ .offset = out->size - size,
                                                            .size = size };
    return at;
}

// Absent inputs have no slot, nor have unwanted gradients that the kernel asks for: their bytes
// stay zero.
static bool add_slot(const struct step *launch, const struct argument *arg, const struct env *env,
                     const uint8_t *at, struct packed *out, struct opd_err *err)
{
    if (!env_has_memory(env, arg->tensor))
        return true;
    if (out->n_slots == SIGNATURE_MAX_PARAMS)
        return op_fail(err, "kernel %s takes more than %d tensors", launch->name,
                       SIGNATURE_MAX_PARAMS);
    out->slots[out->n_slots++] = (struct plan_slot){ .arg_offset = (uint32_t)(at - out->bytes),
                                                     .operand = (uint32_t)arg->tensor,
                                                     .reads = !arg->param->writes,
                                                     .writes = arg->param->writes };
    return true;
}

static bool store_index(const struct step *launch, const struct argument *arg, int64_t value,
                        uint8_t *at, struct opd_err *err)
{
    if (cnumber_store(arg->type, (union expr_value){ .i = value }, EXPR_INT, at))
        return true;
    return op_fail(err,
                   "kernel %s has the %d-bit accessor '%s', whose size or stride %" PRId64
                   " does not fit; use PackedTensorAccessor64",
                   launch->name, 8 * arg->type.size, arg->param->name, value);
}

static bool pack_accessor(const struct step *launch, const struct argument *arg,
                          const struct env *env, struct packed *out, struct opd_err *err)
{
    const struct signature_param *p = arg->param;
    const struct tensor_desc *d = env_tensor(env, arg->tensor);
    bool info = p->rank == 0; // the number of its dimensions stands behind
    uint32_t index = arg->type.size, rank = info ? TENSOR_INFO_DIMS : (uint32_t)p->rank;
    uint32_t size = 8 + 2 * rank * index;
    uint8_t *at = reserve(launch, out, info ? (size + 4 + 7) / 8 * 8 : size, 8, err);
    if (!at)
        return false;
    if (!add_slot(launch, arg, env, at, out, err))
        return false;
    if (!env_has_memory(env, arg->tensor))
        return true;
    if (info)
        memcpy(at + size, &(int32_t){ d->rank }, sizeof(int32_t));
    if (!info && d->rank != p->rank) {
        char text[320];
        tensor_desc_format(d, text, sizeof text);
        return op_fail(err, "kernel %s takes '%s' with %d dimensions, it has %d: %s", launch->name,
                       p->name, p->rank, d->rank, text);
    }
    uint8_t *sizes = at + 8, *strides = sizes + rank * index;
    int64_t last = 0; // its offset is computed in the same type
    for (int i = d->rank - 1; i >= 0; i--) {
        int64_t stride = env_stride(env, arg->tensor, i);
        if (!store_index(launch, arg, d->shape[i], sizes + (uint32_t)i * index, err) ||
            !store_index(launch, arg, stride, strides + (uint32_t)i * index, err))
            return false;
        last += d->shape[i] > 0 ? (d->shape[i] - 1) * stride : 0;
    }
    return index >= 8 || store_index(launch, arg, last, (uint8_t[8]){ 0 }, err);
}

static bool pack_value(const struct step *launch, const struct argument *arg, const struct env *env,
                       struct packed *out, struct opd_err *err)
{
    union expr_value value;
    uint64_t reads;
    struct cnumber type = arg->type;
    const struct expr *e = arg->expr;
    if (type.kind == CNUMBER_VARIABLE)
        type = cnumber_of_dtype(env_dtype(env, type.type));
    if (!expr_eval_again(e, env, &value, &reads, err))
        return false;
    void *at = reserve(launch, out, type.size, cnumber_align(type), err);
    if (!at)
        return false;
    packed_note_value(out, at, type, e, reads, env);
    if (cnumber_store(type, value, e->type, at))
        return true;
    char text[32];
    if (e->type == EXPR_FLOAT)
        snprintf(text, sizeof text, "%g", value.f);
    else
        snprintf(text, sizeof text, "%" PRId64, value.i);
    return op_fail(err, "kernel parameter '%s' of %s is %s, value %s does not fit%s",
                   arg->param->name, launch->name, arg->param->type, text,
                   type.kind == CNUMBER_DIVISOR ? ", expected 1 to 2147483647" : "");
}

static uint32_t align_of(const struct argument *arg, const struct env *env)
{
    if (arg->param->kind != PARAM_VALUE && arg->param->kind != PARAM_ARRAY)
        return arg->param->kind < PARAM_STRUCT ? 8
               : arg->param->align > 1         ? (uint32_t)arg->param->align
                                               : 1;
    return cnumber_align(arg->type.kind == CNUMBER_VARIABLE
                             ? cnumber_of_dtype(env_dtype(env, arg->type.type))
                             : arg->type);
}

// The strictest alignment of its members, which follow.
static uint32_t align_struct(const struct argument *arg, const struct env *env)
{
    uint32_t most = 1;
    for (int depth = 0;; arg++) {
        uint32_t align = align_of(arg, env);
        most = align > most ? align : most;
        depth += (arg->param->kind == PARAM_STRUCT) - (arg->param->kind == PARAM_END);
        if (depth == 0)
            return most;
    }
}

// The beginning or the end of a struct: at a multiple of its alignment.
static bool pack_mark(const struct step *launch, const struct argument *arg, const struct env *env,
                      struct packed *out, struct opd_err *err)
{
    const struct argument *first = arg;
    bool opens = arg->param->kind == PARAM_STRUCT;
    for (int depth = 0; !opens; first--) {
        depth += (first->param->kind == PARAM_END) - (first->param->kind == PARAM_STRUCT);
        if (depth == 0)
            break;
    }
    if (!opens && first + 1 == arg && !reserve(launch, out, 1, 1, err)) // nothing is in it
        return false;
    uint32_t align = align_struct(first, env);
    if (!reserve(launch, out, 0, align, err))
        return false;
    out->depth += opens ? 1 : -1;
    if (out->depth == 0) {
        struct plan_param *p = &out->params[out->n_params - 1];
        p->size = out->size - p->offset;
    }
    return true;
}

static bool pack_array(const struct step *launch, const struct argument *arg, struct packed *out,
                       struct opd_err *err)
{
    uint64_t size = (uint64_t)arg->n * (uint64_t)arg->n_lists * arg->type.size;
    size = size < OP_MAX_ARGS_SIZE ? size : OP_MAX_ARGS_SIZE + 1; // too much in any case
    if (!reserve(launch, out, (uint32_t)size, cnumber_align(arg->type), err))
        return false;
    if (out->n_arrays == PACKED_MAX_ARRAYS)
        return op_fail(err, "kernel %s has more than %d arrays that 'chunks' fills", launch->name,
                       PACKED_MAX_ARRAYS);
    out->arrays[out->n_arrays++] = (struct packed_array){ arg, out->last };
    return true;
}

static bool pack_argument(const struct step *launch, const struct argument *arg,
                          const struct env *env, struct packed *out, struct opd_err *err)
{
    void *at;
    switch (arg->param->kind) {
    case PARAM_POINTER:
        at = reserve(launch, out, 8, 8, err);
        return at && (arg->tensor < 0 || add_slot(launch, arg, env, at, out, err));
    case PARAM_ACCESSOR:
        return pack_accessor(launch, arg, env, out, err);
    case PARAM_VALUE:
        return pack_value(launch, arg, env, out, err);
    case PARAM_ARRAY:
        return pack_array(launch, arg, out, err);
    default:
        return pack_mark(launch, arg, env, out, err);
    }
}

bool params_pack(const struct step *launch, const struct env *env, struct packed *out,
                 struct opd_err *err)
{
    packed_start(out);
    for (int i = 0; i < launch->n_args; i++) {
        const struct argument *arg = &launch->args[i];
        int n = out->n_params;
        if (!pack_argument(launch, arg, env, out, err))
            return false;
        if (out->n_params == n)
            continue; // of a struct
        out->params[n].is_tensor = arg->param->kind < PARAM_VALUE;
        snprintf(out->params[n].name, sizeof out->params[n].name, "%s", arg->param->name);
    }
    return true;
}

// The type of a kernel's parameter, by its number: the compiler knows it, whatever it is called.
static const char param_type[] =
    "template <int I, class F> struct opd_param;\n"
    "template <class A, class... R> struct opd_param<0, void (*)(A, R...)> { using type = A; };\n"
    "template <int I, class A, class... R> struct opd_param<I, void (*)(A, R...)>\n"
    "    : opd_param<I - 1, void (*)(R...)> {};\n"
    "#ifdef OPD_CPU\n"
    "#pragma GCC diagnostic ignored \"-Winvalid-offsetof\"\n"
    "#define opd_offset(T, member) __builtin_offsetof(T, member)\n"
    "#else\n" // NVRTC's
    "#define opd_offset(T, member) __INTADDR__(&((T *)0)->member)\n"
    "#endif\n";

struct checks {
    const struct step *launch;
    const char *kernel, *file;
    size_t number; // of the type of the struct that is open: what no other has
    struct buf *out;
};

// What is true behind an argument that has been packed: of a struct where it lies in it, and how
// large it is.
static void check_place(struct checks *c, const struct argument *arg, const struct packed *p)
{
    const struct plan_param *whole = &p->params[p->n_params - 1];
    const char *name = arg->param->name, *dot = strchr(name, '.');
    bool ends = p->depth == 0 && arg->param->kind == PARAM_END;
    if (p->depth == 1 && arg->param->kind == PARAM_STRUCT && !dot) {
        bool cast = strncmp(c->kernel, "static_cast", 11) == 0; // of several: a pointer already
        c->number = c->out->size;
        buf_printf(c->out, "using opd_struct_%zu = opd_param<%d, decltype(%s%s)>::type;\n",
                   c->number, p->n_params - 1, cast ? "" : "&", c->kernel);
    }
    if (!ends && (p->depth == 0 || arg->param->kind >= PARAM_STRUCT))
        return;
    buf_printf(c->out, "#line %d \"%s\"\nstatic_assert(", arg->param->line, c->file);
    if (ends)
        buf_printf(c->out, "sizeof(opd_struct_%zu) == %u", c->number, whole->size);
    else
        buf_printf(c->out, "opd_offset(opd_struct_%zu, %s) == %u", c->number, dot + 1,
                   p->last - whole->offset);
    buf_printf(c->out, ", \"kernel %s: '%s' is not laid out as the members of its struct say\");\n",
               c->launch->name, name);
}

void params_check_structs(const struct step *launch, const struct env *env, const char *kernel,
                          struct buf *out)
{
    struct packed *p = mem_alloc(sizeof *p);
    struct opd_err ignored = { 0 };
    struct checks checks = { launch, kernel, env->request->op->file, 0, out };
    buf_append_str(out, param_type);
    packed_start(p);
    for (int i = 0; i < launch->n_args; i++)
        if (pack_argument(launch, &launch->args[i], env, p, &ignored))
            check_place(&checks, &launch->args[i], p);
    opd_err_clear(&ignored);
    free(p);
}
