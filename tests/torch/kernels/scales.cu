//! op      scales(Tensor[] xs, Tensor by) -> (Tensor[] ys, Tensor[] signs)
//! dtypes  float32
//! type    int32 : signs
//! shape   xs ys signs [...S]
//! shape   by []
//! strided xs
//! example xs=[[4],[5,6],[0]] by=[]
//! forward
//!   kernel scale threads numel(xs)
//!     bind n = numel(xs)
//!     bind step = rank(xs) == 1 ? stride(xs, 0) : 1
__global__ void scale(const float *xs, const float *by, float *ys, int *signs, int64_t n, int64_t step)
{
    CUDA_KERNEL_LOOP(i, n) {
        ys[i] = xs[i * step] * by[0];
        signs[i] = xs[i * step] < 0 ? -1 : 1;
    }
}
