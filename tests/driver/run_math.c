#include "run.h"

#include <math.h>
#include <string.h>
#include <time.h>

// Arithmetic. Integers are computed in 64 bits and cut; floats in doubles, which round to the right
// float but for an fma.

// --- integers

static uint64_t high_half(const struct ins *i, int64_t a, int64_t b)
{
    unsigned bits = 8 * i->type.size;
    if (i->type.kind == K_SIGNED)
        return (uint64_t)((__int128)a * b >> bits);
    return (uint64_t)((unsigned __int128)(uint64_t)a * (uint64_t)b >> bits);
}

static uint64_t multiply(const struct ins *i, int64_t a, int64_t b)
{
    return i->part == P_HI ? high_half(i, a, b) : (uint64_t)a * (uint64_t)b;
}

// A division by zero gives ones on a GPU.
static uint64_t divide(const struct ins *i, int64_t a, int64_t b, bool remainder)
{
    if (b == 0)
        return remainder ? (uint64_t)a : UINT64_MAX;
    if (i->type.kind != K_SIGNED)
        return remainder ? (uint64_t)a % (uint64_t)b : (uint64_t)a / (uint64_t)b;
    if (b == -1)
        return remainder ? 0 : 0 - (uint64_t)a;
    return (uint64_t)(remainder ? a % b : a / b);
}

static uint64_t saturate(int64_t sum)
{
    return (uint64_t)(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
}

static uint64_t calc_int(const struct ins *i, int64_t a, int64_t b, int64_t c)
{
    bool is_signed = i->type.kind == K_SIGNED;
    bool less = is_signed ? a < b : (uint64_t)a < (uint64_t)b;
    switch (i->op) {
    case OP_add: return i->sat ? saturate(a + b) : (uint64_t)a + (uint64_t)b;
    case OP_sub: return i->sat ? saturate(a - b) : (uint64_t)a - (uint64_t)b;
    case OP_mul: return multiply(i, a, b);
    case OP_mad: return multiply(i, a, b) + (uint64_t)c;
    case OP_div: return divide(i, a, b, false);
    case OP_rem: return divide(i, a, b, true);
    case OP_abs: return (uint64_t)(a < 0 ? 0 - (uint64_t)a : (uint64_t)a);
    case OP_neg: return 0 - (uint64_t)a;
    case OP_min: return (uint64_t)(less ? a : b);
    case OP_max: return (uint64_t)(less ? b : a);
    case OP_sad: return (uint64_t)(c + (less ? b - a : a - b));
    default: return 0;
    }
}

static uint64_t calc_24(const struct ins *i, int64_t a, int64_t b, int64_t c)
{
    bool is_signed = i->type.kind == K_SIGNED;
    int64_t x = is_signed ? (a << 40) >> 40 : a & 0xffffff;
    int64_t y = is_signed ? (b << 40) >> 40 : b & 0xffffff;
    uint64_t product = (uint64_t)x * (uint64_t)y >> (i->part == P_HI ? 16 : 0);
    return product + (i->op == OP_mad24 ? (uint64_t)c : 0);
}

static void run_halves(struct thread *t, const struct ins *i)
{
    const struct ptx_type half = { i->type.kind, 2, false };
    uint64_t out = 0;
    for (int k = 0; k < 2; k++) {
        int64_t v[3] = { 0 };
        for (int s = 0; s < 3 && s + 1 < i->n; s++)
            v[s] = (int16_t)(t->r[i->o[s + 1]] >> 16 * k);
        struct ins one = *i;
        one.type = half;
        out |= (calc_int(&one, v[0], v[1], v[2]) & 0xffff) << 16 * k;
    }
    t->r[i->o[0]] = out;
}

void run_int(struct thread *t, const struct ins *i)
{
    if (i->type.two) {
        run_halves(t, i);
        return;
    }
    bool wide = i->part == P_WIDE;
    struct ptx_type third = { i->type.kind, (uint8_t)(wide ? 2 * i->type.size : i->type.size), 0 };
    int64_t a = get_signed(t, i->o[1], i->type), b = get_signed(t, i->o[2], i->type);
    int64_t c = i->n > 3 ? get_signed(t, i->o[3], third) : 0;
    bool is_24 = i->op == OP_mul24 || i->op == OP_mad24;
    uint64_t v = is_24 ? calc_24(i, a, b, c) : calc_int(i, a, b, c);
    if (i->carry) {
        uint64_t first = i->op == OP_mad ? multiply(i, a, b) : (uint64_t)a;
        uint64_t second = (uint64_t)(i->op == OP_mad ? c : b);
        unsigned size = i->type.size;
        first = truncate_bits(first, size);
        second = truncate_bits(second, size);
        t->carry = i->op == OP_sub ? first < second : truncate_bits(first + second, size) < first;
    }
    t->r[i->o[0]] = truncate_bits(v, third.size);
}

// With what the last instruction of its kind has carried.
void run_carry(struct thread *t, const struct ins *i)
{
    unsigned __int128 a = get_bits(t, i->o[1], i->type), b = get_bits(t, i->o[2], i->type), v;
    bool minus = i->op == OP_subc;
    if (i->op == OP_madc) {
        a = truncate_bits(multiply(i, get_signed(t, i->o[1], i->type),
                                   get_signed(t, i->o[2], i->type)),
                          i->type.size);
        b = get_bits(t, i->o[3], i->type);
    }
    v = minus ? a - b - t->carry : a + b + t->carry;
    if (i->carry)
        t->carry = v >> 8 * i->type.size & 1;
    put(t, i, (uint64_t)v);
}

// --- floats

static double flush(double v, const struct ins *i)
{
    return i->ftz && i->type.size == 4 && fabs(v) < 0x1p-126 ? copysign(0.0, v) : v;
}

// -0 is less than 0; a number more than none.
static double smaller(double a, double b, const struct ins *i)
{
    if (isnan(a) || isnan(b))
        return i->nan ? NAN : isnan(a) ? b : a;
    return a < b || (a == b && signbit(a)) ? a : b;
}

static double calc_fma(const struct ins *i, double a, double b, double c)
{
    return i->type.size == 4 ? (double)fmaf((float)a, (float)b, (float)c) : fma(a, b, c);
}

static double calc_float(const struct ins *i, double a, double b, double c)
{
    switch (i->op) {
    case OP_add: return a + b;
    case OP_sub: return a - b;
    case OP_mul: return a * b;
    case OP_mad:
    case OP_fma: return calc_fma(i, a, b, c);
    case OP_div: return a / b;
    case OP_abs: return fabs(a);
    case OP_neg: return -a;
    case OP_min: return smaller(a, b, i);
    case OP_max: return -smaller(-a, -b, i);
    case OP_rcp: return 1 / a;
    case OP_sqrt: return sqrt(a);
    case OP_rsqrt: return 1 / sqrt(a);
    case OP_sin: return sin(a);
    case OP_cos: return cos(a);
    case OP_lg2: return log2(a);
    case OP_ex2: return exp2(a);
    case OP_tanh: return tanh(a);
    case OP_copysign: return copysign(b, a);
    default: return 0;
    }
}

static uint64_t float_of(const struct ins *i, const uint64_t bits[3])
{
    struct ptx_type type = { i->type.kind, i->type.size, false };
    double v = flush(calc_float(i, flush(get_float(bits[0], type), i),
                                flush(get_float(bits[1], type), i),
                                flush(get_float(bits[2], type), i)),
                     i);
    if (i->sat)
        v = v > 0 ? (v < 1 ? v : 1) : 0; // NaN, too, becomes 0
    uint64_t out = put_float(v, type);
    if (i->ftz && i->approx && type.size == 8) // the upper half is all there is
        out &= ~0xffffffffull;
    return i->ftz ? put_float(flush(get_float(out, type), i), type) : out;
}

void run_float(struct thread *t, const struct ins *i)
{
    uint64_t out = 0;
    if (i->round > R_NEAREST)
        set_rounding(i->round);
    for (int k = 0; k < (i->type.two ? 2 : 1); k++) {
        uint64_t bits[3] = { 0 };
        for (int s = 0; s < 3 && s + 1 < i->n; s++)
            bits[s] = t->r[i->o[s + 1]] >> 16 * k;
        out |= float_of(i, bits) << 16 * k;
    }
    t->r[i->o[0]] = out;
    if (i->round > R_NEAREST)
        set_rounding(R_NEAREST);
}

// --- comparing and choosing

static bool order(int compare, bool less, bool equal, bool ordered)
{
    switch (compare) {
    case C_EQ: return ordered && equal;
    case C_NE: return ordered && !equal;
    case C_LT: return ordered && less;
    case C_LE: return ordered && (less || equal);
    case C_GT: return ordered && !less && !equal;
    case C_GE: return ordered && !less;
    case C_EQU: return !ordered || equal;
    case C_NEU: return !ordered || !equal;
    case C_LTU: return !ordered || less;
    case C_LEU: return !ordered || less || equal;
    case C_GTU: return !ordered || (!less && !equal);
    case C_GEU: return !ordered || !less;
    case C_NUM: return ordered;
    default: return !ordered;
    }
}

static bool compare(const struct thread *t, const struct ins *i, struct ptx_type type, uint32_t x,
                    uint32_t y, int half)
{
    if (type.kind >= K_FLOAT) {
        double a = get_float(t->r[x] >> 16 * half, type), b = get_float(t->r[y] >> 16 * half, type);
        if (i->ftz && type.size == 4) {
            a = fabs(a) < 0x1p-126 ? 0 : a;
            b = fabs(b) < 0x1p-126 ? 0 : b;
        }
        return order(i->compare, a < b, a == b, !isnan(a) && !isnan(b));
    }
    int64_t a = get_signed(t, x, type), b = get_signed(t, y, type);
    bool less = type.kind == K_SIGNED ? a < b : (uint64_t)a < (uint64_t)b;
    return order(i->compare, less, a == b, true);
}

static bool combine(int sub, bool a, bool b)
{
    return sub == B_AND ? a && b : sub == B_OR ? a || b : sub == B_XOR ? a != b : a;
}

// Of halves the second result is the second's.
void run_setp(struct thread *t, const struct ins *i)
{
    bool with = i->n > 4 ? t->r[i->o[4]] & 1 : false;
    struct ptx_type type = { i->type.kind, i->type.size, false };
    bool is = compare(t, i, type, i->o[2], i->o[3], 0);
    bool other = i->type.two ? compare(t, i, type, i->o[2], i->o[3], 1) : !is;
    t->r[i->o[0]] = combine(i->sub, is, with);
    t->r[i->o[1]] = combine(i->sub, other, with);
}

void run_set(struct thread *t, const struct ins *i)
{
    bool with = i->n > 3 ? t->r[i->o[3]] & 1 : false;
    struct ptx_type from = { i->from.kind, i->from.size, false };
    struct ptx_type to = { i->type.kind, i->type.size, false };
    uint64_t one = to.kind >= K_FLOAT ? put_float(1, to) : truncate_bits(~0ull, to.size), out = 0;
    for (int k = 0; k < (i->from.two ? 2 : 1); k++) {
        bool is = compare(t, i, from, i->o[1], i->o[2], k);
        out |= (combine(i->sub, is, with) ? one : 0) << 16 * k;
    }
    t->r[i->o[0]] = out;
}

void run_selp(struct thread *t, const struct ins *i)
{
    t->r[i->o[0]] = get_bits(t, i->o[t->r[i->o[3]] & 1 ? 1 : 2], i->type);
}

void run_slct(struct thread *t, const struct ins *i)
{
    bool first = i->from.kind == K_FLOAT ? get_float(t->r[i->o[3]], i->from) >= 0
                                         : get_signed(t, i->o[3], i->from) >= 0;
    t->r[i->o[0]] = get_bits(t, i->o[first ? 1 : 2], i->type);
}

// --- moving and converting

void run_clock(struct thread *t, const struct ins *i)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    put(t, i, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

// A vector into its parts, or parts into one.
void run_mov(struct thread *t, const struct ins *i)
{
    unsigned size = i->type.two ? 4 : i->type.size;
    if (i->first) {
        unsigned each = 8 * size / i->first;
        uint64_t v = t->r[i->o[i->first]];
        for (unsigned k = 0; k < i->first; k++)
            t->r[i->o[k]] = truncate_bits(v >> each * k, each / 8);
    } else if (i->second) {
        unsigned each = 8 * size / i->second;
        uint64_t v = 0;
        for (unsigned k = 0; k < i->second; k++)
            v |= truncate_bits(t->r[i->o[1 + k]], each / 8) << each * k;
        t->r[i->o[0]] = v;
    } else {
        uint64_t v = t->r[i->o[1]] + (i->framed ? t->frame->base : 0);
        t->r[i->o[0]] = truncate_bits(v, size);
    }
}

static uint64_t clamp_float(const struct ins *i, double v)
{
    unsigned bits = 8 * i->type.size;
    if (isnan(v)) // as the GPU has it
        return bits == 64 ? 1ull << 63 : 0;
    if (i->type.kind == K_SIGNED) {
        double most = ldexp(1, (int)bits - 1);
        return v >= most ? (1ull << (bits - 1)) - 1 : v < -most ? 1ull << (bits - 1)
                                                                : (uint64_t)(int64_t)v;
    }
    return v >= ldexp(1, (int)bits) ? truncate_bits(~0ull, i->type.size) : v <= 0 ? 0 : (uint64_t)v;
}

static uint64_t clamp_int(const struct ins *i, int64_t v)
{
    unsigned bits = 8 * i->type.size;
    bool from_signed = i->from.kind == K_SIGNED;
    uint64_t most = truncate_bits(~0ull, i->type.size);
    if (i->type.kind == K_SIGNED) {
        int64_t high = (int64_t)(most >> 1), low = -high - 1;
        bool over = from_signed ? v > high : (uint64_t)v > (uint64_t)high;
        return (uint64_t)(over ? high : from_signed && v < low ? low : v);
    }
    if (from_signed && v < 0)
        return 0;
    return bits < 64 && (uint64_t)v > most ? most : (uint64_t)v;
}

static uint64_t convert_float(const struct ins *i, double v)
{
    if (i->ftz && i->from.size == 4 && fabs(v) < 0x1p-126)
        v = copysign(0, v);
    if (i->integral)
        v = rint(v);
    if (i->type.kind < K_FLOAT)
        return clamp_float(i, v);
    if (i->sat)
        v = v > 0 ? (v < 1 ? v : 1) : 0;
    return put_float(v, (struct ptx_type){ i->type.kind, i->type.size, false });
}

static uint64_t convert(const struct ins *i, const struct thread *t, uint32_t slot)
{
    if (i->from.kind >= K_FLOAT)
        return convert_float(i, get_float(t->r[slot], i->from));
    int64_t v = get_signed(t, slot, i->from);
    bool is_signed = i->from.kind == K_SIGNED;
    if (i->type.kind < K_FLOAT)
        return i->sat ? clamp_int(i, v) : (uint64_t)v;
    if (i->type.size == 4) { // rounded once
        float f = is_signed ? (float)v : (float)(uint64_t)v;
        return put_float((double)f, i->type);
    }
    return put_float(is_signed ? (double)v : (double)(uint64_t)v, i->type);
}

void run_cvt(struct thread *t, const struct ins *i)
{
    set_rounding(i->integral ? i->integral : i->round);
    uint64_t v = convert(i, t, i->o[1]);
    if (i->type.two)
        v = v << 16 | convert(i, t, i->o[2]);
    set_rounding(R_NEAREST);
    t->r[i->o[0]] = truncate_bits(v, i->type.two ? 4 : i->type.size);
}

static uint64_t window_of(const struct ins *i)
{
    return i->space == S_SHARED  ? windows.shared
           : i->space == S_LOCAL ? windows.local
           : i->space == S_PARAM ? windows.param
                                 : 0;
}

void run_cvta(struct thread *t, const struct ins *i)
{
    uint64_t v = t->r[i->o[1]] + (i->framed ? t->frame->base : 0), window = window_of(i);
    t->r[i->o[0]] = i->sub == B_TO ? v - window : v + window;
}

void run_isspacep(struct thread *t, const struct ins *i)
{
    uint64_t v = t->r[i->o[1]], window = window_of(i);
    if (window)
        t->r[i->o[0]] = v - window < WINDOW_SIZE;
    else
        t->r[i->o[0]] = i->space != S_CONST && v - windows.shared >= WINDOW_SIZE &&
                        v - windows.local >= WINDOW_SIZE && v - windows.param >= WINDOW_SIZE;
}

void run_nothing(struct thread *t, const struct ins *i)
{
    (void)t;
    (void)i;
}
