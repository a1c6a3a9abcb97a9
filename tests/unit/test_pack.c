// What is packed, replies above all: a decoder reads it back.

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/msg.h"

// Reads a reply back by making it a request's parameter.
static void read_back(struct msg *msg, struct buf *b, const struct buf *reply)
{
    struct opd_err err = { 0 };
    buf_append(b, "\x93\x02\xa1m\x91", 5);
    buf_append(b, reply->bytes, reply->size);
    assert_true(msg_decode(msg, b->bytes, b->size, &err));
}

static const value *text_of(const value *map, const char *key, const char *expected)
{
    const value *v = value_get(map, key);
    char text[2000];
    assert_non_null(v);
    assert_true(value_copy_str(v, text, sizeof text));
    assert_string_equal(text, expected);
    return v;
}

static void check_error(const struct opd_err *err, const char *op, const char *message)
{
    struct buf reply = { 0 }, b = { 0 };
    struct msg msg;
    pack_reply_error(&reply, 0xfffffffe, err, op);
    read_back(&msg, &b, &reply);
    const value *r = value_at(msg.params, 0), *map = value_at(r, 2);
    assert_int_equal(value_count(r), 4);
    assert_int_equal(value_int(value_at(r, 0)), 1);
    assert_int_equal(value_int(value_at(r, 1)), 0xfffffffe);
    assert_true(value_is_nil(value_at(r, 3)));
    assert_int_equal(value_count(map), 3 + (op != NULL) + (err->log != NULL) + err->misfit);
    assert_int_equal(value_get(map, "misfit") != NULL, err->misfit);
    text_of(map, "code", "compile_error");
    assert_int_equal(value_int(value_get(map, "number")), OPD_E_compile_error);
    text_of(map, "message", message);
    if (op)
        text_of(map, "op", op);
    if (err->log)
        text_of(map, "log", err->log);
    msg_finish(&msg);
    buf_finish(&b);
    buf_finish(&reply);
}

static void test_error_replies(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_compile_error, "gelu.cu does not compile");
    check_error(&err, NULL, "gelu.cu does not compile");
    check_error(&err, "gelu", "gelu.cu does not compile");
    err.log = mem_strdup("gelu.cu(3): error: expected a ';'");
    err.misfit = true;
    check_error(&err, "gelu", "gelu.cu does not compile");
    opd_err_clear(&err);
}

// Whatever bytes a name or a message has, a client can decode the reply.
static void test_strings_are_utf8(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        { "plain", "plain" },
        { "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\xff", "?" },
        { "a\xc3", "a?" },              // cut off within a character
        { "a\xe2\x82", "a??" },         //
        { "a\xf0\x9f\x98", "a???" },    //
        { "\xc0\x80", "??" },           // overlong
        { "\xe0\x80\x80", "???" },      //
        { "\xf0\x80\x80\x80", "????" }, //
        { "\xed\xa0\x80", "???" },      // a surrogate
        { "\xf4\x90\x80\x80", "????" }, // past the last one
        { "\xc3(\x80 \xe2\x82\xac", "?(? \xe2\x82\xac" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct opd_err err = { 0 };
        opd_err_set(&err, OPD_E_compile_error, "%s", texts[i][0]);
        check_error(&err, NULL, texts[i][1]);
    }
}

static void test_packed_values(void **state)
{
    (void)state;
    struct buf reply = { 0 }, b = { 0 };
    struct msg msg;
    pack_reply_ok(&reply, 7);
    pack_map(&reply, 6);
    pack_key_str(&reply, "none", NULL);
    pack_key_int(&reply, "least", INT64_MIN);
    pack_key_uint(&reply, "most", UINT64_MAX);
    pack_key_bool(&reply, "yes", true);
    pack_key_float(&reply, "half", 0.5);
    pack_str(&reply, "bytes");
    pack_bin(&reply, "a\0b", 3);
    read_back(&msg, &b, &reply);
    const value *r = value_at(msg.params, 0), *map = value_at(r, 3);
    size_t size;
    assert_int_equal(value_int(value_at(r, 1)), 7);
    assert_true(value_is_nil(value_at(r, 2)));
    assert_int_equal(value_type(value_get(map, "none")), VALUE_NIL);
    assert_int_equal(value_int(value_get(map, "least")), INT64_MIN);
    assert_true(value_float(value_get(map, "most")) == ldexp(1, 64));
    assert_true(value_bool(value_get(map, "yes")));
    assert_true(value_float(value_get(map, "half")) == 0.5);
    assert_memory_equal(value_bytes(value_get(map, "bytes"), &size), "a\0b", 3);
    assert_int_equal(size, 3);
    msg_finish(&msg);
    buf_finish(&b);
    buf_finish(&reply);
}

// A map's length comes from what was packed into it, whatever that holds itself.
static void test_maps_count_their_pairs(void **state)
{
    (void)state;
    struct buf out = { 0 };
    size_t map = pack_map_begin(&out);
    size_t inner = pack_key_map_begin(&out, "inner");
    for (int i = 0; i < 300; i++)
        pack_key_int(&out, "number", i);
    pack_map_end(&out, inner);
    pack_key_array(&out, "list", 2);
    pack_nil(&out);
    size_t empty = pack_map_begin(&out);
    pack_map_end(&out, empty);
    pack_map_end(&out, map);
    struct decoder *d = value_begin(NULL, out.bytes);
    assert_true(value_decode(d, SIZE_MAX));
    const value *v = value_root(d);
    assert_int_equal(value_count(v), 2);
    assert_int_equal(value_count(value_get(v, "inner")), 300);
    assert_int_equal(value_int(value_value_at(value_get(v, "inner"), 299)), 299);
    const value *last = value_at(value_get(v, "list"), 1);
    assert_int_equal(value_type(last), VALUE_MAP);
    assert_int_equal(value_count(last), 0);
    value_finish(d);
    buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_replies),
        cmocka_unit_test(test_strings_are_utf8),
        cmocka_unit_test(test_packed_values),
        cmocka_unit_test(test_maps_count_their_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
