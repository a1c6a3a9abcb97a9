// In place, of a tensor in any layout: x = -x.
//
//! op      flip_sign(Tensor(a!) x) -> ()
//! dtypes  float32 float64
//! strided x
//! shape   x [N, M]
//! example x=[3,4]
//
//! forward
//!   kernel flip_sign

__global__ void flip_sign(torch::PackedTensorAccessor32<scalar_t, 2> x, int64_t N, int64_t M)
{
    CUDA_KERNEL_LOOP(i, N * M)
        x[i / M][i % M] = -x[i / M][i % M];
}
