//! op      dots(Tensor[] xs, Tensor w) -> (Tensor[] ys, Tensor[] signs)
//! doc     Kernels of lists with gradients: of a list, of a tensor that all share.
//! dtypes  float32 float64
//! type    int32 : signs
//! shape   xs [N, C]
//! shape   w [C]
//! shape   ys signs [N]
//! example xs=[[4,3],[5,3],[0,3]] w=[3]
//! forward
//!   kernel dot threads N
//! backward grad_xs
//!   kernel dot_xs threads N * C
//! backward grad_w
//!   kernel dot_w threads C
template <typename T> __global__ void dot(const T *xs, const T *w, T *ys, int *signs, int N, int C)
{
    CUDA_KERNEL_LOOP(i, N) {
        T sum = 0;
        for (int c = 0; c < C; c++)
            sum += xs[i * C + c] * w[c];
        ys[i] = sum;
        signs[i] = sum < 0 ? -1 : 1;
    }
}
template <typename T> __global__ void dot_xs(const T *grad_ys, const T *w, T *grad_xs, int N, int C)
{
    CUDA_KERNEL_LOOP(i, N * C) grad_xs[i] = grad_ys[i / C] * w[i % C];
}
template <typename T> __global__ void dot_w(const T *grad_ys, const T *xs, T *grad_w, int N, int C)
{
    CUDA_KERNEL_LOOP(c, C) {
        T sum = grad_w[c];
        for (int i = 0; i < N; i++)
            sum += grad_ys[i] * xs[i * C + c];
        grad_w[c] = sum;
    }
}
