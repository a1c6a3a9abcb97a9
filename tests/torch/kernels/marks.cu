// No gradient: 1 where x is above 0.
//
//! op      marks(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! type    int32 : y
//! shape   x [...S]
//! shape   y [...S]
//
//! forward
//!   kernel marks_forward
//!   bind   n = numel(x)

__global__ void marks_forward(const scalar_t *x, int32_t *y, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = x[i] > 0;
}
