// Gaussian error linear unit, in three forms: y = x * p(x). p is the logistic function of 1.702 x, or
// of 2 sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = logistic(2u); or the normal
// distribution function.
//
//! op      gelu(Tensor x, *, str approximate="sigmoid") -> Tensor y
//! doc     Gaussian error linear unit, elementwise.
//! doc     "sigmoid" is x * sigmoid(1.702 x); "tanh" and "none" (erf) are PyTorch's.
//! dtypes  float16 bfloat16 float32 float64
//! words   approximate sigmoid tanh none
//! formula u = approximate == "tanh" ? 1.5957691216057308 * x * (1 + 0.044715 * x * x) : 1.702 * x
//! formula du = approximate == "tanh" ? 1.5957691216057308 * (1 + 3 * 0.044715 * x * x) : 1.702
//! formula p = approximate == "none" ? normal(x) : logistic(u)
//! formula dp = approximate == "none" ? 0.3989422804014327 * exp(-0.5 * x * x) : p * (1 - p) * du
//! formula y = x * p
//! formula grad_x = grad_y * (p + x * dp)
//! example x=[3,1000]
//! example x=[1027] approximate="tanh"
//! example x=[2,3,5,7] approximate="none"

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
