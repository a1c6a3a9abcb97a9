// Comes before every operator file, on the GPU (NVRTC, which has no other header) and on the CPU
// device (after its shim). It supplies what CUDA's and PyTorch's own headers would: fixed-size
// integers, 16-bit floats, accessors, grid loops and reductions. After it stand the aliases of the
// request, as in `using scalar_t = opd::half; using acc_t = float;`.
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
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

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
// multiples of its size.
template <class T, int N> struct alignas(sizeof(T) * N) vec {
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

// --- formula operators
//
// The daemon makes a struct F of the formulas of a launch: tensors, sizes, and what is computed of
// an element. It has
//   index, offsets       where elements are is told by so many of these, found once for a vector
//   elements<N>          N elements of each tensor; one of a tensor repeated along them
//   load, store, aligned N at a time, from k elements behind the offsets
//   compute, value       of the k-th of those elements
// The same templates serve the CPU, where a block has one thread, which takes the elements in order.

template <class T, class A> __device__ __forceinline__ A formula_exp(A x)
{
    if constexpr (is_16bit<T>::value)
        return __expf(x); // errs by 1e-5 at most, far less than the type
    else
        return exp(x);
}

// At most 2 units in the last place off, in half the time.
__device__ __forceinline__ float formula_divide(float a, float b)
{
#ifdef OPD_CPU
    return a / b;
#else
    float q;
    asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
    return q;
#endif
}

__device__ __forceinline__ double formula_divide(double a, double b)
{
    return a / b;
}

// In float erfc(z) = t exp(p(t) - z^2) with t = 1 / (1 + z / 2) and the Chebyshev fit p of Numerical
// Recipes (section 6.2, "erfcc"), which errs by 1.2e-7 of the value.
__device__ __forceinline__ float formula_normcdf(float x)
{
    const float z = fabsf(x) * 0.70710678f, t = __fdividef(1.0f, 1.0f + 0.5f * z);
    float p = fmaf(t, 0.17087277f, -0.82215223f);
    p = fmaf(t, p, 1.48851587f);
    p = fmaf(t, p, -1.13520398f);
    p = fmaf(t, p, 0.27886807f);
    p = fmaf(t, p, -0.18628806f);
    p = fmaf(t, p, 0.09678418f);
    p = fmaf(t, p, 0.37409196f);
    p = fmaf(t, p, 1.00002368f);
    p = fmaf(t, p, -1.26551223f);
    const float tail = 0.5f * t * __expf(fmaf(-z, z, p));
    return x < 0 ? tail : 1.0f - tail;
}

__device__ __forceinline__ double formula_normcdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

// The derivative of lgamma: below 0 by reflection, then up to 10 by recurrence, from there on by its
// asymptotic series, in double.
__device__ inline double formula_digamma(double x)
{
    double sum = 0;
    if (x == 0)
        return -copysign(INFINITY, x);
    if (x < 0) {
        if (x == floor(x))
            return NAN;
        const double part = x - floor(x);
        sum = -M_PI / tan(M_PI * part);
        x = 1 - x;
    }
    for (; x < 10; x += 1)
        sum -= 1 / x;
    const double r = 1 / (x * x);
    const double series = r * (1. / 12 - r * (1. / 120 - r * (1. / 252 - r * (1. / 240 - r * (1. / 132 -
                          r * (691. / 32760 - r * (1. / 12)))))));
    return sum + log(x) - 0.5 / x - (x < 1e17 ? series : 0);
}

__device__ __forceinline__ float formula_digamma(float x)
{
    return (float)formula_digamma((double)x);
}

template <class A> __device__ __forceinline__ A formula_rcbrt(A x)
{
    return A(1) / cbrt(x);
}

__device__ __forceinline__ uint32_t formula_quotient(uint32_t n, uint32_t d, uint32_t magic)
{
    return divide(n, d, magic);
}

__device__ __forceinline__ int64_t formula_quotient(int64_t n, int64_t d, int64_t)
{
    return n / d;
}

// The sizes of R dimensions, and the strides in them of T tensors.
template <int R, int T, class I> struct formula_dims {
    I size[R], magic[R], stride[T][R];

    // Adds to the offsets those of the i-th element.
    __device__ __forceinline__ void add(I i, I *at) const
    {
#pragma unroll
        for (int d = R - 1; d > 0; d--) {
            const I q = formula_quotient(i, size[d], magic[d]), rest = i - q * size[d];
#pragma unroll
            for (int t = 0; t < T; t++)
                at[t] += rest * stride[t][d];
            i = q;
        }
#pragma unroll
        for (int t = 0; t < T; t++)
            at[t] += i * stride[t][0];
    }
};

__device__ __forceinline__ int64_t formula_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum { FORMULA_BLOCK = 256 };

// How a row becomes one number.
struct formula_add {
    template <class A> __device__ __forceinline__ static A start()
    {
        return 0;
    }
    template <class A> __device__ __forceinline__ static A join(A a, A b)
    {
        return a + b;
    }
};

template <int SIGN> struct formula_extreme { // 1: the largest, -1: the smallest; a NaN stays
    template <class A> __device__ __forceinline__ static A start()
    {
        return -SIGN * A(INFINITY);
    }
    template <class A> __device__ __forceinline__ static A join(A a, A b)
    {
        return (SIGN > 0 ? a > b : a < b) || a != a ? a : b;
    }
};

// A formula of the tensors of lists. F begins with pointers, to those that PLACES say, and the
// number of elements; the blocks of all tensors stand one after the other.
template <class F, int CAPACITY, int TENSORS, int... PLACES> struct formula_list {
    struct tensors {
        void *at[TENSORS];
        int64_t n;
    };
    struct operands {
        void *at[sizeof...(PLACES)];
        int64_t n;
    };
    F f;
    tensors each[CAPACITY];
    uint32_t first[CAPACITY], count;

    // The formula of the tensor that a block belongs to; `block` becomes that tensor's.
    __device__ __forceinline__ F find(uint32_t &block) const
    {
        uint32_t low = 0, high = count;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            (first[middle] <= block ? low : high) = middle;
        }
        F own = f;
        const operands its = { { each[low].at[PLACES]... }, each[low].n };
        memcpy((void *)&own, &its, sizeof its);
        block -= first[low];
        return own;
    }
};

#ifdef OPD_CPU
template <class F, int N> OPD_CPU_INLINE void formula_map_block(const F &f, int64_t block)
{
    int64_t i = block * f.share;
    const int64_t end = formula_least(i + f.share, f.n), row = f.row();
    while (i < end) {
        typename F::index at[F::offsets];
        f.locate(i, at);
        const int64_t count = formula_least(row - i % row, end - i);
        OPD_CPU_VECTORIZE
        for (int64_t k = 0; k < count; k++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            f.compute(e, 0);
            f.store(e, at, k);
        }
        i += count;
    }
}

template <class F, int N> __global__ void formula_map(F f)
{
    formula_map_block<F, N>(f, blockIdx.x);
}

template <class F, int N, int CAPACITY, int TENSORS, int... PLACES>
__global__ void formula_maps(formula_list<F, CAPACITY, TENSORS, PLACES...> list)
{
    uint32_t block = blockIdx.x;
    const F f = list.find(block);
    formula_map_block<F, N>(f, block);
}

// A tile of results that are neighbours, side by side.
template <class F> OPD_CPU_INLINE void formula_sum_columns(const F &f, int64_t m, int64_t end)
{
    enum { TILE = 256 };
    const int64_t row = f.kept.size[F::kept_rank - 1], tiles = (row + TILE - 1) / TILE;
    const int64_t column = blockIdx.x % tiles * TILE, first = blockIdx.x / tiles * row + column;
    const int64_t count = formula_least(TILE, row - column);
    typename F::index base[F::offsets] = {}, at[F::offsets];
    typename F::sum_type sums[TILE];
    for (int64_t k = 0; k < TILE; k++)
        sums[k] = F::join::template start<typename F::sum_type>();
    f.kept.add((typename F::index)first, base);
    for (; m < end; m++) {
        for (int t = 0; t < F::offsets; t++)
            at[t] = base[t];
        f.summed.add((typename F::index)m, at);
        OPD_CPU_VECTORIZE
        for (int64_t k = 0; k < count; k++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            sums[k] = F::join::join(sums[k], f.value(e, 0));
        }
    }
    for (int64_t k = 0; k < count; k++)
        f.put(blockIdx.y * f.n_kept + first + k, sums[k]);
}

// What the elements m to end of a row become by `value`, in lanes side by side.
template <class F, class J, class V>
OPD_CPU_INLINE typename F::sum_type formula_join(const F &f, int64_t result, int64_t m, int64_t end,
                                                 const V &value)
{
    enum { LANES = 32 }; // some vectors of them: one waits for the one before
    typedef typename F::sum_type A;
    const int64_t row = f.summed.size[F::summed_rank - 1];
    A sums[LANES];
    const int used = end - m < LANES ? (int)(end - m) : 0;
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] = J::template start<A>();
    for (int64_t count; m < end; m += count) {
        typename F::index at[F::offsets] = {};
        f.kept.add((typename F::index)result, at);
        f.summed.add((typename F::index)m, at);
        count = formula_least(row - m % row, end - m);
        int64_t k = 0;
        for (; k + LANES <= count; k += LANES) {
            OPD_CPU_VECTORIZE
            for (int lane = 0; lane < LANES; lane++) {
                typename F::template elements<1> e;
                f.load(e, at, k + lane);
                sums[lane] = J::join(sums[lane], value(e, 0));
            }
        }
        for (int lane = 0; k < count; k++, lane++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            sums[lane] = J::join(sums[lane], value(e, 0));
        }
    }
    for (int lane = 1; lane < used; lane++)
        sums[0] = J::join(sums[0], sums[lane]);
    for (int half = used > 0 ? 0 : LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sums[lane] = J::join(sums[lane], sums[lane + half]);
    return sums[0];
}

// One result after the other.
template <class F> OPD_CPU_INLINE void formula_sum_rows(const F &f, int64_t begin, int64_t end)
{
    typedef typename F::template elements<1> E;
    const int64_t last = formula_least((blockIdx.x + 1) * f.group, f.n_kept);
    for (int64_t result = blockIdx.x * f.group; result < last; result++)
        f.put(blockIdx.y * f.n_kept + result,
              formula_join<F, typename F::join>(f, result, begin, end, [&](const E &e, int k) {
                  return f.value(e, k);
              }));
}

// A row of what is computed row by row: it is read once more for each of its sums.
template <class F> struct formula_reader {
    const F &f;
    int64_t index;
    OPD_CPU_INLINE bool is_first() const
    {
        return true;
    }
    template <class J, class V> OPD_CPU_INLINE typename F::sum_type join(const V &value) const
    {
        return formula_join<F, J>(f, index, 0, f.n_summed, value);
    }
    template <class C> OPD_CPU_INLINE void each(const C &compute) const
    {
        const int64_t row = f.summed.size[F::summed_rank - 1];
        for (int64_t m = 0; m < f.n_summed; m += row) {
            typename F::index at[F::offsets] = {};
            f.kept.add((typename F::index)index, at);
            f.summed.add((typename F::index)m, at);
            OPD_CPU_VECTORIZE
            for (int64_t k = 0; k < row; k++) {
                typename F::template elements<1> e;
                f.load(e, at, k);
                compute(e, 0);
                f.store(e, at, k);
            }
        }
    }
};

template <class F, int N, int LANES, int ITEMS> __global__ void formula_row(F f)
{
    const int64_t last = formula_least((blockIdx.x + 1) * f.group, f.n_kept);
    for (int64_t i = blockIdx.x * f.group; i < last; i++)
        f.run(formula_reader<F>{ f, i });
}

template <class F, int N, bool COLUMNS, int LANES> __global__ void formula_sum(F f)
{
    const int64_t begin = blockIdx.y * f.share;
    const int64_t end = formula_least(begin + f.share, f.n_summed);
    if constexpr (COLUMNS)
        formula_sum_columns(f, begin, end);
    else
        formula_sum_rows(f, begin, end);
}

template <class A, class T, int LANES, class J = formula_add>
__global__ void formula_total(const A *sums, T *out, int64_t n, int64_t n_parts)
{
    const int64_t begin = blockIdx.x * 1024ll, end = formula_least(begin + 1024, n);
    for (int64_t i = begin; i < end; i++) {
        A sum = J::template start<A>();
        for (int64_t part = 0; part < n_parts; part++)
            sum = J::join(sum, sums[part * n + i]);
        out[i] = T(sum);
    }
}
#else
template <class F, int N> __device__ __forceinline__ void formula_map_block(const F &f, uint32_t block)
{
    const int64_t i = (int64_t)block * FORMULA_BLOCK + threadIdx.x, first = i * N;
    if (first >= f.n)
        return;
    typename F::index at[F::offsets];
    f.locate(i, at);
    if (first + N <= f.n && f.template aligned<N>()) {
        typename F::template elements<N> e;
        f.load(e, at, 0);
#pragma unroll
        for (int k = 0; k < N; k++)
            f.compute(e, k);
        f.store(e, at, 0);
        return;
    }
    const int64_t left = f.n - first;
    for (int k = 0; k < (left < N ? left : N); k++) {
        typename F::template elements<1> e;
        f.load(e, at, k);
        f.compute(e, 0);
        f.store(e, at, k);
    }
}

template <class F, int N> __global__ void __launch_bounds__(FORMULA_BLOCK) formula_map(F f)
{
    formula_map_block<F, N>(f, blockIdx.x);
}

template <class F, int N, int CAPACITY, int TENSORS, int... PLACES>
__global__ void __launch_bounds__(FORMULA_BLOCK)
    formula_maps(const __grid_constant__ formula_list<F, CAPACITY, TENSORS, PLACES...> list)
{
    uint32_t block = blockIdx.x;
    const F f = list.find(block);
    formula_map_block<F, N>(f, block);
}

// The sums of what the threads that share a result have found, in the first of them. `step` lies
// between those threads, `place` counts them from 0 to n - 1.
template <class J, int W, class A>
__device__ __forceinline__ void formula_gather(A (&sums)[W], int step, int place, int n)
{
    __shared__ A all[W][FORMULA_BLOCK];
#pragma unroll
    for (int w = 0; w < W; w++)
        all[w][threadIdx.x] = sums[w];
    for (int half = n / 2; half > 0; half /= 2) {
        __syncthreads();
        if (place < half)
#pragma unroll
            for (int w = 0; w < W; w++)
                all[w][threadIdx.x] = J::join(all[w][threadIdx.x], all[w][threadIdx.x + half * step]);
    }
#pragma unroll
    for (int w = 0; w < W; w++)
        sums[w] = all[w][threadIdx.x];
}

// LANES results in a block, or as many vectors of N of them where these lie along the innermost
// dimension (COLUMNS); the other threads share the elements of each. The blocks of y share them
// too: their sums are added by formula_total.
template <class F, int N, bool COLUMNS, int LANES>
__global__ void __launch_bounds__(FORMULA_BLOCK) formula_sum(F f)
{
    typedef typename F::index I;
    enum { OTHERS = FORMULA_BLOCK / LANES, W = COLUMNS ? N : 1 };
    const int x = (int)threadIdx.x, lane = COLUMNS ? x % LANES : x / OTHERS;
    const int other = COLUMNS ? x / LANES : x % OTHERS;
    const int64_t result = (int64_t)blockIdx.x * LANES + lane;
    const int64_t n_results = f.n_kept / W;
    typedef typename F::join J;
    typename F::sum_type sums[W];
#pragma unroll
    for (int w = 0; w < W; w++)
        sums[w] = J::template start<typename F::sum_type>();
    if (result < n_results) {
        I base[F::offsets] = {};
        f.kept.add((I)result, base);
        const int64_t begin = blockIdx.y * f.share;
        const int64_t end = formula_least(begin + f.share, f.n_summed);
        const bool whole = N == 1 || f.template aligned<N>();
#pragma unroll 4
        for (int64_t m = begin + other; m < end; m += OTHERS) {
            I at[F::offsets];
#pragma unroll
            for (int t = 0; t < F::offsets; t++)
                at[t] = base[t];
            f.summed.add((I)m, at);
            if (whole) {
                typename F::template elements<N> e;
                f.load(e, at, 0);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sums[COLUMNS ? k : 0] = J::join(sums[COLUMNS ? k : 0], f.value(e, k));
            } else {
#pragma unroll
                for (int k = 0; k < N; k++) {
                    typename F::template elements<1> e;
                    f.load(e, at, k);
                    sums[COLUMNS ? k : 0] = J::join(sums[COLUMNS ? k : 0], f.value(e, 0));
                }
            }
        }
    }
    formula_gather<J>(sums, COLUMNS ? LANES : 1, other, OTHERS);
    if (other == 0 && result < n_results)
#pragma unroll
        for (int w = 0; w < W; w++)
            f.put(blockIdx.y * f.n_kept + result * W + w, sums[w]);
}

template <class A, class T, int LANES, class J = formula_add>
__global__ void __launch_bounds__(FORMULA_BLOCK)
    formula_total(const A *__restrict__ sums, T *__restrict__ out, int64_t n, int64_t n_parts)
{
    enum { OTHERS = FORMULA_BLOCK / LANES };
    const int lane = (int)threadIdx.x % LANES, other = (int)threadIdx.x / LANES;
    const int64_t i = (int64_t)blockIdx.x * LANES + lane;
    A sum[1] = { J::template start<A>() };
    for (int64_t part = other; i < n && part < n_parts; part += OTHERS)
        sum[0] = J::join(sum[0], sums[part * n + i]);
    formula_gather<J>(sum, LANES, other, OTHERS);
    if (other == 0 && i < n)
        out[i] = T(sum[0]);
}

// What LANES threads have found, joined, in each of them; the same bits in all.
template <class J, int LANES, class A> __device__ __forceinline__ A formula_share(A v)
{
#pragma unroll
    for (int offset = (LANES < 32 ? LANES : 32) / 2; offset > 0; offset /= 2)
        v = J::join(v, __shfl_xor_sync(0xffffffffu, v, offset));
    if constexpr (LANES > 32) {
        enum { WARPS = LANES / 32 };
        __shared__ A all[(LANES > FORMULA_BLOCK ? LANES : FORMULA_BLOCK) / 32];
        const int first = (int)threadIdx.x / LANES * WARPS;
        __syncthreads(); // an earlier call's have been read
        if (threadIdx.x % 32 == 0)
            all[threadIdx.x / 32] = v;
        __syncthreads();
        v = all[first];
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            v = J::join(v, all[first + i]);
    }
    return v;
}

// A row of what is computed row by row, shared by LANES threads. Each holds ITEMS vectors of it,
// which are read once; of 0 each pass over the row reads it again.
template <class F, int N, int LANES, int ITEMS> struct formula_reader {
    typedef typename F::template elements<N> E;
    typedef typename F::index I;
    const F &f;
    const int64_t index;
    const bool live; // it is one of the rows
    const bool whole;
    const int lane;
    I base[F::offsets];
    E held[ITEMS > 0 ? ITEMS : 1];

    __device__ __forceinline__ formula_reader(const F &f, int64_t i)
        : f(f), index(formula_least(i, f.n_kept - 1)), live(i < f.n_kept),
          whole(N == 1 || f.template aligned<N>()), lane((int)threadIdx.x % LANES)
    {
#pragma unroll
        for (int t = 0; t < F::offsets; t++)
            base[t] = 0;
        f.kept.add((I)index, base);
        if (whole) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
                load<true>(held[i], i);
        } else {
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
                load<false>(held[i], i);
        }
    }
    // Is there an i-th vector of this thread, and where?
    __device__ __forceinline__ bool find(int64_t i, I *at) const
    {
        const int64_t m = i * LANES + lane;
#pragma unroll
        for (int t = 0; t < F::offsets; t++)
            at[t] = base[t];
        if (m < f.n_summed)
            f.summed.add((I)m, at);
        return m < f.n_summed;
    }
    template <bool WHOLE> __device__ __forceinline__ void load(E &e, int64_t i) const
    {
        I at[F::offsets];
        if (!find(i, at))
            return;
        if constexpr (WHOLE)
            f.load(e, at, 0);
        else
            f.load_each(e, at);
    }
    __device__ __forceinline__ bool is_first() const
    {
        return live && lane == 0;
    }
    template <class J, class V> __device__ __forceinline__ typename F::sum_type join(const V &value) const
    {
        typedef typename F::sum_type A;
        I at[F::offsets];
        A v = J::template start<A>();
        if constexpr (ITEMS > 0) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
                if (find(i, at))
#pragma unroll
                    for (int k = 0; k < N; k++)
                        v = J::join(v, value(held[i], k));
        } else {
            for (int64_t i = 0; find(i, at); i++) {
                E e;
                if (whole)
                    load<true>(e, i);
                else
                    load<false>(e, i);
#pragma unroll
                for (int k = 0; k < N; k++)
                    v = J::join(v, value(e, k));
            }
        }
        return formula_share<J, LANES>(v);
    }
    template <class C> __device__ __forceinline__ void put(E &e, I *at, const C &compute) const
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            compute(e, k);
        if (!live)
            return;
        if (whole)
            f.store(e, at, 0);
        else
            f.store_each(e, at);
    }
    template <class C> __device__ __forceinline__ void each(const C &compute)
    {
        I at[F::offsets];
        if constexpr (ITEMS > 0) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
                if (find(i, at))
                    put(held[i], at, compute);
        } else {
            for (int64_t i = 0; find(i, at); i++) {
                E e;
                if (whole)
                    load<true>(e, i);
                else
                    load<false>(e, i);
                put(e, at, compute);
            }
        }
    }
};

template <class F, int N, int LANES, int ITEMS>
__global__ void __launch_bounds__(LANES > FORMULA_BLOCK ? LANES : FORMULA_BLOCK) formula_row(F f)
{
    enum { ROWS = LANES > FORMULA_BLOCK ? 1 : FORMULA_BLOCK / LANES };
    formula_reader<F, N, LANES, ITEMS> row(f, (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES);
    f.run(row);
}
#endif

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

// What `matmul` in a header launches where the device has no BLAS: d [m, n] = a [m, k] @ b [k, n],
// or +=. The first of a matrix is `_at` elements from the address, its rows are `ld_` elements
// apart. TA, TB: a, b are stored transposed. Sums are kept in acc_type; the plan knows how large a
// part of d each block makes (server/op/plan_matmul.c).
#ifdef OPD_CPU
template <class A, class D> struct matmul_tile {
    enum { ROWS = 48, COLS = 64, DEPTH = 128, STRIP = 6, LANES = 64 / (int)sizeof(A) };
    typedef A lanes __attribute__((vector_size(64)));
    lanes a[ROWS * DEPTH / LANES]; // strips of STRIP rows, [depth][row] in each
    lanes b[COLS * DEPTH / LANES]; // strips of LANES columns, [depth][column] in each
    lanes sum[ROWS][COLS / LANES];

    // One strip of rows by one of columns, all of it in registers.
    void multiply(int row, int col, int depth)
    {
        const A *x = (const A *)a + row * DEPTH;
        const lanes *y = b + col * DEPTH;
        lanes s0 = sum[row][col], s1 = sum[row + 1][col], s2 = sum[row + 2][col],
              s3 = sum[row + 3][col], s4 = sum[row + 4][col], s5 = sum[row + 5][col];
        for (int q = 0; q < depth; q++, x += STRIP) {
            const lanes v = y[q];
            s0 += x[0] * v;
            s1 += x[1] * v;
            s2 += x[2] * v;
            s3 += x[3] * v;
            s4 += x[4] * v;
            s5 += x[5] * v;
        }
        sum[row][col] = s0;
        sum[row + 1][col] = s1;
        sum[row + 2][col] = s2;
        sum[row + 3][col] = s3;
        sum[row + 4][col] = s4;
        sum[row + 5][col] = s5;
    }
};

// Copies `n` by `depth` elements into strips of WIDTH, with zeros up to whole strips. ALONG: those of
// one depth are neighbours in memory; else those of one strip's row are.
template <int WIDTH, int DEPTH, bool ALONG, class T, class A>
inline void matmul_pack(A *to, const T *from, int n, int depth, int64_t ld)
{
    for (int at = 0; at < n; at += WIDTH, to += WIDTH * DEPTH)
        if (n - at >= WIDTH)
            for (int q = 0; q < depth; q++)
                for (int i = 0; i < WIDTH; i++)
                    to[q * WIDTH + i] = (A)from[ALONG ? at + i + q * ld : (at + i) * ld + q];
        else
            for (int q = 0; q < depth; q++)
                for (int i = 0; i < WIDTH; i++)
                    to[q * WIDTH + i] = at + i >= n ? (A)0
                                        : ALONG     ? (A)from[at + i + q * ld]
                                                    : (A)from[(at + i) * ld + q];
}

template <class T, class D, bool TA, bool TB>
__global__ void matmul(D *d, const T *a, const T *b, int64_t m, int64_t n, int64_t k, int64_t ldd,
                       int64_t lda, int64_t ldb, int64_t d_at, int64_t a_at, int64_t b_at,
                       int accumulate)
{
    typedef typename acc_type<T>::type A;
    typedef matmul_tile<A, D> tile;
    __shared__ tile t;
    const int64_t across = (n + tile::COLS - 1) / tile::COLS;
    const int64_t row = blockIdx.x / across * tile::ROWS, col = blockIdx.x % across * tile::COLS;
    const int rows = (int)min(m - row, (int64_t)tile::ROWS);
    const int cols = (int)min(n - col, (int64_t)tile::COLS);
    a += a_at + row * (TA ? 1 : lda);
    b += b_at + col * (TB ? ldb : 1);
    d += d_at + row * ldd + col;
    memset((void *)t.sum, 0, sizeof t.sum);
    for (int64_t p = 0; p < k; p += tile::DEPTH) {
        const int depth = (int)min(k - p, (int64_t)tile::DEPTH);
        matmul_pack<tile::STRIP, tile::DEPTH, TA>((A *)t.a, a + p * (TA ? lda : 1), rows, depth,
                                                  lda);
        matmul_pack<tile::LANES, tile::DEPTH, !TB>((A *)t.b, b + p * (TB ? 1 : ldb), cols, depth,
                                                   ldb);
        for (int j = 0; j * tile::LANES < cols; j++)
            for (int i = 0; i < rows; i += tile::STRIP)
                t.multiply(i, j, depth);
    }
    for (int i = 0; i < rows; i++) {
        const A *sum = (const A *)t.sum[i];
        D *to = d + i * ldd;
        for (int j = 0; j < cols; j++)
            to[j] = accumulate ? D((A)to[j] + sum[j]) : D(sum[j]);
    }
}
#else
template <class T, class D, bool TA, bool TB>
__global__ void __launch_bounds__(256)
    matmul(D *d, const T *a, const T *b, int64_t m, int64_t n, int64_t k, int64_t ldd, int64_t lda,
           int64_t ldb, int64_t d_at, int64_t a_at, int64_t b_at, int accumulate)
{
    typedef typename acc_type<T>::type A;
    enum { TILE = 64, DEPTH = 16, EACH = 4, THREADS = 256 };
    __shared__ vec<A, EACH> a_tile[DEPTH][TILE / EACH + 1], b_tile[DEPTH][TILE / EACH + 1];
    const int64_t across = (n + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, col = blockIdx.x % across * TILE;
    const int x = threadIdx.x % (TILE / EACH), y = threadIdx.x / (TILE / EACH);
    A sum[EACH][EACH] = {};
    a += a_at;
    b += b_at;
    d += d_at;
    for (int64_t p = 0; p < k; p += DEPTH) {
        // Neighbouring threads read neighbouring elements, whichever way a matrix lies.
#pragma unroll
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            const int q = TA ? i / TILE : i % DEPTH, r = TA ? i % TILE : i / DEPTH;
            const int64_t at = TA ? (p + q) * lda + row + r : (row + r) * lda + p + q;
            a_tile[q][r / EACH][r % EACH] = p + q < k && row + r < m ? A(a[at]) : A(0);
        }
#pragma unroll
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            const int q = TB ? i % DEPTH : i / TILE, c = TB ? i / DEPTH : i % TILE;
            const int64_t at = TB ? (col + c) * ldb + p + q : (p + q) * ldb + col + c;
            b_tile[q][c / EACH][c % EACH] = p + q < k && col + c < n ? A(b[at]) : A(0);
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEPTH; q++) {
            const vec<A, EACH> left = a_tile[q][y], right = b_tile[q][x];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t r = row + y * EACH + i, c = col + x * EACH + j;
            if (r < m && c < n) {
                D *to = d + r * ldd + c;
                *to = accumulate ? D((A)*to + sum[i][j]) : D(sum[i][j]);
            }
        }
}
#endif

} // namespace opd

#ifdef OPD_CPU_KERNEL_LOOP
#define CUDA_KERNEL_LOOP(i, n) OPD_CPU_KERNEL_LOOP(i, n)
#else
#define CUDA_KERNEL_LOOP(i, n) for (auto i : opd::grid_stride(n))
#endif
#define CUDA_1D_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP(i, n)

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

// The names of PyTorch's extensions. An accessor is a kernel parameter: address, sizes, strides in
// elements.
namespace at
{

typedef opd::half Half;
typedef opd::bfloat16 BFloat16;
template <class T, bool = true> using acc_type = typename opd::acc_type<T>::type;
template <class T> using opmath_type = typename opd::acc_type<T>::type;

template <class T> struct DefaultPtrTraits {
    typedef T *PtrType;
};
template <class T> struct RestrictPtrTraits {
    typedef T *__restrict__ PtrType;
};

// A view of the dimensions that are left after indexing.
template <class T, size_t N, template <class> class PtrTraits, class index_t>
struct TensorAccessor {
    typename PtrTraits<T>::PtrType data_;
    const index_t *sizes_, *strides_;

    __device__ __forceinline__ auto operator[](index_t i) const -> decltype(auto)
    {
        if constexpr (N == 1)
            return (data_[i * strides_[0]]);
        else
            return TensorAccessor<T, N - 1, PtrTraits, index_t>{ data_ + i * strides_[0],
                                                                 sizes_ + 1, strides_ + 1 };
    }
    __device__ __forceinline__ index_t size(int d) const
    {
        return sizes_[d];
    }
    __device__ __forceinline__ index_t stride(int d) const
    {
        return strides_[d];
    }
    __device__ __forceinline__ T *data() const
    {
        return data_;
    }
};

template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits,
          class index_t = int64_t>
struct PackedTensorAccessor {
    typename PtrTraits<T>::PtrType data_;
    index_t sizes_[N], strides_[N];

    __device__ __forceinline__ auto operator[](index_t i) const -> decltype(auto)
    {
        return TensorAccessor<T, N, PtrTraits, index_t>{ data_, sizes_, strides_ }[i];
    }
    __device__ __forceinline__ index_t size(int d) const
    {
        return sizes_[d];
    }
    __device__ __forceinline__ index_t stride(int d) const
    {
        return strides_[d];
    }
    __device__ __forceinline__ T *data() const
    {
        return data_;
    }
};

template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, PtrTraits, int64_t>;
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits,
          class index_t = int64_t>
using GenericPackedTensorAccessor = PackedTensorAccessor<T, N, PtrTraits, index_t>;

} // namespace at

namespace torch
{
using namespace at;
}

namespace c10
{
using at::BFloat16;
using at::Half;
} // namespace c10

template <class T> __device__ __forceinline__ T gpuAtomicAdd(T *p, T v)
{
    return atomicAdd(p, v);
}
