// The gradient is made from y, which the next layer keeps, too; the derived one would keep x.
//
//! op      relu(Tensor x) -> Tensor y
//! doc     The larger of x and 0, elementwise. NaN stays NaN.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = x < 0 ? 0 : x
//! formula grad_x = y <= 0 ? 0 : grad_y
//! example x=[3,1000]
