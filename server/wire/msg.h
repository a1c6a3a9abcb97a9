#pragma once

// MessagePack-RPC messages: reading requests, writing replies. The only file of the daemon that
// knows msgpack-c. The bytes of a request have passed mpscan() before they come here.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

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

struct msg {
    bool notification; // no reply is wanted
    uint32_t id;
    const char *method; // not terminated
    size_t method_size;
    const value *params; // an array
    void *zone;
};

// Decodes one whole message. The caller calls msg_finish(), also after a failure.
// Errors: malformed_message, which says what a message is.
bool msg_decode(struct msg *msg, const void *bytes, size_t size, struct opd_err *err);
void msg_finish(struct msg *msg); // zeroed is fine

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

// Checks a parameter list against the letters of protocol.def ("hsa|SS"). Errors name method,
// parameter and types.
bool msg_check_params(const char *method, const char *letters, const value *params,
                      struct opd_err *err);

void pack_nil(struct buf *out);
void pack_bool(struct buf *out, bool v);
void pack_int(struct buf *out, int64_t v);
void pack_uint(struct buf *out, uint64_t v);
void pack_float(struct buf *out, double v);
void pack_str(struct buf *out, const char *s); // NULL: nil; what is no UTF-8 becomes "?"
void pack_bin(struct buf *out, const void *bytes, size_t size);
void pack_array(struct buf *out, size_t n);
void pack_map(struct buf *out, size_t n);

// Keys of maps, with their value.
void pack_key_str(struct buf *out, const char *key, const char *s);
void pack_key_int(struct buf *out, const char *key, int64_t v);
void pack_key_uint(struct buf *out, const char *key, uint64_t v);
void pack_key_bool(struct buf *out, const char *key, bool v);
void pack_key_float(struct buf *out, const char *key, double v);

void pack_reply_ok(struct buf *out, uint32_t id); // the result follows
void pack_reply_error(struct buf *out, uint32_t id, const struct opd_err *err,
                      const char *op); // whole; op may be NULL
