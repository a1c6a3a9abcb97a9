// y[k] = x[rows[k]]; an integer input, which has no gradient. Rows outside x are zero.
//
//! op      pick_rows(Tensor x, Tensor rows) -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! type    row_t int32 int64 : rows
//! shape   x [N, C]
//! shape   rows [K]
//! shape   y [K, C]
//
//! forward
//!   kernel pick_rows_forward
//! backward grad_x
//!   kernel pick_rows_backward

__global__ void pick_rows_forward(const scalar_t *x, const row_t *rows, scalar_t *y, int64_t N,
                                  int64_t C, int64_t K)
{
    CUDA_KERNEL_LOOP(i, K * C) {
        const int64_t row = rows[i / C];
        y[i] = row >= 0 && row < N ? x[row * C + i % C] : scalar_t(0);
    }
}

__global__ void pick_rows_backward(const row_t *rows, const scalar_t *grad_y, scalar_t *grad_x,
                                   int64_t N, int64_t C, int64_t K)
{
    CUDA_KERNEL_LOOP(i, N * C) {
        acc_t sum = 0;
        for (int64_t k = 0; k < K; k++)
            if (rows[k] == i / C)
                sum += acc_t(grad_y[k * C + i % C]);
        grad_x[i] = scalar_t(sum);
    }
}
