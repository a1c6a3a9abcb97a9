
// Second of the texts: functions of float without branches and library calls. What is called inside
// guarded statements must be so, or nothing around it vectorises. Their errors are at most 2.3
// units in the last place.

template <class To, class From> OPD_CPU_INLINE To opd_cpu_cast(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
OPD_CPU_INLINE float __uint_as_float(unsigned v)
{
    return opd_cpu_cast<float>(v);
}
OPD_CPU_INLINE float __int_as_float(int v)
{
    return opd_cpu_cast<float>(v);
}
OPD_CPU_INLINE unsigned __float_as_uint(float v)
{
    return opd_cpu_cast<unsigned>(v);
}
OPD_CPU_INLINE int __float_as_int(float v)
{
    return opd_cpu_cast<int>(v);
}
OPD_CPU_INLINE long long __double_as_longlong(double v)
{
    return opd_cpu_cast<long long>(v);
}
OPD_CPU_INLINE double __longlong_as_double(long long v)
{
    return opd_cpu_cast<double>(v);
}

// A polynomial of z, the first coefficient that of its highest power.
template <class T> OPD_CPU_INLINE T opd_cpu_poly(T, T p)
{
    return p;
}
template <class T, class... More> OPD_CPU_INLINE T opd_cpu_poly(T z, T p, T next, More... more)
{
    return opd_cpu_poly(z, p * z + next, more...);
}

// 0x1p112 moves the exponent of a half, read as the high bits of a float, to where a float has it.
OPD_CPU_INLINE float opd_cpu_half_to_float(uint16_t h)
{
    const unsigned special = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u; // infinities and NaNs
    const unsigned magnitude = __float_as_uint(__uint_as_float((h & 0x7fffu) << 13) * 0x1p112f);
    return __uint_as_float(magnitude | special | (unsigned)(h & 0x8000) << 16);
}

OPD_CPU_INLINE uint16_t opd_cpu_float_to_half(float v)
{
    const unsigned u = __float_as_uint(v), a = u & 0x7fffffffu;
    const unsigned normal = (a + 0xfffu + (a >> 13 & 1u) - (112u << 23)) >> 13;
    // The addition of 0.5 leaves 24 bits behind the point, which is what a subnormal half has.
    const unsigned tiny = __float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u;
    unsigned h = a < 0x38800000u ? tiny : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(h | (u >> 16 & 0x8000u));
}

OPD_CPU_INLINE float opd_cpu_bfloat16_to_float(uint16_t b)
{
    return __uint_as_float((unsigned)b << 16);
}

OPD_CPU_INLINE uint16_t opd_cpu_float_to_bfloat16(float v)
{
    const unsigned u = __float_as_uint(v), rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

// As many of either as a vector of the processor's converts, whatever their addresses: compilers
// make vectors of the functions above, which is 8 and 15 operations where there is one instruction.
#if defined(__AVX512F__)
#define OPD_CPU_HALVES 16
#elif defined(__F16C__)
#define OPD_CPU_HALVES 8
#endif
#ifdef OPD_CPU_HALVES
typedef uint16_t opd_cpu_halves
    __attribute__((vector_size(2 * OPD_CPU_HALVES), aligned(2), may_alias));
typedef float opd_cpu_floats
    __attribute__((vector_size(4 * OPD_CPU_HALVES), aligned(4), may_alias));
typedef unsigned opd_cpu_bits __attribute__((vector_size(4 * OPD_CPU_HALVES)));
#endif

OPD_CPU_INLINE void opd_cpu_halves_to_floats(float *to, const uint16_t *from, int n)
{
    int k = 0;
#ifdef OPD_CPU_HALVES
    for (; k + OPD_CPU_HALVES <= n; k += OPD_CPU_HALVES) {
        const opd_cpu_halves h = *(const opd_cpu_halves *)(from + k);
        opd_cpu_floats f;
        asm("vcvtph2ps {%1, %0|%0, %1}" : "=v"(f) : "v"(h));
        *(opd_cpu_floats *)(to + k) = f;
    }
#endif
    for (; k < n; k++)
        to[k] = opd_cpu_half_to_float(from[k]);
}

OPD_CPU_INLINE void opd_cpu_floats_to_halves(uint16_t *to, const float *from, int n)
{
    int k = 0;
#ifdef OPD_CPU_HALVES
    for (; k + OPD_CPU_HALVES <= n; k += OPD_CPU_HALVES) {
        const opd_cpu_floats f = *(const opd_cpu_floats *)(from + k);
        opd_cpu_halves h;
        asm("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=v"(h) : "v"(f)); // 0: to nearest even
        *(opd_cpu_halves *)(to + k) = h;
    }
#endif
    for (; k < n; k++)
        to[k] = opd_cpu_float_to_half(from[k]);
}

// GCC widens vectors of 16 bits in two parts, three instructions in place of one.
#if defined(OPD_CPU_HALVES) && defined(__AVX2__)
#define OPD_CPU_BFLOAT16S OPD_CPU_HALVES
#endif

OPD_CPU_INLINE void opd_cpu_bfloat16s_to_floats(float *to, const uint16_t *from, int n)
{
    int k = 0;
#ifdef OPD_CPU_BFLOAT16S
    for (; k + OPD_CPU_BFLOAT16S <= n; k += OPD_CPU_BFLOAT16S) {
        const opd_cpu_halves b = *(const opd_cpu_halves *)(from + k);
        opd_cpu_bits u;
        asm("vpmovzxwd {%1, %0|%0, %1}" : "=v"(u) : "v"(b));
        *(opd_cpu_floats *)(to + k) = (opd_cpu_floats)(u << 16);
    }
#endif
    for (; k < n; k++)
        to[k] = opd_cpu_bfloat16_to_float(from[k]);
}

OPD_CPU_INLINE void opd_cpu_floats_to_bfloat16s(uint16_t *to, const float *from, int n)
{
    int k = 0;
#ifdef OPD_CPU_BFLOAT16S
    for (; k + OPD_CPU_BFLOAT16S <= n; k += OPD_CPU_BFLOAT16S) {
        const opd_cpu_bits u = (opd_cpu_bits)*(const opd_cpu_floats *)(from + k);
        const opd_cpu_bits is_nan = (opd_cpu_bits)((u & 0x7fffffffu) > 0x7f800000u);
        const opd_cpu_bits rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
        *(opd_cpu_halves *)(to + k) = __builtin_convertvector(
            (rounded & ~is_nan) | (is_nan & 0x7fffu), opd_cpu_halves);
    }
#endif
    for (; k < n; k++)
        to[k] = opd_cpu_float_to_bfloat16(from[k]);
}

// e^x = 2^n * e^r with |r| <= log(2) / 2. 2^n in two factors, for results below the normal ones:
// n + 254, rounded into the low bits of a float, falls into two exponents.
OPD_CPU_INLINE float opd_cpu_expf(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -105.0f ? -105.0f : x;
    const float shift = 0x1.8p23f + 254.0f, shifted = x * 1.44269504f + shift, n = shifted - shift;
    const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    const float p = opd_cpu_poly(r, 1.392617612e-3f, 8.363173075e-3f, 4.166655466e-2f,
                                 1.666657703e-1f, 0.5f, 1.0f, 1.0f);
    const unsigned both = __float_as_uint(shifted), half = both >> 1;
    return p * __uint_as_float(half << 23) * __uint_as_float((both - half) << 23);
}

// For values of 16 bits: 4e-6 off at most, and 0 below the normal ones. The last factor makes
// infinities.
OPD_CPU_INLINE float opd_cpu_rough_expf(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -87.0f ? -87.0f : x;
    const float shift = 0x1.8p23f + 126.0f, shifted = x * 1.44269504f + shift;
    const float r = x - (shifted - shift) * 0.693147181f;
    const float p = opd_cpu_poly(r, 4.187585e-2f, 1.6792269e-1f, 4.999937e-1f, 9.999622e-1f, 1.0f);
    return p * __uint_as_float(__float_as_uint(shifted) << 23) * 2.0f;
}

OPD_CPU_INLINE float opd_cpu_tanhf(float x)
{
    const float a = __builtin_fabsf(x), u = x * x;
    const float p = opd_cpu_poly(u, 2.269499028e-3f, -8.323184127e-3f, 2.176250173e-2f,
                                 -5.395846142e-2f, 1.333330014e-1f, -3.333333315e-1f);
    const float small = x + x * u * p;
    const float large = 1.0f - 2.0f / (opd_cpu_expf(2.0f * a) + 1.0f);
    return a < 0.6f ? small : __builtin_copysignf(large, x);
}

// Near 0 a polynomial of x^2, beyond 1 - e^polynomial: log(erfc(x)) is smooth.
OPD_CPU_INLINE float opd_cpu_erff(float x)
{
    const float b = __builtin_fabsf(x), a = b > 4.0f ? 4.0f : b, u = x * x;
    const float p = opd_cpu_poly(u, -9.667044571e-6f, 1.126596903e-4f, -8.484080406e-4f,
                                 5.221031808e-3f, -2.686543073e-2f, 1.12837825e-1f,
                                 -3.761263847e-1f, 1.283791671e-1f);
    const float small = x + x * p;
    const float q = opd_cpu_poly(a, 1.642678968e-6f, -4.616478516e-5f, 5.976772749e-4f,
                                 -4.763509663e-3f, 2.643164328e-2f, -1.100972425e-1f,
                                 -6.318095501e-1f, -1.130241877f, 3.218662575e-4f);
    const float large = 1.0f - opd_cpu_expf(q);
    return b < 1.0f ? small : __builtin_copysignf(large, x);
}

// e^x - 1 = 2^n (e^r - 1) + 2^n - 1, at half its size so that 2^n does not overflow.
OPD_CPU_INLINE float opd_cpu_expm1f(float x)
{
    const float y = x > 89.0f ? 89.0f : x < -80.0f ? -80.0f : x;
    const float shifted = y * 1.44269504f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    const float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = opd_cpu_poly(r, 1.984587776e-4f, 1.394062482e-3f, 8.333389363e-3f, 4.166636094e-2f,
                           1.666666637e-1f, 0.5f);
    p = p * r * r + r;
    const float half = __int_as_float(((int)__float_as_uint(shifted) - 0x4b400000 + 126) << 23);
    return __builtin_copysignf((half * p + (half - 0.5f)) * 2.0f, x);
}

// x = 2^e * (1 + f), where 1 + f is between sqrt(1/2) and sqrt(2).
OPD_CPU_INLINE float opd_cpu_logf(float x)
{
    const bool tiny = x < 0x1p-126f;
    const int bits = __float_as_int(tiny ? x * 0x1p23f : x), e = (bits - 0x3f3504f3) >> 23;
    const float f = __int_as_float(bits - e * (1 << 23)) - 1.0f, n = (float)(tiny ? e - 23 : e);
    const float p = opd_cpu_poly(f, -7.634493023e-2f, 1.276157564e-1f, -1.316018306e-1f,
                                 1.420175823e-1f, -1.662335730e-1f, 2.000122687e-1f,
                                 -2.500082104e-1f, 3.333333171e-1f);
    const float u = f * f, tail = n * 0x1.7f7d1cp-20f + (p * f * u - 0.5f * u);
    const float y = n * 0x1.62e4p-1f + (f + tail);
    const float limit = x > 0.0f ? x : x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    return x > 0.0f && x < __builtin_inff() ? y : limit;
}

// log(u) of the rounded u = 1 + x, and to first order what the rounding took.
OPD_CPU_INLINE float opd_cpu_log1pf(float x)
{
    const float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    const float y = opd_cpu_logf(u), fixed = y + lost / u;
    return u > 0.0f && u < __builtin_inff() ? __builtin_copysignf(fixed, x) : y;
}

// asin(s) / s - 1, of s^2 up to 1/4.
OPD_CPU_INLINE float opd_cpu_asin_rest(float z)
{
    const float p = opd_cpu_poly(z, 4.221856654e-2f, 2.414760110e-2f, 4.547709886e-2f,
                                 7.495241770e-2f, 1.666675393e-1f);
    return p * z;
}

// Beyond 1/2 by asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)).
OPD_CPU_INLINE float opd_cpu_asinf(float x)
{
    const float a = __builtin_fabsf(x);
    const bool small = a < 0.5f;
    const float z = small ? x * x : 0.5f - 0.5f * a, s = small ? a : __builtin_sqrtf(z);
    const float y = s + s * opd_cpu_asin_rest(z);
    const float large = 0x1.921fb6p0f - (2.0f * y + 0x1.777a5cp-25f);
    return __builtin_copysignf(small ? y : large, x);
}

OPD_CPU_INLINE float opd_cpu_acosf(float x)
{
    const float a = __builtin_fabsf(x);
    const bool small = a < 0.5f;
    const float z = small ? x * x : 0.5f - 0.5f * a, s = small ? x : __builtin_sqrtf(z);
    const float y = s + s * opd_cpu_asin_rest(z);
    const float large = x > 0.0f ? 2.0f * y : 0x1.921fb6p1f - (2.0f * y + 0x1.777a5cp-24f);
    return small ? 0x1.921fb6p0f - (y + 0x1.777a5cp-25f) : large;
}
