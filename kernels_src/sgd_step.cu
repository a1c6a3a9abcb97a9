// A step of stochastic gradient descent, in place, as torch.optim.SGD:
//   g = grad + weight_decay * param;  buffer = momentum * buffer + (1 - dampening) * g
//   param -= lr * (nesterov ? g + momentum * buffer : buffer)
// with g = -grad + ... where maximize is set, and g in the buffer's place where momentum is 0.
//
//! op      sgd_step(Tensor(a!) param, Tensor grad, Tensor(b!)? momentum_buffer=None, *, float lr, \
//!           float momentum=0.0, float dampening=0.0, float weight_decay=0.0, \
//!           bool nesterov=False, bool maximize=False, bool first=False) -> ()
//! doc     One step of torch.optim.SGD: param and momentum_buffer are changed in place.
//! doc     first: the buffer is set to the gradient, whatever it holds, as PyTorch's first step
//! doc     does; without dampening a buffer of zeros does the same.
//! doc     The buffer of a 16-bit param may be float32. In float16 a step below param / 2048 is
//! doc     lost.
//! dtypes  float16 bfloat16 float32 float64
//! type    buffer_t float32 float16 bfloat16 float64 : momentum_buffer
//! shape   param [...S]
//! shape   grad [...S]
//! shape   momentum_buffer [...S]
//! let     IS_FLOAT = is(buffer_t, float32) && !is(scalar_t, float64)
//! let     IS_SAME = is(buffer_t, float16) && is(scalar_t, float16) || \
//!           is(buffer_t, bfloat16) && is(scalar_t, bfloat16) || \
//!           is(buffer_t, float64) && is(scalar_t, float64)
//! require !present(momentum_buffer) || IS_FLOAT || IS_SAME : \
//!           "momentum_buffer is {momentum_buffer}, param is {param}; expected the same dtype, or\
//!           float32 for a 16-bit param"
//! require present(momentum_buffer) || momentum == 0 : \
//!           "momentum is {momentum}, but there is no momentum_buffer; expected both or none"
//! require !present(momentum_buffer) || momentum != 0 : \
//!           "there is a momentum_buffer, but momentum is 0; expected both or none"
//! require lr >= 0 : "lr is {lr}, expected at least 0"
//! require momentum >= 0 && weight_decay >= 0 : \
//!           "momentum is {momentum}, weight_decay is {weight_decay}; expected at least 0"
//! require !nesterov || (momentum > 0 && dampening == 0) : \
//!           "nesterov with momentum {momentum} and dampening {dampening};\
//!           expected momentum above 0 and no dampening"
//! let     n = numel(param)
//! let     sign = maximize ? -1.0 : 1.0
//! let     keep = first ? 0.0 : momentum
//! let     take = first ? 1.0 : 1.0 - dampening
//! let     N = 16 / sizeof(scalar_t)
//! example param=[1003] grad=[1003] lr=0.1
//! example param=[1003] grad=[1003] momentum_buffer=[1003] lr=0.1 momentum=0.9
//!
//! forward
//!   kernel  sgd_step_each<scalar_t, buffer_t>
//!   when    cpu
//!   grid    cdiv(n, 4096)
//!   kernel  sgd_step<scalar_t, buffer_t>
//!   otherwise
//!   grid    cdiv(n, 256*N)

template <class B> struct sgd_rule {
    acc_t lr, momentum, keep, take, weight_decay, sign;
    bool nesterov;

    template <class T>
    __device__ __forceinline__ void apply(T *param, const T *grad, B *buffer) const
    {
        const acc_t p = opd::load(param);
        acc_t g = sign * opd::load(grad) + weight_decay * p;
        if (buffer) {
            const acc_t b = (keep == 0 ? acc_t(0) : keep * (acc_t)*buffer) + take * g;
            *buffer = (B)b;
            g = nesterov ? g + momentum * b : b;
        }
        opd::store(param, p - lr * g);
    }
};

// On the GPU a thread takes 16 bytes of param; the last ones, or views that begin in between,
// element by element.
template <class T, class B>
__global__ void sgd_step(T *__restrict__ param, const T *__restrict__ grad,
                         B *__restrict__ momentum_buffer, int64_t n, acc_t lr, acc_t momentum,
                         acc_t keep, acc_t take, acc_t weight_decay, acc_t sign, bool nesterov)
{
    constexpr int N = 16 / sizeof(T);
    const sgd_rule<B> rule = { lr, momentum, keep, take, weight_decay, sign, nesterov };
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first + N <= n && opd::is_aligned(param, 16) && opd::is_aligned(grad, 16) &&
        opd::is_aligned(momentum_buffer, N * sizeof(B))) {
        opd::vec<T, N> p = opd::load_vec<N>(param + first);
        const opd::vec<T, N> g = opd::load_vec<N>(grad + first);
        opd::vec<B, N> b = {};
        if (momentum_buffer)
            b = opd::load_vec<N>(momentum_buffer + first);
#pragma unroll
        for (int k = 0; k < N; k++)
            rule.apply(&p[k], &g[k], momentum_buffer ? &b[k] : nullptr);
        opd::store_vec(param + first, p);
        if (momentum_buffer)
            opd::store_vec(momentum_buffer + first, b);
        return;
    }
    for (int64_t i = first; i < first + N && i < n; i++)
        rule.apply(param + i, grad + i, momentum_buffer ? momentum_buffer + i : nullptr);
}

// On the CPU, whose compiler makes vectors of threads.
template <class T, class B>
__global__ void sgd_step_each(T *__restrict__ param, const T *__restrict__ grad,
                              B *__restrict__ momentum_buffer, int64_t n, acc_t lr, acc_t momentum,
                              acc_t keep, acc_t take, acc_t weight_decay, acc_t sign, bool nesterov)
{
    const sgd_rule<B> rule = { lr, momentum, keep, take, weight_decay, sign, nesterov };
    CUDA_KERNEL_LOOP(i, n)
    rule.apply(param + i, grad + i, momentum_buffer ? momentum_buffer + i : nullptr);
}
