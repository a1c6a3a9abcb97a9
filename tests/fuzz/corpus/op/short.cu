//! op short(Tensor x, Tensor w, *, int[2] pair=1) -> Tensor y
//! dtypes float16 float32
//! shape x [N, C]
//! shape w [C, C]
//! shape y [N, C]
//! let P, Q = pair
//! example x=[3,4] w=[4,4]
//! forward cuda
//! kernel k when N > 4 threads N*C by 32 shared 4
//! matmul y = x @ w otherwise tf32
//! forward cpu
//! matmul y = x @ w
//! backward cpu grad_x
//! zero grad_x
//! backward cuda grad_x
//! zero grad_x
template <class T> __global__ void k(const T *x, T *y, int count, opd::divisor N) {}
