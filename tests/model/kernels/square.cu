// Its derivatives are operators too; exact for small numbers.
//
//! op      square(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! formula y = x * x
