// Gaussian error linear unit, in three forms: y = x * p(x). Of "tanh" p(x) = (1 + tanh(u / 2)) / 2.
//
//! op      gelu(Tensor x, *, str approximate="sigmoid") -> Tensor y
//! doc     Gaussian error linear unit, elementwise.
//! doc     "sigmoid" is x * sigmoid(1.702 x); "tanh" and "none" (erf) are PyTorch's.
//! dtypes  float16 bfloat16 float32 float64
//! words   approximate sigmoid tanh none
//! formula u = approximate == "tanh" ? 1.5957691216057308 * x * (1 + 0.044715 * x * x) : 1.702 * x
//! formula p = approximate == "none" ? normcdf(x) : 1 / (1 + exp(-u))
//! formula y = x * p
//! example x=[3,1000]
//! example x=[1027] approximate="tanh"
//! example x=[2,3,5,7] approximate="none"
