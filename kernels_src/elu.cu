//! op      elu(Tensor x, *, float alpha=1.0) -> Tensor y
//! doc     x where x > 0, else alpha * (exp(x) - 1), elementwise.
//! dtypes  float16 bfloat16 float32 float64
//! formula y = x > 0 ? x : alpha * expm1(x)
//! example x=[3,1000]
//! example x=[2,3,5,7] alpha=0.5
