#include <math.h>
#include <string.h>

#include "op/derive.h"

// --- functions

static double call_normcdf(double x)
{
    return 0.5 * erfc(-x * sqrt(0.5));
}

static double call_rcbrt(double x)
{
    return 1 / cbrt(x);
}

static double call_rsqrt(double x)
{
    return 1 / sqrt(x);
}

static double call_exp10(double x)
{
    return pow(10, x);
}

static double call_isfinite(double x)
{
    return isfinite(x);
}

static double call_isinf(double x)
{
    return isinf(x) != 0;
}

static double call_isnan(double x)
{
    return isnan(x);
}

static double call_signbit(double x)
{
    return signbit(x) != 0;
}

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

// clang-format off
static const struct {
    const char *name;
    double (*one)(double);
    double (*two)(double, double);
} functions[] = {
    { "abs", fabs, NULL }, { "acos", acos, NULL }, { "acosh", acosh, NULL },
    { "asin", asin, NULL }, { "asinh", asinh, NULL }, { "atan", atan, NULL },
    { "atan2", NULL, atan2 }, { "atanh", atanh, NULL }, { "cbrt", cbrt, NULL },
    { "ceil", ceil, NULL }, { "copysign", NULL, copysign }, { "cos", cos, NULL },
    { "cosh", cosh, NULL }, { "digamma", call_digamma, NULL },
    { "erf", erf, NULL }, { "erfc", erfc, NULL }, { "exp", exp, NULL },
    { "exp10", call_exp10, NULL }, { "exp2", exp2, NULL }, { "expm1", expm1, NULL },
    { "fabs", fabs, NULL }, { "fdim", NULL, fdim }, { "floor", floor, NULL },
    { "fmax", NULL, fmax }, { "fmin", NULL, fmin }, { "fmod", NULL, fmod },
    { "hypot", NULL, hypot }, { "isfinite", call_isfinite, NULL }, { "isinf", call_isinf, NULL },
    { "isnan", call_isnan, NULL }, { "lgamma", lgamma, NULL }, { "log", log, NULL },
    { "log10", log10, NULL }, { "log1p", log1p, NULL }, { "log2", log2, NULL },
    { "max", NULL, fmax }, { "min", NULL, fmin }, { "normcdf", call_normcdf, NULL },
    { "pow", NULL, pow }, { "rcbrt", call_rcbrt, NULL }, { "remainder", NULL, remainder },
    { "rint", rint, NULL }, { "round", round, NULL }, { "rsqrt", call_rsqrt, NULL },
    { "signbit", call_signbit, NULL }, { "sin", sin, NULL }, { "sinh", sinh, NULL },
    { "sqrt", sqrt, NULL }, { "tan", tan, NULL }, { "tanh", tanh, NULL },
    { "tgamma", tgamma, NULL }, { "trunc", trunc, NULL },
};
// clang-format on

static double call(const struct formula_set *set, const struct node *n, const double *args)
{
    const char *name = formula_function(set, n);
    if (!formula_function_cpp(n))
        return NAN; // the file's own
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0)
            return functions[i].one ? functions[i].one(args[0])
                                    : functions[i].two(args[0], args[1]);
    return fma(args[0], args[1], args[2]); // the only one of three
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
        return call(set, n, args);
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
