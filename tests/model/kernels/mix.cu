// Two outputs, a saved tensor, an input that may be absent; exact for small numbers.
//
//! op      mix(Tensor x, Tensor? b=None, *, int k=1) -> (Tensor y, Tensor z)
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   b [...S]
//! shape   y [...S]
//! shape   z [...S]
//! saved   s [...S]
//! let     n = numel(x)
//! example x=[4] b=[4]
//
//! forward
//!   kernel mix_forward
//! backward grad_x
//!   kernel mix_backward_x
//! backward grad_b
//!   kernel mix_backward_b

__global__ void mix_forward(const scalar_t *x, const scalar_t *b, scalar_t *y, scalar_t *z,
                            scalar_t *s, int64_t n, int64_t k)
{
    CUDA_KERNEL_LOOP(i, n) {
        y[i] = x[i] * scalar_t(k) + (b ? b[i] : scalar_t(0));
        z[i] = 2 * x[i];
        s[i] = x[i] + scalar_t(k);
    }
}

__global__ void mix_backward_x(const scalar_t *s, const scalar_t *grad_y, const scalar_t *grad_z,
                               scalar_t *grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * s[i] + 2 * grad_z[i];
}

__global__ void mix_backward_b(const scalar_t *z, const scalar_t *grad_y, scalar_t *grad_b,
                               int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_b[i] = grad_y[i] + z[i];
}
