//! op recurrent(Tensor x, Tensor w, Tensor h0) -> Tensor hs
//! dtypes float16 float32 float64
//! shape x [T, B, S]
//! shape w [S, S]
//! shape h0 [B, S]
//! shape hs [T, B, S]
//! let n = B * S
//! scratch gates acc_t [B, S]
//! scratch d [B, S]
//! example x=[3,2,5] w=[5,5] h0=[2,5]
//! forward
//! repeat t < T
//! matmul gates = h0 @ w.T
//! when t == 0
//! matmul gates = matrix(hs, B, S, S, (t - 1) * n) @ w.T
//! otherwise
//! tf32
//! kernel step
//! grid cdiv(n, 256)
//! end
//! backward grad_w
//! zero grad_w
//! repeat t < T
//! kernel back
//! bind t = T - 1 - t
//! matmul grad_w += d.T @ h0
//! when t == T - 1
//! matmul grad_w += d.T @ matrix(hs, B, S, S, (T - 2 - t) * n)
//! otherwise
//! end
__global__ void step(const acc_t *gates, const scalar_t *x, scalar_t *hs, int64_t t, int64_t n) {}
__global__ void back(const scalar_t *hs, const scalar_t *grad_hs, scalar_t *d, int64_t t) {}
