#include "op/cnumber.h"

#include <math.h>
#include <string.h>

#include "op/text.h"

static const struct {
    const char *name;
    enum cnumber_kind kind;
    uint8_t size;
} named[] = {
    { "bool", CNUMBER_BOOL, 1 },
    { "float", CNUMBER_FLOAT, 4 },
    { "double", CNUMBER_FLOAT, 8 },
    { "int8_t", CNUMBER_SIGNED, 1 },
    { "int16_t", CNUMBER_SIGNED, 2 },
    { "int32_t", CNUMBER_SIGNED, 4 },
    { "int64_t", CNUMBER_SIGNED, 8 },
    { "uint8_t", CNUMBER_UNSIGNED, 1 },
    { "uint16_t", CNUMBER_UNSIGNED, 2 },
    { "uint32_t", CNUMBER_UNSIGNED, 4 },
    { "uint64_t", CNUMBER_UNSIGNED, 8 },
    { "size_t", CNUMBER_UNSIGNED, 8 },
    { "ssize_t", CNUMBER_SIGNED, 8 },
    { "ptrdiff_t", CNUMBER_SIGNED, 8 },
    { "intptr_t", CNUMBER_SIGNED, 8 },
    { "uintptr_t", CNUMBER_UNSIGNED, 8 },
    { "uint", CNUMBER_UNSIGNED, 4 },
    { "uchar", CNUMBER_UNSIGNED, 1 },
    { "ushort", CNUMBER_UNSIGNED, 2 },
    { "ulong", CNUMBER_UNSIGNED, 8 },
    { "half", CNUMBER_HALF, 2 },
    { "__half", CNUMBER_HALF, 2 },
    { "Half", CNUMBER_HALF, 2 },
    { "bfloat16", CNUMBER_BFLOAT16, 2 },
    { "BFloat16", CNUMBER_BFLOAT16, 2 },
    { "__nv_bfloat16", CNUMBER_BFLOAT16, 2 },
    { "nv_bfloat16", CNUMBER_BFLOAT16, 2 },
    { "divisor", CNUMBER_DIVISOR, 8 },
};

// The words that C combines in any order.
enum { WORD_CHAR, WORD_SHORT, WORD_INT, WORD_LONG, WORD_SIGNED, WORD_UNSIGNED, WORD_COUNT };

static const char *const basic[WORD_COUNT] = {
    "char", "short", "int", "long", "signed", "unsigned",
};

static int find_basic(const char *text, size_t size)
{
    for (int w = 0; w < WORD_COUNT; w++)
        if (text_is(text, size, basic[w]))
            return w;
    return -1;
}

static bool find_named(const char *text, size_t size, struct cnumber *out)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (text_is(text, size, named[i].name)) {
            *out = (struct cnumber){ named[i].kind, named[i].size, 0 };
            return true;
        }
    return false;
}

bool cnumber_is_word(const char *text, size_t size)
{
    struct cnumber type;
    return find_basic(text, size) >= 0 || find_named(text, size, &type) ||
           text_is(text, size, "void");
}

static bool combine_basic(const int count[WORD_COUNT], struct cnumber *out)
{
    bool is_char = count[WORD_CHAR] == 1;
    bool is_short = count[WORD_SHORT] == 1;
    if (count[WORD_CHAR] > 1 || count[WORD_SHORT] > 1 || count[WORD_INT] > 1 ||
        count[WORD_LONG] > 2 || count[WORD_SIGNED] + count[WORD_UNSIGNED] > 1 ||
        is_char + is_short + (count[WORD_LONG] > 0) > 1 || (is_char && count[WORD_INT]))
        return false;
    out->kind = count[WORD_UNSIGNED] ? CNUMBER_UNSIGNED : CNUMBER_SIGNED;
    out->size = is_char ? 1 : is_short ? 2 : count[WORD_LONG] ? 8 : 4;
    return true;
}

bool cnumber_parse(const char *text, size_t size, struct cnumber *out)
{
    int count[WORD_COUNT] = { 0 }, words = 0;
    const char *p = text, *end = text + size;
    *out = (struct cnumber){ 0 };
    while (p < end) {
        if (*p == ' ') {
            p++;
            continue;
        }
        const char *word = p;
        while (p < end && text_is_word_char(*p))
            p++;
        size_t n = (size_t)(p - word);
        if (n == 0)
            return false;
        if (end - p >= 2 && p[0] == ':' && p[1] == ':' && words == 0) {
            p += 2; // a namespace
            continue;
        }
        int w = find_basic(word, n);
        if (w < 0)
            return words == 0 && p == end && find_named(word, n, out);
        count[w]++;
        words++;
    }
    return words > 0 && combine_basic(count, out);
}

struct cnumber cnumber_of_dtype(enum opd_dtype dtype)
{
    struct cnumber out;
    cnumber_parse(dtype_type(dtype), strlen(dtype_type(dtype)), &out);
    return out;
}

uint32_t cnumber_align(struct cnumber type)
{
    return type.kind == CNUMBER_DIVISOR ? 4 : type.size;
}

uint32_t cnumber_magic(int64_t d)
{
    int64_t p = 1;
    while (p < d)
        p *= 2;
    return (uint32_t)((p - d) * INT64_C(4294967296) / d + 1);
}

// The bits of the nearest number (ties to even), so many of mantissa and exponent, sign first.
static uint16_t round_to_16(double value, int mantissa_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t sign = signbit(value) ? 0x8000u : 0;
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    double magnitude = fabs(value);
    if (isnan(value))
        return (uint16_t)(sign | infinity | 1u << (mantissa_bits - 1));
    if (isinf(magnitude))
        return (uint16_t)(sign | infinity);
    int exponent = 1 - bias; // of zero and subnormals: one fixed step
    if (magnitude > 0 && ilogb(magnitude) > exponent)
        exponent = ilogb(magnitude);
    if (exponent > bias)
        return (uint16_t)(sign | infinity);
    double steps = nearbyint(ldexp(magnitude, mantissa_bits - exponent));
    // The implicit bit, where there is one, carries into the exponent; so does rounding up.
    uint32_t bits = (uint32_t)steps + ((uint32_t)(exponent + bias - 1) << mantissa_bits);
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

static void store_float(struct cnumber type, double value, void *out)
{
    if (type.kind == CNUMBER_FLOAT && type.size == 8) {
        memcpy(out, &value, sizeof value);
    } else if (type.kind == CNUMBER_FLOAT) {
        float narrow = (float)value;
        memcpy(out, &narrow, sizeof narrow);
    } else {
        uint16_t bits = type.kind == CNUMBER_HALF ? round_to_16(value, 10, 5)
                                                  : round_to_16(value, 7, 8);
        memcpy(out, &bits, sizeof bits);
    }
}

static bool fits(struct cnumber type, int64_t value)
{
    if (type.kind == CNUMBER_BOOL)
        return value == 0 || value == 1;
    if (type.kind == CNUMBER_DIVISOR)
        return value > 0 && value <= INT32_MAX;
    if (type.kind == CNUMBER_UNSIGNED)
        return value >= 0 && (type.size == 8 || value >> (8 * type.size) == 0);
    int64_t high = INT64_MAX >> (64 - 8 * type.size);
    return value <= high && value >= -high - 1;
}

bool cnumber_store(struct cnumber type, union expr_value value, enum expr_type from, void *out)
{
    if (type.kind == CNUMBER_FLOAT || type.kind == CNUMBER_HALF || type.kind == CNUMBER_BFLOAT16) {
        store_float(type, from == EXPR_FLOAT ? value.f : (double)value.i, out);
        return true;
    }
    if (from == EXPR_FLOAT || !fits(type, value.i))
        return false;
    if (type.kind == CNUMBER_DIVISOR)
        memcpy(out, (uint32_t[2]){ (uint32_t)value.i, cnumber_magic(value.i) }, type.size);
    else
        memcpy(out, &value.i, type.size); // little endian, as the device is
    return true;
}
