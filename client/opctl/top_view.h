#pragma once

// What opctl top shows, of two replies to `status`.

#include <stdbool.h>
#include <stdio.h>

#include <msgpack.h>

struct top_view {
    const msgpack_object *now, *before; // before: NULL: since the daemon's start
    bool all;                           // also operators that did not run since `before`
    char sort;                          // a key of top_sorts
    bool reversed;
    int skip;          // operators above those that are shown
    int width, height; // 0: any
};

// The keys by which operators are sorted, and what they are called.
struct top_sort {
    char key;
    const char *name;
};
extern const struct top_sort top_sorts[];
extern const size_t top_n_sorts;

void top_show(FILE *out, const struct top_view *view);
