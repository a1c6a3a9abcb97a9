//! op scales(Tensor(a!)[] xs, Tensor[]? zs=None, Tensor by) -> (Tensor[] ys, Tensor sum)
//! dtypes float32 float64
//! shape xs ys zs [...S]
//! shape by sum [1]
//! scratch t [4]
//! let n = numel(xs)
//! example xs=[[4],[5,6],[0]] by=[1] xs in 0..3
//! forward
//!   zero sum
//!   kernel start grid 1
//!   kernel scale<2*n> when n > 5 threads n
//!   kernel scale<1> otherwise threads n
__global__ void start(scalar_t *t) {}
template <int I> __global__ void scale(scalar_t *xs, const scalar_t *by, scalar_t *ys, scalar_t *sum, int64_t n) {}
