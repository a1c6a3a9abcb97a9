//! op      pick(Tensor table, Tensor rows, *, int bias=0) -> Tensor y
//! dtypes  float32 float64
//! type    int64 : rows
//! shape   table [N, C]
//! shape   rows [M]
//! shape   y [M, C]
//! check   below : "row {index} of rows is negative (bias {bias})"
//! check   above : "row {index} of rows is not below {N} of {table}: {index}"
//! example table=[5,3] rows=[4]
//
//! forward
//!   kernel pick
//! backward grad_table
//!   zero   grad_table
//!   kernel put
//!   grid   cdiv(M * C, 256)

__global__ void pick(const scalar_t *table, const int64_t *rows, scalar_t *y,
                     opd::report_t *report, int64_t N, int64_t M, int64_t C, int64_t bias)
{
    CUDA_KERNEL_LOOP(i, M * C) {
        int64_t row = rows[i / C] + bias;
        if (opd::check(report, below, row >= 0, i / C) && opd::check(report, above, row < N, i / C))
            y[i] = table[row * C + i % C];
    }
}

__global__ void put(const int64_t *rows, const scalar_t *grad_y, scalar_t *grad_table,
                    opd::report_t *report, int64_t N, int64_t M, int64_t C, int64_t bias)
{
    CUDA_KERNEL_LOOP(i, M * C) {
        int64_t row = rows[i / C] + bias;
        if (opd::check(report, above, row >= 0 && row < N, row))
            atomicAdd(&grad_table[row * C + i % C], grad_y[i]);
    }
}
