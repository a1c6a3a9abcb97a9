// Comes before every operator file, on the GPU (NVRTC, which has no other header) and on the CPU
// device (after its shim). It supplies what CUDA's and PyTorch's own headers would: fixed-size
// integers, 16-bit floats, accessors, grid loops and reductions. After it stand the aliases of the
// request, as in `using scalar_t = opd::half; using acc_t = float;`. Its parts, below, are put in
// place of the lines that include them.
#pragma once

#ifndef OPD_CPU // whose shim has them
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef decltype(sizeof(0)) size_t;
typedef long ptrdiff_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#ifndef CUDA_VERSION // as cuda.h says
#ifdef __CUDACC_VER_MAJOR__
#define CUDA_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#else
#define CUDA_VERSION 13000
#endif
#endif
#ifndef CUDART_VERSION
#define CUDART_VERSION CUDA_VERSION
#endif

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
#endif
#ifndef INT_MAX
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 0xffffffff
#define LLONG_MAX 0x7fffffffffffffffLL
#define LLONG_MIN (-LLONG_MAX - 1)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
// Ambiguous otherwise, where nvcc's headers promote.
#define OPD_PROMOTE(f)                                                                             \
    __device__ __forceinline__ double f(float a, double b)                                         \
    {                                                                                              \
        return f((double)a, b);                                                                    \
    }                                                                                              \
    __device__ __forceinline__ double f(double a, float b)                                         \
    {                                                                                              \
        return f(a, (double)b);                                                                    \
    }
OPD_PROMOTE(pow)
OPD_PROMOTE(fmax)
OPD_PROMOTE(fmin)
OPD_PROMOTE(fmod)
#ifdef OPD_CPU
OPD_PROMOTE(max)
OPD_PROMOTE(min)
#endif
#undef OPD_PROMOTE

#ifndef OPD_CPU
namespace std
{
using ::abs, ::exp, ::log, ::sqrt, ::pow, ::sin, ::cos, ::tanh, ::floor, ::ceil, ::round, ::fabs,
    ::erf, ::fmod;
using ::fmax, ::fmin, ::isfinite, ::isinf, ::isnan, ::max, ::min;
} // namespace std
#endif
#if !defined(OPD_CPU) && !defined(assert)
extern "C" __device__ void __assertfail(const char *what, const char *file, unsigned line,
                                        const char *function, size_t char_size);
#define assert(x) ((x) ? (void)0 : __assertfail(#x, __FILE__, __LINE__, __func__, 1))
#endif
#ifndef CUDA_KERNEL_ASSERT
#define CUDA_KERNEL_ASSERT(x) assert(x)
#endif

struct __half;
struct __nv_bfloat16;

namespace opd
{

// Where the file includes NVIDIA's own header of a 16-bit type before this text, its type converts
// to and from ours.
#define OPD_NVIDIA_16BIT(name, theirs)                                                             \
    __device__ __forceinline__ name(const ::theirs &v) : x(reinterpret_cast<const uint16_t &>(v))  \
    {                                                                                              \
    }                                                                                              \
    __device__ __forceinline__ operator ::theirs() const                                           \
    {                                                                                              \
        return reinterpret_cast<const ::theirs &>(*this);                                          \
    }

// 16 bits of storage. Every operation is done in float and rounded once, to nearest even.
// Arithmetic with float gives float, with double double, with an integer the 16-bit type.
// Mathematical functions take and give float.
struct half {
    uint16_t x; // as PyTorch calls it

    half() = default;
    __device__ __forceinline__ half(float v)
    {
#ifdef OPD_CPU
        x = opd_cpu_float_to_half(v);
#else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(v));
#endif
    }
    __device__ __forceinline__ operator float() const
    {
#ifdef OPD_CPU
        return opd_cpu_half_to_float(x);
#else
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x));
        return v;
#endif
    }
    template <class T> __device__ __forceinline__ half &operator+=(T b)
    {
        return *this = half(*this + b);
    }
    template <class T> __device__ __forceinline__ half &operator-=(T b)
    {
        return *this = half(*this - b);
    }
    template <class T> __device__ __forceinline__ half &operator*=(T b)
    {
        return *this = half(*this * b);
    }
    template <class T> __device__ __forceinline__ half &operator/=(T b)
    {
        return *this = half(*this / b);
    }
#ifdef __CUDA_FP16_TYPES_EXIST__
    OPD_NVIDIA_16BIT(half, __half)
#else
    __device__ __forceinline__ explicit operator ::__half() const; // of our cuda_fp16.h
#endif
};

struct bfloat16 {
    uint16_t x; // as PyTorch calls it

    bfloat16() = default;
    __device__ __forceinline__ bfloat16(float v)
    {
#if defined(OPD_CPU)
        x = opd_cpu_float_to_bfloat16(v);
#elif __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x) : "f"(v));
#else
        uint32_t u = __float_as_uint(v);
        u = v != v ? 0x7fff0000u : u + 0x7fffu + (u >> 16 & 1);
        x = (uint16_t)(u >> 16);
#endif
    }
    __device__ __forceinline__ operator float() const
    {
#ifdef OPD_CPU
        return opd_cpu_bfloat16_to_float(x);
#else
        return __uint_as_float((uint32_t)x << 16);
#endif
    }
    template <class T> __device__ __forceinline__ bfloat16 &operator+=(T b)
    {
        return *this = bfloat16(*this + b);
    }
    template <class T> __device__ __forceinline__ bfloat16 &operator-=(T b)
    {
        return *this = bfloat16(*this - b);
    }
    template <class T> __device__ __forceinline__ bfloat16 &operator*=(T b)
    {
        return *this = bfloat16(*this * b);
    }
    template <class T> __device__ __forceinline__ bfloat16 &operator/=(T b)
    {
        return *this = bfloat16(*this / b);
    }
#ifdef __CUDA_BF16_TYPES_EXIST__
    OPD_NVIDIA_16BIT(bfloat16, __nv_bfloat16)
#else
    __device__ __forceinline__ explicit operator ::__nv_bfloat16() const;
#endif
};
#undef OPD_NVIDIA_16BIT

// What sums of T are kept in.
template <class T> struct acc_type {
    typedef T type;
};
template <> struct acc_type<half> {
    typedef float type;
};
template <> struct acc_type<bfloat16> {
    typedef float type;
};
template <> struct acc_type<int8_t> {
    typedef int type;
};
template <> struct acc_type<int16_t> {
    typedef int type;
};

template <bool, class T> struct only_if {};
template <class T> struct only_if<true, T> {
    typedef T type;
};

template <class T> struct is_16bit {
    enum { value = false };
};
template <> struct is_16bit<half> {
    enum { value = true };
};
template <> struct is_16bit<bfloat16> {
    enum { value = true };
};

template <class T> struct is_integer {
    enum { value = false };
};
#define OPD_INTEGER(T)                                                                             \
    template <> struct is_integer<T> {                                                             \
        enum { value = true };                                                                     \
    };
OPD_INTEGER(bool)
OPD_INTEGER(char)
OPD_INTEGER(signed char)
OPD_INTEGER(unsigned char)
OPD_INTEGER(short)
OPD_INTEGER(unsigned short)
OPD_INTEGER(int)
OPD_INTEGER(unsigned int)
OPD_INTEGER(long)
OPD_INTEGER(unsigned long)
OPD_INTEGER(long long)
OPD_INTEGER(unsigned long long)
#undef OPD_INTEGER

// The language's own operators serve float and double, after the implicit conversion to float;
// comparisons too.
#define OPD_ARITHMETIC(op)                                                                         \
    template <class T>                                                                             \
    __device__ __forceinline__ typename only_if<is_16bit<T>::value, T>::type operator op(T a, T b) \
    {                                                                                              \
        return T((float)a op(float) b);                                                            \
    }                                                                                              \
    template <class T, class I>                                                                    \
    __device__ __forceinline__                                                                     \
        typename only_if<is_16bit<T>::value && is_integer<I>::value, T>::type                      \
        operator op(T a, I b)                                                                      \
    {                                                                                              \
        return T((float)a op(float) b);                                                            \
    }                                                                                              \
    template <class T, class I>                                                                    \
    __device__ __forceinline__                                                                     \
        typename only_if<is_16bit<T>::value && is_integer<I>::value, T>::type                      \
        operator op(I a, T b)                                                                      \
    {                                                                                              \
        return T((float)a op(float) b);                                                            \
    }
OPD_ARITHMETIC(+)
OPD_ARITHMETIC(-)
OPD_ARITHMETIC(*)
OPD_ARITHMETIC(/)
#undef OPD_ARITHMETIC

#if defined(__CUDA_FP16_TYPES_EXIST__) || defined(__CUDA_BF16_TYPES_EXIST__)
// Two of ours, which would be compared as floats or as NVIDIA's.
#define OPD_COMPARISON(op)                                                                         \
    template <class T>                                                                             \
    __device__ __forceinline__ typename only_if<is_16bit<T>::value, bool>::type operator op(T a,   \
                                                                                            T b)   \
    {                                                                                              \
        return (float)a op(float) b;                                                               \
    }
OPD_COMPARISON(<)
OPD_COMPARISON(<=)
OPD_COMPARISON(>)
OPD_COMPARISON(>=)
OPD_COMPARISON(==)
OPD_COMPARISON(!=)
#undef OPD_COMPARISON
template <class T>
__device__ __forceinline__ typename only_if<is_16bit<T>::value, T>::type __hadd(T a, T b)
{
    return a + b;
}
#endif

template <class T>
__device__ __forceinline__ typename only_if<is_16bit<T>::value, T>::type operator-(T a)
{
    a.x ^= 0x8000;
    return a;
}

// N elements that are loaded and stored at once: 16 bytes are the best of a GPU. Addresses must be
// multiples of its size, or, where N is no power of two, of that of so many as the greatest power
// of two that divides N: of 3 elements of one.
template <class T, int N> struct alignas(sizeof(T) * (N & -N)) vec {
    T v[N];
    __device__ __forceinline__ T &operator[](int i)
    {
        return v[i];
    }
    __device__ __forceinline__ const T &operator[](int i) const
    {
        return v[i];
    }
};

template <int N, class T> __device__ __forceinline__ vec<T, N> load_vec(const T *p)
{
    return *reinterpret_cast<const vec<T, N> *>(p);
}

template <int N, class T> __device__ __forceinline__ void store_vec(T *p, const vec<T, N> &v)
{
    *reinterpret_cast<vec<T, N> *>(p) = v;
}

template <class T> __device__ __forceinline__ bool is_aligned(const T *p, int bytes)
{
    return reinterpret_cast<size_t>(p) % (size_t)bytes == 0;
}

// One element, as what it accumulates in, and back.
template <class T> __device__ __forceinline__ typename acc_type<T>::type load(const T *p)
{
    return (typename acc_type<T>::type) * p;
}

template <class T> __device__ __forceinline__ void store(T *p, typename acc_type<T>::type v)
{
    *p = (T)v;
}

// for (auto i : opd::grid_stride(n)): the indices of this thread in a one-dimensional grid of any
// size. i has n's type; the counter behind it has 64 bits, so that it does not overflow past the
// end.
template <class T> struct grid_range {
    struct iterator {
        int64_t at, step;
        __device__ __forceinline__ T operator*() const
        {
            return (T)at;
        }
        __device__ __forceinline__ void operator++()
        {
            at += step;
        }
        __device__ __forceinline__ bool operator!=(const iterator &end) const
        {
            return at < end.at;
        }
    };
    int64_t n;
    __device__ __forceinline__ iterator begin() const
    {
        return { (int64_t)blockIdx.x * blockDim.x + threadIdx.x, (int64_t)gridDim.x * blockDim.x };
    }
    __device__ __forceinline__ iterator end() const
    {
        return { n, 0 };
    }
};

template <class T> __device__ __forceinline__ auto grid_stride(T n) -> grid_range<decltype(n + 0)>
{
    return { (int64_t)n };
}

// n / d for n < 2^31 and d > 0, without dividing: many times faster. d_magic is 2^32 * (p - d) / d + 1,
// where p is the smallest power of two that is not below d.
__device__ __forceinline__ uint32_t divide(uint32_t n, uint32_t d, uint32_t d_magic)
{
    return (__umulhi(d_magic, n) + n) >> (32 - __clz((int)(d - 1)));
}

// A kernel's parameter to divide by, n / d and n % d for 0 <= n < 2^31 of 32 bits: bound as an int is,
// and an int everywhere else.
struct divisor {
    uint32_t d, magic;
    __device__ __forceinline__ operator int() const
    {
        return (int)d;
    }
};

template <class T> __device__ __forceinline__ T operator/(T n, const divisor &by)
{
    const bool is_32 = sizeof(T) <= 4 && T(1) / T(2) == T(0); // an integer of so many bits
    return is_32 ? (T)divide((uint32_t)n, by.d, by.magic) : n / (T)by.d;
}

template <class T> __device__ __forceinline__ T operator%(T n, const divisor &by)
{
    return sizeof(T) <= 4 ? n - n / by * (T)by.d : n % (T)by.d;
}

// The sum over the 32 threads of a warp, in each of them. All of them must call it.
template <class T> __device__ __forceinline__ T warp_reduce_sum(T v)
{
    for (int offset = 16; offset > 0; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

// The sum over a one-dimensional block of BLOCK threads, a multiple of 32, in thread 0 only; the
// same bits on every run. All threads must call it. It may be called again at once.
template <int BLOCK, class T> __device__ __forceinline__ T block_reduce_sum(T v)
{
    static_assert(BLOCK % 32 == 0 && BLOCK >= 32 && BLOCK <= 1024, "a block of whole warps");
#ifdef OPD_CPU
    enum { PARTS = BLOCK }; // barriers are dear there, and a warp means nothing
    const int part = (int)threadIdx.x;
    const bool writes = true;
#else
    enum { PARTS = BLOCK / 32 };
    const int part = (int)threadIdx.x / 32;
    const bool writes = threadIdx.x % 32 == 0;
    v = warp_reduce_sum(v);
    if (PARTS == 1)
        return v;
#endif
    __shared__ T parts[PARTS];
    __syncthreads(); // an earlier call's parts have been read
    if (writes)
        parts[part] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        v = parts[0];
        for (int i = 1; i < PARTS; i++)
            v += parts[i];
    }
    return v;
}

template <class T> __device__ __forceinline__ T atomic_add_16bit(T *p, T v)
{
#ifdef OPD_CPU
    uint16_t seen = __atomic_load_n(&p->x, __ATOMIC_RELAXED), expected;
#else
    uint16_t seen = *(volatile uint16_t *)&p->x, expected;
#endif
    T was, sum;
    do {
        expected = seen;
        was.x = expected;
        sum = was + v;
        seen = atomicCAS(&p->x, expected, sum.x);
    } while (seen != expected);
    return was;
}

// What a `check` line of the header declares, held in a kernel that has the parameter
// `opd::report_t *report`. Where `holds` is false the request fails with the line's message, and
// `index` is told in it: of several, the smallest of the first line. Returns `holds`; the kernel
// must not go on with what it has found wrong.
typedef unsigned long long report_t;
__device__ __forceinline__ bool check(report_t *report, int line, bool holds, long long index)
{
    const long long limit = 1ll << 57;
    if (!holds) {
        index = index >= limit ? limit - 1 : index <= -limit ? 1 - limit : index;
        atomicMax(report, (report_t)(63 - line) << 58 | (report_t)(limit - index));
    }
    return holds;
}

} // namespace opd

#ifdef OPD_CPU_KERNEL_LOOP
#define CUDA_KERNEL_LOOP(i, n) OPD_CPU_KERNEL_LOOP(i, n)
#else
#define CUDA_KERNEL_LOOP(i, n) for (auto i : opd::grid_stride(n))
#endif
#define CUDA_1D_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP(i, n)
#define CUDA_KERNEL_LOOP_TYPE(i, n, T) CUDA_KERNEL_LOOP(i, (T)(n))
#define CUDA_1D_KERNEL_LOOP_T(i, n, T) CUDA_KERNEL_LOOP(i, (T)(n))

// Returns the old value, as CUDA's own.
__device__ __forceinline__ opd::half atomicAdd(opd::half *p, opd::half v)
{
#ifdef OPD_CPU
    return opd::atomic_add_16bit(p, v);
#else
    opd::half was;
    asm volatile("atom.add.noftz.f16 %0, [%1], %2;"
                 : "=h"(was.x)
                 : "l"(p), "h"(v.x)
                 : "memory");
    return was;
#endif
}

__device__ __forceinline__ opd::bfloat16 atomicAdd(opd::bfloat16 *p, opd::bfloat16 v)
{
#if !defined(OPD_CPU) && __CUDA_ARCH__ >= 900
    opd::bfloat16 was;
    asm volatile("atom.add.noftz.bf16 %0, [%1], %2;"
                 : "=h"(was.x)
                 : "l"(p), "h"(v.x)
                 : "memory");
    return was;
#else
    return opd::atomic_add_16bit(p, v);
#endif
}

#ifndef OPD_CPU
__device__ __forceinline__ opd::half __ldg(const opd::half *p)
{
    opd::half v;
    v.x = __ldg(&p->x);
    return v;
}

__device__ __forceinline__ opd::bfloat16 __ldg(const opd::bfloat16 *p)
{
    opd::bfloat16 v;
    v.x = __ldg(&p->x);
    return v;
}
#endif

#include "opd-formula.cuh"
#include "opd-matmul.cuh"
#include "opd-torch.cuh"
