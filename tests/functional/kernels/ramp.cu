// Without an input.
//! op      ramp(*, int n, int start=0) -> Tensor y
//! type    int32 : y
//! shape   y [n]
//
//! forward
//!   kernel  ramp

extern "C" __global__ void ramp(int *y, int n, int start)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = start + i;
}
