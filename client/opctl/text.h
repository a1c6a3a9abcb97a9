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
struct text text_rate(double bytes);       // in a second: "4.2 TB/s"
struct text text_duration(double seconds); // "2 h 05 min"

// A value of any type: a string bare, a list as "a b c", nil as "-".
struct text text_value(const msgpack_object *value);

// The same for the value of a map's key; "-" if there is none.
struct text text_field(const msgpack_object *map, const char *key);
struct text text_field_or_dash(const msgpack_object *map,
                               const char *key); // "-" for "" and for [] too
// Of an edit: its operator, or where none is known the name of its file, without folders.
struct text text_field_op(const msgpack_object *map, const char *key);
// Of dtypes: on a terminal as "f32 bf16 i64"; all of them are "any".
struct text text_field_dtypes(const msgpack_object *map, const char *key);
struct text text_field_count(const msgpack_object *map, const char *key,
                             const char *noun); // "1 tensor", "2 tensors"
struct text text_field_bytes(const msgpack_object *map, const char *key);
struct text text_field_ms(const msgpack_object *map, const char *key);      // "213 ms", "1.5 s"
struct text text_field_seconds(const msgpack_object *map, const char *key); // the same of seconds
struct text text_field_time(const msgpack_object *map, const char *key);    // "2026-03-01 12:00:01"

// An integer or a floating-point number; anything else leaves `out` as it was.
bool text_number(const msgpack_object *map, const char *key, double *out);

// Prints a string without what would steer a terminal: control characters, those of
// right-to-left text too, become '?', except newlines and tabs where `lines` is set.
void text_print(FILE *out, const char *s, bool lines);
void text_print_bytes(FILE *out, const char *s, size_t size, bool lines);

int text_width(const char *s); // in columns, as printed
// As text_print(), in no more columns than that.
void text_print_cut(FILE *out, const char *s, int width);
// Words into lines of the terminal's width, of which `indent` columns of the first are used, and
// which begin with as many. Ends without a newline. text_wrap_to(): 0 columns: one line.
void text_wrap(FILE *out, const char *s, int indent);
void text_wrap_to(FILE *out, const char *s, size_t size, int indent, int columns);
