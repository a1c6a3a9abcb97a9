#include "op/formula_hint.h"

#include <stdio.h>
#include <string.h>

#include "op/op.h"
#include "op/text.h"

const char *formula_hint_symbol(const char *text, size_t size)
{
    static const struct {
        const char *text, *hint;
    } table[] = {
        { "%", "the rest of a division is fmod(x, y)" },
        { "^", "a power is pow(x, y)" },
        { "if", "a choice is condition ? a : b" },
        { "and", "write &&" },
        { "or", "write ||" },
        { "not", "write !" },
        { ".", "a function is called by its name alone, exp(x)" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (text_is(text, size, table[i].text))
            return table[i].hint;
    return NULL;
}

static const struct {
    const char *names, *hint; // the names between blanks
} functions[] = {
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
    { " sum mean prod var std norm softmax log_softmax logsumexp cumsum amax amin argmax matmul "
      "mm ",
      "a formula sees one element at a time; that takes a kernel" },
};

const char *formula_hint_function(const char *name, size_t size)
{
    char word[OP_MAX_NAME + 2];
    if (size >= OP_MAX_NAME)
        return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)size, name);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strstr(functions[i].names, word))
            return functions[i].hint;
    return NULL;
}
