// A step of stochastic gradient descent of many parameters, in place, as torch.optim.SGD. Of each:
//   g = grad + weight_decay * param;  buffer = momentum * buffer + (1 - dampening) * g
//   param -= lr * (nesterov ? g + momentum * buffer : buffer)
// with g = -grad + ... where maximize is set, and g in the buffer's place where momentum is 0.
//
//! op      sgd_steps(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[]? momentum_buffers=None, *, \
//!           float lr, float momentum=0.0, float dampening=0.0, float weight_decay=0.0, \
//!           bool nesterov=False, bool maximize=False, bool first=False) -> ()
//! doc     One step of torch.optim.SGD for lists of tensors, in as few launches as they fit in:
//! doc     params and momentum_buffers are changed in place.
//! doc     first: each buffer is set to the gradient, whatever it holds, as PyTorch's first step
//! doc     does; without dampening a buffer of zeros does the same.
//! doc     The buffers of 16-bit params may be float32. In float16 a step below param / 2048 is
//! doc     lost.
//! dtypes  float16 bfloat16 float32 float64
//! type    buffer_t float32 float16 bfloat16 float64 : momentum_buffers
//! let     IS_FLOAT = is(buffer_t, float32) && !is(scalar_t, float64)
//! let     IS_SAME = is(buffer_t, float16) && is(scalar_t, float16) || \
//!           is(buffer_t, bfloat16) && is(scalar_t, bfloat16) || \
//!           is(buffer_t, float64) && is(scalar_t, float64)
//! require !present(momentum_buffers) || IS_FLOAT || IS_SAME : \
//!           "momentum_buffers is {momentum_buffers}, params is {params}; expected the same dtype, \
//!           or float32 for 16-bit params"
//! require present(momentum_buffers) || momentum == 0 : \
//!           "momentum is {momentum}, but there are no momentum_buffers; expected both or none"
//! require !present(momentum_buffers) || momentum != 0 : \
//!           "there are momentum_buffers, but momentum is 0; expected both or none"
//! require lr >= 0 : "lr is {lr}, expected at least 0"
//! require momentum >= 0 && weight_decay >= 0 : \
//!           "momentum is {momentum}, weight_decay is {weight_decay}; expected at least 0"
//! require !nesterov || (momentum > 0 && dampening == 0) : \
//!           "nesterov with momentum {momentum} and dampening {dampening};\
//!           expected momentum above 0 and no dampening"
//! let     sign = maximize ? -1.0 : 1.0
//! let     keep = first ? 0.0 : momentum; take = first ? 1.0 : 1.0 - dampening
//! require rank(grads) == rank(params) && numel(grads) == numel(params) : \
//!           "grads is {grads}, params is {params}; expected the same shape"
//! formula g = sign * grads + weight_decay * params
//! formula b = present(momentum_buffers) ? (keep == 0 ? 0 : keep * momentum_buffers) + take * g : g
//! formula momentum_buffers = b
//! formula params = params - lr * (nesterov ? g + momentum * b : b)
//! example params=[[1003],[5,7],[0]] grads=[[1003],[5,7],[0]] lr=0.1
//! example params=[[1003],[5,7]] grads=[[1003],[5,7]] momentum_buffers=[[1003],[5,7]] \
//!           lr=0.1 momentum=0.9
