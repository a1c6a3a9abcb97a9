//! op gelu(Tensor x, *, str approximate="sigmoid") -> Tensor y
//! dtypes float16 bfloat16 float32 float64
//! words approximate sigmoid tanh none
//! shape x [...S]
//! shape y [...S]
//! example x=[1000] approximate=tanh
//! forward
//!   kernel gelu_forward<scalar_t, approximate>
//!   bind n = numel(x)
//! backward grad_x
//!   kernel gelu_backward<scalar_t, approximate>
//!   bind n = numel(x)
template <typename T, int A> __global__ void gelu_forward(const T *x, T *y, long long n) {}
template <typename T, int A> __global__ void gelu_backward(const T *x, const T *grad_y, T *grad_x, long long n) {}
