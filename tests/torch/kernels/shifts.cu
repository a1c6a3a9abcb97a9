//! op      shifts(Tensor[] xs, Tensor[]? bs=None, Tensor? by=None, *, float a=2.0) -> (Tensor[] ys)
//! dtypes  float32 float64
//! formula ys = a * xs + (present(bs) ? bs : 0) + (present(by) ? by : 0)
//! example xs=[[4],[5,6]] bs=[[4],[5,6]]
//! example xs=[[4],[5,6]]
