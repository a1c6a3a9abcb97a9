#include <stdio.h>
#include <string.h>

#include "op/formula.h"

// What formulas have in place of what C, Python or PyTorch write.
static const struct {
    const char *names, *hint; // the names between blanks
} hints[] = {
    { " sigmoid expit ", "write 1 / (1 + exp(-x))" },
    { " relu ", "write x < 0 ? 0 : x" },
    { " silu swish ", "write x / (1 + exp(-x))" },
    { " softplus ", "write log1p(exp(x))" },
    { " square ", "write x * x" },
    { " power ", "write pow(x, y)" },
    { " reciprocal ", "write 1 / x" },
    { " neg negative ", "write -x" },
    { " sign sgn ", "write (x > 0) - (x < 0)" },
    { " clamp clip ", "write fmin(fmax(x, low), high)" },
    { " clamp_min maximum ", "write fmax(x, y)" },
    { " clamp_max minimum ", "write fmin(x, y)" },
    { " where ", "write condition ? a : b" },
    { " logical_not not ", "write !x" },
    { " float double int ", "all is computed in acc_t; leave it out, or write trunc(x)" },
    { " var ", "write mean(d * d, -1) of d = x - mean(x, -1)" },
    { " softmax log_softmax logsumexp ", "write it with amax(x, -1), sum(x, -1), exp and log" },
    { " prod std norm cumsum argmax matmul mm ",
      "a formula has sum, mean, amax and amin of a row; that takes a kernel" },
};

static const char *hint_function(const char *name, size_t size)
{
    char word[OP_MAX_NAME + 2];
    if (size >= OP_MAX_NAME)
        return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)size, name);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strstr(hints[i].names, word))
            return hints[i].hint;
    return NULL;
}

// clang-format off
static const struct function functions[] = {
    { "abs", "n", NODE_CALL, "fabs" }, { "acos", "n", NODE_CALL, NULL },
    { "acosh", "n", NODE_CALL, NULL }, { "asin", "n", NODE_CALL, NULL },
    { "asinh", "n", NODE_CALL, NULL }, { "atan", "n", NODE_CALL, NULL },
    { "atan2", "nn", NODE_CALL, NULL }, { "atanh", "n", NODE_CALL, NULL },
    { "cbrt", "n", NODE_CALL, NULL }, { "ceil", "n", NODE_CALL, NULL },
    { "copysign", "nn", NODE_CALL, NULL }, { "cos", "n", NODE_CALL, NULL },
    { "cosh", "n", NODE_CALL, NULL }, { "digamma", "n", NODE_CALL, "opd::formula_digamma" },
    { "erf", "n", NODE_CALL, NULL },
    { "erfc", "n", NODE_CALL, NULL }, { "exp", "n", NODE_CALL, "opd::formula_exp<scalar_t>" },
    { "exp10", "n", NODE_CALL, NULL }, { "exp2", "n", NODE_CALL, NULL },
    { "expm1", "n", NODE_CALL, NULL }, { "fabs", "n", NODE_CALL, NULL },
    { "fdim", "nn", NODE_CALL, NULL }, { "floor", "n", NODE_CALL, NULL },
    { "fma", "nnn", NODE_CALL, NULL }, { "fmax", "nn", NODE_CALL, NULL },
    { "fmin", "nn", NODE_CALL, NULL }, { "fmod", "nn", NODE_CALL, NULL },
    { "hypot", "nn", NODE_CALL, NULL }, { "isfinite", "n", NODE_TEST, NULL },
    { "isinf", "n", NODE_TEST, NULL }, { "isnan", "n", NODE_TEST, NULL },
    { "lgamma", "n", NODE_CALL, NULL }, { "log", "n", NODE_CALL, NULL },
    { "log10", "n", NODE_CALL, NULL }, { "log1p", "n", NODE_CALL, NULL },
    { "log2", "n", NODE_CALL, NULL }, { "max", "nn", NODE_CALL, "fmax" },
    { "min", "nn", NODE_CALL, "fmin" }, { "normcdf", "n", NODE_CALL, "opd::formula_normcdf" },
    { "pow", "nn", NODE_CALL, NULL }, { "rcbrt", "n", NODE_CALL, "opd::formula_rcbrt" },
    { "remainder", "nn", NODE_CALL, NULL }, { "rint", "n", NODE_CALL, NULL },
    { "round", "n", NODE_CALL, NULL }, { "rsqrt", "n", NODE_CALL, NULL },
    { "signbit", "n", NODE_TEST, NULL }, { "sin", "n", NODE_CALL, NULL },
    { "sinh", "n", NODE_CALL, NULL }, { "sqrt", "n", NODE_CALL, NULL },
    { "tan", "n", NODE_CALL, NULL }, { "tanh", "n", NODE_CALL, NULL },
    { "tgamma", "n", NODE_CALL, NULL }, { "trunc", "n", NODE_CALL, NULL },
};
// clang-format on
const struct function *formula_find_function(struct parser *p, const struct token *name, int *out)
{
    const struct function *f = tree_function(p, functions, sizeof functions / sizeof *functions,
                                             name, hint_function(name->start, name->size));
    *out = f ? (int)(f - functions) : 0;
    return f;
}

const char *formula_function(const struct formula_set *set, const struct node *call)
{
    return call->a >= 0 ? functions[call->a].name : set->device[-1 - call->a].name;
}

const char *formula_function_cpp(const struct node *call)
{
    if (call->a < 0)
        return NULL;
    const struct function *f = &functions[call->a];
    return f->code ? f->code : f->name;
}
