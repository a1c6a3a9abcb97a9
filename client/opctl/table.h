#pragma once

// Rows as a table, a column for each of their properties. On a terminal it fits: columns are cut
// short or left out, as each says of itself.

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "opctl/term.h"
#include "opctl/text.h"

enum { TABLE_MAX_COLUMNS = 16 };

struct column {
    const char *title;
    const char *key;
    struct text (*read)(const msgpack_object *row, const char *key); // NULL: text_field
    struct text (*show)(const void *row);                            // in place of key and read
    bool right;                                                      // aligned to the right
    bool state;                                                      // coloured by term_style_of()
    int least; // columns to which it may be cut; 0: it is not
    int drop;  // where there is no room, it is left out, 1 before 2; 0: it is not
};

struct table {
    const struct column *columns;
    size_t n_columns;
    const void *rows;
    size_t n_rows, row_size;
    bool by_map; // rows begin with a pointer to their map (or NULL), which key is of
    int width;   // that it may take; 0: any
    enum style (*style)(const void *row); // NULL: plain
};

void table_show(FILE *out, const struct table *table);

// Maps, to the width of the terminal; nothing if `rows` is no array, or an empty one.
void table_print(FILE *out, const struct column *columns, size_t count, const msgpack_object *rows);
