//! op      by_output(Tensor x, Tensor scale) -> Tensor y
//! dtypes  float32 float64
//! formula y = exp(x * scale)
//! formula grad_x = grad_y * y * scale
//! formula grad_scale = grad_y * y * x
//! example x=[3,4] scale=[4]
