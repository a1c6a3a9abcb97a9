// The gradient is made from y, which the next layer keeps, too: the derived one would keep x.
//
//! op      softmax(Tensor input, int dim=-1) -> Tensor y
//! doc     exp(input) / sum(exp(input)) along the last dimension, as torch.nn.functional.softmax.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! require dim == -1 || dim == max(rank(input), 1) - 1 : \
//!           "dim is {dim}, input is {input}; expected the last dimension: move it there before"
//! formula e = exp(input - amax(input, -1))
//! formula y = e / sum(e, -1)
//! formula grad_input = y * (grad_y - sum(grad_y * y, -1))
//! example input=[3,1000]
//! example input=[2,3,5,7]
//! example input=[400,197]
