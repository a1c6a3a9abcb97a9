//! op      axpys(Tensor(a!)[] ys, Tensor[] xs, Tensor? b=None, *, float a=2.0) -> ()
//! dtypes  float32 float64
//! formula ys = ys + a * xs + (present(b) ? b : 0)
//! example ys=[[4],[5,6]] xs=[[4],[5,6]]
