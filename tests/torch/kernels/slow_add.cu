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
    const volatile float *read = x; // what no compiler leaves out
    for (int64_t counter = 0; counter < rounds;)
        counter += read[counter % N] < 1e30f;
    for (int64_t i = 0; i < N; i++)
        y[i] = x[i] + 1;
}
