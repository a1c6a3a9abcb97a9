// a @ b, of which each lies by rows or by columns.
//
//! op      strided_product(Tensor a, Tensor b) -> Tensor y
//! dtypes  float32 float64
//! strided a b
//! shape   a [M, K]
//! shape   b [K, N]
//! shape   y [M, N]
//! example a=[3,4] b=[4,2]:[1,4]
//
//! forward
//!   matmul y = a @ b
