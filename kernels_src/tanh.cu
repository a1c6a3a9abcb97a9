// The gradient is made from x: of y, which is rounded, too few digits are left where y is all but 1.
//
//! op      tanh(Tensor x) -> Tensor y
//! doc     Hyperbolic tangent, elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = tanh(x)
//! formula e = exp(-2 * fabs(x))
//! formula grad_x = grad_y * (4 * e / ((1 + e) * (1 + e)))
//! example x=[3,1000]
