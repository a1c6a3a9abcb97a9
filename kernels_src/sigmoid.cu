//! op      sigmoid(Tensor x) -> Tensor y
//! doc     1 / (1 + exp(-x)), elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = 1 / (1 + exp(-x))
//! example x=[3,1000]
