// Softplus, as an operator of opd: opd --kernels examples
//
//! op      softplus(Tensor x, *, float beta=1.0) -> Tensor y
//! doc     A smooth relu: log(1 + exp(beta * x)) / beta.
//! dtypes  float16 bfloat16 float32 float64
//! require beta > 0 : "beta is {beta}, expected more than 0"
//! shape   x [...S]
//! shape   y [...S]
//! let     n = numel(x)
//! example x=[1000] beta=2.0
//
//! forward
//!   kernel softplus_forward
//! backward grad_x
//!   kernel softplus_backward

__global__ void softplus_forward(const scalar_t *x, scalar_t *y, int64_t n, acc_t beta)
{
    CUDA_KERNEL_LOOP(i, n) {
        acc_t z = beta * acc_t(x[i]);
        y[i] = scalar_t((z > 0 ? z + log1p(exp(-z)) : log1p(exp(z))) / beta);
    }
}

__global__ void softplus_backward(const scalar_t *x, const scalar_t *grad_y, scalar_t *grad_x,
                                  int64_t n, acc_t beta)
{
    CUDA_KERNEL_LOOP(i, n) {
        grad_x[i] = scalar_t(acc_t(grad_y[i]) / (1 + exp(-beta * acc_t(x[i]))));
    }
}
