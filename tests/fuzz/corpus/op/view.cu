//! op      pair(Tensor(a) x, Tensor(b) y) -> (Tensor(a) u, Tensor(b) v)
//! dtypes  float32
//! type    index_t int32 int64 float64 : y v
//! shape   x [N, M]
//! shape   y [...S]
//! shape   u [M, N]
//! shape   v [numel(y), 1]
//! view    u x
//! view    v y
