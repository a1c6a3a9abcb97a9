// opctl's words and its output.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

// opctl is a program, not a library: its parts are tested from their sources.
#include "opctl/args.c"
#include "opctl/diagnosis.c"
#include "opctl/json.c"
#include "c/pack.c"
#include "base/suggest.h"
#include "opctl/table.c"
#include "opctl/term.c"
#include "opctl/text.c"
#include "opctl/utf8.c"

static void expect_json(const char *bytes, size_t size, const char *expected)
{
    msgpack_unpacked u;
    msgpack_unpacked_init(&u);
    size_t end = 0;
    assert_int_equal(msgpack_unpack_next(&u, bytes, size, &end), MSGPACK_UNPACK_SUCCESS);
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    json_write(out, &u.data);
    fclose(out);
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    free(text);
    msgpack_unpacked_destroy(&u);
}

#define JSON(text, expected) expect_json(text, sizeof(text) - 1, expected)

static void test_json_values(void **state)
{
    (void)state;
    JSON("\xc0", "null");
    JSON("\xc2", "false");
    JSON("\xc3", "true");
    JSON("\x00", "0");
    JSON("\xff", "-1");
    JSON("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615");
    JSON("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "-9223372036854775808");
    JSON("\xcf\x00\x20\x00\x00\x00\x00\x00\x01", "9007199254740993");
    JSON("\x90", "[]");
    JSON("\x80", "{}");
    JSON("\x93\x01\x91\x02\x80", "[1, [2], {}]");
    JSON("\x82\xa1"
         "a\x01\xa1"
         "b\x92\xc0\xc3",
         "{\"a\": 1, \"b\": [null, true]}");
    JSON("\x83\x01\x02\x91\xa1x\x03\xc0\x04", "{\"1\": 2, \"[\\\"x\\\"]\": 3, \"null\": 4}");
}

static void test_json_floats(void **state)
{
    (void)state;
    JSON("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00", "1.0");
    JSON("\xcb\x80\x00\x00\x00\x00\x00\x00\x00", "-0.0");
    JSON("\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a", "0.1");
    JSON("\xcb\x3f\xd5\x55\x55\x55\x55\x55\x55", "0.3333333333333333");
    JSON("\xcb\x7f\xef\xff\xff\xff\xff\xff\xff", "1.7976931348623157e+308");
    JSON("\xcb\x00\x00\x00\x00\x00\x00\x00\x01", "4.94065645841247e-324");
    JSON("\xca\x3d\xcc\xcc\xcd", "0.1");
    JSON("\xca\x7f\x7f\xff\xff", "3.4028235e+38");
    JSON("\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "null");
    JSON("\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", "null");
    JSON("\xca\xff\x80\x00\x00", "null");
}

static void test_json_strings(void **state)
{
    (void)state;
    JSON("\xa0", "\"\"");
    JSON("\xa5"
         "a\"b\\/",
         "\"a\\\"b\\\\/\"");
    JSON("\xa8\x00\x01\x1f\x7f\b\f\n\r", "\"\\u0000\\u0001\\u001f\\u007f\\b\\f\\n\\r\"");
    JSON("\xa1\t", "\"\\t\"");
    JSON("\xa9\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    JSON("\xa2\xc3"
         "a",
         "\"\\ufffda\"");                                  // cut short
    JSON("\xa1\xe2", "\"\\ufffd\"");                       // at the end
    JSON("\xa2\xc0\xaf", "\"\\ufffd\\ufffd\"");            // too long a form
    JSON("\xa3\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""); // a surrogate
    JSON("\xa4\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    JSON("\xa1\xff", "\"\\ufffd\"");
}

static void test_json_binary(void **state)
{
    (void)state;
    JSON("\xc4\x00", "\"\"");
    JSON("\xc4\x01\xff", "\"/w==\"");
    JSON("\xc4\x02\x00\x01", "\"AAE=\"");
    JSON("\xc4\x03"
         "abc",
         "\"YWJj\"");
    JSON("\xc4\x04"
         "abcd",
         "\"YWJjZA==\"");
    JSON("\xd4\x05"
         "a",
         "\"YQ==\"");
}

static void test_texts_for_people(void **state)
{
    (void)state;
    assert_string_equal(text_bytes(0).s, "0 B");
    assert_string_equal(text_bytes(1023).s, "1023 B");
    assert_string_equal(text_bytes(1024).s, "1.0 KiB");
    assert_string_equal(text_bytes(1536 << 10).s, "1.5 MiB");
    assert_string_equal(text_bytes((1 << 20) - 1).s, "1.0 MiB");
    assert_string_equal(text_bytes(UINT64_MAX).s, "16.0 EiB");
    assert_string_equal(text_duration(0.26).s, "0.3 s");
    assert_string_equal(text_duration(59.2).s, "59.2 s");
    assert_string_equal(text_duration(185).s, "3 min 05 s");
    assert_string_equal(text_duration(7500).s, "2 h 05 min");
    assert_string_equal(text_duration(90000).s, "1 d 01 h");
    assert_string_equal(text_duration(-1).s, "0.0 s");
    assert_string_equal(text_duration(NAN).s, "0.0 s");
}

// A map of one key and a value, as texts for people.
static void expect_field(struct text (*read)(const msgpack_object *map, const char *key),
                         const char *value, size_t size, const char *expected)
{
    char bytes[64] = "\x81\xa1k";
    msgpack_unpacked u;
    msgpack_unpacked_init(&u);
    memcpy(bytes + 3, value, size);
    assert_int_equal(msgpack_unpack_next(&u, bytes, size + 3, NULL), MSGPACK_UNPACK_SUCCESS);
    assert_string_equal(read(&u.data, "k").s, expected);
    assert_string_equal(read(&u.data, "other").s, "-");
    msgpack_unpacked_destroy(&u);
}

#define FIELD(read, value, expected) expect_field(read, value, sizeof(value) - 1, expected)

static void test_fields(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    FIELD(text_field_ms, "\x07", "7.0 ms");
    FIELD(text_field_ms, "\xcb\x40\x6a\xb0\x00\x00\x00\x00\x00", "214 ms");
    FIELD(text_field_ms, "\xcd\x05\xdc", "1.5 s");
    FIELD(text_field_ms, "\xff", "-");
    FIELD(text_field_ms, "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "-");
    FIELD(text_field_time, "\xce\x65\x92\x00\x80", "2024-01-01 00:00:00");
    FIELD(text_field_time, "\xcb\x41\xd9\x64\x80\x20\x20\x00\x00", "2024-01-01 00:00:00");
    FIELD(text_field_time, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "-");
    FIELD(text_field_time, "\xa1x", "-");
    FIELD(text_field_or_dash, "\xa0", "-");
    FIELD(text_field_or_dash, "\xa1x", "x");
}

static void expect_diagnosis(const char *map, size_t size, const char *expected)
{
    msgpack_unpacked u;
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    msgpack_unpacked_init(&u);
    assert_int_equal(msgpack_unpack_next(&u, map, size, NULL), MSGPACK_UNPACK_SUCCESS);
    diagnosis_print(out, &u.data);
    fclose(out);
    assert_string_equal(text, expected);
    free(text);
    msgpack_unpacked_destroy(&u);
}

static void test_diagnoses(void **state)
{
    (void)state;
#define DIAGNOSIS(map, expected) expect_diagnosis(map, sizeof(map) - 1, expected)
    DIAGNOSIS("\x82\xa7message\xa1m\xa3log\xa6"
              "l\n\x1b\tx\n",
              "m\nl\n?\tx\n");
    DIAGNOSIS("\x82\xa7message\xa1m\xa3log\xa0", "m\n");
    DIAGNOSIS("\x82\xa7message\xa8"
              "a\u202ec\u2069\xa3log\xa0",
              "a?c?\n");
    DIAGNOSIS("\x82\xa7message\x01\xa3log\xc0", "");
    DIAGNOSIS("\xc0", "");
    DIAGNOSIS("\x82\xa7message\xa3"
              "b c\xa3log\xa5"
              "a\nb c",
              "a\nb c\n");
}

static void expect_params(struct pack *params, const char *expected)
{
    expect_json(params->bytes.data, params->bytes.size, expected);
    pack_finish(params);
}

static void test_params(void **state)
{
    (void)state;
    struct pack p;
    pack_init(&p, 6);
    pack_str(&p, "a");
    pack_int(&p, -5);
    pack_bool(&p, true);
    pack_nil(&p);
    pack_map(&p, 1);
    pack_str(&p, "k");
    pack_list(&p, "sm_90,cpu");
    pack_list(&p, "");
    expect_params(&p, "[\"a\", -5, true, null, {\"k\": [\"sm_90\", \"cpu\"]}, [\"\"]]");
}

// The words are separated by single spaces.
static bool parse(const char *line, struct args *args, char why[256])
{
    static char words[256];
    char *argv[16];
    int argc = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    why[0] = '\0';
    return args_parse(argc, argv, args, why, 256);
}

static void test_args(void **state)
{
    (void)state;
    struct args args;
    char why[256];
    assert_true(parse("", &args, why));
    assert_null(args.words[0]);
    assert_true(parse("ops --json gelu --sass --arch cpu --dtype=a=b", &args, why));
    assert_string_equal(args.words[0], "ops");
    assert_string_equal(args.words[1], "gelu");
    assert_null(args.words[2]);
    assert_non_null(args.options[OPTION_JSON]);
    assert_non_null(args.options[OPTION_SASS]);
    assert_null(args.options[OPTION_PTX]);
    assert_string_equal(args.options[OPTION_TARGET], "cpu");
    assert_string_equal(args.options[OPTION_DTYPE], "a=b");
    assert_true(parse("check --target=sm_90", &args, why));
    assert_string_equal(args.options[OPTION_TARGET], "sm_90");
    assert_true(parse("check -- --json", &args, why));
    assert_string_equal(args.words[1], "--json");
    assert_null(args.options[OPTION_JSON]);
    assert_true(parse("check -", &args, why));
    assert_string_equal(args.words[1], "-");
    assert_true(parse("-h", &args, why));
    assert_non_null(args.options[OPTION_HELP]);
}

static void test_args_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *line, *why;
    } wrong[] = {
        { "--jsn", "unknown option '--jsn': did you mean '--json'?" },
        { "--folow status", "unknown option '--folow': did you mean '--follow'?" },
        { "--zzz=1", "unknown option '--zzz'" },
        { "-x", "unknown option '-x'" },
        { "--json=1", "a value for an option that takes none: '--json=1'" },
        { "status --socket", "--socket wants a PATH after it" },
        { "pin a 1 b", "a word too many: 'b'" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct args args;
        char why[256];
        assert_false(parse(wrong[i].line, &args, why));
        assert_string_equal(why, wrong[i].why);
    }
}

static void test_suggestions(void **state)
{
    (void)state;
    static const char *const names[] = { "status", "ops", "tensors", "stop" };
    assert_string_equal(suggest_among("stauts", names, 4), "status");
    assert_string_equal(suggest_among("sto", names, 4), "stop");
    assert_string_equal(suggest_among("tens", names, 4), "tensors");
    assert_string_equal(suggest_among("op", names, 4), "ops");
    assert_null(suggest_among("xyzzy", names, 4));
    assert_null(suggest_among("", names, 4));
    assert_null(suggest_among("a word that is far longer than any name of a command", names, 4));
}

static void test_table(void **state)
{
    (void)state;
    static const struct column columns[] = {
        { .title = "NAME", .key = "n" },
        { .title = "SIZE", .key = "s", .read = text_field_bytes, .right = true },
        { .title = "", .key = "d" },
    };
    // Two rows; the second's name would clear the screen.
    static const char bytes[] = "\x92\x83\xa1n\xa5"
                                "caf\xc3\xa9\xa1s\xcd\x04\x00\xa1"
                                "d\x92\x02\x03"
                                "\x82\xa1n\xa4\x1b[2J\xa1s\xc0";
    msgpack_unpacked u;
    msgpack_unpacked_init(&u);
    assert_int_equal(msgpack_unpack_next(&u, bytes, sizeof bytes - 1, NULL),
                     MSGPACK_UNPACK_SUCCESS);
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    table_print(out, columns, 3, &u.data);
    fclose(out);
    assert_string_equal(text, "NAME     SIZE  \n"
                              "caf\xc3\xa9  1.0 KiB  2 3\n"
                              "?[2J        -  -\n");
    free(text);
    msgpack_unpacked_destroy(&u);
}

static struct text show_name(const void *row)
{
    struct text t;
    snprintf(t.s, sizeof t.s, "%s", *(const char *const *)row);
    return t;
}

static struct text show_zero(const void *row)
{
    (void)row;
    return (struct text){ "0" };
}

static struct text show_size(const void *row)
{
    (void)row;
    return (struct text){ "12" };
}

// What a table of that width looks like.
static void expect_fit(int width, const char *expected)
{
    static const char *const rows[] = { "depthwise", "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e" };
    static const struct column columns[] = {
        { .title = "NAME", .show = show_name, .least = 5 },
        { .title = "ZERO", .show = show_zero, .right = true, .drop = 2 },
        { .title = "SIZE", .show = show_size, .right = true, .drop = 1 },
    };
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    table_show(out, &(struct table){ .columns = columns,
                                     .n_columns = 3,
                                     .rows = rows,
                                     .n_rows = 2,
                                     .row_size = sizeof *rows,
                                     .width = width });
    fclose(out);
    assert_string_equal(text, expected);
    free(text);
}

static void test_table_fits(void **state)
{
    (void)state;
    term_init(false); // widths of characters
    term_cut = "~";
    expect_fit(0, "NAME       ZERO  SIZE\n"
                  "depthwise     0    12\n"
                  "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e        0    12\n");
    expect_fit(17, "NAME   ZERO  SIZE\n"
                   "dept~     0    12\n"
                   "\xe6\x97\xa5\xe6\x9c\xac~     0    12\n");
    expect_fit(14, "NAME      SIZE\n" // what says nothing goes first
                   "depthwi~    12\n"
                   "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e      12\n");
    expect_fit(10, "NAME\n"
                   "depthwise\n"
                   "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\n");
    expect_fit(3, "NA~\n"
                  "de~\n"
                  "\xe6\x97\xa5~\n");
}

static void test_wrap(void **state)
{
    (void)state;
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    text_wrap_to(out, "one two  three\n\nfour", 20, 2, 9);
    fclose(out);
    assert_string_equal(text, "one two\n  three\n\n  four");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_fits),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_json_values),
        cmocka_unit_test(test_json_floats),
        cmocka_unit_test(test_json_strings),
        cmocka_unit_test(test_json_binary),
        cmocka_unit_test(test_texts_for_people),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_diagnoses),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_args),
        cmocka_unit_test(test_args_that_are_wrong),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
