//! op      glus(Tensor[] xs, Tensor[] gates, Tensor by, Tensor? b=None, *, float a=2.0) -> (Tensor[] ys, Tensor[] zs)
//! doc     Formulas of lists: their gradients, and those of tensors that all share.
//! dtypes  float16 float32 float64
//! formula ys = xs * tanh(gates) * by + (present(b) ? b * xs * xs : 0)
//! formula zs = a * xs * exp(by)
//! example xs=[[4],[5,6]] gates=[[4],[5,6]] by=[]
//! example xs=[[3,4],[4],[2,1,1]] gates=[[3,1],[3,4],[3,4]] by=[4] b=[3,1]
