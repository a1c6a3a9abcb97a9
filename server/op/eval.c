#include <math.h>
#include <string.h>

#include "op/expr.h"

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
    if (kind == CODE_CDIV && rest != 0 && (rest < 0) == (b < 0))
        quotient++;
    *out = kind == CODE_MOD ? rest : quotient;
    return NULL;
}

static const char *binary_int(int kind, int64_t a, int64_t b, int64_t *out)
{
    switch (kind) {
    case CODE_ADD:
        return __builtin_add_overflow(a, b, out) ? overflow : NULL;
    case CODE_SUB:
        return __builtin_sub_overflow(a, b, out) ? overflow : NULL;
    case CODE_MUL:
        return __builtin_mul_overflow(a, b, out) ? overflow : NULL;
    case CODE_DIV:
    case CODE_MOD:
    case CODE_CDIV:
        return divide(kind, a, b, out);
    case CODE_MIN:
        *out = a < b ? a : b;
        return NULL;
    case CODE_MAX:
        *out = a > b ? a : b;
        return NULL;
    default:
        *out = kind == CODE_EQ   ? a == b
               : kind == CODE_NE ? a != b
               : kind == CODE_LT ? a < b
               : kind == CODE_LE ? a <= b
               : kind == CODE_GT ? a > b
                                 : a >= b;
        return NULL;
    }
}

static const char *binary_float(int kind, double a, double b, union expr_value *out)
{
    switch (kind) {
    case CODE_ADD:
        out->f = a + b;
        return NULL;
    case CODE_SUB:
        out->f = a - b;
        return NULL;
    case CODE_MUL:
        out->f = a * b;
        return NULL;
    case CODE_DIV:
        if (b == 0)
            return by_zero;
        out->f = a / b;
        return NULL;
    case CODE_MIN:
        out->f = b < a ? b : a;
        return NULL;
    case CODE_MAX:
        out->f = b > a ? b : a;
        return NULL;
    case CODE_POW:
        out->f = pow(a, b);
        return isnan(out->f) && !isnan(a + b) ? "a power that is no number" : NULL;
    default:
        out->i = kind == CODE_EQ   ? a == b
                 : kind == CODE_NE ? a != b
                 : kind == CODE_LT ? a < b
                 : kind == CODE_LE ? a <= b
                 : kind == CODE_GT ? a > b
                                   : a >= b;
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

static const char *unary(int kind, union expr_value *v)
{
    switch (kind) {
    case CODE_TO_FLOAT:
        v->f = (double)v->i;
        return NULL;
    case CODE_BOOL_INT:
        v->i = v->i != 0;
        return NULL;
    case CODE_BOOL_FLOAT:
        v->i = v->f != 0;
        return NULL;
    case CODE_NOT:
        v->i = !v->i;
        return NULL;
    case CODE_NEG_INT:
        return __builtin_sub_overflow((int64_t)0, v->i, &v->i) ? overflow : NULL;
    case CODE_NEG_FLOAT:
        v->f = -v->f;
        return NULL;
    case CODE_FLOOR:
        return floor_to_int(v);
    case CODE_POW2:
        return round_up_pow2(&v->i);
    default:
        return NULL;
    }
}

static const char *load_attr(const struct env *env, const struct expr_code *c,
                             union expr_value *out)
{
    const struct op_value *v = &env->request->attrs[c->a];
    if (!v->present)
        return "an attribute that is None";
    if (c->kind == CODE_ATTR_FLOAT)
        out->f = v->f[c->b];
    else
        out->i = v->i[c->b];
    return NULL;
}

static const char *load_size(const struct env *env, const struct expr_code *c, union expr_value *v)
{
    const struct tensor_desc *t = env_tensor(env, c->a);
    if (t->dtype == OPD_DTYPE_NONE)
        return "a tensor that is None";
    if (c->kind == CODE_NUMEL) {
        v->i = tensor_desc_numel(t);
    } else if (c->kind == CODE_RANK) {
        v->i = t->rank;
    } else {
        int64_t dim = v->i < 0 ? v->i + t->rank : v->i;
        if (dim < 0 || dim >= t->rank)
            return "a dimension beyond the rank";
        v->i = t->shape[dim];
    }
    return NULL;
}

static const char *load(const struct env *env, const struct expr_code *c, union expr_value *out)
{
    switch (c->kind) {
    case CODE_CONST:
        *out = c->value;
        return NULL;
    case CODE_SLOT:
        *out = env->slots[c->a];
        return NULL;
    case CODE_ATTR_INT:
    case CODE_ATTR_FLOAT:
        return load_attr(env, c, out);
    case CODE_HAS_ATTR:
        out->i = env->request->attrs[c->a].present;
        return NULL;
    case CODE_HAS_TENSOR:
        out->i = env_has_tensor(env, c->a);
        return NULL;
    case CODE_IS_TYPE:
        out->i = env_dtype(env, c->a) == (enum opd_dtype)c->b;
        return NULL;
    case CODE_SIZEOF:
        out->i = (int64_t)dtype_size(env_dtype(env, c->a));
        return NULL;
    case CODE_ON_CPU:
        out->i = env->request->on_cpu == (c->a == 1);
        return NULL;
    case CODE_KEEP:
        out->i = env->request->keep;
        return NULL;
    default:
        return load_size(env, c, out);
    }
}

// Where the code goes on after instruction `at`; the stack's height is changed accordingly.
static int follow_jump(const struct expr_code *c, int at, const union expr_value *stack,
                       int *height)
{
    if (c->kind == CODE_JUMP)
        return c->a;
    bool top = stack[*height - 1].i != 0;
    bool keep = c->kind != CODE_JUMP_IF_NOT;
    bool jump = top == (c->kind == CODE_JUMP_IF_KEEP);
    if (!jump || !keep)
        --*height;
    return jump ? c->a : at + 1;
}

static const char *run(const struct expr *e, const struct env *env, union expr_value *out)
{
    union expr_value stack[EXPR_MAX_STACK + 1];
    int height = 0;
    for (int at = 0; at < e->n_code;) {
        const struct expr_code *c = &e->code[at];
        const char *problem = NULL;
        if (c->kind >= CODE_JUMP && c->kind <= CODE_JUMP_IF_KEEP) {
            at = follow_jump(c, at, stack, &height);
            continue;
        }
        if (c->kind >= CODE_FLOAT + CODE_FIRST_BINARY) {
            height--;
            problem = binary_float(c->kind - CODE_FLOAT, stack[height - 1].f, stack[height].f,
                                   &stack[height - 1]);
        } else if (c->kind >= CODE_FIRST_BINARY) {
            height--;
            problem = binary_int(c->kind, stack[height - 1].i, stack[height].i,
                                 &stack[height - 1].i);
        } else if (c->kind == CODE_TO_FLOAT_UNDER) {
            stack[height - 2].f = (double)stack[height - 2].i;
        } else if (c->kind == CODE_SIZE) {
            problem = load_size(env, c, &stack[height - 1]);
        } else if (c->kind >= CODE_TO_FLOAT) {
            problem = unary(c->kind, &stack[height - 1]);
        } else if (c->kind != CODE_NOP) {
            problem = load(env, c, &stack[height++]);
        }
        if (problem)
            return problem;
        at++;
    }
    *out = stack[0];
    return NULL;
}

bool expr_eval(const struct expr *e, const struct env *env, union expr_value *out,
               struct opd_err *err)
{
    const char *problem = run(e, env, out);
    if (!problem)
        return true;
    return opd_err_set(err, OPD_E_invalid_argument, "%s in '%s' (%s:%d)", problem, e->text, e->file,
                       e->line);
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
