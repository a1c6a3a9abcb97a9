// Softmax and cross entropy, as an operator of opd: opd --kernels examples
//
//! op      cross_entropy(Tensor logits, Tensor target) -> Tensor loss
//! doc     Mean over n of -log(softmax(logits)[n, target[n]]); logits [N, C], target [N] of int64.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32
//! type    int64 : target
//! shape   logits [N, C]
//! shape   target [N]
//! require N > 0 && C > 0 : "logits is {logits}, expected at least one row and one class"
//! shape   loss []
//! saved   log_sum acc_t [N]
//! check   known_class : "target[{index}] is no class of logits, expected 0 to C - 1"
//! example logits=[6,5] target=[6]
//
//! forward
//!   kernel cross_entropy_rows
//!   grid   cdiv(N, 256)
//!   kernel cross_entropy_mean
//!   grid   1
//!   block  256
//! backward grad_logits
//!   kernel cross_entropy_backward
//!   grid   cdiv(N * C, 256)

__global__ void cross_entropy_rows(const scalar_t *logits, const int64_t *target, acc_t *log_sum,
                                   opd::report_t *report, int64_t N, int64_t C)
{
    CUDA_KERNEL_LOOP(n, N) {
        opd::check(report, known_class, target[n] >= 0 && target[n] < C, n);
        const scalar_t *row = logits + n * C;
        acc_t most = acc_t(row[0]), sum = 0;
        for (int64_t c = 1; c < C; c++)
            most = fmax(most, acc_t(row[c]));
        for (int64_t c = 0; c < C; c++)
            sum += exp(acc_t(row[c]) - most);
        log_sum[n] = most + log(sum);
    }
}

__global__ void cross_entropy_mean(const scalar_t *logits, const int64_t *target,
                                   const acc_t *log_sum, scalar_t *loss, int64_t N, int64_t C)
{
    acc_t sum = 0;
    for (int64_t n = threadIdx.x; n < N; n += blockDim.x)
        if (target[n] >= 0 && target[n] < C)
            sum += log_sum[n] - acc_t(logits[n * C + target[n]]);
    sum = opd::block_reduce_sum<256>(sum);
    if (threadIdx.x == 0)
        loss[0] = scalar_t(sum / N);
}

__global__ void cross_entropy_backward(const scalar_t *logits, const int64_t *target,
                                       const acc_t *log_sum, const scalar_t *grad_loss,
                                       scalar_t *grad_logits, int64_t N, int64_t C)
{
    CUDA_KERNEL_LOOP(i, N * C) {
        const int64_t n = i / C;
        const acc_t p = exp(acc_t(logits[i]) - log_sum[n]);
        grad_logits[i] = scalar_t(acc_t(*grad_loss) * (p - (i % C == target[n])) / N);
    }
}
