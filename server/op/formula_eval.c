#include <math.h>
#include <string.h>

#include "op/formula.h"

// --- functions

#define CALL(name, value)                                                                          \
    static double call_##name(double x)                                                            \
    {                                                                                              \
        return value;                                                                              \
    }
CALL(normcdf, 0.5 * erfc(-x * sqrt(0.5)))
CALL(rcbrt, 1 / cbrt(x))
CALL(rsqrt, 1 / sqrt(x))
CALL(exp10, pow(10, x))
CALL(isfinite, isfinite(x))
CALL(isinf, isinf(x) != 0)
CALL(isnan, isnan(x))
CALL(signbit, signbit(x) != 0)

static double call_digamma(double x)
{
    double sum = 0;
    if (x <= 0 && x == floor(x))
        return NAN;
    if (x < 0) {
        sum = -M_PI / tan(M_PI * (x - floor(x)));
        x = 1 - x;
    }
    for (; x < 10; x++)
        sum -= 1 / x;
    double r = 1 / (x * x);
    return sum + log(x) - 0.5 / x - r * (1. / 12 - r * (1. / 120 - r / 252));
}

static const struct {
    double (*one)(double);
    double (*two)(double, double);
    double (*three)(double, double, double);
} functions[] = {
#define ONE(name, cpp, host, ...) { .one = host },
#define TWO(name, cpp, host, ...) { .two = host },
#define THREE(name, cpp, host, ...) { .three = host },
#define TEST(name, host) { .one = host },
#include "op/functions.def"
};

static double call(const struct node *n, const double *args)
{
    if (n->a < 0)
        return NAN; // the file's own
    if (functions[n->a].one)
        return functions[n->a].one(args[0]);
    return functions[n->a].two ? functions[n->a].two(args[0], args[1])
                               : functions[n->a].three(args[0], args[1], args[2]);
}

// --- a tree at a point

static double combine(const struct node *n, double a, double b)
{
    switch (n->kind) {
    case NODE_NOT:
        return a == 0;
    case NODE_NEG:
        return -a;
    case NODE_ADD:
        return a + b;
    case NODE_SUB:
        return a - b;
    case NODE_MUL:
        return a * b;
    case NODE_DIV:
        return a / b;
    case NODE_EQ:
        return a == b;
    case NODE_NE:
        return a != b;
    case NODE_LT:
        return a < b;
    case NODE_LE:
        return a <= b;
    case NODE_GT:
        return a > b;
    case NODE_GE:
        return a >= b;
    case NODE_AND:
        return a != 0 && b != 0;
    case NODE_OR:
        return a != 0 || b != 0;
    default:
        return n->kind == NODE_TO_TRUTH ? a != 0 : a;
    }
}

static double eval(const struct formula_set *set, const struct node *n,
                   const struct formula_point *at, int k);

static double eval_sum(const struct formula_set *set, const struct node *n,
                       const struct formula_point *at)
{
    double sum = eval(set, n->args[0], at, 0);
    for (int k = 1; k < FORMULA_POINT_ROW; k++) {
        double next = eval(set, n->args[0], at, k);
        sum = n->kind == NODE_SUM    ? sum + next
              : n->kind == NODE_AMAX ? fmax(sum, next)
                                     : fmin(sum, next);
    }
    return sum;
}

static double eval(const struct formula_set *set, const struct node *n,
                   const struct formula_point *at, int k)
{
    double args[NODE_MAX_ARGS] = { 0 };
    if (n->kind == NODE_TENSOR)
        return at->tensors[n->a][k];
    if (n->kind == NODE_FORMULA)
        return at->formulas[n->a][k];
    if (n->kind == NODE_VALUE)
        return at->values[n->a];
    if (n->kind == NODE_COUNT)
        return FORMULA_POINT_ROW;
    if (formula_is_sum(n))
        return eval_sum(set, n, at);
    if (n->n_args == 0)
        return n->type == EXPR_TRUTH ? (double)n->value.i : n->value.f;
    for (int i = 0; i < n->n_args; i++)
        args[i] = eval(set, n->args[i], at, k);
    if (n->kind == NODE_CHOICE)
        return args[0] != 0 ? args[1] : args[2];
    if (n->kind == NODE_CALL || n->kind == NODE_TEST)
        return call(n, args);
    return combine(n, args[0], args[1]);
}

void formula_eval(const struct formula_set *set, struct formula_point *at)
{
    for (int i = 0; i < set->n; i++) {
        int target = set->items[i].target;
        for (int k = 0; k < FORMULA_POINT_ROW; k++) {
            at->formulas[i][k] = eval(set, set->items[i].root, at, k);
            if (target >= TENSOR_OUTPUT && target < TENSOR_TEMP)
                at->tensors[target][k] = at->formulas[i][k];
        }
    }
}
