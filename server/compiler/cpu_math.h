
// Fourth of the texts: CUDA's mathematics, with the overloads that it has in the global namespace.

// One argument: double beside float, integers as double. OWN are ours, others the C library's.
#define OPD_CPU_MATH_OVERLOADS(name, float_name)                                                   \
    OPD_CPU_INLINE float name(float x)                                                             \
    {                                                                                              \
        return float_name(x);                                                                      \
    }                                                                                              \
    template <class I> OPD_CPU_INLINE auto name(I x)->decltype(x % 1, double())                    \
    {                                                                                              \
        return name((double)x);                                                                    \
    }
#define OPD_CPU_MATH(name)                                                                         \
    extern "C" double name(double) noexcept;                                                       \
    extern "C" float name##f(float) noexcept;                                                      \
    OPD_CPU_MATH_OVERLOADS(name, name##f)
#define OPD_CPU_MATH_OWN(name, float_name)                                                         \
    OPD_CPU_INLINE double name(double x) noexcept                                                  \
    {                                                                                              \
        return opd_cpu_##name(x);                                                                  \
    }                                                                                              \
    OPD_CPU_MATH_OVERLOADS(name, float_name)
OPD_CPU_MATH_OWN(exp, opd_cpu_expf)
OPD_CPU_MATH_OWN(tanh, opd_cpu_tanhf)
OPD_CPU_MATH_OWN(erf, opd_cpu_erff)
OPD_CPU_MATH_OWN(expm1, opd_cpu_expm1f)
OPD_CPU_MATH_OWN(log, opd_cpu_logf)
OPD_CPU_MATH_OWN(log1p, opd_cpu_log1pf)
OPD_CPU_MATH_OWN(asin, opd_cpu_asinf)
OPD_CPU_MATH_OWN(acos, opd_cpu_acosf)
extern "C" float erfcf(float) noexcept;
OPD_CPU_MATH_OWN(erfc, erfcf)
#define expf opd_cpu_expf
#define tanhf opd_cpu_tanhf
#define erff opd_cpu_erff
#define expm1f opd_cpu_expm1f
#define logf opd_cpu_logf
#define log1pf opd_cpu_log1pf
#define asinf opd_cpu_asinf
#define acosf opd_cpu_acosf
OPD_CPU_MATH(exp2)
OPD_CPU_MATH(log2)
OPD_CPU_MATH(log10)
OPD_CPU_MATH(sqrt)
OPD_CPU_MATH(cbrt)
OPD_CPU_MATH(sin)
OPD_CPU_MATH(cos)
OPD_CPU_MATH(tan)
OPD_CPU_MATH(atan)
OPD_CPU_MATH(sinh)
OPD_CPU_MATH(cosh)
OPD_CPU_MATH(asinh)
OPD_CPU_MATH(acosh)
OPD_CPU_MATH(atanh)
OPD_CPU_MATH(tgamma)
OPD_CPU_MATH(lgamma)
OPD_CPU_MATH(floor)
OPD_CPU_MATH(ceil)
OPD_CPU_MATH(trunc)
OPD_CPU_MATH(round)
OPD_CPU_MATH(rint)
OPD_CPU_MATH(nearbyint)
OPD_CPU_MATH(fabs)

// Two arguments: a float beside a double becomes one. Templates, so that opd.cuh may have functions
// of its own.
template <class X, class Y> struct opd_cpu_mixed {
};
template <> struct opd_cpu_mixed<float, double> {
    typedef double type;
};
template <> struct opd_cpu_mixed<double, float> {
    typedef double type;
};
#define OPD_CPU_MIXED(name)                                                                        \
    template <class X, class Y> OPD_CPU_INLINE typename opd_cpu_mixed<X, Y>::type name(X x, Y y)   \
    {                                                                                              \
        return name((double)x, (double)y);                                                         \
    }
#define OPD_CPU_MATH2(name)                                                                        \
    extern "C" double name(double, double) noexcept;                                               \
    extern "C" float name##f(float, float) noexcept;                                               \
    OPD_CPU_INLINE float name(float x, float y)                                                    \
    {                                                                                              \
        return name##f(x, y);                                                                      \
    }                                                                                              \
    OPD_CPU_MIXED(name)
OPD_CPU_MATH2(pow)
OPD_CPU_MATH2(fmod)
OPD_CPU_MATH2(atan2)
OPD_CPU_MATH2(hypot)
OPD_CPU_MATH2(copysign)
OPD_CPU_MATH2(remainder)
OPD_CPU_MATH2(fdim)
OPD_CPU_INLINE float pow(float x, int y)
{
    return powf(x, (float)y);
}
OPD_CPU_INLINE double pow(double x, int y)
{
    return pow(x, (double)y);
}

// A NaN loses against a number.
#define OPD_CPU_FMAX(name, T, op)                                                                  \
    OPD_CPU_INLINE T name(T a, T b)                                                                \
    {                                                                                              \
        return a op b || a != a ? b : a;                                                           \
    }
OPD_CPU_FMAX(fmax, float, <)
OPD_CPU_FMAX(fmin, float, >)
OPD_CPU_FMAX(fmax, double, <)
OPD_CPU_FMAX(fmin, double, >)
OPD_CPU_FMAX(max, float, <)
OPD_CPU_FMAX(min, float, >)
OPD_CPU_FMAX(max, double, <)
OPD_CPU_FMAX(min, double, >)
OPD_CPU_MIXED(fmax)
OPD_CPU_MIXED(fmin)
OPD_CPU_MIXED(max)
OPD_CPU_MIXED(min)
OPD_CPU_INLINE float opd_cpu_fmaxf(float x, float y)
{
    return fmax(x, y);
}
OPD_CPU_INLINE float opd_cpu_fminf(float x, float y)
{
    return fmin(x, y);
}
#define fmaxf opd_cpu_fmaxf
#define fminf opd_cpu_fminf

#define OPD_CPU_MAX(T, S, R)                                                                       \
    OPD_CPU_INLINE constexpr R max(T x, S y)                                                       \
    {                                                                                              \
        return (R)x < (R)y ? (R)y : (R)x;                                                          \
    }                                                                                              \
    OPD_CPU_INLINE constexpr R min(T x, S y)                                                       \
    {                                                                                              \
        return (R)y < (R)x ? (R)y : (R)x;                                                          \
    }
OPD_CPU_MAX(int, int, int)
OPD_CPU_MAX(unsigned, unsigned, unsigned)
OPD_CPU_MAX(int, unsigned, unsigned)
OPD_CPU_MAX(unsigned, int, unsigned)
OPD_CPU_MAX(long, long, long)
OPD_CPU_MAX(unsigned long, unsigned long, unsigned long)
OPD_CPU_MAX(long, unsigned long, unsigned long)
OPD_CPU_MAX(unsigned long, long, unsigned long)
OPD_CPU_MAX(long long, long long, long long)
OPD_CPU_MAX(unsigned long long, unsigned long long, unsigned long long)
OPD_CPU_MAX(long long, unsigned long long, unsigned long long)
OPD_CPU_MAX(unsigned long long, long long, unsigned long long)

extern "C" int abs(int) noexcept;
OPD_CPU_INLINE float abs(float x)
{
    return __builtin_fabsf(x);
}
OPD_CPU_INLINE double abs(double x)
{
    return __builtin_fabs(x);
}
OPD_CPU_INLINE long abs(long x)
{
    return x < 0 ? -x : x;
}
OPD_CPU_INLINE long long abs(long long x)
{
    return x < 0 ? -x : x;
}
OPD_CPU_INLINE long long llabs(long long x)
{
    return x < 0 ? -x : x;
}

OPD_CPU_INLINE bool isnan(float x)
{
    return __builtin_isnan(x);
}
OPD_CPU_INLINE bool isnan(double x)
{
    return __builtin_isnan(x);
}
OPD_CPU_INLINE bool isinf(float x)
{
    return __builtin_isinf(x);
}
OPD_CPU_INLINE bool isinf(double x)
{
    return __builtin_isinf(x);
}
OPD_CPU_INLINE bool isfinite(float x)
{
    return __builtin_isfinite(x);
}
OPD_CPU_INLINE bool isfinite(double x)
{
    return __builtin_isfinite(x);
}
OPD_CPU_INLINE bool signbit(float x)
{
    return __builtin_signbit(x);
}
OPD_CPU_INLINE bool signbit(double x)
{
    return __builtin_signbit(x);
}

OPD_CPU_INLINE float fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
OPD_CPU_INLINE double fma(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}
extern "C" float fmaf(float, float, float) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float frexpf(float, int *) noexcept;
extern "C" double frexp(double, int *) noexcept;
extern "C" float modff(float, float *) noexcept;
extern "C" double modf(double, double *) noexcept;
OPD_CPU_INLINE float ldexp(float x, int n)
{
    return ldexpf(x, n);
}

OPD_CPU_INLINE float rsqrtf(float x)
{
    return 1.0f / __builtin_sqrtf(x);
}
OPD_CPU_INLINE float rsqrt(float x)
{
    return 1.0f / __builtin_sqrtf(x);
}
OPD_CPU_INLINE double rsqrt(double x)
{
    return 1.0 / __builtin_sqrt(x);
}
OPD_CPU_INLINE float rcbrtf(float x)
{
    return 1.0f / cbrtf(x);
}
OPD_CPU_INLINE float exp10f(float x)
{
    return powf(10.0f, x);
}
OPD_CPU_INLINE double exp10(double x)
{
    return pow(10.0, x);
}
OPD_CPU_INLINE float normcdff(float x)
{
    return 0.5f * erfcf(x * -0.70710678f);
}
OPD_CPU_INLINE double normcdf(double x)
{
    return 0.5 * erfc(x * -0.70710678118654752440);
}
OPD_CPU_INLINE void sincosf(float x, float *s, float *c)
{
    *s = sinf(x), *c = cosf(x);
}
OPD_CPU_INLINE void sincos(double x, double *s, double *c)
{
    *s = sin(x), *c = cos(x);
}
OPD_CPU_INLINE float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
OPD_CPU_INLINE float __fdividef(float a, float b)
{
    return a / b;
}
OPD_CPU_INLINE float fdividef(float a, float b)
{
    return a / b;
}
OPD_CPU_INLINE float __frcp_rn(float x)
{
    return 1.0f / x;
}
OPD_CPU_INLINE float __fsqrt_rn(float x)
{
    return __builtin_sqrtf(x);
}
OPD_CPU_INLINE float __frsqrt_rn(float x)
{
    return 1.0f / __builtin_sqrtf(x);
}
OPD_CPU_INLINE float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
OPD_CPU_INLINE float __fdiv_rn(float a, float b)
{
    return a / b;
}
// Only the names are taken: these are macros because the C library has functions of the same names.
#define __expf opd_cpu_expf
#define __logf opd_cpu_logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf
#define __exp10f exp10f
#define __tanhf opd_cpu_tanhf

#define OPD_CPU_CONVERT(from, From, to, To)                                                        \
    OPD_CPU_INLINE To __##from##2##to##_rn(From x)                                                 \
    {                                                                                              \
        return (To)__builtin_rint(x);                                                              \
    }                                                                                              \
    OPD_CPU_INLINE To __##from##2##to##_rz(From x)                                                 \
    {                                                                                              \
        return (To)x;                                                                              \
    }                                                                                              \
    OPD_CPU_INLINE To __##from##2##to##_rd(From x)                                                 \
    {                                                                                              \
        return (To)__builtin_floor(x);                                                             \
    }                                                                                              \
    OPD_CPU_INLINE To __##from##2##to##_ru(From x)                                                 \
    {                                                                                              \
        return (To)__builtin_ceil(x);                                                              \
    }                                                                                              \
    OPD_CPU_INLINE From __##to##2##from##_rn(To x)                                                 \
    {                                                                                              \
        return (From)x;                                                                            \
    }
OPD_CPU_CONVERT(float, float, int, int)
OPD_CPU_CONVERT(float, float, uint, unsigned)
OPD_CPU_CONVERT(float, float, ll, long long)
OPD_CPU_CONVERT(float, float, ull, unsigned long long)
OPD_CPU_CONVERT(double, double, int, int)
OPD_CPU_CONVERT(double, double, uint, unsigned)
OPD_CPU_CONVERT(double, double, ll, long long)
OPD_CPU_CONVERT(double, double, ull, unsigned long long)
OPD_CPU_INLINE float __double2float_rn(double x)
{
    return (float)x;
}
#define OPD_CPU_ROUNDED(name, op)                                                                  \
    OPD_CPU_INLINE float __f##name##_rn(float a, float b)                                          \
    {                                                                                              \
        return a op b;                                                                             \
    }                                                                                              \
    OPD_CPU_INLINE double __d##name##_rn(double a, double b)                                       \
    {                                                                                              \
        return a op b;                                                                             \
    }
OPD_CPU_ROUNDED(add, +)
OPD_CPU_ROUNDED(sub, -)
OPD_CPU_ROUNDED(mul, *)
OPD_CPU_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
OPD_CPU_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}
OPD_CPU_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n < 32 ? n : 32));
}
OPD_CPU_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((unsigned long long)high << 32 | low) << (n < 32 ? n : 32) >> 32);
}
OPD_CPU_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned which)
{
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned at = which >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (at & 7)) & 255;
        v |= (at & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return v;
}
OPD_CPU_INLINE int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (signed char)(a >> i) * (signed char)(b >> i);
    return c;
}
OPD_CPU_INLINE int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
OPD_CPU_INLINE int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
OPD_CPU_INLINE int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
OPD_CPU_INLINE int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
OPD_CPU_INLINE int __ffs(int x)
{
    return __builtin_ffs(x);
}
OPD_CPU_INLINE int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
OPD_CPU_INLINE unsigned __brev(unsigned x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
OPD_CPU_INLINE int __mul24(int a, int b)
{
    return a * b;
}
OPD_CPU_INLINE int __mulhi(int a, int b)
{
    return (int)((long long)a * b >> 32);
}
OPD_CPU_INLINE unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}

namespace std
{
using ::abs, ::exp, ::log, ::sqrt, ::pow, ::sin, ::cos, ::tanh, ::floor, ::ceil, ::round, ::fabs,
    ::erf, ::fmod;
using ::fmax, ::fmin, ::isfinite, ::isinf, ::isnan, ::max, ::min;
} // namespace std
