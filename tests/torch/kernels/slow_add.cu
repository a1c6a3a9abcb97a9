// y = x + 1, after a while.
//
//! op      slow_add(Tensor x, *, int rounds) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel slow_add_forward
//!   grid   1
//!   block  1

__global__ void slow_add_forward(const float *x, float *y, int64_t N, int64_t rounds)
{
    volatile int64_t counter = 0;
    while (counter < rounds)
        counter = counter + 1;
    for (int64_t i = 0; i < N; i++)
        y[i] = x[i] + 1;
}
