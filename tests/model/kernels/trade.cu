// Two tensors in place.
//
//! op      trade(Tensor(a!) x, Tensor(b!) y) -> ()
//! dtypes  uint8 int16 int64 float16 float64
//! shape   x [...S]
//! shape   y [...S]
//! example x=[4] y=[4]
//
//! forward
//!   kernel trade
//!   bind   n = numel(x)

__global__ void trade(scalar_t *x, scalar_t *y, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) {
        scalar_t was = x[i];
        x[i] = y[i];
        y[i] = was;
    }
}
