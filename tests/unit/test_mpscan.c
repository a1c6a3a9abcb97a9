// mpscan: one object's end, found byte by byte; every limit; random bytes.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mpscan.h"

struct sample {
    const char *bytes;
    size_t size;
};

#define SAMPLE(text)                                                                               \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

// Whole objects of every form; what follows the first `size` bytes is not theirs.
static const struct sample objects[] = {
    SAMPLE("\x00"),
    SAMPLE("\x7f"),
    SAMPLE("\xff"),
    SAMPLE("\xe0"),
    SAMPLE("\xc0"),
    SAMPLE("\xc2"),
    SAMPLE("\xc3"),
    SAMPLE("\xcc\xff"),
    SAMPLE("\xcd\x01\x02"),
    SAMPLE("\xce\x01\x02\x03\x04"),
    SAMPLE("\xcf\x01\x02\x03\x04\x05\x06\x07\x08"),
    SAMPLE("\xd0\xff"),
    SAMPLE("\xd1\x01\x02"),
    SAMPLE("\xd2\x01\x02\x03\x04"),
    SAMPLE("\xd3\x01\x02\x03\x04\x05\x06\x07\x08"),
    SAMPLE("\xca\x01\x02\x03\x04"),
    SAMPLE("\xcb\x01\x02\x03\x04\x05\x06\x07\x08"),
    SAMPLE("\xa0"),
    SAMPLE("\xa3"
           "abc"),
    SAMPLE("\xd9\x03"
           "abc"),
    SAMPLE("\xda\x00\x03"
           "abc"),
    SAMPLE("\xdb\x00\x00\x00\x03"
           "abc"),
    SAMPLE("\xc4\x02"
           "ab"),
    SAMPLE("\xc5\x00\x02"
           "ab"),
    SAMPLE("\xc6\x00\x00\x00\x02"
           "ab"),
    SAMPLE("\xc7\x02\x05"
           "ab"),
    SAMPLE("\xc8\x00\x02\x05"
           "ab"),
    SAMPLE("\xc9\x00\x00\x00\x02\x05"
           "ab"),
    SAMPLE("\xd4\x05"
           "a"),
    SAMPLE("\xd5\x05"
           "ab"),
    SAMPLE("\xd6\x05"
           "abcd"),
    SAMPLE("\xd7\x05"
           "abcdefgh"),
    SAMPLE("\xd8\x05"
           "abcdefghijklmnop"),
    SAMPLE("\x90"),
    SAMPLE("\x80"),
    SAMPLE("\x92\x01\x02"),
    SAMPLE("\x81\xa1"
           "a"
           "\x01"),
    SAMPLE("\xdc\x00\x02\x01\x02"),
    SAMPLE("\xdd\x00\x00\x00\x02\x01\x02"),
    SAMPLE("\xde\x00\x01\x01\x02"),
    SAMPLE("\xdf\x00\x00\x00\x01\x01\x02"),
    SAMPLE("\x94\x00\x01\xa6"
           "status"
           "\x90"),
    SAMPLE("\x93\x93\x01\x90\x80\x81\x91\x01\x92\x02\xc4\x00\xa0"),
};

static void test_finds_the_end_of_every_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        struct mpscan scan = { 0 };
        assert_int_equal(mpscan_scan(&scan, objects[i].bytes, objects[i].size, NULL), MPSCAN_DONE);
        assert_int_equal(scan.position, objects[i].size);
        assert_int_equal(scan.depth, 0);
    }
}

static void test_every_prefix_needs_more(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        struct mpscan scan = { 0 };
        for (size_t n = 0; n < objects[i].size; n++) {
            // A copy of just these bytes, so that the sanitizer sees a read past them.
            char *prefix = malloc(n ? n : 1);
            memcpy(prefix, objects[i].bytes, n);
            assert_int_equal(mpscan_scan(&scan, prefix, n, NULL), MPSCAN_MORE);
            assert_true(scan.position + scan.owed <= objects[i].size);
            struct mpscan fresh = { 0 };
            assert_int_equal(mpscan_scan(&fresh, prefix, n, NULL), MPSCAN_MORE);
            free(prefix);
        }
        assert_int_equal(mpscan_scan(&scan, objects[i].bytes, objects[i].size, NULL), MPSCAN_DONE);
        assert_int_equal(scan.position, objects[i].size);
    }
}

static void test_stops_before_the_next_message(void **state)
{
    (void)state;
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, "\x92\x01\x02\x93\xc1", 5, NULL), MPSCAN_DONE);
    assert_int_equal(scan.position, 3);
    assert_int_equal(mpscan_scan(&scan, "\x92\x01\x02\x93\xc1", 5, NULL), MPSCAN_DONE);
    assert_int_equal(scan.position, 3);
}

static enum mpscan_result scan_nested(unsigned depth, const char *reason)
{
    char bytes[64];
    memset(bytes, '\x91', sizeof bytes);
    bytes[depth - 1] = '\x90';
    struct mpscan scan = { 0 };
    enum mpscan_result result = mpscan_scan(&scan, bytes, depth, NULL);
    assert_true(reason ? strstr(scan.reason, reason) != NULL : scan.reason[0] == '\0');
    return result;
}

static void test_depth(void **state)
{
    (void)state;
    assert_int_equal(scan_nested(1, NULL), MPSCAN_DONE);
    assert_int_equal(scan_nested(16, NULL), MPSCAN_DONE);
    assert_int_equal(scan_nested(17, "deeper than 16"), MPSCAN_INVALID);
    assert_int_equal(scan_nested(40, "deeper than 16"), MPSCAN_INVALID);

    struct mpscan_limits limits = { .depth = 1000 };
    char bytes[64];
    memset(bytes, '\x91', sizeof bytes);
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, bytes, sizeof bytes, &limits), MPSCAN_INVALID);
    assert_non_null(strstr(scan.reason, "deeper than 32"));
}

// The result of a message's first bytes under limits of 100 bytes and 20 elements.
static enum mpscan_result scan_small(const char *bytes, size_t size, struct mpscan *scan)
{
    struct mpscan_limits limits = { .message = 100, .elements = 20 };
    *scan = (struct mpscan){ 0 };
    return mpscan_scan(scan, bytes, size, &limits);
}

static void test_claims_are_refused_from_the_head_alone(void **state)
{
    (void)state;
    static const struct sample claims[] = {
        SAMPLE("\xdd\xff\xff\xff\xff"), // arrays, maps
        SAMPLE("\xdf\xff\xff\xff\xff"),
        SAMPLE("\xdc\xff\xff"),
        SAMPLE("\x92\xdc\x00\x13"),     // 2 + 19 elements
        SAMPLE("\xdb\xff\xff\xff\xff"), // str, bin, ext
        SAMPLE("\xc6\xff\xff\xff\xff"),
        SAMPLE("\xc9\xff\xff\xff\xff"),
        SAMPLE("\xd9\x63"),     // 2 + 99 bytes
        SAMPLE("\x92\xd9\x61"), // 1 + 2 + 97 bytes, and one more that is owed
    };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct mpscan scan;
        assert_int_equal(scan_small(claims[i].bytes, claims[i].size, &scan), MPSCAN_INVALID);
        assert_true(strlen(scan.reason) > 10);
    }
}

static void test_claims_at_the_limit_are_taken(void **state)
{
    (void)state;
    static const struct sample claims[] = {
        SAMPLE("\xdc\x00\x14"),     // 20 elements
        SAMPLE("\xde\x00\x0a"),     // 10 pairs
        SAMPLE("\x92\xdc\x00\x12"), // 2 + 18 elements
        SAMPLE("\xd9\x62"),         // 2 + 98 bytes
        SAMPLE("\x92\xd9\x60"),     // 1 + 2 + 96 bytes, and one that is owed
    };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct mpscan scan;
        assert_int_equal(scan_small(claims[i].bytes, claims[i].size, &scan), MPSCAN_MORE);
        assert_true(scan.position + scan.owed <= 100);
    }
}

static void test_reserved_byte_and_stickiness(void **state)
{
    (void)state;
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, "\x92\x01\xc1", 3, NULL), MPSCAN_INVALID);
    assert_string_equal(scan.reason, "byte 2: 0xc1 is no MessagePack");
    assert_int_equal(mpscan_scan(&scan, "\x92\x01\x01", 3, NULL), MPSCAN_INVALID);
    assert_string_equal(scan.reason, "byte 2: 0xc1 is no MessagePack");
}

static void test_default_limits(void **state)
{
    (void)state;
    struct mpscan scan = { 0 };
    assert_int_equal(mpscan_scan(&scan, "\xdd\x00\x10\x00\x00", 5, NULL), MPSCAN_MORE);
    scan = (struct mpscan){ 0 };
    assert_int_equal(mpscan_scan(&scan, "\xdd\x00\x10\x00\x01", 5, NULL), MPSCAN_INVALID);
    scan = (struct mpscan){ 0 };
    assert_int_equal(mpscan_scan(&scan, "\xc6\x03\xff\xff\xfb", 5, NULL), MPSCAN_MORE);
    scan = (struct mpscan){ 0 };
    assert_int_equal(mpscan_scan(&scan, "\xc6\x03\xff\xff\xfc", 5, NULL), MPSCAN_INVALID);
}

// Whole or in pieces, any bytes give the same answer, and none is read that is not there.
static void test_random_bytes(void **state)
{
    (void)state;
    struct mpscan_limits limits = { .message = 200, .elements = 60, .depth = 4 };
    srand(1);
    for (int round = 0; round < 20000; round++) {
        size_t size = (size_t)(rand() % 80) + 1;
        uint8_t *bytes = malloc(size);
        for (size_t i = 0; i < size; i++) // heads of containers are what is interesting
            bytes[i] = (uint8_t)(rand() % 3 ? 0x80 + rand() % 0x64 : rand());
        struct mpscan whole = { 0 }, parts = { 0 };
        enum mpscan_result at_once = mpscan_scan(&whole, bytes, size, &limits);
        enum mpscan_result result = MPSCAN_MORE;
        for (size_t n = 1; n <= size && result == MPSCAN_MORE; n++)
            result = mpscan_scan(&parts, bytes, n, &limits);
        assert_int_equal(result, at_once);
        assert_int_equal(parts.position, whole.position);
        assert_true(whole.depth <= 4 && whole.elements <= 60);
        assert_true(at_once == MPSCAN_INVALID || whole.position + whole.owed <= 200);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_end_of_every_form),
        cmocka_unit_test(test_every_prefix_needs_more),
        cmocka_unit_test(test_stops_before_the_next_message),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_claims_are_refused_from_the_head_alone),
        cmocka_unit_test(test_claims_at_the_limit_are_taken),
        cmocka_unit_test(test_reserved_byte_and_stickiness),
        cmocka_unit_test(test_default_limits),
        cmocka_unit_test(test_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
