// Doubles what is not below 0, and refuses the rest.
//
//! op      refuse(Tensor(a!) x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! check   low : "x[{index}] is below 0"
//! example x=[4]
//
//! forward
//!   kernel refuse
//!   bind   n = numel(x)

__global__ void refuse(scalar_t *x, scalar_t *y, opd::report_t *report, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        if (opd::check(report, low, x[i] >= 0, i))
            y[i] = x[i] = 2 * x[i];
}
