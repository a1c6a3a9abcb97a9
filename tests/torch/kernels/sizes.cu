// Results whose sizes are made in every way that a header can say. All elements are 1.
//
//! op      sizes(Tensor x, *, int n=2, str s="more") -> (Tensor y, Tensor z)
//! dtypes  float32 float64
//! words   s more less
//! shape   x [N, C]
//! require N > 1 && C > 1 && (N < 1000 || C < 1000) : "x is {x}, {s} than {n} x {n}"
//! shape   y [(N - 9) / n + 9, (n - N) % 7 + 7, cdiv(N, n), min(N, max(C, 9))]
//! let     HALF = floor(N * 0.5)
//! shape   z [N > 9 ? N : 2*C, (N > 9 && N < 30) + 2, s == "more" ? N + 1 : HALF, \
//!           !(N == C) || N > 50 ? 3 : HALF + 2, floor(pow(N, 0.5)) + 1]
//! example x=[20,6]
//
//! forward
//!   kernel sizes_fill<scalar_t>
//!   bind   out = y
//!   bind   count = numel(y)
//!   grid   cdiv(numel(y), 256)
//!   kernel sizes_fill<scalar_t>
//!   bind   out = z
//!   bind   count = numel(z)
//!   grid   cdiv(numel(z), 256)
//! backward grad_x
//!   kernel sizes_fill<scalar_t>
//!   bind   out = grad_x
//!   bind   count = numel(x)

template <typename T> __global__ void sizes_fill(T *out, int64_t count)
{
    CUDA_KERNEL_LOOP(i, count)
        out[i] = T(1);
}
