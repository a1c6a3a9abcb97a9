// Reads its input as what a client sent: mpscan finds the messages, msg decodes them, every row of
// the protocol checks the parameters, and every value is walked through all that reads values.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mpscan.h"
#include "wire/msg.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static const struct {
    const char *name, *letters;
} rows[] = {
#define REQUEST(name, since, params, result, doc) { #name, params },
#include "../../protocol/protocol.def"
#undef REQUEST
};
enum { N_ROWS = sizeof rows / sizeof *rows };

// Values met in one message, which mpscan has bounded.
struct walk {
    unsigned depth;
    size_t values;
};

static void walk_scalar(const value *v)
{
    char text[64];
    size_t size = 0, sum = 0;
    const char *bytes = "";
    switch (value_type(v)) {
    case VALUE_STR:
        if (value_copy_str(v, text, sizeof text))
            CHECK(strlen(text) < sizeof text);
        bytes = value_bytes(v, &size);
        break;
    case VALUE_BIN:
        bytes = value_bytes(v, &size);
        break;
    case VALUE_INT:
        CHECK(value_float(v) == (double)value_int(v));
        break;
    case VALUE_FLOAT:
        (void)value_float(v);
        break;
    case VALUE_BOOL:
        (void)value_bool(v);
        break;
    default:
        break;
    }
    CHECK(bytes);
    for (size_t i = 0; i < size; i++)
        sum += (uint8_t)bytes[i]; // each can be read
    CHECK(sum <= size * 255);
}

static void walk(const value *v, struct walk *w)
{
    CHECK(strlen(value_type_name(v)) > 0);
    CHECK(value_is_nil(v) == (value_type(v) == VALUE_NIL));
    CHECK(++w->depth <= MPSCAN_DEFAULT_DEPTH + 1);
    w->values++;
    size_t n = value_count(v);
    if (value_type(v) == VALUE_ARRAY) {
        for (size_t i = 0; i < n; i++)
            walk(value_at(v, i), w);
    } else if (value_type(v) == VALUE_MAP) {
        for (size_t i = 0; i < n; i++) {
            walk(value_key_at(v, i), w);
            walk(value_value_at(v, i), w);
        }
        (void)value_get(v, "deadline");
    } else {
        CHECK(n == 0);
        walk_scalar(v);
    }
    CHECK(value_at(v, value_type(v) == VALUE_ARRAY ? n : 0) == NULL);
    w->depth--;
}

// A reply is one object that mpscan takes, whatever the message of the error holds.
static void check_reply(const struct msg *msg, const struct opd_err *err)
{
    struct buf reply = { 0 };
    struct mpscan scan = { 0 };
    pack_reply_error(&reply, msg->id, err, "op");
    CHECK(mpscan_scan(&scan, reply.bytes, reply.size, NULL) == MPSCAN_DONE &&
          scan.position == reply.size);
    buf_finish(&reply);
}

static void try_rows(const struct msg *msg)
{
    for (int i = 0; i < N_ROWS; i++) {
        struct opd_err err = { 0 };
        bool ok = msg_check_params(rows[i].name, rows[i].letters, msg->params, &err);
        CHECK(ok == (err.code == OPD_E_none));
        CHECK(ok || err.code == OPD_E_invalid_argument);
        opd_err_clear(&err);
    }
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unknown_method, "%.*s", (int)msg->method_size, msg->method);
    check_reply(msg, &err);
}

// Bytes that were found to be one object, and how many elements its arrays and maps have.
static void try_message(const uint8_t *bytes, size_t size, size_t elements)
{
    struct msg msg;
    struct opd_err err = { 0 };
    if (msg_decode(&msg, bytes, size, &err)) {
        struct walk w = { 0 };
        walk(msg.params, &w);
        CHECK(w.values <= elements);
        try_rows(&msg);
    } else {
        CHECK(err.code == OPD_E_malformed_message && err.msg[0]);
        check_reply(&msg, &err);
    }
    msg_finish(&msg);
}

// Byte by byte as through a slow socket, it must come to the same end.
static void scan_slowly(const uint8_t *bytes, size_t size, enum mpscan_result expected,
                        size_t position)
{
    struct mpscan scan = { 0 };
    enum mpscan_result result = MPSCAN_MORE;
    for (size_t have = 0; have <= size && result == MPSCAN_MORE; have++)
        result = mpscan_scan(&scan, bytes, have, NULL);
    CHECK(result == expected);
    CHECK(result != MPSCAN_DONE || scan.position == position);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (;;) {
        struct mpscan scan = { 0 };
        enum mpscan_result result = mpscan_scan(&scan, data, size, NULL);
        size_t position = scan.position;
        if (size < 4096)
            scan_slowly(data, size, result, position);
        if (result == MPSCAN_INVALID) {
            CHECK(scan.reason[0] && mpscan_scan(&scan, data, size, NULL) == MPSCAN_INVALID);
            CHECK(mpscan_scan(&scan, data, 0, NULL) == MPSCAN_INVALID);
        }
        if (result != MPSCAN_DONE)
            return 0;
        CHECK(position > 0 && position <= size && scan.elements <= MPSCAN_DEFAULT_ELEMENTS);
        // A copy of its size, so that reading on is seen.
        uint8_t *message = malloc(position);
        memcpy(message, data, position);
        try_message(message, position, scan.elements);
        free(message);
        data += position;
        size -= position;
    }
}
