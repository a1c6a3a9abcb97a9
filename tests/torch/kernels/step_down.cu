// In place: param -= lr * grad.
//
//! op      step_down(Tensor(a!) param, Tensor grad, *, float lr=0.5) -> ()
//! dtypes  float32 float64
//! shape   param [...S]
//! shape   grad [...S]
//
//! forward
//!   kernel step_down_forward
//!   bind   n = numel(param)

__global__ void step_down_forward(scalar_t *param, const scalar_t *grad, int64_t n, scalar_t lr)
{
    CUDA_KERNEL_LOOP(i, n)
        param[i] -= lr * grad[i];
}
