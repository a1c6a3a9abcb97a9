//! op      elu(Tensor x, *, float alpha=1.0) -> Tensor y
//! doc     alpha * (exp(x) - 1) where x <= 0, else x, elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = x <= 0 ? alpha * expm1(x) : x
//! example x=[3,1000]
//! example x=[2,3,5,7] alpha=0.5
