// A fully connected layer, as an operator of opd: opd --kernels examples
//
//! op      linear(Tensor x, Tensor weight, Tensor bias) -> Tensor y
//! doc     y = x weight^T + bias; x [N, I], weight [O, I], bias [O], y [N, O].
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   x [N, I]
//! shape   weight [O, I]
//! shape   bias [O]
//! shape   y [N, O]
//! example x=[5,7] weight=[3,7] bias=[3]
//
//! forward
//!   matmul y = x @ weight.T + bias
//! backward grad_x
//!   matmul grad_x = grad_y @ weight
//! backward grad_weight
//!   matmul grad_weight = grad_y.T @ x
//! backward grad_bias
//!   kernel linear_backward_bias
//!   grid   O
//!   block  256

__global__ void linear_backward_bias(const scalar_t *grad_y, scalar_t *grad_bias, int64_t N,
                                     int64_t O)
{
    acc_t sum = 0;
    for (int64_t n = threadIdx.x; n < N; n += blockDim.x)
        sum += acc_t(grad_y[n * O + blockIdx.x]);
    sum = opd::block_reduce_sum<256>(sum);
    if (threadIdx.x == 0)
        grad_bias[blockIdx.x] = scalar_t(sum);
}
