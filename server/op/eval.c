#include <math.h>
#include <string.h>

#include "op/tree.h"

static const char overflow[] = "overflow";
static const char by_zero[] = "division by zero";

const struct tensor_desc *env_tensor(const struct env *env, int tensor)
{
    if (tensor >= TENSOR_GRAD_INPUT)
        return &env->request->inputs[tensor - TENSOR_GRAD_INPUT];
    if (tensor >= TENSOR_GRAD_OUTPUT)
        return &env->outputs[tensor - TENSOR_GRAD_OUTPUT];
    if (tensor >= TENSOR_TEMP)
        return &env->temps[tensor - TENSOR_TEMP];
    if (tensor >= TENSOR_OUTPUT)
        return &env->outputs[tensor - TENSOR_OUTPUT];
    return &env->request->inputs[tensor - TENSOR_INPUT];
}

int64_t env_stride(const struct env *env, int tensor, int dim)
{
    struct tensor_desc d = *env_tensor(env, tensor);
    d.strided = d.strided && tensor < TENSOR_OUTPUT;
    return tensor_desc_stride(&d, dim);
}

bool env_has_tensor(const struct env *env, int tensor)
{
    if (tensor >= TENSOR_GRAD_INPUT && !(env->wanted >> (tensor - TENSOR_GRAD_INPUT) & 1))
        return false;
    return env_tensor(env, tensor)->dtype != OPD_DTYPE_NONE;
}

static enum opd_dtype accumulator(enum opd_dtype dtype)
{
    for (int d = 1; d < OPD_DTYPE_COUNT; d++)
        if (strcmp(dtype_type((enum opd_dtype)d), dtype_acc(dtype)) == 0)
            return (enum opd_dtype)d;
    return dtype;
}

bool env_has_memory(const struct env *env, int tensor)
{
    bool unasked = tensor >= TENSOR_GRAD_INPUT &&
                   (env->unasked >> (tensor - TENSOR_GRAD_INPUT) & 1);
    return env_has_tensor(env, tensor) || unasked;
}

enum opd_dtype env_dtype(const struct env *env, int type)
{
    return type == TYPE_ACC ? accumulator(env->types[TYPE_SCALAR]) : env->types[type];
}

// The functions below return NULL, or what went wrong.

static const char *divide(int kind, int64_t a, int64_t b, int64_t *out)
{
    if (b == 0)
        return by_zero;
    if (a == INT64_MIN && b == -1)
        return overflow;
    int64_t quotient = a / b, rest = a % b;
    if (kind == NODE_CDIV && rest != 0 && (rest < 0) == (b < 0))
        quotient++;
    *out = kind == NODE_MOD ? rest : quotient;
    return NULL;
}

static bool compare(int kind, bool less, bool equal, bool greater)
{
    switch (kind) {
    case NODE_EQ:
        return equal;
    case NODE_NE:
        return !equal;
    case NODE_LT:
        return less;
    case NODE_LE:
        return less || equal;
    case NODE_GT:
        return greater;
    default:
        return greater || equal;
    }
}

// At least 0: that of 0 and b is b's amount.
static const char *divide_common(int64_t a, int64_t b, int64_t *out)
{
    if (a == INT64_MIN || b == INT64_MIN)
        return overflow;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    *out = a < 0 ? -a : a;
    return NULL;
}

static const char *binary_int(int kind, int64_t a, int64_t b, int64_t *out)
{
    switch (kind) {
    case NODE_ADD:
        return __builtin_add_overflow(a, b, out) ? overflow : NULL;
    case NODE_SUB:
        return __builtin_sub_overflow(a, b, out) ? overflow : NULL;
    case NODE_MUL:
        return __builtin_mul_overflow(a, b, out) ? overflow : NULL;
    case NODE_DIV:
    case NODE_MOD:
    case NODE_CDIV:
        return divide(kind, a, b, out);
    case NODE_GCD:
        return divide_common(a, b, out);
    case NODE_MIN:
        *out = a < b ? a : b;
        return NULL;
    case NODE_MAX:
        *out = a > b ? a : b;
        return NULL;
    default:
        *out = compare(kind, a<b, a == b, a> b);
        return NULL;
    }
}

static const char *binary_float(int kind, double a, double b, union expr_value *out)
{
    switch (kind) {
    case NODE_ADD:
        out->f = a + b;
        return NULL;
    case NODE_SUB:
        out->f = a - b;
        return NULL;
    case NODE_MUL:
        out->f = a * b;
        return NULL;
    case NODE_DIV:
        if (b == 0)
            return by_zero;
        out->f = a / b;
        return NULL;
    case NODE_MIN:
        out->f = b < a ? b : a;
        return NULL;
    case NODE_MAX:
        out->f = b > a ? b : a;
        return NULL;
    case NODE_POW:
        out->f = pow(a, b);
        return isnan(out->f) && !isnan(a + b) ? "a power that is no number" : NULL;
    default:
        out->i = compare(kind, a<b, a == b, a> b);
        return NULL;
    }
}

static const char *floor_to_int(union expr_value *v)
{
    double down = floor(v->f);
    if (!(down >= -9223372036854775808.0 && down < 9223372036854775808.0))
        return "a float beyond int64";
    v->i = (int64_t)down;
    return NULL;
}

static const char *round_up_pow2(int64_t *v)
{
    if (*v > (int64_t)1 << 62)
        return overflow;
    int64_t power = 1;
    while (power < *v)
        power *= 2;
    *v = power;
    return NULL;
}

static const char *negate(bool is_float, union expr_value *v)
{
    if (!is_float)
        return __builtin_sub_overflow((int64_t)0, v->i, &v->i) ? overflow : NULL;
    v->f = -v->f;
    return NULL;
}

static const char *load_attr(const struct node *n, const struct env *env, union expr_value *out)
{
    const struct op_value *v = &env->request->attrs[n->a];
    if (env->reads)
        env->reads->now |= UINT64_C(1) << n->a;
    if (!v->present)
        return "an attribute that is None";
    if (n->type == EXPR_FLOAT)
        out->f = v->f[n->b];
    else
        out->i = v->i[n->b];
    return NULL;
}

// The value of numel(), rank(), size() or stride(); of the last two, `v` is the dimension.
static const char *load_shape(const struct node *n, const struct env *env, union expr_value *v)
{
    const struct tensor_desc *t = env_tensor(env, n->a);
    if (env->reads)
        env->reads->now |= env->reads->of_tensors;
    if (t->dtype == OPD_DTYPE_NONE)
        return "a tensor that is None";
    if (n->kind == NODE_NUMEL) {
        v->i = tensor_desc_numel(t);
    } else if (n->kind == NODE_RANK) {
        v->i = t->rank;
    } else {
        int64_t dim = v->i < 0 ? v->i + t->rank : v->i;
        if (dim < 0 || dim >= t->rank)
            return "a dimension beyond the rank";
        v->i = n->kind == NODE_SIZE ? t->shape[dim] : env_stride(env, n->a, (int)dim);
    }
    return NULL;
}

static const char *load(const struct node *n, const struct env *env, union expr_value *out)
{
    switch (n->kind) {
    case NODE_CONST:
        *out = n->value;
        return NULL;
    case NODE_SLOT:
        *out = env->slots[n->a];
        if (env->reads)
            env->reads->now |= env->reads->slots[n->a];
        return NULL;
    case NODE_ATTR:
        return load_attr(n, env, out);
    case NODE_HAS_ATTR:
        out->i = env->request->attrs[n->a].present;
        return NULL;
    case NODE_HAS_TENSOR:
        out->i = env_has_tensor(env, n->a);
        return NULL;
    case NODE_IS_TYPE:
        out->i = env_dtype(env, n->a) == (enum opd_dtype)n->b;
        return NULL;
    case NODE_SIZEOF:
        out->i = (int64_t)dtype_size(env_dtype(env, n->a));
        return NULL;
    case NODE_ON_CPU:
        out->i = env->request->on_cpu == (n->a == 1);
        return NULL;
    case NODE_KEEP:
        out->i = env->request->keep;
        return NULL;
    default:
        return load_shape(n, env, out);
    }
}

static const char *unary(const struct node *n, const struct env *env, union expr_value *v)
{
    bool is_float = n->args[0]->type == EXPR_FLOAT;
    switch (n->kind) {
    case NODE_TO_FLOAT:
        v->f = (double)v->i;
        return NULL;
    case NODE_TO_TRUTH:
        v->i = is_float ? v->f != 0 : v->i != 0;
        return NULL;
    case NODE_NOT:
        v->i = !v->i;
        return NULL;
    case NODE_NEG:
        return negate(is_float, v);
    case NODE_FLOOR:
        return floor_to_int(v);
    case NODE_POW2:
        return round_up_pow2(&v->i);
    case NODE_FITS32:
        v->i = v->i == (int32_t)v->i;
        return NULL;
    default:
        return load_shape(n, env, v);
    }
}

// The recursion is bounded: a tree is at most EXPR_MAX_TERMS + AGAIN_MAX_TERMS deep.
static const char *eval(const struct node *n, const struct env *env, union expr_value *out)
{
    union expr_value right;
    const char *problem = n->n_args > 0 ? eval(n->args[0], env, out) : load(n, env, out);
    if (problem || n->n_args == 0)
        return problem;
    switch (n->kind) {
    case NODE_AND:
    case NODE_OR:
        return out->i == (n->kind == NODE_OR) ? NULL : eval(n->args[1], env, out);
    case NODE_CHOICE:
        return eval(n->args[out->i ? 1 : 2], env, out);
    default:
        break;
    }
    if (n->n_args == 1)
        return unary(n, env, out);
    problem = eval(n->args[1], env, &right);
    if (problem)
        return problem;
    return n->args[0]->type == EXPR_FLOAT ? binary_float(n->kind, out->f, right.f, out)
                                          : binary_int(n->kind, out->i, right.i, &out->i);
}

bool expr_eval_again(const struct expr *e, const struct env *env, union expr_value *out,
                     uint64_t *reads, struct opd_err *err)
{
    struct reads *r = env->reads;
    if (r)
        r->now = 0;
    const char *problem = eval(e->root, env, out);
    *reads = r ? r->now : 0;
    if (*reads & READS_PLACE)
        r->fixed |= *reads;
    return !problem || op_fail(err, "%s in '%s' (%s:%d)", problem, e->text, e->file, e->line);
}

bool expr_eval(const struct expr *e, const struct env *env, union expr_value *out,
               struct opd_err *err)
{
    uint64_t reads;
    bool ok = expr_eval_again(e, env, out, &reads, err);
    if (env->reads)
        env->reads->fixed |= reads;
    return ok;
}

bool expr_eval_int(const struct expr *e, const struct env *env, int64_t *out, struct opd_err *err)
{
    union expr_value value;
    if (!expr_eval(e, env, &value, err))
        return false;
    *out = value.i;
    return true;
}

bool expr_eval_bool(const struct expr *e, const struct env *env, bool *out, struct opd_err *err)
{
    union expr_value value;
    if (!expr_eval(e, env, &value, err))
        return false;
    *out = e->type == EXPR_FLOAT ? value.f != 0 : value.i != 0;
    return true;
}
