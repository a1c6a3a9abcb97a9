// Bilinear resize of the last two dimensions of NCHW, up or down. Along each of them output `dst`
// reads at
//   src = max(0, (dst + shift) * step - shift)
// between the neighbours low = floor(src) and low + 1, of which the second stops at the last one.
//   half_pixel     shift 1/2, step = in / out, or 1 / scale where scale is given: PyTorch's
//                  align_corners=False
//   align_corners  shift 0, step = (in - 1) / (out - 1), or 0 for one output
//   asymmetric     shift 0, step = in / out, or 1 / scale
//
//! op      upsample_bilinear2d(Tensor input, *, int[2]? size=None, float[2]? scale=None, \
//!           str mode="half_pixel") -> Tensor output
//! doc     Bilinear resize of [N, C, H, W] to the size given, or to floor(scale * size).
//! doc     mode, as in ONNX: half_pixel and align_corners are PyTorch's align_corners=False and =True,
//! doc     asymmetric is src = dst * in / out, or dst / scale where scale is given. An unchanged size gives a copy.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! words   mode half_pixel align_corners asymmetric
//! shape   input [N, C, H, W]
//! require H > 0 && W > 0 : "input has {H} rows of {W} columns, expected at least one of each"
//! require present(size) + present(scale) == 1 : \
//!           "size is {size}, scale is {scale}; expected exactly one of them"
//! require present(size) || (scale[0] > 0 && scale[1] > 0) : \
//!           "scale is {scale}, expected numbers above 0"
//! let     OH, OW = present(size) ? size[0] : floor(H * scale[0]), present(size) ? size[1] : floor(W * scale[1])
//! require OH > 0 && OW > 0 : "the output would be {OH} x {OW}, expected at least 1 x 1"
//! shape   output [N, C, OH, OW]
//! batch   N
//! linear  input
//! let     SAME = OH == H && OW == W; shift = mode == "half_pixel" ? 0.5 : 0.0; V = 16 / sizeof(scalar_t)
//! let     step_h = mode == "align_corners" ? (OH > 1 ? 1.0 * (H - 1) / (OH - 1) : 0.0) : \
//!           present(scale) ? 1 / scale[0] : 1.0 * H / OH
//! let     step_w = mode == "align_corners" ? (OW > 1 ? 1.0 * (W - 1) / (OW - 1) : 0.0) : \
//!           present(scale) ? 1 / scale[1] : 1.0 * W / OW
//! let     SMALL = max(max(H, OH), max(W, OW)) < 4194304 && fits32(numel(input), numel(output))
//! let     ROWS, BACK_ROWS = cpu ? 8 : numel(output) >= 16777216 ? 16 : 4, numel(input) >= 4194304 ? 16 : 4
//! let     PACK = step_w < 1 ? V : min(V, 4); LANES, BACK_LANES = min(32, pow2(cdiv(OW, PACK))), min(32, pow2(W))
//! let     TILES, BACK_TILES = cdiv(OW, LANES*PACK), cdiv(W, BACK_LANES)
//! let     GROUPS, BACK_GROUPS = cdiv(OH, ROWS), cdiv(H, BACK_ROWS)
// Parts of inputs in shared memory, for about 128 strips of STRIP by PACK outputs, and of these.
//! let     STRIP = step_w < 1 ? ROWS : 4; ACROSS = cdiv(OW, PACK); WHOLE = step_w < 1 && OW % PACK == 0; PLANES = N*C
//! let     PART_H = min(cdiv(OH, STRIP), cdiv(128, ACROSS))*STRIP; PARTS_H = cdiv(OH, PART_H)
//! let     PART_PLANES = PARTS_H == 1 ? max(1, 128*STRIP / (PART_H*ACROSS)) : 1
//! let     PART_ROWS = PARTS_H == 1 ? PART_PLANES*H : min(H, floor(PART_H*step_h) + 3)
//! let     PART_BYTES = (PART_ROWS*W*sizeof(scalar_t) + 143) / 16*16
//! let     SHARED = PART_BYTES + (WHOLE ? 0 : PART_PLANES*min(OH, PART_H)*OW*sizeof(scalar_t) + 16)
//! let     UNITS, BACK_UNITS = N*C*GROUPS*TILES, N*C*BACK_GROUPS*BACK_TILES
//! let     REACH = min(OW, step_w > 0.2 ? floor(1.999999 / step_w) + 2 : OW)
//! let     TAPS = REACH > 11 || (step_h <= 0.2 && OH > 64) ? 0 : REACH <= 3 ? 3 : REACH <= 5 ? 5 : 11
//! let     CROWD = cdiv(2*OH, H) * cdiv(2*OW, W) >= 2048 ? 256 : 32
//! let     TALL = SMALL && TAPS == 0 && CROWD == 32 && step_w <= 0.75 && (OW <= 1024 || step_w*1024 >= 8)
//! let     TALL_COLUMNS = OW <= 1024 ? W : floor(1024*step_w) - 3; TALL_TILES = cdiv(W, TALL_COLUMNS)
//! let     TALL_ROWS = N*C*TALL_TILES*cdiv(H, 8) >= 792 ? 8 : N*C*TALL_TILES*cdiv(H, 2) >= 528 ? 2 : 1
//! let     TALL_GROUPS = cdiv(H, TALL_ROWS); TALL_BLOCK = OW <= 1024 ? cdiv(OW, 128)*32 : 256
//! scratch low_of int32 [OW]; weight_of acc_t [OW]
//! empty   output grad_input
//! example input=[2,3,7,9] scale=2
//! example input=[1,2,32,32] size=[64,48] mode="align_corners"
//! example input=[2,2,9,11] size=[5,4]
//! example input=[1,2,5,6] size=[19,24] mode="asymmetric"
//! example input=[1,3,4,3] size=[31,1] mode="align_corners"
//! example input=[1,2,1,1] size=[70,90]
//! example input=[2,3,5,8] size=[5,8]
//! example input=[1,1,2,4194304] size=[1,8]
//
//! forward
//!   kernel  upsample_columns when cpu && !SAME threads OW
//!   formula output = input when SAME
//!   kernel  upsample_forward_rows otherwise cpu threads N*C*GROUPS*cdiv(OW, 512) by 1
//!   kernel  upsample_forward_part<scalar_t, PACK, WHOLE> otherwise SMALL && SHARED <= 98304
//!   grid    cdiv(PLANES, PART_PLANES)*PARTS_H block min(160, cdiv(PART_PLANES*PART_H*ACROSS, 32*STRIP)*32) shared SHARED
//!   kernel  upsample_forward<scalar_t, acc_t, int, PACK> otherwise SMALL
//!   grid    cdiv(UNITS, 256 / LANES) block LANES, 256 / LANES
//!   kernel  upsample_forward<scalar_t, double, int64_t, PACK> otherwise
//!   grid    cdiv(UNITS, 256 / LANES) block LANES, 256 / LANES
//
//! backward grad_input
//!   kernel  upsample_columns when cpu && !SAME threads OW
//!   formula grad_input = grad_output when SAME
//!   kernel  upsample_backward_row otherwise cpu threads N*C*H by 1
//!   kernel  upsample_backward<scalar_t, acc_t, int, TAPS> otherwise SMALL && TAPS > 0
//!   grid    cdiv(BACK_UNITS, 256 / BACK_LANES) block BACK_LANES, 256 / BACK_LANES
//!   kernel  upsample_backward<scalar_t, double, int64_t, TAPS> otherwise TAPS > 0
//!   grid    cdiv(BACK_UNITS, 256 / BACK_LANES) block BACK_LANES, 256 / BACK_LANES
//!   kernel  upsample_backward_tall<scalar_t, acc_t> otherwise TALL
//!   grid    N*C*TALL_GROUPS*TALL_TILES block TALL_BLOCK
//!   shared  TALL_BLOCK*16*sizeof(acc_t) + (TALL_COLUMNS + 2)*4
//!   kernel  upsample_backward_crowd<scalar_t, double, CROWD> otherwise grid numel(input) block CROWD

#include "copy_to_shared.cuh"

template <class A, class I> struct tap {
    I low, high;
    A weight; // of high
};

// One dimension: where each output reads, and which outputs read an input. The step is kept in two
// parts and the fraction comes of one fma, so that float's are good to 1e-7 in images of any size,
// where rounding src itself would cost 1e-4 at column 1000.
template <class A, class I> struct axis {
    I in, out;
    A step, rest, shift;

    __device__ __forceinline__ axis(I n_in, I n_out, double exact_step, double exact_shift)
        : in(n_in), out(n_out), step((A)exact_step), rest((A)(exact_step - (double)(A)exact_step)),
          shift((A)exact_shift)
    {
    }

    __device__ __forceinline__ tap<A, I> at(I dst) const
    {
        const A d = (A)dst + shift, src = fma(d, step, -shift);
        const I low = min((I)max(src, A(0)), in - 1);
        const A weight = fma(d, step, -((A)low + shift)) + d * rest;
        return { low, min(low + 1, in - 1), src > 0 ? weight : A(0) };
    }

    // The first output whose `low` is at least that: guessed by the inverse, then found.
    __device__ __forceinline__ I find(I low) const
    {
        if (low <= 0 || step == 0)
            return low <= 0 ? 0 : out;
        I dst = min((I)max(((A)low + shift) / step - shift, A(0)), out);
        while (dst > 0 && at(dst - 1).low >= low)
            dst--;
        while (dst < out && at(dst).low < low)
            dst++;
        return dst;
    }

    // What output dst adds to input i. The last one is its own second neighbour.
    __device__ __forceinline__ static A share(const tap<A, I> &t, I i)
    {
        return (t.low == i ? 1 - t.weight : A(0)) + (t.high == i ? t.weight : A(0));
    }
};

// Rounded as PyTorch's compiler does it.
template <class A> __device__ __forceinline__ A mix(A low, A high, A weight)
{
    return fma(1 - weight, low, weight * high);
}

// Outputs in V columns that are `apart` of each other from `ow` on, `count` rows from `oh` on: the
// first of them is *out, and if `whole` each row of them is stored at once. The two input rows that
// an output stands between are blended along W once and serve all outputs between them; `ahead`: the
// row that comes next is on its way meanwhile.
template <int V, class T, class A, class I>
__device__ __forceinline__ void make_strip(const T *image, T *out, const axis<A, I> &rows,
                                           const axis<A, I> &columns, I oh, I count, I ow, I apart,
                                           bool whole, bool ahead)
{
    tap<A, I> x[V];
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] = columns.at(min(ow + k * apart, columns.out - 1));

    T left[V], right[V]; // of the row that was fetched last
    const auto fetch = [&](I row) {
        const T *line = image + (int64_t)row * columns.in;
#pragma unroll
        for (int k = 0; k < V; k++) {
            left[k] = line[x[k].low];
            right[k] = line[x[k].high];
        }
    };
    const auto blend = [&](int k) {
        return mix<A>(opd::load(&left[k]), opd::load(&right[k]), x[k].weight);
    };
    A low[V], high[V];
    I held = -2; // the row that is in `low`
    for (I r = 0; r < count; r++, out += columns.out) {
        const tap<A, I> y = rows.at(oh + r);
        if (y.low != held) {
            const bool next = y.low == held + 1;
            if (!next)
                fetch(y.low);
#pragma unroll
            for (int k = 0; k < V; k++)
                low[k] = next ? high[k] : blend(k);
            if (!next || !ahead)
                fetch(y.high);
#pragma unroll
            for (int k = 0; k < V; k++)
                high[k] = blend(k);
            if (ahead)
                fetch(min(y.high + 1, rows.in - 1));
            held = y.low;
        }
        opd::vec<T, V> made;
#pragma unroll
        for (int k = 0; k < V; k++)
            opd::store(&made[k], mix<A>(low[k], high[k], y.weight));
        if (whole)
            opd::store_vec(out, made);
        else
#pragma unroll
            for (int k = 0; k < V; k++)
                if (ow + k * apart < columns.out)
                    out[k * apart] = made[k];
    }
}

// A thread makes a strip of V columns: side by side where these can be stored at once, else so many
// threads apart, so that a warp stores side by side; going down it loads side by side then.
template <class T, class A, class I, int V>
__global__ void upsample_forward(const T *__restrict__ input, T *__restrict__ output, I H, I W,
                                 I OH, I OW, double step_h, double step_w, double shift, I ROWS,
                                 I GROUPS, I TILES, I UNITS)
{
    const I unit = (I)blockIdx.x * (I)blockDim.y + (I)threadIdx.y;
    const I group = unit / TILES, plane = group / GROUPS;
    const bool whole = step_w < 1 && OW % V == 0 && opd::is_aligned(output, V * sizeof(T));
    const I apart = whole ? 1 : (I)blockDim.x;
    const I ow = (unit - group * TILES) * (I)blockDim.x * V + (I)threadIdx.x * (whole ? V : 1);
    const I oh = (group - plane * GROUPS) * ROWS;
    if (unit >= UNITS || ow >= OW)
        return;
    const axis<A, I> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    make_strip<V>(input + (int64_t)plane * H * W,
                        output + ((int64_t)plane * OH + oh) * OW + ow, rows, columns, oh,
                        min(ROWS, OH - oh), ow, apart, whole, step_h < 1);
}

#ifndef OPD_CPU
// The same of the inputs that a block has copied into shared memory, where they lie side by side in
// the tensor: PART_PLANES planes, or what PART_H rows of outputs of one stand between. Where rows
// cannot be stored at once, what the block has made goes through shared memory too.
template <class T, int V, bool WHOLE>
__global__ void __launch_bounds__(160, 4)
    upsample_forward_part(const T *__restrict__ input, T *__restrict__ output, int H, int W, int OH,
                          int OW, double step_h, double step_w, double shift, int STRIP, int PLANES,
                          int PART_PLANES, int PART_H, int PARTS_H, int PART_BYTES, int ACROSS)
{
    extern __shared__ uint4 shared[];
    const axis<acc_t, int> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int part = (int)blockIdx.x / PARTS_H, plane = part * PART_PLANES,
              first = ((int)blockIdx.x - part * PARTS_H) * PART_H, end = min(OH, first + PART_H);
    const bool planes = PART_PLANES > 1;
    const int count = min(PART_PLANES, PLANES - plane), top = planes ? 0 : rows.at(first).low;
    const int copied = planes ? H : rows.at(end - 1).high - top + 1;
    const T *image = copy_run<1>(shared, input + (int64_t)plane * (H * W) + (int64_t)top * W,
                                 count * copied * W);
    T *made = output + ((int64_t)plane * OH + first) * OW;
    const bool whole = WHOLE && opd::is_aligned(output, V * sizeof(T));
    T *out = WHOLE ? made : (T *)((char *)shared + PART_BYTES + (size_t)made % 16); // as copy_back() has it
    wait_for_copies();
    const int strips = PART_H / STRIP;
    for (int i = threadIdx.x; i < count * strips * ACROSS; i += (int)blockDim.x) {
        const int strip = i / ACROSS, n = strip / strips, down = (strip - n * strips) * STRIP;
        const int x = i - strip * ACROSS, ow = whole ? x * V : x;
        if (first + down < end)
            make_strip<V>(image + (n * H - top) * W, out + (n * OH + down) * OW + ow, rows, columns,
                          first + down, min(STRIP, end - first - down), ow, whole ? 1 : ACROSS,
                          whole, false);
    }
    if (WHOLE)
        return;
    __syncthreads();
    copy_back(made, out, ((count - 1) * OH + end - first) * OW);
}
#endif

// Gathered, so that no sum depends on the order of threads. A thread makes ROWS inputs below one
// another, which at most TAPS columns of the output read: each row of those is summed along W once,
// and goes to the two inputs that it stands between.
template <class T, class A, class I, int TAPS>
__global__ void upsample_backward(const T *__restrict__ grad_output, T *__restrict__ grad_input,
                                  I H, I W, I OH, I OW, double step_h, double step_w, double shift,
                                  I BACK_ROWS, I BACK_GROUPS, I BACK_TILES, I BACK_UNITS)
{
    const I unit = (I)blockIdx.x * (I)blockDim.y + (I)threadIdx.y;
    const I group = unit / BACK_TILES, plane = group / BACK_GROUPS;
    const I w = (unit - group * BACK_TILES) * (I)blockDim.x + (I)threadIdx.x;
    const I h = (group - plane * BACK_GROUPS) * BACK_ROWS, end = min(h + BACK_ROWS, H);
    if (unit >= BACK_UNITS || w >= W)
        return;
    const axis<A, I> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const I first = columns.find(w - 1);
    A share[TAPS > 0 ? TAPS : 1];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        share[k] = first + k < OW ? columns.share(columns.at(first + k), w) : A(0);

    I at = h - 1;
    A here = 0, next = 0; // the sums of input `at` and of the one below it
    T *made = grad_input + ((int64_t)plane * H + at) * W + w;
    const auto finish = [&](I row) { // those above it have all that they get
        for (; at < row; at++, made += W, here = next, next = 0)
            if (at >= h)
                opd::store(made, here);
    };
    I oh = rows.find(at);
    const T *line = grad_output + ((int64_t)plane * OH + oh) * OW + first;
    for (; oh < OH; oh++, line += OW) {
        const tap<A, I> y = rows.at(oh);
        if (y.low >= end)
            break;
        A row = 0;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (share[k] != 0)
                row += share[k] * opd::load(line + k);
        finish(y.low);
        const A below = y.high > y.low ? y.weight : A(0);
        here += (1 - below) * row;
        next += below * row;
    }
    finish(end);
}

// Where it goes up far: a block has TALL_ROWS rows of inputs in TALL_COLUMNS columns. Its threads
// sum 4 columns of outputs each down to a row of inputs, by each gradient once, and the sums go
// along W through shared memory, split between the two neighbours of their column.
template <class T, class A>
__global__ void __launch_bounds__(256)
    upsample_backward_tall(const T *__restrict__ grad_output, T *__restrict__ grad_input, int H,
                           int W, int OH, int OW, double step_h, double step_w, double shift,
                           int TALL_ROWS, int TALL_COLUMNS, int TALL_GROUPS, int TALL_TILES)
{
    constexpr int V = 4, LANES = 4;
    extern __shared__ double of_columns[];
    const int wide = V * (int)blockDim.x;
    A *sums = (A *)of_columns;            // [2 in turn][low, high][wide]
    int *first = (int *)(sums + 4 * wide); // the outputs that read w0 - 1, w0, ... as their low
    const int unit = blockIdx.x / TALL_TILES, plane = unit / TALL_GROUPS;
    const int w0 = ((int)blockIdx.x - unit * TALL_TILES) * TALL_COLUMNS;
    const int h = (unit - plane * TALL_GROUPS) * TALL_ROWS, end = min(h + TALL_ROWS, H);
    const int count = min(TALL_COLUMNS, W - w0);
    const axis<A, int> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int left = columns.find(w0 - 1), width = columns.find(w0 + count) - left;
    for (int i = threadIdx.x; i < count + 2; i += blockDim.x)
        first[i] = columns.find(w0 - 1 + i) - left;

    int at[V];
    A weight[V], here[V] = {}, next[V] = {};
#pragma unroll
    for (int k = 0; k < V; k++) {
        at[k] = min((int)threadIdx.x + k * (int)blockDim.x, width - 1);
        const tap<A, int> x = columns.at(left + at[k]);
        weight[k] = x.high > x.low ? x.weight : A(0);
    }
    int low = max(h - 1, 0), oh = rows.find(low), turn = 0;
    const T *line = grad_output + ((int64_t)plane * OH + oh) * OW + left;
    for (; low < end; low++) {
        const int stop = rows.find(low + 1);
#pragma unroll 4
        for (; oh < stop; oh++, line += OW) {
            const A below = low + 1 < H ? rows.at(oh).weight : A(0);
#pragma unroll
            for (int k = 0; k < V; k++) {
                const A v = opd::load(line + at[k]);
                here[k] += (1 - below) * v;
                next[k] += below * v;
            }
        }
        if (low >= h) { // a row of inputs has all that it gets
            A *lows = sums + turn * 2 * wide, *highs = lows + wide;
            turn = 1 - turn;
#pragma unroll
            for (int k = 0; k < V; k++) {
                lows[threadIdx.x + k * blockDim.x] = (1 - weight[k]) * here[k];
                highs[threadIdx.x + k * blockDim.x] = weight[k] * here[k];
            }
            __syncthreads();
            T *made = grad_input + ((int64_t)plane * H + low) * W + w0;
            for (int i0 = 0; i0 < count; i0 += (int)blockDim.x / LANES) {
                const int i = i0 + (int)threadIdx.x / LANES;
                A sum = 0;
                if (i < count) {
                    for (int c = first[i] + (int)threadIdx.x % LANES; c < first[i + 1]; c += LANES)
                        sum += highs[c];
                    for (int c = first[i + 1] + (int)threadIdx.x % LANES; c < first[i + 2];
                         c += LANES)
                        sum += lows[c];
                }
#pragma unroll
                for (int lane = LANES / 2; lane > 0; lane /= 2)
                    sum += __shfl_xor_sync(~0u, sum, lane);
                if (i < count && threadIdx.x % LANES == 0)
                    opd::store(made + i, sum);
            }
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            here[k] = next[k];
            next[k] = 0;
        }
    }
}

// Where many outputs read an input, a block sums them.
template <class T, class A, int BLOCK>
__global__ void upsample_backward_crowd(const T *__restrict__ grad_output,
                                        T *__restrict__ grad_input, int64_t H, int64_t W,
                                        int64_t OH, int64_t OW, double step_h, double step_w,
                                        double shift)
{
    const axis<A, int64_t> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int64_t row = blockIdx.x / W, w = blockIdx.x % W, plane = row / H, h = row % H;
    const int64_t top = rows.find(h - 1), left = columns.find(w - 1);
    const unsigned width = (unsigned)(columns.find(w + 1) - left);
    const int64_t n = (rows.find(h + 1) - top) * width;
    const T *corner = grad_output + (plane * OH + top) * OW + left;
    A sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += BLOCK) {
        const int64_t y = i / width, x = i % width;
        sum += rows.share(rows.at(top + y), h) * columns.share(columns.at(left + x), w) *
               opd::load(corner + y * OW + x);
    }
    sum = opd::block_reduce_sum<BLOCK>(sum);
    if (threadIdx.x == 0)
        opd::store(grad_input + blockIdx.x, sum);
}

// The CPU's: the columns' coordinates are worked out once, then a thread makes rows.
__global__ void upsample_columns(int *__restrict__ low_of, acc_t *__restrict__ weight_of, int64_t W,
                                 int64_t OW, double step_w, double shift)
{
    CUDA_KERNEL_LOOP(ow, OW)
    {
        const tap<double, int64_t> x = axis<double, int64_t>(W, OW, step_w, shift).at(ow);
        low_of[ow] = (int)x.low;
        weight_of[ow] = (acc_t)x.weight;
    }
}

template <class T> struct neighbours {
    enum { WIDTH = 512 };
    acc_t low[WIDTH], high[WIDTH];

    __device__ __forceinline__ void take(const T *line, const int *low_of, int width, int last)
    {
        for (int k = 0; k < width; k++) {
            low[k] = opd::load(line + low_of[k]);
            high[k] = opd::load(line + min(low_of[k] + 1, last));
        }
    }
};

// A thread makes 512 columns of ROWS rows in loops that are vectors. Each row of neighbours is
// gathered once. The sum is in the order of PyTorch's, for one channel to the bit.
template <class T>
__global__ void upsample_forward_rows(const T *__restrict__ input, T *__restrict__ output,
                                      const int *__restrict__ low_of,
                                      const acc_t *__restrict__ weight_of, int64_t H, int64_t W,
                                      int64_t OH, int64_t OW, int64_t ROWS, int64_t GROUPS,
                                      double step_h, double shift)
{
    constexpr int WIDTH = neighbours<T>::WIDTH;
    neighbours<T> rows[2];
    const axis<double, int64_t> lines(H, OH, step_h, shift);
    const int64_t tiles = (OW + WIDTH - 1) / WIDTH, ow = blockIdx.x % tiles * WIDTH;
    const int64_t plane = blockIdx.x / tiles / GROUPS, first = blockIdx.x / tiles % GROUPS * ROWS;
    const int width = (int)min(OW - ow, (int64_t)WIDTH), last = (int)W - 1;
    int64_t held = -2; // the row that is in rows[turn]
    int turn = 0;
    for (int64_t oh = first; oh < first + ROWS && oh < OH; oh++) {
        const tap<double, int64_t> y = lines.at(oh);
        const T *image = input + plane * H * W;
        if (y.low != held) {
            turn = y.low == held + 1 ? 1 - turn : turn;
            if (y.low != held + 1)
                rows[turn].take(image + y.low * W, low_of + ow, width, last);
            rows[1 - turn].take(image + y.high * W, low_of + ow, width, last);
            held = y.low;
        }
        const acc_t h1 = (acc_t)y.weight, h0 = 1 - h1;
        const neighbours<T> &a = rows[turn], &b = rows[1 - turn];
        T *out = output + (plane * OH + oh) * OW + ow;
        for (int k = 0; k < width; k++) {
            const acc_t w1 = weight_of[ow + k], w0 = 1 - w1;
            opd::store(out + k, (h0 * w0) * a.low[k] + (h0 * w1) * a.high[k] +
                                    (h1 * w0) * b.low[k] + (h1 * w1) * b.high[k]);
        }
    }
}

// The output's rows that read an input row are summed in pieces, and each sum then goes to two
// neighbours, left to right.
template <class T>
__global__ void upsample_backward_row(const T *__restrict__ grad_output, T *__restrict__ grad_input,
                                      const int *__restrict__ low_of,
                                      const acc_t *__restrict__ weight_of, int64_t H, int64_t W,
                                      int64_t OH, int64_t OW, double step_h, double shift)
{
    constexpr int PIECE = 512;
    const axis<double, int64_t> rows(H, OH, step_h, shift);
    const int64_t plane = blockIdx.x / H, h = blockIdx.x % H;
    const int64_t top = rows.find(h - 1), bottom = rows.find(h + 1);
    T *made = grad_input + (int64_t)blockIdx.x * W;
    acc_t piece[PIECE], here = 0, next = 0; // the sums of column `at` and of the one after it
    int64_t at = 0;
    for (int64_t ow = 0; ow < OW; ow += PIECE) {
        const int width = (int)min(OW - ow, (int64_t)PIECE);
        for (int k = 0; k < width; k++)
            piece[k] = 0;
        for (int64_t oh = top; oh < bottom; oh++) {
            const acc_t share = (acc_t)rows.share(rows.at(oh), h);
            const T *line = grad_output + (plane * OH + oh) * OW + ow;
            for (int k = 0; k < width; k++)
                piece[k] += share * opd::load(line + k);
        }
        for (int k = 0; k < width; k++) {
            for (; at < low_of[ow + k]; at++, here = next, next = 0)
                opd::store(made + at, here);
            here += (1 - weight_of[ow + k]) * piece[k];
            next += weight_of[ow + k] * piece[k];
        }
    }
    for (; at < W; at++, here = next, next = 0)
        opd::store(made + at, at == W - 1 ? here + next : here);
}
