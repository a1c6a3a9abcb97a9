#pragma once

// An array of maps as a table: a row for each map, a column for each key.

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "opctl/text.h"

enum { TABLE_MAX_COLUMNS = 16 };

struct column {
    const char *title;
    const char *key;
    struct text (*read)(const msgpack_object *row, const char *key); // NULL: text_field
    bool right;                                                      // aligned to the right
};

// Prints `count` columns; nothing if `rows` is no array, or an empty one.
void table_print(FILE *out, const struct column *columns, size_t count, const msgpack_object *rows);
