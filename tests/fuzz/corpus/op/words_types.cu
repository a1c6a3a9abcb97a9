//! op up(Tensor input, Tensor labels, Tensor? mask=None, *, int[2]? size=None, float[2]? scale=None, str mode="half_pixel", bool flag=True, float eps=1e-5) -> (Tensor a, Tensor b)
//! doc Two outputs.
//! dtypes float32 float64
//! type index_t int32 int64 : labels
//! type uint8 : mask b
//! words mode half_pixel align_corners
//! shape input [N, ...S, W]
//! shape labels [N]
//! shape mask [...S]
//! require present(size) || present(scale) : "give size or scale of {input}, mode {mode}"
//! let OW = present(size) ? size[1] : floor(W * scale[1])
//! let big = max(1.5, eps) + 1
//! shape a [N, ...S, OW]
//! shape b []
//! saved rows index_t [N, 2*W]
//! scratch part acc_t [pow2(N)]
//! scratch raw float32 [rank(input), size(input, -1)]
//! example input=[2,3,4] labels=[2] mask=[3] scale=2
//! example input=[2,4] labels=[2] size=[1,2] flag=False mode=align_corners
//! forward
//!   zero part
//!   zero rows
//!   kernel up<scalar_t, index_t, mode == "half_pixel", (N > 2), wanted(rows)>
//!   when rank(input) == 3 && is(scalar_t, float32) && cuda
//!   grid N, cdiv(OW, 32), 1
//!   block 32, 4
//!   shared sizeof(acc_t) * 32
//!   bind alpha = big
//!   kernel up_any
//!   otherwise N > 0
//!   bind x = input
//! backward grad_input
//!   zero grad_input
//!   kernel up_back<scalar_t>
extern "C" {
/* __global__ void comment(int x) */
template <typename T, typename I, bool H, bool B, int K = 0>
static __global__ __launch_bounds__(128) void up(at::PackedTensorAccessor64<T, 3> input, I *rows, T *a,
    const uint8_t *mask, unsigned char *b, T alpha, bool flag, float eps, T *part) {}
__global__ void __launch_bounds__(128, 2) up_any(const float x[], double *a, void *b, size_t N, long long W, const unsigned int OW);
}
template <class scalar_t> __global__ void up_back(const scalar_t* __restrict__ grad_a, scalar_t *const grad_input, const long *rows) {}
