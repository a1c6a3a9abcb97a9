// x * x, and the strides that x has.
//
//! op      read_strided(Tensor x) -> (Tensor y, Tensor steps)
//! dtypes  float32 float64
//! type    int64 : steps
//! strided x
//! shape   x [N, M]
//! require stride(x, 1) < 1000 : "x has {stride(x, 1)} elements between its columns"
//! shape   y [N, M]
//! shape   steps [2]
//! example x=[3,4]
//! example x=[3,4]:[1,3]
//! example x=[3,4]:[0,1]
//
//! forward
//!   kernel read_strided
//!   bind   s0 = stride(x, 0)
//!   bind   s1 = stride(x, -1)
//! backward grad_x
//!   kernel read_strided_backward

__global__ void read_strided(const scalar_t *x, scalar_t *y, int64_t *steps, int64_t N, int64_t M,
                             int64_t s0, int64_t s1)
{
    CUDA_KERNEL_LOOP(i, N * M) {
        const scalar_t v = x[i / M * s0 + i % M * s1];
        y[i] = v * v;
        if (i == 0) {
            steps[0] = s0;
            steps[1] = s1;
        }
    }
}

__global__ void read_strided_backward(const torch::PackedTensorAccessor64<scalar_t, 2> x,
                                      torch::PackedTensorAccessor32<scalar_t, 2> grad_x,
                                      const scalar_t *grad_y, int64_t N, int64_t M)
{
    CUDA_KERNEL_LOOP(i, N * M)
        grad_x[i / M][i % M] = 2 * grad_y[i] * x[i / M][i % M];
}
