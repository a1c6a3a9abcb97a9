//! op      rms_norm(Tensor x, Tensor weight, *, float eps=1e-5) -> Tensor y
//! doc     y = x / sqrt(mean(x * x) + eps) * weight, over the last dimension.
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [...S, C]
//! shape   weight [C]
//! require C > 0 : "x is {x}, expected at least one element in its last dimension"
//! shape   y [...S, C]
//! let     rows = numel(x) / C
//! saved   rstd acc_t [...S]
//! example x=[4,10,33] weight=[33]
//
//! forward
//!   kernel rms_norm_forward threads rows
//! backward grad_x
//!   kernel rms_norm_backward_x threads rows
//! backward grad_weight
//!   kernel rms_norm_backward_weight

__global__ void rms_norm_forward(const scalar_t *x, const scalar_t *weight, scalar_t *y,
                                 acc_t *rstd, int64_t rows, int64_t C, acc_t eps)
{
    CUDA_KERNEL_LOOP(r, rows) {
        acc_t sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += acc_t(x[r * C + c]) * acc_t(x[r * C + c]);
        rstd[r] = 1 / sqrt(sum / C + eps);
        for (int64_t c = 0; c < C; c++)
            y[r * C + c] = scalar_t(acc_t(x[r * C + c]) * rstd[r] * acc_t(weight[c]));
    }
}

__global__ void rms_norm_backward_x(const scalar_t *x, const scalar_t *weight, const acc_t *rstd,
                                    const scalar_t *grad_y, scalar_t *grad_x, int64_t rows, int64_t C)
{
    CUDA_KERNEL_LOOP(r, rows) {
        acc_t dot = 0;
        for (int64_t c = 0; c < C; c++)
            dot += acc_t(grad_y[r * C + c]) * acc_t(weight[c]) * acc_t(x[r * C + c]);
        dot *= rstd[r] * rstd[r] / C;
        for (int64_t c = 0; c < C; c++)
            grad_x[r * C + c] = scalar_t(
                rstd[r] * (acc_t(grad_y[r * C + c]) * acc_t(weight[c]) - dot * acc_t(x[r * C + c])));
    }
}

template <typename T>
__global__ void rms_norm_backward_weight(const T *x, const acc_t *rstd, const T *grad_y,
                                         T *grad_weight, int64_t rows, int64_t C)
{
    CUDA_KERNEL_LOOP(c, C) {
        acc_t sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += acc_t(grad_y[r * C + c]) * acc_t(x[r * C + c]) * rstd[r];
        grad_weight[c] = T(sum);
    }
}
