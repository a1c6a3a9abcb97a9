// No input: 0, step, 2 step ...
//
//! op      ramp(*, int count, int[2] step=1, int? lambda=None) -> Tensor y
//! type    float32 : y
//! require count >= 0
//! shape   y [count]
//! let     more = present(lambda) ? lambda : 0
//
//! forward
//!   kernel ramp_forward
//!   bind   first = step[0]
//!   bind   second = step[1]

__global__ void ramp_forward(float *y, int64_t count, int64_t first, int64_t second, int64_t more)
{
    CUDA_KERNEL_LOOP(i, count)
        y[i] = float(i * (i % 2 ? second : first) + more);
}
