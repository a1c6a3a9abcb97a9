//! op      axpys(Tensor(a!)[] ys, Tensor[] xs, *, float a=2.0) -> ()
//! dtypes  float16 float32 float64
//! formula ys = ys + a * xs
//! example ys=[[4],[5,6]] xs=[[4],[5,6]]
