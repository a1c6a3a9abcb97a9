#pragma once

// What the values of options are: a function for each type takes a text, holds it against
// the bounds of its row in options.c, and sets a field of struct options.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define OPTION_MAX_SIZE INT64_C(1000000000000000000)

struct option_row;
// Sets what `slot` points to. Errors: invalid_argument, with the option, the text, and what is
// expected.
typedef bool option_set_fn(const struct option_row *row, void *slot, const char *text,
                           struct opd_err *err);

struct option_row {
    const char *name;
    const char *argument; // NULL: none
    const char *help;
    const char *preset; // what it is where nobody says, if that is no other's to know
    option_set_fn *set;
    size_t offset;       // of what it sets in struct options
    int64_t least, most; // a number's bounds, a text's length
};

option_set_fn option_set_text;      // char *: a copy
option_set_fn option_set_count;     // int
option_set_fn option_set_size;      // uint64_t, bytes
option_set_fn option_set_seconds;   // double
option_set_fn option_set_switch;    // bool; the text may be NULL: true
option_set_fn option_set_log_level; // int
option_set_fn option_set_blas;      // bool: own, not vendor
option_set_fn option_set_spare;     // bool: auto, not off
option_set_fn option_set_first_run; // bool: checked, not plain
