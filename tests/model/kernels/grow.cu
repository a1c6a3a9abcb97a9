// In place, after `rounds` rounds of nothing: something to be interrupted.
//
//! op      grow(Tensor(a!) x, *, int by=1, int rounds=0) -> ()
//! dtypes  int32 int64 float32
//! shape   x [...S]
//! example x=[4]
//
//! forward
//!   kernel grow
//!   bind   n = numel(x)

__global__ void grow(scalar_t *x, int64_t n, int64_t by, int64_t rounds)
{
    volatile int64_t round = blockIdx.x == 0 && threadIdx.x == 0 ? 0 : rounds;
    while (round < rounds)
        round = round + 1;
    CUDA_KERNEL_LOOP(i, n)
        x[i] += scalar_t(by);
}
