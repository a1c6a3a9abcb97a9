// Gaussian error linear unit, in three forms: y = x * phi(x).
//
//! op      gelu(Tensor x, *, str approximate="sigmoid") -> Tensor y
//! doc     Gaussian error linear unit, elementwise.
//! doc     "sigmoid" is x * sigmoid(1.702 x); "tanh" and "none" (erf) are PyTorch's.
//! dtypes  float16 bfloat16 float32 float64
//! words   approximate sigmoid tanh none
//! shape   x [...S]
//! shape   y [...S]
//! let     MODE = approximate == "none" ? 2 : approximate == "tanh" ? 1 : 0
//! let     CHUNK = 256 * (16 / sizeof(scalar_t))
//! example x=[3,1000]
//! example x=[1027] approximate="tanh"
//! example x=[2,3,5,7] approximate="none"
//
//! forward
//!   kernel  gelu_forward_each<scalar_t, MODE>
//!   when    cpu
//!   grid    cdiv(numel(x), 4096)
//!   bind    n = numel(x)
//!   kernel  gelu_forward<scalar_t, MODE>
//!   otherwise
//!   grid    cdiv(numel(x), CHUNK)
//!   bind    n = numel(x)
//
//! backward grad_x
//!   kernel  gelu_backward_each<scalar_t, MODE>
//!   when    cpu
//!   grid    cdiv(numel(x), 4096)
//!   bind    n = numel(x)
//!   kernel  gelu_backward<scalar_t, MODE>
//!   otherwise
//!   grid    cdiv(numel(x), CHUNK)
//!   bind    n = numel(x)

enum { SIGMOID, TANH, NONE };

// The approximate functions of the GPU err by some units in the last place: far less than the data
// types' own bounds.
__device__ __forceinline__ float logistic(float z)
{
    return __fdividef(1.0f, 1.0f + __expf(-z));
}

__device__ __forceinline__ double logistic(double z)
{
    return 1.0 / (1.0 + exp(-z));
}

// The normal distribution function, (1 + erf(x / sqrt(2))) / 2; but on the far left nothing is left
// of 1 + erf. In float erfc(z) = t exp(p(t) - z^2) with t = 1 / (1 + z / 2) and the Chebyshev fit p of
// Numerical Recipes (section 6.2, "erfcc"), which errs by 1.2e-7 of the value.
__device__ __forceinline__ float normal(float x)
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

__device__ __forceinline__ double normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

// y = x * logistic(g(x)): g(x) = 1.702 x, or 2 sqrt(2/pi) (x + 0.044715 x^3) since (1 + tanh(u)) /
// 2 = logistic(2u). y = x * normal(x) for NONE.
template <int MODE, class A> __device__ __forceinline__ A gelu(A x)
{
    if (MODE == NONE)
        return x * normal(x);
    if (MODE == TANH)
        return x * logistic(A(1.5957691216057308) * x * (A(1) + A(0.044715) * x * x));
    return x * logistic(A(1.702) * x);
}

// y' = s + x s (1 - s) g'(x) with s = logistic(g(x)); for NONE normal(x) plus x times its density.
template <int MODE, class A> __device__ __forceinline__ A gelu_slope(A x)
{
    if (MODE == NONE) {
        const A density = A(0.3989422804014327) * exp(A(-0.5) * x * x);
        return normal(x) + x * density;
    }
    A inner = A(1.702) * x, slope = A(1.702);
    if (MODE == TANH) {
        const A k = A(1.5957691216057308), c = A(0.044715);
        inner = k * x * (A(1) + c * x * x);
        slope = k * (A(1) + A(3) * c * x * x);
    }
    const A s = logistic(inner);
    return s + x * s * (A(1) - s) * slope;
}

// On the GPU a thread takes 16 bytes; the last ones, or views that begin in between, element by
// element.
template <class T, int MODE>
__global__ void gelu_forward(const T *__restrict__ x, T *__restrict__ y, int64_t n)
{
    constexpr int N = 16 / sizeof(T);
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first + N <= n && opd::is_aligned(x, 16) && opd::is_aligned(y, 16)) {
        opd::vec<T, N> v = opd::load_vec<N>(x + first);
#pragma unroll
        for (int k = 0; k < N; k++)
            opd::store(&v[k], gelu<MODE>(opd::load(&v[k])));
        opd::store_vec(y + first, v);
        return;
    }
    for (int64_t i = first; i < first + N && i < n; i++)
        opd::store(y + i, gelu<MODE>(opd::load(x + i)));
}

template <class T, int MODE>
__global__ void gelu_backward(const T *__restrict__ x, const T *__restrict__ grad_y,
                              T *__restrict__ grad_x, int64_t n)
{
    constexpr int N = 16 / sizeof(T);
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first + N <= n && opd::is_aligned(x, 16) && opd::is_aligned(grad_y, 16) &&
        opd::is_aligned(grad_x, 16)) {
        const opd::vec<T, N> v = opd::load_vec<N>(x + first);
        opd::vec<T, N> g = opd::load_vec<N>(grad_y + first);
#pragma unroll
        for (int k = 0; k < N; k++)
            opd::store(&g[k], opd::load(&g[k]) * gelu_slope<MODE>(opd::load(&v[k])));
        opd::store_vec(grad_x + first, g);
        return;
    }
    for (int64_t i = first; i < first + N && i < n; i++)
        opd::store(grad_x + i, opd::load(grad_y + i) * gelu_slope<MODE>(opd::load(x + i)));
}

// On the CPU, whose compiler makes vectors of threads.
template <class T, int MODE>
__global__ void gelu_forward_each(const T *__restrict__ x, T *__restrict__ y, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
    opd::store(y + i, gelu<MODE>(opd::load(x + i)));
}

template <class T, int MODE>
__global__ void gelu_backward_each(const T *__restrict__ x, const T *__restrict__ grad_y,
                                   T *__restrict__ grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
    opd::store(grad_x + i, opd::load(grad_y + i) * gelu_slope<MODE>(opd::load(x + i)));
}
