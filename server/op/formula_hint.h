#pragma once

// What formulas have in place of something that C, Python or PyTorch write: the end of an error's
// message. Pure; NULL: nothing is known of it.

#include <stddef.h>

const char *formula_hint_symbol(const char *text, size_t size);   // "%", "if"
const char *formula_hint_function(const char *name, size_t size); // "sigmoid"
