#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op/cnumber.h"

static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum cnumber_kind kind;
        int size;
    } rows[] = {
        { "int", CNUMBER_SIGNED, 4 },
        { "unsigned", CNUMBER_UNSIGNED, 4 },
        { "unsigned int", CNUMBER_UNSIGNED, 4 },
        { "long", CNUMBER_SIGNED, 8 },
        { "long unsigned int", CNUMBER_UNSIGNED, 8 },
        { "long long", CNUMBER_SIGNED, 8 },
        { "short int", CNUMBER_SIGNED, 2 },
        { "signed char", CNUMBER_SIGNED, 1 },
        { "char", CNUMBER_SIGNED, 1 },
        { "size_t", CNUMBER_UNSIGNED, 8 },
        { "std::int64_t", CNUMBER_SIGNED, 8 },
        { "uint8_t", CNUMBER_UNSIGNED, 1 },
        { "bool", CNUMBER_BOOL, 1 },
        { "double", CNUMBER_FLOAT, 8 },
        { "c10::Half", CNUMBER_HALF, 2 },
        { "__nv_bfloat16", CNUMBER_BFLOAT16, 2 },
    };
    struct cnumber type;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(cnumber_parse(rows[i].text, strlen(rows[i].text), &type));
        assert_int_equal(type.kind, rows[i].kind);
        assert_int_equal(type.size, rows[i].size);
    }
    static const char *const bad[] = {
        "",           "float float",     "int int",        "long long long", "unsigned signed",
        "short long", "float4",          "unsigned float", "dim4",           "int*",
        "char int",   "unsigned size_t",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (cnumber_parse(bad[i], strlen(bad[i]), &type))
            fail_msg("'%s' is taken", bad[i]);
}

static bool stores(enum cnumber_kind kind, int size, int64_t value)
{
    uint8_t bytes[8];
    struct cnumber type = { kind, (uint8_t)size, 0 };
    return cnumber_store(type, (union expr_value){ .i = value }, EXPR_INT, bytes);
}

static void test_ranges(void **state)
{
    (void)state;
    assert_true(stores(CNUMBER_SIGNED, 1, 127) && !stores(CNUMBER_SIGNED, 1, 128));
    assert_true(stores(CNUMBER_SIGNED, 1, -128) && !stores(CNUMBER_SIGNED, 1, -129));
    assert_true(stores(CNUMBER_SIGNED, 4, INT32_MIN) && !stores(CNUMBER_SIGNED, 4, 3000000000));
    assert_true(stores(CNUMBER_SIGNED, 8, INT64_MIN) && stores(CNUMBER_SIGNED, 8, INT64_MAX));
    assert_true(stores(CNUMBER_UNSIGNED, 4, UINT32_MAX) && !stores(CNUMBER_UNSIGNED, 4, -1));
    assert_false(stores(CNUMBER_UNSIGNED, 4, (int64_t)UINT32_MAX + 1));
    assert_true(stores(CNUMBER_UNSIGNED, 8, INT64_MAX) && !stores(CNUMBER_UNSIGNED, 8, -1));
    assert_true(stores(CNUMBER_BOOL, 1, 1) && !stores(CNUMBER_BOOL, 1, 2));
    struct cnumber type = { CNUMBER_SIGNED, 4, 0 };
    uint8_t bytes[8];
    assert_false(cnumber_store(type, (union expr_value){ .f = 1 }, EXPR_FLOAT, bytes));
}

static unsigned bits(enum cnumber_kind kind, double value)
{
    uint16_t out;
    assert_true(cnumber_store((struct cnumber){ kind, 2, 0 }, (union expr_value){ .f = value },
                              EXPR_FLOAT, &out));
    return out;
}

static void test_halves(void **state)
{
    (void)state;
    enum cnumber_kind h = CNUMBER_HALF, b = CNUMBER_BFLOAT16;
    assert_int_equal(bits(h, 0.0), 0x0000);
    assert_int_equal(bits(h, -0.0), 0x8000);
    assert_int_equal(bits(h, 1.0), 0x3c00);
    assert_int_equal(bits(h, -2.0), 0xc000);
    assert_int_equal(bits(h, 65504.0), 0x7bff);
    assert_int_equal(bits(h, 65519.0), 0x7bff);
    assert_int_equal(bits(h, 65520.0), 0x7c00);
    assert_int_equal(bits(h, -1e30), 0xfc00);
    assert_int_equal(bits(h, 0x1p-24), 0x0001);
    assert_int_equal(bits(h, 0x1p-25), 0x0000);
    assert_int_equal(bits(h, 0x1.8p-25), 0x0001);
    assert_int_equal(bits(h, 0x1p-14), 0x0400);
    assert_int_equal(bits(h, 0x1.ff8p-15), 0x03ff);
    assert_int_equal(bits(h, 1.0 + 0x1p-11), 0x3c00);
    assert_int_equal(bits(h, 1.0 + 0x3p-11), 0x3c02);
    assert_int_equal(bits(h, 0.1), 0x2e66);
    assert_int_equal(bits(h, 1.0 / 0.0), 0x7c00);
    assert_int_equal(bits(h, 0.0 / 0.0) & 0x7fff, 0x7e00);
    assert_int_equal(bits(b, 1.0), 0x3f80);
    assert_int_equal(bits(b, 3.14159265), 0x4049);
    assert_int_equal(bits(b, 1.0 + 0x1p-8), 0x3f80);
    assert_int_equal(bits(b, 1.0 + 0x3p-8), 0x3f82);
    assert_int_equal(bits(b, 3.4e38), 0x7f80);
    assert_int_equal(bits(b, 0x1p-133), 0x0001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
