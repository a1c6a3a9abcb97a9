// In place, without an output.
//! op      nudge(Tensor(a!) x, *, float by) -> ()
//! dtypes  float32 float64
//! shape   x [...S]
//
//! forward
//!   kernel  nudge
//!   grid    cdiv(numel(x), 256)
//!   bind    n = numel(x)

extern "C" __global__ void nudge(scalar_t *x, long long n, double by)
{
    CUDA_KERNEL_LOOP(i, n)
        x[i] += by;
}
