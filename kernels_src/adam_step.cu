// A step of Adam, in place, as torch.optim.Adam, or AdamW where `decoupled` is set:
//   g = grad + weight_decay * param            decoupled: g = grad, param *= 1 - lr * weight_decay
//   exp_avg    = beta1 * exp_avg + (1 - beta1) * g
//   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
//   param -= lr / (1 - beta1^step) * exp_avg / (sqrt(exp_avg_sq / (1 - beta2^step)) + eps)
//
//! op      adam_step(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, *, \
//!           int step, float lr=0.001, float beta1=0.9, float beta2=0.999, float eps=1e-8, \
//!           float weight_decay=0.0, bool decoupled=False, bool maximize=False) -> ()
//! doc     One step of torch.optim.Adam: param, exp_avg and exp_avg_sq are changed in place.
//! doc     step counts from 1; exp_avg and exp_avg_sq are zeros before it.
//! doc     decoupled: weight_decay as in torch.optim.AdamW.
//! doc     exp_avg and exp_avg_sq of a 16-bit param may be float32, and should be: the square of a
//! doc     gradient below 2e-4 is 0 in float16.
//! dtypes  float16 bfloat16 float32 float64
//! type    state_t float32 float16 bfloat16 float64 : exp_avg exp_avg_sq
//! shape   param [...S]
//! shape   grad [...S]
//! shape   exp_avg [...S]
//! shape   exp_avg_sq [...S]
//! let     IS_FLOAT = is(state_t, float32) && !is(scalar_t, float64)
//! let     IS_SAME = is(state_t, float16) && is(scalar_t, float16) || \
//!           is(state_t, bfloat16) && is(scalar_t, bfloat16) || \
//!           is(state_t, float64) && is(scalar_t, float64)
//! require IS_FLOAT || IS_SAME : "exp_avg is {exp_avg}, param is {param};\
//!           expected the same dtype, or float32 for a 16-bit param"
//! require step >= 1 : "step is {step}, expected at least 1: it counts from 1"
//! require lr >= 0 && weight_decay >= 0 : \
//!           "lr is {lr}, weight_decay is {weight_decay}; expected at least 0"
//! require beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 : \
//!           "beta1 is {beta1}, beta2 is {beta2}; expected at least 0 and below 1"
//! require eps >= 0 : "eps is {eps}, expected at least 0"
//! let     n = numel(param)
//! let     sign = maximize ? -1.0 : 1.0
//! let     take1 = 1 - beta1
//! let     take2 = 1 - beta2
//! let     decay = decoupled ? 0.0 : weight_decay
//! let     shrink = decoupled ? 1 - lr * weight_decay : 1.0
//! let     step_size = lr / (1 - pow(beta1, step))
//! let     root = pow(1 - pow(beta2, step), 0.5)
//! let     N = 16 / sizeof(scalar_t)
//! example param=[1003] grad=[1003] exp_avg=[1003] exp_avg_sq=[1003] step=1
//!
//! forward
//!   kernel  adam_step_each<scalar_t, state_t>
//!   when    cpu
//!   grid    cdiv(n, 4096)
//!   kernel  adam_step<scalar_t, state_t>
//!   otherwise
//!   grid    cdiv(n, 256*N)

// root: of what exp_avg_sq is divided by.
template <class S> struct adam_rule {
    acc_t beta1, take1, beta2, take2, decay, shrink, step_size, root, eps, sign;

    template <class T>
    __device__ __forceinline__ void apply(T *param, const T *grad, S *exp_avg, S *exp_avg_sq) const
    {
        const acc_t p = opd::load(param), g = sign * opd::load(grad) + decay * p;
        const acc_t m = beta1 * (acc_t)*exp_avg + take1 * g;
        const acc_t v = beta2 * (acc_t)*exp_avg_sq + take2 * (g * g);
        *exp_avg = (S)m;
        *exp_avg_sq = (S)v;
        opd::store(param, shrink * p - step_size * m / (sqrt(v) / root + eps));
    }
};

// On the GPU a thread takes 16 bytes of param; the last ones, or views that begin in between,
// element by element.
template <class T, class S>
__global__ void adam_step(T *__restrict__ param, const T *__restrict__ grad,
                          S *__restrict__ exp_avg, S *__restrict__ exp_avg_sq, int64_t n,
                          acc_t beta1, acc_t take1, acc_t beta2, acc_t take2, acc_t decay,
                          acc_t shrink, acc_t step_size, acc_t root, acc_t eps, acc_t sign)
{
    constexpr int N = 16 / sizeof(T);
    const adam_rule<S> rule = { beta1,  take1,     beta2, take2, decay,
                                shrink, step_size, root,  eps,   sign };
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first + N <= n && opd::is_aligned(param, 16) && opd::is_aligned(grad, 16) &&
        opd::is_aligned(exp_avg, N * sizeof(S)) && opd::is_aligned(exp_avg_sq, N * sizeof(S))) {
        opd::vec<T, N> p = opd::load_vec<N>(param + first);
        const opd::vec<T, N> g = opd::load_vec<N>(grad + first);
        opd::vec<S, N> m = opd::load_vec<N>(exp_avg + first);
        opd::vec<S, N> v = opd::load_vec<N>(exp_avg_sq + first);
#pragma unroll
        for (int k = 0; k < N; k++)
            rule.apply(&p[k], &g[k], &m[k], &v[k]);
        opd::store_vec(param + first, p);
        opd::store_vec(exp_avg + first, m);
        opd::store_vec(exp_avg_sq + first, v);
        return;
    }
    for (int64_t i = first; i < first + N && i < n; i++)
        rule.apply(param + i, grad + i, exp_avg + i, exp_avg_sq + i);
}

// On the CPU, whose compiler makes vectors of threads.
template <class T, class S>
__global__ void adam_step_each(T *__restrict__ param, const T *__restrict__ grad,
                               S *__restrict__ exp_avg, S *__restrict__ exp_avg_sq, int64_t n,
                               acc_t beta1, acc_t take1, acc_t beta2, acc_t take2, acc_t decay,
                               acc_t shrink, acc_t step_size, acc_t root, acc_t eps, acc_t sign)
{
    const adam_rule<S> rule = { beta1,  take1,     beta2, take2, decay,
                                shrink, step_size, root,  eps,   sign };
    CUDA_KERNEL_LOOP(i, n)
    rule.apply(param + i, grad + i, exp_avg + i, exp_avg_sq + i);
}
