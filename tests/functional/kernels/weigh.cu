// Every kind of argument and result that a client can meet.
//! op      weigh(Tensor a, Tensor? b=None, *, float[2] by=1, float? offset=None, bool negate=False) -> (Tensor sum, Tensor difference)
//! doc     a * by[0] + b * by[1] + offset, and a * by[0] - b * by[1].
//! dtypes  float32 float64
//! let     SIGN = negate ? -1 : 1
//! let     OFFSET = present(offset) ? offset : 0.0
//! shape   a [N]
//! shape   b [N]
//! shape   sum [N]
//! shape   difference [N]
//! example a=[5] b=[5] by=[2,3]
//
//! forward
//!   kernel  weigh
//!   bind    p = by[0] * SIGN
//!   bind    q = by[1] * SIGN
//!   bind    offset = OFFSET
//! backward grad_a grad_b
//!   kernel  weigh_backward
//!   bind    p = by[0] * SIGN
//!   bind    q = by[1] * SIGN

extern "C" __global__ void weigh(const scalar_t *a, const scalar_t *b, scalar_t *sum, scalar_t *difference, int N,
                                 double p, double q, double offset)
{
    CUDA_KERNEL_LOOP(i, N)
    {
        const double u = a[i] * p, v = b ? b[i] * q : 0;
        sum[i] = u + v + offset;
        difference[i] = u - v;
    }
}

extern "C" __global__ void weigh_backward(const scalar_t *grad_sum, const scalar_t *grad_difference,
                                          scalar_t *grad_a, scalar_t *grad_b, int N, double p, double q)
{
    CUDA_KERNEL_LOOP(i, N)
    {
        if (grad_a)
            grad_a[i] = (grad_sum[i] + grad_difference[i]) * p;
        if (grad_b)
            grad_b[i] = (grad_sum[i] - grad_difference[i]) * q;
    }
}
