// msg: what is a request and what is none, and every parameter letter against every type.

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mpscan.h"
#include "wire/msg.h"

#define BYTES(text) text, sizeof(text) - 1

static bool decode(struct msg *msg, const void *bytes, size_t size, struct opd_err *err)
{
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, bytes, size, NULL), MPSCAN_DONE);
    assert_int_equal(scan.position, size);
    return msg_decode(msg, bytes, size, err);
}

static void test_requests(void **state)
{
    (void)state;
    struct msg msg;
    struct opd_err err = { 0 };
    assert_true(decode(&msg, BYTES("\x94\x00\xce\xff\xff\xff\xff\xa4sync\x90"), &err));
    assert_false(msg.notification);
    assert_int_equal(msg.id, UINT32_MAX);
    assert_int_equal(msg.method_size, 4);
    assert_memory_equal(msg.method, "sync", 4);
    assert_int_equal(value_count(msg.params), 0);
    msg_finish(&msg);
    assert_true(decode(&msg, BYTES("\x93\x02\xa4sync\x91\x01"), &err));
    assert_true(msg.notification);
    assert_int_equal(value_int(value_at(msg.params, 0)), 1);
    msg_finish(&msg);
    msg_finish(&msg);
}

// Every form of every value, each in an array of its own.
static void test_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        enum value_type type;
        int64_t i;
        double f;
        size_t count; // bytes too
    } rows[] = {
        { BYTES("\x00"), VALUE_INT, 0, 0, 0 },
        { BYTES("\x7f"), VALUE_INT, 127, 127, 0 },
        { BYTES("\xe0"), VALUE_INT, -32, -32, 0 },
        { BYTES("\xcc\xff"), VALUE_INT, 255, 255, 0 },
        { BYTES("\xcd\xff\xfe"), VALUE_INT, 65534, 65534, 0 },
        { BYTES("\xce\xff\xff\xff\xfe"), VALUE_INT, 4294967294, 4294967294, 0 },
        { BYTES("\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"), VALUE_INT, INT64_MAX, 0x1p63, 0 },
        { BYTES("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), VALUE_BIG, INT64_MIN, 0x1p63, 0 },
        { BYTES("\xd0\x80"), VALUE_INT, -128, -128, 0 },
        { BYTES("\xd1\x80\x00"), VALUE_INT, -32768, -32768, 0 },
        { BYTES("\xd2\x80\x00\x00\x00"), VALUE_INT, INT32_MIN, INT32_MIN, 0 },
        { BYTES("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), VALUE_INT, INT64_MIN, -0x1p63, 0 },
        { BYTES("\xca\xc0\x20\x00\x00"), VALUE_FLOAT, 0, -2.5, 0 },
        { BYTES("\xcb\xc0\x04\x00\x00\x00\x00\x00\x00"), VALUE_FLOAT, 0, -2.5, 0 },
        { BYTES("\xc0"), VALUE_NIL, 0, 0, 0 },
        { BYTES("\xc2"), VALUE_BOOL, 0, 0, 0 },
        { BYTES("\xc3"), VALUE_BOOL, 1, 0, 0 },
        { BYTES("\xa2hi"), VALUE_STR, 0, 0, 2 },
        { BYTES("\xd9\x02hi"), VALUE_STR, 0, 0, 2 },
        { BYTES("\xda\x00\x02hi"), VALUE_STR, 0, 0, 2 },
        { BYTES("\xdb\x00\x00\x00\x02hi"), VALUE_STR, 0, 0, 2 },
        { BYTES("\xc4\x02hi"), VALUE_BIN, 0, 0, 2 },
        { BYTES("\xc5\x00\x02hi"), VALUE_BIN, 0, 0, 2 },
        { BYTES("\xc6\x00\x00\x00\x02hi"), VALUE_BIN, 0, 0, 2 },
        { BYTES("\xc7\x02\x01hi"), VALUE_OTHER, 0, 0, 2 },
        { BYTES("\xc8\x00\x02\x01hi"), VALUE_OTHER, 0, 0, 2 },
        { BYTES("\xc9\x00\x00\x00\x02\x01hi"), VALUE_OTHER, 0, 0, 2 },
        { BYTES("\xd5\x01hi"), VALUE_OTHER, 0, 0, 2 },
        { BYTES("\x92\x01\x02"), VALUE_ARRAY, 0, 0, 2 },
        { BYTES("\xdc\x00\x02\x01\x02"), VALUE_ARRAY, 0, 0, 2 },
        { BYTES("\xdd\x00\x00\x00\x02\x01\x02"), VALUE_ARRAY, 0, 0, 2 },
        { BYTES("\x82\x01\x02\x03\x04"), VALUE_MAP, 0, 0, 2 },
        { BYTES("\xde\x00\x02\x01\x02\x03\x04"), VALUE_MAP, 0, 0, 2 },
        { BYTES("\xdf\x00\x00\x00\x02\x01\x02\x03\x04"), VALUE_MAP, 0, 0, 2 },
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char bytes[32] = "\x93\x02\xa1x\x92"; // [2, "x", [the value, 5]]
        memcpy(bytes + 5, rows[r].bytes, rows[r].size);
        bytes[5 + rows[r].size] = 5;
        struct msg msg;
        struct opd_err err = { 0 };
        assert_true(decode(&msg, bytes, 6 + rows[r].size, &err));
        const value *v = value_at(msg.params, 0);
        assert_int_equal(value_type(v), rows[r].type);
        assert_int_equal(value_int(value_at(msg.params, 1)), 5);
        size_t n;
        const char *text = value_bytes(v, &n);
        assert_int_equal(value_count(v) + n, rows[r].count);
        if (n > 0)
            assert_memory_equal(text, "hi", 2);
        if (rows[r].type == VALUE_INT || rows[r].type == VALUE_BIG)
            assert_int_equal(value_int(v), rows[r].i);
        if (rows[r].type == VALUE_BOOL)
            assert_int_equal(value_bool(v), rows[r].i);
        if (rows[r].f != 0)
            assert_true(value_float(v) == rows[r].f);
        if (rows[r].type == VALUE_ARRAY)
            assert_int_equal(value_int(value_at(v, 1)), 2);
        if (rows[r].type == VALUE_MAP)
            assert_int_equal(value_int(value_value_at(v, 1)), 4);
        msg_finish(&msg);
    }
}

static void test_in_steps(void **state)
{
    (void)state;
    static const char bytes[] =
        "\x94\x00\x07\xa1x\x94\x93\x01\x90\x80\x81\xa1k\x92\x02\x91\x03\xc4\x00\x05";
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, bytes, sizeof bytes - 1, NULL), MPSCAN_DONE);
    struct msg msg = { 0 };
    for (size_t most = 1; most < 20; most++) {
        struct opd_err err = { 0 };
        size_t steps = 1;
        msg_begin(&msg, bytes);
        while (!msg_step(&msg, most))
            steps++;
        assert_true(steps <= (scan.position + most - 1) / most);
        assert_true(most > 1 || steps > scan.elements);
        assert_true(msg_step(&msg, most)); // once more is none
        assert_true(msg_check(&msg, &err));
        const value *inner = value_get(value_at(msg.params, 1), "k");
        assert_int_equal(value_count(value_at(msg.params, 0)), 3);
        assert_int_equal(value_int(value_at(inner, 0)), 2);
        assert_int_equal(value_int(value_at(value_at(inner, 1), 0)), 3);
        assert_int_equal(value_int(value_at(msg.params, 3)), 5);
        msg_end(&msg); // the next one takes its memory over
        assert_null(msg.decoder);
    }
    msg_begin(&msg, bytes);
    msg_step(&msg, 3);
    msg_finish(&msg);
}

static void test_no_requests(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } bad[] = {
        { BYTES("\x01"), "array" },
        { BYTES("\x80"), "array" },
        { BYTES("\xa4sync"), "array" },
        { BYTES("\x90"), "array" },
        { BYTES("\x92\x02\xa4sync"), "array" },
        { BYTES("\x93\x00\x01\xa4sync"), "neither" },         // no parameters
        { BYTES("\x94\x02\x01\xa4sync\x90"), "neither" },     // a notification with an id
        { BYTES("\x95\x00\x01\xa4sync\x90\x90"), "neither" }, // one more
        { BYTES("\x94\x01\x01\xc0\xc0"), "neither" },         // a response
        { BYTES("\x94\xff\x01\xa4sync\x90"), "neither" },     // kind -1
        { BYTES("\x94\xc2\x01\xa4sync\x90"), "neither" },     // kind false
        { BYTES("\x94\x00\xff\xa4sync\x90"), "id" },          // id -1
        { BYTES("\x94\x00\xc0\xa4sync\x90"), "id" },          // id nil
        { BYTES("\x94\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xa4sync\x90"), "32-bit" },
        { BYTES("\x94\x00\x01\x07\x90"), "method" },
        { BYTES("\x94\x00\x01\xa4sync\x80"), "parameters" },
        { BYTES("\x94\x00\x01\xa4sync\xc0"), "parameters" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct msg msg;
        struct opd_err err = { 0 };
        if (decode(&msg, bad[i].bytes, bad[i].size, &err))
            fail_msg("message %zu was taken", i);
        assert_int_equal(err.code, OPD_E_malformed_message);
        if (!strstr(err.msg, bad[i].says) || !strstr(err.msg, "[0, id, method, params]"))
            fail_msg("message %zu: \"%s\" does not say \"%s\"", i, err.msg, bad[i].says);
        msg_finish(&msg);
    }
}

static void test_cut_off(void **state)
{
    (void)state;
    static const char whole[] = "\x94\x00\x07\xa4sync\x92\x81\xa1k\xcd\x01\x02\xc4\x03"
                                "abc";
    for (size_t size = 0; size < sizeof whole - 1; size++) {
        char *bytes = mem_alloc(size); // of that size, so that reading on shows
        memcpy(bytes, whole, size);
        struct msg msg;
        struct opd_err err = { 0 };
        assert_false(msg_decode(&msg, bytes, size, &err));
        msg_finish(&msg);
        free(bytes);
    }
    struct msg msg;
    struct opd_err err = { 0 };
    assert_true(msg_decode(&msg, whole, sizeof whole - 1, &err));
    msg_finish(&msg);
    assert_false(msg_decode(&msg, whole, sizeof whole, &err)); // a byte more
    msg_finish(&msg);
}

// --- parameters

// One value of each kind, and the letters that take it.
static const struct {
    const char *bytes;
    size_t size;
    const char *letters;
} values[] = {
    { BYTES("\xc0"), "SHAvn" },
    { BYTES("\xc3"), "v" },
    { BYTES("\x00"), "iv" },
    { BYTES("\x01"), "ihHv" },
    { BYTES("\xff"), "iv" },
    { BYTES("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), "iv" },
    { BYTES("\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"), "ihHv" },
    { BYTES("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), "v" }, // 2^63 is above every integer
    { BYTES("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"), "v" }, // 1.0 is no integer
    { BYTES("\xca\x3f\x80\x00\x00"), "v" },
    { BYTES("\xa1x"), "sSbmv" },
    { BYTES("\xc4\x01x"), "sSbmv" },
    { BYTES("\x91\x01"), "aAv" },
    { BYTES("\x90"), "aAMv" }, // as good as an empty map
    { BYTES("\x81\x01\x02"), "Mv" },
    { BYTES("\x80"), "Mv" },
    { BYTES("\xd4\x05x"), "v" },
};
enum { N_VALUES = sizeof values / sizeof *values };

static bool check(const char *letters, const void *params, size_t size, struct opd_err *err)
{
    struct buf b = { 0 };
    buf_append(&b, BYTES("\x94\x00\x01\xa1m"));
    buf_append(&b, params, size);
    struct msg msg;
    assert_true(decode(&msg, b.bytes, b.size, err));
    bool ok = msg_check_params("m", letters, msg.params, err);
    assert_int_equal(ok, err->code == OPD_E_none);
    msg_finish(&msg);
    buf_finish(&b);
    return ok;
}

static void test_every_letter(void **state)
{
    (void)state;
    for (const char *letter = "sSibMhHaAvm"; *letter; letter++)
        for (int i = 0; i < N_VALUES; i++) {
            char letters[] = { *letter, '\0' };
            struct opd_err err = { 0 };
            struct buf params = { 0 };
            buf_append(&params, "\x91", 1);
            buf_append(&params, values[i].bytes, values[i].size);
            bool ok = check(letters, params.bytes, params.size, &err);
            if (ok != (strchr(values[i].letters, *letter) != NULL))
                fail_msg("letter %c, value %d: %s", *letter, i, ok ? "taken" : err.msg);
            if (!ok)
                assert_non_null(strstr(err.msg, "m: parameter 1 is "));
            buf_finish(&params);
        }
}

static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *letters, *params;
        size_t size;
        const char *says; // NULL: right
    } lists[] = {
        { "", BYTES("\x90"), NULL },
        { "", BYTES("\x91\x01"), "1 parameters came, expected at most 0" },
        { "ss", BYTES("\x91\xa1x"), "parameter 2 is missing; expected a string" },
        { "ss", BYTES("\x92\xa1x\xa1y"), NULL },
        { "s|si", BYTES("\x91\xa1x"), NULL },
        { "s|si", BYTES("\x92\xa1x\xa1y"), NULL },
        { "s|si", BYTES("\x93\xa1x\xa1y\x01"), NULL },
        { "s|si", BYTES("\x94\xa1x\xa1y\x01\x02"), "4 parameters came, expected at most 3" },
        { "s|si", BYTES("\x92\xa1x\xc0"), "parameter 2 is nil, expected a string" },
        { "s|si", BYTES("\x90"), "parameter 1 is missing" },
        { "|sM", BYTES("\x90"), NULL },
        { "hh", BYTES("\x92\x01\x00"), "parameter 2 is an integer, expected an id" },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct opd_err err = { 0 };
        bool ok = check(lists[i].letters, lists[i].params, lists[i].size, &err);
        if (ok != !lists[i].says || (!ok && !strstr(err.msg, lists[i].says)))
            fail_msg("list %zu: %s", i, ok ? "taken" : err.msg);
    }
}

// --- values

static void test_values(void **state)
{
    (void)state;
    static const char bytes[] = "\x93\x02\xa1m\x99"
                                "\xcf\xff\xff\xff\xff\xff\xff\xff\xff" // 0: 2^64 - 1
                                "\xd3\x80\x00\x00\x00\x00\x00\x00\x00" // 1: -2^63
                                "\xca\x3f\x00\x00\x00"                 // 2: 0.5
                                "\xa3ok!"                              // 3
                                "\xa3o\x00k"                           // 4
                                "\x83\xa1x\x01\xa1x\x02\x03\xa1y"      // 5: {x: 1, x: 2, 3: y}
                                "\xc4\x03"                             //
                                "abc"                                  // 6
                                "\xc3"                                 // 7
                                "\xa2o\xc3";                           // 8
    struct msg msg;
    struct opd_err err = { 0 };
    assert_true(decode(&msg, BYTES(bytes), &err));
    const value *p = msg.params;
    assert_int_equal(value_type(value_at(p, 0)), VALUE_BIG);
    assert_true(value_float(value_at(p, 0)) == ldexp(1, 64));
    assert_int_equal(value_int(value_at(p, 1)), INT64_MIN);
    assert_true(value_float(value_at(p, 1)) == -ldexp(1, 63));
    assert_true(value_float(value_at(p, 2)) == 0.5);
    char text[4] = "";
    assert_true(value_copy_str(value_at(p, 3), text, 4));
    assert_string_equal(text, "ok!");
    assert_false(value_copy_str(value_at(p, 3), text, 3)); // no room for the terminator
    assert_false(value_copy_str(value_at(p, 4), text, 4)); // a zero in it
    assert_false(value_copy_str(value_at(p, 8), text, 4)); // no UTF-8
    const value *map = value_at(p, 5);
    assert_int_equal(value_count(map), 3);
    assert_int_equal(value_int(value_get(map, "x")), 1);
    assert_null(value_get(map, "xy"));
    assert_null(value_get(map, ""));
    assert_null(value_get(p, "x"));
    assert_null(value_get(NULL, "x"));
    assert_int_equal(value_int(value_key_at(map, 2)), 3);
    assert_int_equal(value_type(value_value_at(map, 2)), VALUE_STR);
    assert_null(value_at(map, 0)); // it is no array
    size_t size;
    assert_memory_equal(value_bytes(value_at(p, 6), &size), "abc", 3);
    assert_int_equal(size, 3);
    assert_true(value_bool(value_at(p, 7)));
    assert_null(value_at(p, 9));
    assert_null(value_at(NULL, 0));
    assert_true(value_is_nil(value_at(p, 9)));
    assert_int_equal(value_count(value_at(p, 3)), 0);
    assert_string_equal(value_type_name(NULL), "missing");
    assert_string_equal(value_type_name(value_at(p, 6)), "binary");
    msg_finish(&msg);
}

static void test_empty_bytes(void **state)
{
    (void)state;
    struct msg msg;
    struct opd_err err = { 0 };
    assert_true(decode(&msg, BYTES("\x93\x02\xa0\x92\xc4\x00\xa0"), &err));
    assert_non_null(msg.method);
    for (size_t i = 0; i < 2; i++) {
        size_t size = 1;
        assert_non_null(value_bytes(value_at(msg.params, i), &size));
        assert_int_equal(size, 0);
    }
    char text[1] = "x";
    assert_true(value_copy_str(value_at(msg.params, 1), text, 1));
    assert_string_equal(text, "");
    msg_finish(&msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_every_form),
        cmocka_unit_test(test_in_steps),
        cmocka_unit_test(test_no_requests),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_every_letter),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_empty_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
