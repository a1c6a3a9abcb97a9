//! op f(Tensor x) -> Tensor y
//! dtypes float32
//! shape x [N]
//! shape y [N]
//! forward
//!   kernel TWICE(k)
#define REAL float
#define TWICE(name) name##2
#define AT(p, i) \
    p[i]
__global__ void k2(const REAL *x, REAL *y, int N) { AT(y, 0) = 2 * AT(x, 0); }
