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
//! let     sign = maximize ? -1.0 : 1.0
//! let     keep = first ? 0.0 : momentum; take = first ? 1.0 : 1.0 - dampening
//! require rank(grad) == rank(param) && numel(grad) == numel(param) : \
//!           "grad is {grad}, param is {param}; expected the same shape"
//! formula g = sign * grad + weight_decay * param
//! formula b = present(momentum_buffer) ? (keep == 0 ? 0 : keep * momentum_buffer) + take * g : g
//! formula momentum_buffer = b
//! formula param = param - lr * (nesterov ? g + momentum * b : b)
//! example param=[1003] grad=[1003] lr=0.1
//! example param=[1003] grad=[1003] momentum_buffer=[1003] lr=0.1 momentum=0.9
