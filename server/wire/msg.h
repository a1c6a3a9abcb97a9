#pragma once

// MessagePack-RPC messages: reading requests, writing replies. The bytes of a request have passed
// mpscan() before they come here.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "wire/value.h"

struct msg {
    bool notification; // no reply is wanted
    uint32_t id;
    const char *method; // not terminated
    size_t method_size;
    const value *params;     // an array
    struct decoder *decoder; // NULL: nothing is being decoded
    struct decoder *spare;   // for the next one
};

// A message is decoded in steps: msg_begin(), msg_step() until it is true, msg_check(). The caller
// calls msg_end() or msg_finish(), also after a failure. The struct is zeroed before its first use.
// Errors: malformed_message, which says what a message is.
void msg_begin(struct msg *msg, const void *bytes); // as value_begin()
bool msg_step(struct msg *msg, size_t most);        // as value_decode()
bool msg_check(struct msg *msg, struct opd_err *err);
bool msg_decode(struct msg *msg, const void *bytes, size_t size, struct opd_err *err); // all of it
void msg_end(struct msg *msg);    // the memory that decoding takes stays for the next msg_begin()
void msg_finish(struct msg *msg); // zeroed is fine

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
void pack_bin_head(struct buf *out, size_t size); // so many bytes follow
void pack_array(struct buf *out, size_t n);
// An array whose length comes out at its end; returns what that takes.
size_t pack_array_begin(struct buf *out);
void pack_array_end(struct buf *out, size_t begun, size_t n);
void pack_map(struct buf *out, size_t n);
// A map whose pairs are counted at its end, where they stand; returns what that takes.
size_t pack_map_begin(struct buf *out);
void pack_map_end(struct buf *out, size_t begun);

// Keys of maps, with their value.
void pack_key_str(struct buf *out, const char *key, const char *s);
void pack_key_int(struct buf *out, const char *key, int64_t v);
void pack_key_uint(struct buf *out, const char *key, uint64_t v);
void pack_key_bool(struct buf *out, const char *key, bool v);
void pack_key_float(struct buf *out, const char *key, double v);
void pack_key_array(struct buf *out, const char *key, size_t n); // its elements follow
size_t pack_key_map_begin(struct buf *out, const char *key);

void pack_reply_ok(struct buf *out, uint32_t id); // the result follows
void pack_reply_error(struct buf *out, uint32_t id, const struct opd_err *err,
                      const char *op); // whole; op may be NULL
