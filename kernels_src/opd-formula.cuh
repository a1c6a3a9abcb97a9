// Part of opd.cuh: the kernels of formulas.
//
// The daemon makes a struct F of the formulas of a launch: tensors, sizes, and what is computed of
// an element. It has
//   index, offsets       where elements are is told by so many of these, found once for a vector
//   elements<N>          N elements of each tensor, as formula_vec; one of a tensor repeated along
//                        them
//   halves               whether a tensor is of opd::half
//   load, store, aligned N at a time, from k elements behind the offsets
//   compute, value       of the k-th of those elements
// and, where sums are made,
//   load_each, store_each N elements `step` apart, none of them aligned
//   askew                whether a row begins and ends anywhere in vectors; it has whole ones all the
//                        same, in the tensors of the whole shape. Of the others, whose rows begin
//                        elsewhere, load reads element by element; in a map it finds each anew.
// The same templates serve the CPU, where a block has one thread, which takes the elements in order.
namespace opd
{
// Functions of 16-bit tensors, in float: they err by 1e-5 of the value at most, far less than the
// type, and give 0 for what is less than the smallest normal float. On a GPU the exact ones take
// twice the instructions that there is time for while the elements come from memory.
#ifdef OPD_CPU
template <class T, class A> __device__ __forceinline__ A formula_exp(A x)
{
    if constexpr (is_16bit<T>::value)
        return opd_cpu_rough_expf(x);
    else
        return exp(x);
}

#define OPD_ROUGH(name, rough, exact)                                                              \
    template <class T, class A> __device__ __forceinline__ A name(A x)                             \
    {                                                                                              \
        return exact(x);                                                                           \
    }
#else
__device__ __forceinline__ float formula_rough_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float formula_rough_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float formula_rough_exp(float x)
{
    return formula_rough_exp2(x * 1.44269504f);
}

// Near 0, where 1 is taken away from what is almost 1, by the first terms of the series.
__device__ __forceinline__ float formula_rough_expm1(float x)
{
    const float series = x * fmaf(x, fmaf(x, 0.16666667f, 0.5f), 1.0f);
    return fabsf(x) < 0.05f ? series : formula_rough_exp(x) - 1.0f;
}

// (1 - e^-2x) / (1 + e^-2x); near 0 the series, too.
__device__ __forceinline__ float formula_rough_tanh(float x)
{
    const float q = formula_rough_reciprocal(1.0f + formula_rough_exp2(x * 2.88539008f));
    const float square = x * x;
    const float series = x * fmaf(square, fmaf(square, 0.13333333f, -0.33333333f), 1.0f);
    return fabsf(x) < 0.2f ? series : fmaf(-2.0f, q, 1.0f);
}

// acos(x) / sqrt(1 - x) from 0 to 1 is a polynomial, within 6e-6; below 0 acos(x) = pi - acos(-x).
__device__ __forceinline__ float formula_rough_acos(float x)
{
    const float z = fabsf(x);
    float p = fmaf(z, 0.00859181f, -0.03564345f), root;
    p = fmaf(z, p, 0.08459658f);
    p = fmaf(z, p, -0.21411082f);
    p = fmaf(z, p, 1.57078744f);
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(1.0f - z));
    return x < 0 ? fmaf(-p, root, 3.14159265f) : p * root;
}

// The tail is e^(-x^2 / 2) times a polynomial of t, which errs by 1e-5 of it; of bfloat16, which has
// three digits fewer, by one of a degree less, which errs by 3.5e-5.
template <class T> __device__ __forceinline__ float formula_rough_ratio(float z)
{
    const float t = formula_rough_reciprocal(fmaf(z, 0.31819805f, 1.0f));
    float p = fmaf(t, -0.06780016f, 0.1457173f);
    p = fmaf(t, p, 0.04521070f);
    p = fmaf(t, p, 0.12396803f);
    p = fmaf(t, p, 0.12592228f);
    return t * fmaf(t, p, 0.12697718f);
}

template <> __device__ __forceinline__ float formula_rough_ratio<bfloat16>(float z)
{
    const float t = formula_rough_reciprocal(fmaf(z, 0.38f, 1.0f));
    float p = fmaf(t, -0.08992724f, 0.18887395f);
    p = fmaf(t, p, 0.09198165f);
    p = fmaf(t, p, 0.15782892f);
    return t * fmaf(t, p, 0.15122519f);
}

template <class T> __device__ __forceinline__ float formula_rough_normcdf(float x)
{
    const float tail = formula_rough_ratio<T>(fabsf(x)) * formula_rough_exp2(x * x * -0.72134752f);
    return x < 0 ? tail : 1.0f - tail;
}

#define OPD_ROUGH(name, rough, exact)                                                              \
    template <class T, class A> __device__ __forceinline__ A name(A x)                             \
    {                                                                                              \
        if constexpr (is_16bit<T>::value)                                                          \
            return rough(x);                                                                       \
        else                                                                                       \
            return exact(x);                                                                       \
    }
OPD_ROUGH(formula_exp, formula_rough_exp, exp)
#endif
OPD_ROUGH(formula_acos, formula_rough_acos, acos)
OPD_ROUGH(formula_expm1, formula_rough_expm1, expm1)
OPD_ROUGH(formula_tanh, formula_rough_tanh, tanh)

// A choice of which both branches have been computed.
template <class A, class B> __device__ __forceinline__ auto formula_choose(bool condition, A a, B b)
{
    return condition ? a : b;
}

// At most 2 units in the last place off, in half the time. What is divided by the same b many times
// takes one multiplication each.
__device__ __forceinline__ float formula_divide(float a, float b)
{
#ifdef OPD_CPU
    return a / b;
#else
    const float s = fabsf(b) > 8.50705917e37f ? 0.25f : 1.0f; // 1 / b would be subnormal
    return a * (formula_rough_reciprocal(b * s) * s);
#endif
}

__device__ __forceinline__ double formula_divide(double a, double b)
{
    return a / b;
}

// In float the tail is e^(-x^2 / 2) times a polynomial of t, of least relative error: 1.0e-7 up to 14.5,
// where e^(-x^2 / 2) has become 0.
__device__ __forceinline__ float formula_exact_normcdf(float x)
{
    const float t = __fdividef(1.0f, fmaf(fabsf(x), 0.305f, 1.0f));
    float p = fmaf(t, 0.0366393551f, -0.152747884f);
    p = fmaf(t, p, 0.185317621f);
    p = fmaf(t, p, -0.0376228467f);
    p = fmaf(t, p, 0.120841391f);
    p = fmaf(t, p, 0.10347344f);
    p = fmaf(t, p, 0.122458719f);
    p = fmaf(t, p, 0.121640243f);
    const float tail = p * t * __expf(-0.5f * x * x);
    return x < 0 ? tail : 1.0f - tail;
}

__device__ __forceinline__ double formula_exact_normcdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

OPD_ROUGH(formula_normcdf, formula_rough_normcdf<T>, formula_exact_normcdf)
#undef OPD_ROUGH

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

enum {
    FORMULA_BLOCK = 256,
    FORMULA_MAP_BLOCK = 128, // smaller ones, of which one begins to load as soon as one has stored
};

// What is added stays apart from the product that it may be: whether the compiler joins them into
// one fma depends on what else is made of that product, and so would the bits of a gradient on which
// others are wanted.
__device__ __forceinline__ float formula_plus(float a, float b)
{
#ifdef OPD_CPU
    return a + b; // there each sum has a kernel of its own
#else
    return __fadd_rn(a, b);
#endif
}

__device__ __forceinline__ double formula_plus(double a, double b)
{
#ifdef OPD_CPU
    return a + b;
#else
    return __dadd_rn(a, b);
#endif
}

// Sums that are made together.
template <class A, int N> struct formula_sums {
    A v[N];
};

template <class A, int N>
__device__ __forceinline__ formula_sums<A, N> formula_plus(const formula_sums<A, N> &a,
                                                           const formula_sums<A, N> &b)
{
    formula_sums<A, N> sums;
#pragma unroll
    for (int i = 0; i < N; i++)
        sums.v[i] = formula_plus(a.v[i], b.v[i]);
    return sums;
}

// How a row becomes one number.
struct formula_add {
    template <class A> __device__ __forceinline__ static A start()
    {
        return A{};
    }
    template <class A> __device__ __forceinline__ static A join(A a, A b)
    {
        return formula_plus(a, b);
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

// What tensors of lists have found of the gradient of one that all share.
template <class T, int CAPACITY> struct formula_parts {
    int64_t n;
    uint32_t count;
    bool more; // than `to` has already
    T *to;
    const T *parts[CAPACITY];
};
template <class A, class T, int CAPACITY> __global__ void formula_join(formula_parts<T, CAPACITY> p)
{
    CUDA_KERNEL_LOOP(i, p.n) {
        A sum = p.more ? A(p.to[i]) : A(0);
        for (uint32_t k = 0; k < p.count; k++)
            sum += A(p.parts[k][i]);
        p.to[i] = T(sum);
    }
}

} // namespace opd

#ifdef OPD_CPU
#include "opd-formula-cpu.cuh"
#else
#include "opd-formula-gpu.cuh"
#endif
