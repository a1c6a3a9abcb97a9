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
//! let     sign = maximize ? -1.0 : 1.0
//! let     take1 = 1 - beta1; step_size = lr / (1 - pow(beta1, step))
//! let     take2 = 1 - beta2; root = pow(1 - pow(beta2, step), 0.5)
//! let     decay = decoupled ? 0.0 : weight_decay; shrink = decoupled ? 1 - lr * weight_decay : 1.0
//! require rank(grad) == rank(param) && numel(grad) == numel(param) : \
//!           "grad is {grad}, param is {param}; expected the same shape"
//! formula g = sign * grad + decay * param
//! formula m = beta1 * exp_avg + take1 * g
//! formula v = beta2 * exp_avg_sq + take2 * (g * g)
//! formula exp_avg = m
//! formula exp_avg_sq = v
//! formula param = shrink * param - step_size * m / (sqrt(v) / root + eps)
//! example param=[1003] grad=[1003] exp_avg=[1003] exp_avg_sq=[1003] step=1
