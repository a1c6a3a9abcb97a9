// <cuda_fp16.h> and <cuda_bf16.h>: CUDA's names for the 16-bit floats, alone and in pairs, on the
// GPU and on the CPU device. They convert to and from opd::half and opd::bfloat16, and their layout
// is the same. Each result is rounded once, to nearest even; exp, log and the like are made in
// float.
#ifndef OPD_FP16
#define OPD_FP16
#define __CUDA_FP16_TYPES_EXIST__
#define __CUDA_BF16_TYPES_EXIST__

#define OPD_FN __device__ __forceinline__

#define OPD_16BIT(name, base)                                                                      \
    struct name : opd::base {                                                                      \
        name() = default;                                                                          \
        OPD_FN name(opd::base v) : opd::base(v)                                                    \
        {                                                                                          \
        }                                                                                          \
        OPD_FN name(float v) : opd::base(v)                                                        \
        {                                                                                          \
        }                                                                                          \
        OPD_FN name(double v) : opd::base((float)v)                                                \
        {                                                                                          \
        }                                                                                          \
        template <class I, class = typename opd::only_if<opd::is_integer<I>::value, I>::type>      \
        OPD_FN name(I v) : opd::base((float)v)                                                     \
        {                                                                                          \
        }                                                                                          \
        OPD_FN name(name##_raw v)                                                                  \
        {                                                                                          \
            x = v.x;                                                                               \
        }                                                                                          \
        OPD_FN operator name##_raw() const                                                         \
        {                                                                                          \
            return { this->x };                                                                    \
        }                                                                                          \
    };                                                                                             \
    namespace opd                                                                                  \
    {                                                                                              \
    template <> struct is_16bit<name> {                                                            \
        enum { value = true };                                                                     \
    };                                                                                             \
    template <> struct acc_type<name> {                                                            \
        typedef float type;                                                                        \
    };                                                                                             \
    }                                                                                              \
    OPD_FN opd::base::operator name() const                                                        \
    {                                                                                              \
        return name(*this);                                                                        \
    }                                                                                              \
    OPD_FN name opd_##base(uint16_t bits)                                                          \
    {                                                                                              \
        name v;                                                                                    \
        v.x = bits;                                                                                \
        return v;                                                                                  \
    }                                                                                              \
    OPD_FN uint16_t __##base##_as_ushort(name v)                                                   \
    {                                                                                              \
        return v.x;                                                                                \
    }                                                                                              \
    OPD_FN int16_t __##base##_as_short(name v)                                                     \
    {                                                                                              \
        return (int16_t)v.x;                                                                       \
    }                                                                                              \
    OPD_FN name __ushort_as_##base(uint16_t v)                                                     \
    {                                                                                              \
        return opd_##base(v);                                                                      \
    }                                                                                              \
    OPD_FN name __short_as_##base(int16_t v)                                                       \
    {                                                                                              \
        return opd_##base((uint16_t)v);                                                            \
    }                                                                                              \
    OPD_FN name __float2##base(float v)                                                            \
    {                                                                                              \
        return name(v);                                                                            \
    }                                                                                              \
    OPD_FN name __float2##base##_rn(float v)                                                       \
    {                                                                                              \
        return name(v);                                                                            \
    }                                                                                              \
    OPD_FN name __double2##base(double v)                                                          \
    {                                                                                              \
        return name(v);                                                                            \
    }                                                                                              \
    OPD_FN float __##base##2float(name v)                                                          \
    {                                                                                              \
        return v;                                                                                  \
    }                                                                                              \
    OPD_16BIT_INTEGER(name, base, int, int)                                                        \
    OPD_16BIT_INTEGER(name, base, uint, unsigned)                                                  \
    OPD_16BIT_INTEGER(name, base, short, short)                                                    \
    OPD_16BIT_INTEGER(name, base, ushort, unsigned short)                                          \
    OPD_16BIT_INTEGER(name, base, ll, long long)                                                   \
    OPD_16BIT_INTEGER(name, base, ull, unsigned long long)

#define OPD_16BIT_INTEGER(name, base, word, I)                                                     \
    OPD_FN name __##word##2##base##_rn(I v)                                                        \
    {                                                                                              \
        return name((float)v);                                                                     \
    }                                                                                              \
    OPD_FN I __##base##2##word##_rn(name v)                                                        \
    {                                                                                              \
        return (I)rint((float)v);                                                                  \
    }                                                                                              \
    OPD_FN I __##base##2##word##_rz(name v)                                                        \
    {                                                                                              \
        return (I)(float)v;                                                                        \
    }                                                                                              \
    OPD_FN I __##base##2##word##_rd(name v)                                                        \
    {                                                                                              \
        return (I)floor((float)v);                                                                 \
    }                                                                                              \
    OPD_FN I __##base##2##word##_ru(name v)                                                        \
    {                                                                                              \
        return (I)ceil((float)v);                                                                  \
    }

// The same name for both types, alone and in pairs.
#define OPD_16BIT_BINARY(T, T2, name, name2, expression)                                           \
    OPD_FN T name(T a, T b)                                                                        \
    {                                                                                              \
        return T(expression);                                                                      \
    }                                                                                              \
    OPD_FN T2 name2(T2 a, T2 b)                                                                    \
    {                                                                                              \
        return { name(a.x, b.x), name(a.y, b.y) };                                                 \
    }
#define OPD_16BIT_UNARY(T, T2, name, name2, expression)                                            \
    OPD_FN T name(T a)                                                                             \
    {                                                                                              \
        return T(expression);                                                                      \
    }                                                                                              \
    OPD_FN T2 name2(T2 a)                                                                          \
    {                                                                                              \
        return { name(a.x), name(a.y) };                                                           \
    }
#define OPD_16BIT_COMPARE(T, T2, name, op)                                                         \
    OPD_FN bool __h##name(T a, T b)                                                                \
    {                                                                                              \
        return (float)a op(float) b;                                                               \
    }                                                                                              \
    OPD_FN T2 __h##name##2(T2 a, T2 b)                                                             \
    {                                                                                              \
        return { T(__h##name(a.x, b.x) ? 1.0f : 0.0f), T(__h##name(a.y, b.y) ? 1.0f : 0.0f) };     \
    }                                                                                              \
    OPD_FN bool __hb##name##2(T2 a, T2 b)                                                          \
    {                                                                                              \
        return __h##name(a.x, b.x) && __h##name(a.y, b.y);                                         \
    }
#define OPD_16BIT_OPERATOR(T2, op, function)                                                       \
    OPD_FN T2 operator op(T2 a, T2 b)                                                              \
    {                                                                                              \
        return function(a, b);                                                                     \
    }                                                                                              \
    OPD_FN T2 &operator op##=(T2 &a, T2 b)                                                         \
    {                                                                                              \
        return a = function(a, b);                                                                 \
    }

// Two at once, where the GPU has an instruction for it.
#if defined(OPD_CPU)
#define OPD_16BIT_FUSED(T, T2, suffix)                                                             \
    OPD_FN T __hfma(T a, T b, T c)                                                                 \
    {                                                                                              \
        return T((double)(float)a * (float)b + (float)c);                                          \
    }                                                                                              \
    OPD_FN T2 __hfma2(T2 a, T2 b, T2 c)                                                            \
    {                                                                                              \
        return { __hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y) };                                   \
    }
#else
#define OPD_16BIT_FUSED(T, T2, suffix)                                                             \
    OPD_FN T __hfma(T a, T b, T c)                                                                 \
    {                                                                                              \
        T d;                                                                                       \
        asm("fma.rn." suffix " %0, %1, %2, %3;"                                                    \
            : "=h"(d.x)                                                                            \
            : "h"(a.x), "h"(b.x), "h"(c.x));                                                       \
        return d;                                                                                  \
    }                                                                                              \
    OPD_FN T2 __hfma2(T2 a, T2 b, T2 c)                                                            \
    {                                                                                              \
        unsigned d;                                                                                \
        asm("fma.rn." suffix "x2 %0, %1, %2, %3;"                                                  \
            : "=r"(d)                                                                              \
            : "r"(reinterpret_cast<unsigned &>(a)), "r"(reinterpret_cast<unsigned &>(b)),          \
              "r"(reinterpret_cast<unsigned &>(c)));                                               \
        return reinterpret_cast<T2 &>(d);                                                          \
    }
#endif

#define OPD_16BIT_FUNCTIONS(T, T2, suffix)                                                         \
    OPD_FN T2 __halves2##T2(T x, T y)                                                              \
    {                                                                                              \
        return { x, y };                                                                           \
    }                                                                                              \
    OPD_FN float __low2float(T2 v)                                                                 \
    {                                                                                              \
        return v.x;                                                                                \
    }                                                                                              \
    OPD_FN float __high2float(T2 v)                                                                \
    {                                                                                              \
        return v.y;                                                                                \
    }                                                                                              \
    OPD_FN T2 __lowhigh2highlow(T2 v)                                                              \
    {                                                                                              \
        return { v.y, v.x };                                                                       \
    }                                                                                              \
    OPD_16BIT_BINARY(T, T2, __hadd, __hadd2, (float)a + (float)b)                                  \
    OPD_16BIT_BINARY(T, T2, __hsub, __hsub2, (float)a - (float)b)                                  \
    OPD_16BIT_BINARY(T, T2, __hmul, __hmul2, (float)a *(float)b)                                   \
    OPD_16BIT_BINARY(T, T2, __hdiv, __h2div, (float)a / (float)b)                                  \
    OPD_16BIT_BINARY(T, T2, __hadd_rn, __hadd2_rn, (float)a + (float)b)                            \
    OPD_16BIT_BINARY(T, T2, __hsub_rn, __hsub2_rn, (float)a - (float)b)                            \
    OPD_16BIT_BINARY(T, T2, __hmul_rn, __hmul2_rn, (float)a *(float)b)                             \
    OPD_16BIT_BINARY(T, T2, __hmax, __hmax2, fmaxf(a, b))                                          \
    OPD_16BIT_BINARY(T, T2, __hmin, __hmin2, fminf(a, b))                                          \
    OPD_16BIT_UNARY(T, T2, __hneg, __hneg2, -(float)a)                                             \
    OPD_16BIT_UNARY(T, T2, __habs, __habs2, fabsf(a))                                              \
    OPD_16BIT_UNARY(T, T2, hexp, h2exp, expf(a))                                                   \
    OPD_16BIT_UNARY(T, T2, hexp2, h2exp2, exp2f(a))                                                \
    OPD_16BIT_UNARY(T, T2, hexp10, h2exp10, exp10f(a))                                             \
    OPD_16BIT_UNARY(T, T2, hlog, h2log, logf(a))                                                   \
    OPD_16BIT_UNARY(T, T2, hlog2, h2log2, log2f(a))                                                \
    OPD_16BIT_UNARY(T, T2, hlog10, h2log10, log10f(a))                                             \
    OPD_16BIT_UNARY(T, T2, hsqrt, h2sqrt, sqrtf(a))                                                \
    OPD_16BIT_UNARY(T, T2, hrsqrt, h2rsqrt, rsqrtf(a))                                             \
    OPD_16BIT_UNARY(T, T2, hrcp, h2rcp, 1.0f / (float)a)                                           \
    OPD_16BIT_UNARY(T, T2, hsin, h2sin, sinf(a))                                                   \
    OPD_16BIT_UNARY(T, T2, hcos, h2cos, cosf(a))                                                   \
    OPD_16BIT_UNARY(T, T2, htanh, h2tanh, tanhf(a))                                                \
    OPD_16BIT_UNARY(T, T2, hceil, h2ceil, ceilf(a))                                                \
    OPD_16BIT_UNARY(T, T2, hfloor, h2floor, floorf(a))                                             \
    OPD_16BIT_UNARY(T, T2, htrunc, h2trunc, truncf(a))                                             \
    OPD_16BIT_UNARY(T, T2, hrint, h2rint, rintf(a))                                                \
    OPD_16BIT_COMPARE(T, T2, eq, ==)                                                               \
    OPD_16BIT_COMPARE(T, T2, ne, !=)                                                               \
    OPD_16BIT_COMPARE(T, T2, lt, <)                                                                \
    OPD_16BIT_COMPARE(T, T2, le, <=)                                                               \
    OPD_16BIT_COMPARE(T, T2, gt, >)                                                                \
    OPD_16BIT_COMPARE(T, T2, ge, >=)                                                               \
    OPD_FN bool __hisnan(T a)                                                                      \
    {                                                                                              \
        return (float)a != (float)a;                                                               \
    }                                                                                              \
    OPD_FN int __hisinf(T a)                                                                       \
    {                                                                                              \
        return fabsf(a) == INFINITY ? (float)a > 0 ? 1 : -1 : 0;                                   \
    }                                                                                              \
    OPD_16BIT_FUSED(T, T2, suffix)                                                                 \
    OPD_FN T __hfma_relu(T a, T b, T c)                                                            \
    {                                                                                              \
        return __hmax(__hfma(a, b, c), T(0.0f));                                                   \
    }                                                                                              \
    OPD_FN T2 __hfma2_relu(T2 a, T2 b, T2 c)                                                       \
    {                                                                                              \
        return { __hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y) };                         \
    }                                                                                              \
    OPD_16BIT_OPERATOR(T2, +, __hadd2)                                                             \
    OPD_16BIT_OPERATOR(T2, -, __hsub2)                                                             \
    OPD_16BIT_OPERATOR(T2, *, __hmul2)                                                             \
    OPD_16BIT_OPERATOR(T2, /, __h2div)                                                             \
    OPD_FN T2 operator-(T2 a)                                                                      \
    {                                                                                              \
        return __hneg2(a);                                                                         \
    }                                                                                              \
    OPD_FN bool operator==(T2 a, T2 b)                                                             \
    {                                                                                              \
        return __hbeq2(a, b);                                                                      \
    }                                                                                              \
    OPD_16BIT_WORDS(T, T2)

#ifdef OPD_CPU
#define OPD_16BIT_WORDS(T, T2)                                                                     \
    OPD_FN T2 atomicAdd(T2 *p, T2 v)                                                               \
    {                                                                                              \
        return { atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y) };                                   \
    }
#else
#define OPD_16BIT_SHUFFLE(T, T2, name, I)                                                          \
    OPD_FN T name(unsigned mask, T v, I other, int width = 32)                                     \
    {                                                                                              \
        v.x = (uint16_t)name(mask, (unsigned)v.x, other, width);                                   \
        return v;                                                                                  \
    }                                                                                              \
    OPD_FN T2 name(unsigned mask, T2 v, I other, int width = 32)                                   \
    {                                                                                              \
        unsigned bits = name(mask, reinterpret_cast<unsigned &>(v), other, width);                 \
        return reinterpret_cast<T2 &>(bits);                                                       \
    }
#define OPD_16BIT_WORDS(T, T2)                                                                     \
    OPD_16BIT_SHUFFLE(T, T2, __shfl_sync, int)                                                     \
    OPD_16BIT_SHUFFLE(T, T2, __shfl_up_sync, unsigned)                                             \
    OPD_16BIT_SHUFFLE(T, T2, __shfl_down_sync, unsigned)                                           \
    OPD_16BIT_SHUFFLE(T, T2, __shfl_xor_sync, int)                                                 \
    OPD_FN T2 __ldg(const T2 *p)                                                                   \
    {                                                                                              \
        unsigned bits = __ldg(reinterpret_cast<const unsigned *>(p));                              \
        return reinterpret_cast<T2 &>(bits);                                                       \
    }                                                                                              \
    OPD_FN T2 atomicAdd(T2 *p, T2 v)                                                               \
    {                                                                                              \
        return { atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y) };                                   \
    }
#endif

struct __half_raw {
    uint16_t x;
};
struct __nv_bfloat16_raw {
    uint16_t x;
};
OPD_16BIT(__half, half)
OPD_16BIT(__nv_bfloat16, bfloat16)
typedef __half half, nv_half;
typedef __nv_bfloat16 nv_bfloat16;

#define OPD_16BIT_PAIR(T, T2)                                                                      \
    struct T2##_raw {                                                                              \
        uint16_t x, y;                                                                             \
    };                                                                                             \
    struct alignas(4) T2 {                                                                         \
        T x, y;                                                                                    \
        T2() = default;                                                                            \
        OPD_FN T2(T x, T y) : x(x), y(y)                                                           \
        {                                                                                          \
        }                                                                                          \
        OPD_FN T2(T2##_raw v) : x(T##_raw{ v.x }), y(T##_raw{ v.y })                               \
        {                                                                                          \
        }                                                                                          \
        OPD_FN operator T2##_raw() const                                                           \
        {                                                                                          \
            return { x.x, y.x };                                                                   \
        }                                                                                          \
    };
OPD_16BIT_PAIR(__half, __half2)
OPD_16BIT_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __half2 half2, nv_half2;
typedef __nv_bfloat162 nv_bfloat162;

#define __halves2__half2 __halves2half2
#define __halves2__nv_bfloat162 __halves2bfloat162
OPD_16BIT_FUNCTIONS(__half, __half2, "f16")
OPD_16BIT_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, "bf16")

#define OPD_16BIT_PAIRS(T, T2, word)                                                               \
    OPD_FN T2 __float2##word##2_rn(float v)                                                        \
    {                                                                                              \
        return { T(v), T(v) };                                                                     \
    }                                                                                              \
    OPD_FN T2 __floats2##word##2_rn(float x, float y)                                              \
    {                                                                                              \
        return { T(x), T(y) };                                                                     \
    }                                                                                              \
    OPD_FN T2 __float22##word##2_rn(float2 v)                                                      \
    {                                                                                              \
        return { T(v.x), T(v.y) };                                                                 \
    }                                                                                              \
    OPD_FN float2 __##word##22float2(T2 v)                                                         \
    {                                                                                              \
        return { v.x, v.y };                                                                       \
    }                                                                                              \
    OPD_FN T2 __##word##2##word##2(T v)                                                            \
    {                                                                                              \
        return { v, v };                                                                           \
    }                                                                                              \
    OPD_FN T __low2##word(T2 v)                                                                    \
    {                                                                                              \
        return v.x;                                                                                \
    }                                                                                              \
    OPD_FN T __high2##word(T2 v)                                                                   \
    {                                                                                              \
        return v.y;                                                                                \
    }                                                                                              \
    OPD_FN T2 __low2##word##2(T2 v)                                                                \
    {                                                                                              \
        return { v.x, v.x };                                                                       \
    }                                                                                              \
    OPD_FN T2 __high2##word##2(T2 v)                                                               \
    {                                                                                              \
        return { v.y, v.y };                                                                       \
    }                                                                                              \
    OPD_FN T2 __lows2##word##2(T2 a, T2 b)                                                         \
    {                                                                                              \
        return { a.x, b.x };                                                                       \
    }                                                                                              \
    OPD_FN T2 __highs2##word##2(T2 a, T2 b)                                                        \
    {                                                                                              \
        return { a.y, b.y };                                                                       \
    }                                                                                              \
    OPD_FN T2 make_##word##2(T x, T y)                                                             \
    {                                                                                              \
        return { x, y };                                                                           \
    }
OPD_16BIT_PAIRS(__half, __half2, half)
OPD_16BIT_PAIRS(__nv_bfloat16, __nv_bfloat162, bfloat16)

#endif
