//! op      outside(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  outside

extern "C" __global__ void outside(const float *x, float *y, int N)
{
    y[(1ll << 40) + threadIdx.x] = x[0];
}
