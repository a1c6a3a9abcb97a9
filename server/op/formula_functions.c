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

static const struct function functions[] = {
#define ONE(name, cpp, ...) { #name, "n", NODE_CALL, cpp },
#define TWO(name, cpp, ...) { #name, "nn", NODE_CALL, cpp },
#define THREE(name, cpp, ...) { #name, "nnn", NODE_CALL, cpp },
#define TEST(name, ...) { #name, "n", NODE_TEST, #name },
#include "op/functions.def"
};

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
    return call->a >= 0 ? functions[call->a].code : NULL;
}
