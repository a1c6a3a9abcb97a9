// The gradient is made from x: of y, which is rounded, too few digits are left where y is all but 1. It
// is written: the derived one is 0 from where exp(-x) overflows, and so is y.
//
//! op      sigmoid(Tensor x) -> Tensor y
//! doc     1 / (1 + exp(-x)), elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = 1 / (1 + exp(-x))
//! formula e = exp(-fabs(x))
//! formula grad_x = grad_y * (e / ((1 + e) * (1 + e)))
//! example x=[3,1000]
