#pragma once

// MessagePack values, as msgpack-c's structs, decoded from bytes that have passed mpscan(), which
// bounds what is allocated and how deep it goes: nothing is checked again. Strings and binaries
// stay where they are in the bytes. A large message is decoded in steps.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A value inside a decoded message; valid as long as the message and its bytes.
typedef struct msgpack_object value;

enum value_type {
    VALUE_NIL,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STR,
    VALUE_BIN,
    VALUE_ARRAY,
    VALUE_MAP,
    VALUE_BIG,
    VALUE_OTHER
};

struct decoder;

// Starts with bytes that hold one whole object, and may neither move nor go before value_end() or
// value_finish(). `again` is a decoder that has ended, to be used once more; NULL: makes one.
struct decoder *value_begin(struct decoder *again, const void *bytes);
// Goes on by at most so many values. True: that was all of them.
bool value_decode(struct decoder *d, size_t most);
const value *value_root(const struct decoder *d); // once all is decoded
void value_end(struct decoder *d);    // its values are gone, its memory stays for another message
void value_finish(struct decoder *d); // NULL is fine

enum value_type value_type(const value *v);
// str or bin. Each is taken where the other is meant: some languages and older encoders have one
// type for both.
bool value_is_text(const value *v);
const char *value_type_name(const value *v); // "an integer", "nil"
bool value_bool(const value *v);
int64_t value_int(
    const value *v); // integers above 2^63-1 are no VALUE_INT but VALUE_BIG, which nothing takes
double value_float(const value *v);                        // of an int or a float
const char *value_bytes(const value *v, size_t *out_size); // of str or bin, not terminated
size_t value_count(const value *v); // elements of an array, pairs of a map; 0 for others
const value *value_at(const value *array, size_t i); // NULL past the end and for what is no array,
                                                     // so that optional parameters read as NULL
const value *value_key_at(const value *map, size_t i);
const value *value_value_at(const value *map, size_t i);
const value *value_get(const value *map, const char *key); // NULL where there is none
bool value_is_nil(const value *v);                         // nil, or NULL
bool value_copy_str(
    const value *v, char *out,
    size_t size); // terminated; false where it is too long, holds a zero, or is no UTF-8
size_t value_ascii_length(const char *s, size_t size); // of what it begins with
// Bytes of the UTF-8 character at the start of a terminated text; 0: there is none.
size_t value_utf8_length(const uint8_t *s);
