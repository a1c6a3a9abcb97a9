#include "run.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

// Numbers in slots. Halves are made of doubles, rounded once.

uint64_t truncate_bits(uint64_t value, unsigned size)
{
    return size >= 8 ? value : value & ((1ull << 8 * size) - 1);
}

uint64_t get_bits(const struct thread *t, uint32_t slot, struct ptx_type type)
{
    return truncate_bits(t->r[slot], type.two ? 4 : type.size);
}

int64_t get_signed(const struct thread *t, uint32_t slot, struct ptx_type type)
{
    uint64_t v = t->r[slot];
    unsigned unused = 64 - 8u * type.size;
    return type.kind == K_SIGNED ? (int64_t)(v << unused) >> unused
                                 : (int64_t)truncate_bits(v, type.size);
}

static double small_float(uint64_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    int exponent = (int)(bits >> mantissa_bits & (uint64_t)most);
    double mantissa = (double)(bits & ((1ull << mantissa_bits) - 1)), value;
    if (exponent == most)
        value = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> 15 & 1 ? -value : value;
}

// To a multiple of the last place that there is room for, by the rounding that is set.
static uint64_t make_small(double value, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1, exponent;
    uint64_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return 0x7fff;
    if (isinf(value) || value == 0)
        return sign | (isinf(value) ? (uint64_t)most << mantissa_bits : 0);
    frexp(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double places = fabs(rint(ldexp(value, mantissa_bits - exponent)));
    uint64_t units = (uint64_t)places; // 1.xxx is 1 << mantissa_bits and more, a subnormal less
    uint64_t bits = ((uint64_t)(exponent + bias - 1) << mantissa_bits) + units;
    uint64_t infinity = (uint64_t)most << mantissa_bits;
    if (bits >= infinity) {
        bool beyond = fegetround() == FE_TONEAREST || rint(value > 0 ? 0.5 : -0.5) != 0;
        bits = beyond ? infinity : infinity - 1;
    }
    return sign | bits;
}

double get_float(uint64_t bits, struct ptx_type type)
{
    double d;
    float f;
    uint32_t low = (uint32_t)bits;
    switch (type.size) {
    case 8: memcpy(&d, &bits, 8); return d;
    case 4: memcpy(&f, &low, 4); return (double)f;
    default:
        return type.kind == K_BFLOAT ? small_float(bits & 0xffff, 8, 7)
                                     : small_float(bits & 0xffff, 5, 10);
    }
}

uint64_t put_float(double value, struct ptx_type type)
{
    uint64_t bits = 0;
    float f = (float)value;
    switch (type.size) {
    case 8: memcpy(&bits, &value, 8); return bits;
    case 4: memcpy(&bits, &f, 4); return isnan(value) ? 0x7fffffff : bits;
    default: return type.kind == K_BFLOAT ? make_small(value, 8, 7) : make_small(value, 5, 10);
    }
}

void set_rounding(int round)
{
    static const int modes[] = { FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD,
                                 FE_UPWARD };
    fesetround(modes[round]);
}
