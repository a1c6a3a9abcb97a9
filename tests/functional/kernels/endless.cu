//! op      endless(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  endless

extern "C" __global__ void endless(const float *x, volatile float *y, int N)
{
    while (y[0] == x[0])
        ;
}
