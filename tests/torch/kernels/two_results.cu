// Several results, an optional input, saved tensors of two dtypes: y = gain x exp(x + b), z = 2 x.
//
//! op      two_results(Tensor x, Tensor? b=None, *, float gain=1.0) -> (Tensor y, Tensor z)
//! doc     y = gain x exp(x + b), z = 2 x.
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   b [...S]
//! shape   y [...S]
//! shape   z [...S]
//! let     n = numel(x)
//! saved   e [...S]
//! saved   twos float64 [3]
//
//! forward
//!   kernel two_results_forward
//! backward grad_x
//!   kernel two_results_backward_x
//! backward grad_b
//!   kernel two_results_backward_b

__global__ void two_results_forward(const scalar_t *x, const scalar_t *b, scalar_t *y, scalar_t *z,
                                    scalar_t *e, double *twos, int64_t n, scalar_t gain)
{
    CUDA_KERNEL_LOOP(i, n) {
        e[i] = gain * exp(x[i] + (b ? b[i] : scalar_t(0)));
        y[i] = x[i] * e[i];
        z[i] = 2 * x[i];
        if (i == 0)
            twos[0] = twos[1] = twos[2] = 2;
    }
}

__global__ void two_results_backward_x(const scalar_t *x, const scalar_t *e, const double *twos,
                                       const scalar_t *grad_y, const scalar_t *grad_z,
                                       scalar_t *grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * e[i] * (1 + x[i]) + scalar_t(twos[1]) * grad_z[i];
}

// Of x it needs the shape alone, which y has.
__global__ void two_results_backward_b(const scalar_t *y, const scalar_t *grad_y, scalar_t *grad_b,
                                       int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_b[i] = grad_y[i] * y[i];
}
