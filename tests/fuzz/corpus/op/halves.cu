//! op halves(Tensor x, Tensor u, Tensor(a!) p, *, int at=0) -> Tensor y
//! dtypes float16 bfloat16 float32 float64
//! shape x [N, 2, K]
//! shape u [K, C]
//! shape p [...P]
//! shape y [N, 2*C + 1]
//! example x=[3,2,5] u=[5,4] p=[3,4]
//! forward
//! matmul matrix(y, N, C, 2*C + 1) = matrix(x, N, K, 2*K) @ u
//! matmul matrix(y, N, C, 2*C + 1, C) = matrix(x, N, K, 2*K, K) @ u
//! matmul matrix(p, N, C, C, at) += matrix(x, N, K, 2*K) @ matrix(u, C, K).T
//! when numel(p) > at
