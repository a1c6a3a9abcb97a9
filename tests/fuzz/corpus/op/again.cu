//! op f(Tensor x, *, int[2] p=[3,5]) -> Tensor y
//! dtypes float32
//! shape x [N, M]
//! let P, Q, R = p, 7
//! let T = cdiv(M, min(N, P, gcd(Q, R)))
//! again B : N, M = M, T
//! let A = B.T + B.N
//! shape y [A]
//! example x=[2,3]
//! forward
//! kernel k when B.T > T as B threads T bind U = B.T
template <class S, int U, int P = 3> __global__ void k(const S *x, S *y, int T) {}
