#pragma once

// Short texts for people, each in the caller's buffer.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <msgpack.h>

struct text {
    char s[1024];
};

struct text text_bytes(uint64_t bytes);    // "1.5 MiB"
struct text text_duration(double seconds); // "2 h 05 min"

// A value of any type: a string bare, a list as "a b c", nil as "-".
struct text text_value(const msgpack_object *value);

// The same for the value of a map's key; "-" if there is none.
struct text text_field(const msgpack_object *map, const char *key);
struct text text_field_bytes(const msgpack_object *map, const char *key);

// Prints a string without what would steer a terminal: control characters become '?', except
// newlines and tabs where `lines` is set.
void text_print(FILE *out, const char *s, bool lines);

int text_width(const char *s); // in characters, as printed
