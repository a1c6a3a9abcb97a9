//! op      acos(Tensor x) -> Tensor y
//! doc     Inverse cosine, elementwise; NaN outside of -1 to 1.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! formula y = acos(x)
//! example x=[3,1000]
