#pragma once

// The C types that a kernel takes by value: their sizes, ranges and bytes, as both the host and the
// devices lay them out (little endian, natural alignment). Pure.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/expr.h"

enum cnumber_kind {
    CNUMBER_SIGNED,
    CNUMBER_UNSIGNED,
    CNUMBER_BOOL,
    CNUMBER_FLOAT, // 4 or 8 bytes
    CNUMBER_HALF,  // float16
    CNUMBER_BFLOAT16,
    CNUMBER_DIVISOR,  // opd::divisor: two words, the number and its magic
    CNUMBER_VARIABLE, // scalar_t and the like: known with the request
};

struct cnumber {
    enum cnumber_kind kind;
    uint8_t size;
    int type; // CNUMBER_VARIABLE: type id
};

// "unsigned int", "int64_t", "at::Half": false for what is no such type. Type variables are not
// known here.
bool cnumber_parse(const char *text, size_t size, struct cnumber *out);

// A word that may begin a C++ type in a template argument: passed on as it is.
bool cnumber_is_word(const char *text, size_t size);

struct cnumber cnumber_of_dtype(enum opd_dtype dtype);
uint32_t cnumber_align(struct cnumber type);

// What opd::divide() needs of a divisor, from 1 to 2^31.
uint32_t cnumber_magic(int64_t d);

// The value's bytes in that type (not a variable). False if the value does not fit, or is a float
// for an integer.
bool cnumber_store(struct cnumber type, union expr_value value, enum expr_type from, void *out);
