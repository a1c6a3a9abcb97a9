// What must be given by name stands behind an input that may be absent.
//
//! op      rate_after(Tensor x, Tensor? other=None, *, float rate, str how="times") -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! words   how times plus
//! require !present(other) || numel(other) == numel(x) : "other is {other}, x is {x}"
//! formula z = present(other) ? x * other : x
//! formula y = how == "times" ? z * rate : z + rate
//! example x=[7] rate=0.5
