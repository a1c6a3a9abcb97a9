//! op      tanh(Tensor x) -> Tensor y
//! doc     Hyperbolic tangent, elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = tanh(x)
//! example x=[3,1000]
