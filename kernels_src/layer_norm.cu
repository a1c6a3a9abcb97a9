//! op      layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, *, float eps=1e-5) -> Tensor y
//! doc     (input - mean) / sqrt(variance + eps) * weight + bias along the last dimension, as
//! doc     torch.nn.functional.layer_norm.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! require !present(weight) || size(weight, -1) == size(input, -1) : \
//!           "weight is {weight}, input is {input}; expected the same last dimension"
//! require !present(bias) || size(bias, -1) == size(input, -1) : \
//!           "bias is {bias}, input is {input}; expected the same last dimension"
//! formula d = input - mean(input, -1)
//! formula n = d * rsqrt(mean(d * d, -1) + eps)
//! formula s = present(weight) ? n * weight : n
//! formula y = present(bias) ? s + bias : s
//! example input=[3,1000] weight=[1000] bias=[1000]
//! example input=[2,3,77]
//! example input=[40,2049] weight=[2049] bias=[2049]
