//! op      silu(Tensor x) -> Tensor y
//! doc     x * sigmoid(x), elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula s = 1 / (1 + exp(-x))
//! formula y = x * s
//! example x=[3,1000]
