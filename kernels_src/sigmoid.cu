//! op      sigmoid(Tensor x) -> Tensor y
//! doc     1 / (1 + exp(-x)), elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = 1 / (1 + exp(-x))
//! formula grad_x = grad_y * y * (1 - y)
//! example x=[3,1000]
