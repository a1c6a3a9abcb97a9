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
//! channels_last upsample_bilinear2d_nhwc input output
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
// Of FEW outputs a thread makes some of one row, without shared memory.
//! let     FEW = numel(output) <= 196608; PACK = step_w < 1 && !FEW ? V : min(V, 4); LANES = min(32, pow2(cdiv(OW, PACK)))
// Taller strips for more outputs, as far as blocks are left for all processors and shared memory for a block's outputs.
//! let     NARROW = OW % PACK == 0 || OW*sizeof(scalar_t) <= 2560; LINES = N*C*OH
//! let     TALL = numel(output) >= 524288*V && LINES >= 4096 ? 16 : numel(output) >= 262144*V && LINES >= 2048 ? 8 : 4
//! let     ROWS = cpu ? 8 : FEW ? 1 : numel(output) >= 16777216 ? 16 : NARROW ? TALL : 4
//! let     BACK_ROWS = numel(input) >= 4194304 ? 16 : numel(input) >= 524288 ? 4 : 2
//! let     TILES = cdiv(OW, LANES*PACK); BACK_V = SMALL && step_w >= 1 ? W % V == 0 ? V : W % 2 == 0 ? 2 : 1 : 1
//! let     BACK_LANES = min(32, pow2(cdiv(W, BACK_V))); BACK_TILES = cdiv(W, BACK_LANES*BACK_V)
//! let     GROUPS, BACK_GROUPS = cdiv(OH, ROWS), cdiv(H, BACK_ROWS)
// Parts of inputs in shared memory, for about 128 strips of STRIP by PACK outputs, and of these.
//! let     STRIP = step_w < 1 ? ROWS : 4; ACROSS = cdiv(OW, PACK); WHOLE = step_w < 1 && OW % PACK == 0; PLANES = N*C
//! let     PART_H = min(cdiv(OH, STRIP), cdiv(128, ACROSS))*STRIP; PARTS_H = cdiv(OH, PART_H)
//! let     PART_PLANES = PARTS_H == 1 ? max(1, 128*STRIP / (PART_H*ACROSS)) : 1
//! let     PART_ROWS = PARTS_H == 1 ? PART_PLANES*H : min(H, floor(PART_H*step_h) + 3)
//! let     PART_BYTES = (PART_ROWS*W*sizeof(scalar_t) + 143) / 16*16
//! let     SHARED = PART_BYTES + (WHOLE ? 0 : PART_PLANES*min(OH, PART_H)*OW*sizeof(scalar_t) + 16)
//! let     UNITS, BACK_UNITS = N*C*GROUPS*TILES, N*C*BACK_GROUPS*BACK_TILES
//! let     REACH = min(OW, step_w > 0.2 ? max(floor(1.999999 / step_w) + 2, floor((2 + shift) / step_w - shift) + 1) : OW)
//! let     TAPS = REACH > 11 || (step_h <= 0.2 && OH > 64) ? 0 : REACH <= 2 ? 2 : REACH <= 3 ? 3 : REACH <= 5 ? 5 : 11
//! let     CROWD = cdiv(2*OH, H) * cdiv(2*OW, W) >= 2048 ? 256 : 32
//! let     FEW_BACK = SMALL && numel(output) <= 196608 && max(OH, OW) <= 8192 && min(step_h, step_w) >= 0.4; FEW_TAPS, FEW_PLANES = min(step_h, step_w) < 1 ? 6 : 3, min(step_h, step_w) < 1 ? 1 : 2
// Going up (upsample_up.cuh): blocks of UP_X by UP_Y threads with UP_V columns of outputs each, for UP_ROWS rows of inputs.
//! let     UP_V = OW % V == 0 && PLANES*cdiv(H, 8)*OW >= 1048576 ? V : min(V, 4); UP_EVEN = OW % UP_V == 0
//! let     UP_WIDE = min(min(1024, 256*UP_V), cdiv(OW, UP_V)*UP_V); UP_X, UP_Y = UP_WIDE / UP_V, max(1, 160*UP_V / UP_WIDE)
//! let     UP_COLUMNS = OW <= UP_WIDE ? W : max(1, floor((UP_WIDE - UP_V)*step_w) - 3); UP_TILES = cdiv(W, UP_COLUMNS)
//! let     UP_ROWS = PLANES*UP_TILES*cdiv(H, 16)*UP_X >= 131072 ? 16 : 8; UP_GROUPS = cdiv(H, UP_ROWS)
//! let     UP_TABLE = min(OH, floor((UP_ROWS + 1) / max(step_h, 0.0000001)) + 3)
//! let     UP_PITCH = UP_WIDE <= 128 ? cdiv(UP_WIDE, 32)*33 : cdiv(UP_WIDE, 128)*132
//! let     UP_SHARED = (UP_WIDE + UP_Y*8*UP_PITCH + UP_TABLE)*sizeof(acc_t) + (UP_TABLE + UP_COLUMNS + 2)*4
//! let     UP = SMALL && CROWD == 32 && step_w < 1 && (TAPS == 0 || (step_h < 1 && numel(output) >= 1048576)) && \
//!           (UP_COLUMNS == W || UP_COLUMNS >= 8) && UP_SHARED <= 98304
//! scratch low_of int32 [OW]; weight_of acc_t [OW]
//! empty   output grad_input
//! example input=[2,3,7,9] scale=2
//! example input=[1,2,32,32] size=[64,48] mode="align_corners"
//! example input=[2,2,9,11] size=[5,4]
//! example input=[1,2,5,6] size=[19,24] mode="asymmetric"
//! example input=[2,2,9,11] size=[80,136]
//! example input=[1,3,4,3] size=[31,1] mode="align_corners"
//! example input=[1,2,1,1] size=[70,90]
//! example input=[2,3,5,8] size=[5,8]
//! example input=[3,64,17,20] scale=2
//! example input=[2,64,33,20] size=[65,25]
//! example input=[1,1,2,4194304] size=[1,8]
//
//! forward
//!   kernel  upsample_columns when cpu && !SAME threads OW
//!   formula output = input when SAME
//!   kernel  upsample_forward_rows otherwise cpu threads N*C*GROUPS*cdiv(OW, 512) by 1
//!   kernel  upsample_forward_part<scalar_t, PACK, WHOLE> otherwise SMALL && !FEW && SHARED <= 98304
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
//!   kernel  upsample_backward_few<scalar_t, 1, FEW_PLANES, FEW_TAPS> otherwise FEW_BACK threads cdiv(PLANES, FEW_PLANES)*H*W
//!   bind    HW = H*W bind VECS = 1
//!   kernel  upsample_backward_up<scalar_t, UP_V, UP_EVEN, UP_PITCH> otherwise UP
//!   grid    cdiv(PLANES, UP_Y)*UP_GROUPS*UP_TILES block UP_X, UP_Y shared UP_SHARED
//!   kernel  upsample_backward<scalar_t, acc_t, int, TAPS, BACK_V> otherwise SMALL && TAPS > 0
//!   grid    cdiv(BACK_UNITS, 256 / BACK_LANES) block BACK_LANES, 256 / BACK_LANES
//!   kernel  upsample_backward<scalar_t, double, int64_t, TAPS, 1> otherwise TAPS > 0
//!   grid    cdiv(BACK_UNITS, 256 / BACK_LANES) block BACK_LANES, 256 / BACK_LANES
//!   kernel  upsample_backward_crowd<scalar_t, double, CROWD> otherwise grid numel(input) block CROWD

#include "copy_to_shared.cuh"
#include "upsample_axis.cuh"
#include "upsample_few.cuh"
#include "upsample_up.cuh"

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

// Gathered, so that no sum depends on the order of threads. A thread makes V inputs side by side in
// BACK_ROWS rows below one another. At most TAPS columns of the output read each: each row of those is summed
// along W once, and goes to the two inputs that it stands between.
template <class T, class A, class I, int TAPS, int V>
__global__ void upsample_backward(const T *__restrict__ grad_output, T *__restrict__ grad_input,
                                  I H, I W, I OH, I OW, double step_h, double step_w, double shift,
                                  I BACK_ROWS, I BACK_GROUPS, I BACK_TILES, I BACK_UNITS)
{
    constexpr int EACH = TAPS > 0 ? TAPS : 1;
    const I unit = (I)blockIdx.x * (I)blockDim.y + (I)threadIdx.y;
    const I group = unit / BACK_TILES, plane = group / BACK_GROUPS;
    const I w = ((unit - group * BACK_TILES) * (I)blockDim.x + (I)threadIdx.x) * V;
    const I h = (group - plane * BACK_GROUPS) * BACK_ROWS, end = min(h + BACK_ROWS, H);
    if (unit >= BACK_UNITS || w >= W)
        return;
    const axis<A, I> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const bool whole = opd::is_aligned(grad_input, V * sizeof(T));
    I first[V];
    A share[V][EACH];
#pragma unroll
    for (int j = 0; j < V; j++) {
        first[j] = columns.find(w + j - 1);
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            share[j][k] = first[j] + k < OW ? columns.share(columns.at(first[j] + k), w + j) : A(0);
    }

    I at = h - 1;
    A here[V] = {}, next[V] = {}; // the sums of inputs in row `at` and in the one below it
    T *made = grad_input + ((int64_t)plane * H + at) * W + w;
    const auto finish = [&](I row) { // those above it have all that they get
        for (; at < row; at++, made += W) {
            opd::vec<T, V> block;
#pragma unroll
            for (int j = 0; j < V; j++) {
                opd::store(&block[j], here[j]);
                here[j] = next[j];
                next[j] = 0;
            }
            if (at >= h && whole)
                opd::store_vec(made, block);
            else if (at >= h)
#pragma unroll
                for (int j = 0; j < V; j++)
                    made[j] = block[j];
        }
    };
    I oh = rows.find(at);
    const T *line = grad_output + ((int64_t)plane * OH + oh) * OW;
    for (; oh < OH; oh++, line += OW) {
        const tap<A, I> y = rows.at(oh);
        if (y.low >= end)
            break;
        A row[V] = {};
#pragma unroll
        for (int j = 0; j < V; j++)
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                if (share[j][k] != 0)
                    row[j] += share[j][k] * opd::load(line + first[j] + k);
        finish(y.low);
        const A below = y.high > y.low ? y.weight : A(0);
#pragma unroll
        for (int j = 0; j < V; j++) {
            here[j] += (1 - below) * row[j];
            next[j] += below * row[j];
        }
    }
    finish(end);
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

// The CPU's: a thread makes rows.
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
