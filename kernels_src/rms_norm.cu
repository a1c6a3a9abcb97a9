//! op      rms_norm(Tensor input, Tensor? weight=None, *, float? eps=None) -> Tensor y
//! doc     input / sqrt(mean(input^2) + eps) * weight along the last dimension, as
//! doc     torch.nn.functional.rms_norm. eps: without one, the difference between 1 and the next number
//! doc     of float32, or float64 for that.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! require !present(weight) || size(weight, -1) == size(input, -1) : \
//!           "weight is {weight}, input is {input}; expected the same last dimension"
//! let     e = present(eps) ? eps : is(scalar_t, float64) ? 2.220446049250313e-16 : 1.1920928955078125e-7
//! formula n = input * rsqrt(mean(input * input, -1) + e)
//! formula y = present(weight) ? n * weight : n
//! example input=[3,1000] weight=[1000] eps=1e-5
//! example input=[2,3,77] eps=1e-5
