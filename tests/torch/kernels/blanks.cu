//! op      blanks(Tensor x, Tensor? bias = None, *, float lambda = 0.5, bool import = True) -> Tensor y
//! doc     Words of Python, and blanks where torch's own schemas have none.
//! dtypes  float32
//! shape   x [N]
//! shape   bias [N]
//! shape   y [N]
//! example x=[4]
//!
//! forward
//!   kernel  blanks

extern "C" __global__ void blanks(const float *x, float *y, double lambda, bool import, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] * lambda + import;
}
