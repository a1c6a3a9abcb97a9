// upsample_bilinear2d.cu of images whose channels lie side by side, as PyTorch's channels_last.
//
//! op      upsample_bilinear2d_nhwc(Tensor input, *, int[2]? size=None, float[2]? scale=None, \
//!           str mode="half_pixel") -> Tensor output
//! doc     upsample_bilinear2d of [N, H, W, C]; output is [N, OH, OW, C].
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32 cuda
//! words   mode half_pixel align_corners asymmetric
//! shape   input [N, H, W, C]
//! require H > 0 && W > 0 : "input has {H} rows of {W} columns, expected at least one of each"
//! require present(size) + present(scale) == 1 : \
//!           "size is {size}, scale is {scale}; expected exactly one of them"
//! require present(size) || (scale[0] > 0 && scale[1] > 0) : \
//!           "scale is {scale}, expected numbers above 0"
//! let     OH, OW = present(size) ? size[0] : floor(H * scale[0]), present(size) ? size[1] : floor(W * scale[1])
//! require OH > 0 && OW > 0 : "the output would be {OH} x {OW}, expected at least 1 x 1"
//! shape   output [N, OH, OW, C]
//! batch   N
//! linear  input
// A thread has V channels at a time, of 3 all.
//! let     SAME = OH == H && OW == W; shift = mode == "half_pixel" ? 0.5 : 0.0; V = C == 3 ? 3 : gcd(max(C, 1), 16 / sizeof(scalar_t))
//! let     step_h = mode == "align_corners" ? (OH > 1 ? 1.0 * (H - 1) / (OH - 1) : 0.0) : \
//!           present(scale) ? 1 / scale[0] : 1.0 * H / OH
//! let     step_w = mode == "align_corners" ? (OW > 1 ? 1.0 * (W - 1) / (OW - 1) : 0.0) : \
//!           present(scale) ? 1 / scale[1] : 1.0 * W / OW
//! let     VECS = max(1, C / V); SMALL = max(H, W, OH, OW) < 4194304 && fits32(2*H*W*C, 2*OH*OW*C)
// A block makes ROWS rows of outputs of a part of their vectors.
//! let     MADE = N*OH*OW*VECS; ROWS = step_h < 1 ? max(1, min(8, MADE / 1048576)) : 1; GROUPS = cdiv(OH, ROWS)
//! let     EACH = MADE >= (V == 3 ? 524288 : 1048576) ? 1024 : 256; PARTS = cdiv(OW*C / V, EACH)
// Or BACK_W columns of a row of inputs, of CH channels, from BACK_OW of outputs; one, where many read it.
//! let     BACK_V = min(V, 4); CH = min(C, 32); SETS = cdiv(C, max(CH, 1)); MOST = 4096 / max(CH, 1)
//! let     BACK_W = max(1, min(W, min(MOST, floor((MOST - 3)*step_w) - 2))); BACK_PARTS = cdiv(W, BACK_W)
//! let     BACK_OW = min(OW, floor((BACK_W + 2) / max(step_w, 0.0000001)) + 3)
//! let     BACK_OH = min(OH, floor(3 / max(step_h, 0.0000001)) + 3)
//! let     SHARED = 16 + (BACK_OW*CH + BACK_OW + BACK_OH)*sizeof(acc_t) + (BACK_OW + BACK_W + 5)*4
//! let     FEW_BACK = SMALL && fits32(numel(input)) && numel(output) <= 196608 && max(OH, OW) <= 8192 && min(step_h, step_w) >= 0.4; FEW_TAPS = min(step_h, step_w) < 1 ? 6 : 3; FEW_V = V == 3 ? 3 : 1
//! let     CROWD = cdiv(2*OH, H) * cdiv(2*OW, W) >= 2048 || SHARED > 98304 || !SMALL
//! let     LANES = min(32, pow2(VECS)); CROWD_SETS = cdiv(C / V, LANES)
//! scratch low_of int32 [OW]; weight_of acc_t [OW]
//! empty   output grad_input
//! example input=[2,7,9,3] scale=2
//! example input=[1,12,16,8] size=[24,24] mode="align_corners"
//! example input=[2,9,11,8] size=[5,4] mode="asymmetric"
//! example input=[1,3,2,40] size=[70,31]
//! example input=[2,5,8,3] size=[5,8]
//! example input=[1,2,4194304,1] size=[1,8]
//! example input=[1,1,1,12] size=[40,33]
//
//! forward
//!   formula output = input when SAME
//!   kernel  upsample_last_rows otherwise cpu threads N*OH by 1
//!   kernel  upsample_last<scalar_t, acc_t, int, V> otherwise SMALL grid N*GROUPS*PARTS block 256
//!   kernel  upsample_last<scalar_t, double, int64_t, V> otherwise grid N*GROUPS*PARTS block 256
//!
//! backward grad_input
//!   kernel  upsample_columns when cpu && !SAME threads OW
//!   formula grad_input = grad_output when SAME
//!   kernel  upsample_last_backward_rows otherwise cpu threads N*H by 1
//!   kernel  upsample_backward_few<scalar_t, FEW_V, 1, FEW_TAPS> otherwise FEW_BACK threads numel(input) / FEW_V
//!   bind    HW = H*W bind VECS = max(1, C / FEW_V) bind PLANES = N
//!   kernel  upsample_last_crowd<scalar_t, V, LANES> otherwise CROWD grid N*H*W*CROWD_SETS block 256
//!   kernel  upsample_last_backward<scalar_t, BACK_V> otherwise grid N*H*BACK_PARTS*SETS block 256 shared SHARED

#include "channels.cuh"
#include "upsample_axis.cuh"
#include "upsample_few.cuh"

#ifndef OPD_CPU
// A thread makes V channels of a column of outputs. The two rows of inputs that an output stands
// between are blended along W once, and serve all outputs between them.
template <class T, class A, class I, int V>
__global__ void upsample_last(const T *__restrict__ input, T *__restrict__ output, int64_t H,
                              int64_t W, int64_t OH, int64_t OW, int64_t C, double step_h,
                              double step_w, double shift, int ROWS, int GROUPS, int PARTS,
                              opd::divisor VECS, int EACH)
{
    const int group = (int)blockIdx.x / PARTS;
    const int64_t n = group / GROUPS;
    const I first = (I)((int)blockIdx.x - group * PARTS) * EACH,
            last = (I)min((int64_t)first + EACH, OW * (int)VECS);
    const I oh = (I)(group - n * GROUPS) * ROWS, end = (I)min((int64_t)oh + ROWS, OH);
    const axis<A, I> rows((I)H, (I)OH, step_h, shift), columns((I)W, (I)OW, step_w, shift);
    const bool whole = lie_whole<V>(input),
               whole_out = lie_whole<V>(output);
    for (I i = first + (I)threadIdx.x; i < last; i += (I)blockDim.x) {
        const I ow = i / VECS, c = (i - ow * VECS) * V;
        const tap<A, I> x = columns.at(ow);
        const T *from = input + n * H * W * C + x.low * C + c;
        const int64_t right = (x.high - x.low) * C;
        const auto blend = [&](A *to, I row) {
            const auto a = read_channels<V>(from + row * W * C, whole),
                       b = read_channels<V>(from + row * W * C + right, whole);
#pragma unroll
            for (int k = 0; k < V; k++)
                to[k] = mix<A>(opd::load(&a[k]), opd::load(&b[k]), x.weight);
        };
        A low[V], high[V];
        tap<A, I> y = rows.at(oh);
        blend(low, y.low);
        blend(high, y.high);
        T *out = output + (n * OH + oh) * OW * C + (int64_t)i * V;
        for (I r = oh; r < end; r++, out += OW * C) {
            const I held = y.low; // the row that is in `low`
            y = rows.at(r);
            if (y.low != held) {
                if (y.low == held + 1)
#pragma unroll
                    for (int k = 0; k < V; k++)
                        low[k] = high[k];
                else
                    blend(low, y.low);
                blend(high, y.high);
            }
            acc_t made[V];
#pragma unroll
            for (int k = 0; k < V; k++)
                made[k] = (acc_t)mix<A>(low[k], high[k], y.weight);
            write_channels<V>(out, made, whole_out);
        }
    }
}

// The block's columns of outputs are summed down to its row of inputs, then along it, by what each
// adds, which is worked out once.
template <class T, int V>
__global__ void __launch_bounds__(256)
    upsample_last_backward(const T *__restrict__ grad_output, T *__restrict__ grad_input, int H,
                           int W, int OH, int OW, int C, double step_h, double step_w, double shift,
                           int SETS, int CH, int BACK_PARTS, int BACK_W, int BACK_OW, int BACK_OH)
{
    extern __shared__ uint4 shared[];
    acc_t *sums = (acc_t *)shared, *down = sums + BACK_OW * CH, *right_of = down + BACK_OH;
    int *low_of = (int *)(right_of + BACK_OW), *rows_of = low_of + BACK_OW, *first_of = rows_of + 2;
    const int set = (int)blockIdx.x % SETS, part = (int)blockIdx.x / SETS % BACK_PARTS;
    const int row = (int)blockIdx.x / SETS / BACK_PARTS, n = row / H, h = row - n * H;
    const int w = part * BACK_W, width = min(BACK_W, W - w), channels = min(CH, C - set * CH);
    const axis<acc_t, int> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int tid = (int)threadIdx.x;
#pragma unroll 1
    for (int i = tid; i < width + 2; i += 256)
        first_of[i] = columns.find(w - 1 + i);
    if (tid < 2)
        rows_of[tid] = rows.find(h - 1 + 2 * tid);
    __syncthreads();
    const int left = first_of[0], wide = first_of[width + 1] - left, top = rows_of[0],
              tall = rows_of[1] - top;
#pragma unroll 1
    for (int i = tid; i < tall; i += 256)
        down[i] = axis<acc_t, int>::share(rows.at(top + i), h);
#pragma unroll 1
    for (int i = tid; i < wide; i += 256) {
        const tap<acc_t, int> x = columns.at(left + i);
        low_of[i] = x.low;
        right_of[i] = x.high > x.low ? x.weight : acc_t(0);
    }
    __syncthreads();

    const int vecs = channels / V;
    const bool whole = lie_whole<V>(grad_output),
               whole_in = lie_whole<V>(grad_input);
    const T *from = grad_output + (((int64_t)n * OH + top) * OW + left) * C + set * CH;
#pragma unroll 1
    for (int i = tid; i < wide * vecs; i += 256) {
        const int x = i / vecs, c = (i - x * vecs) * V;
        const T *g = from + (int64_t)x * C + c;
        acc_t sum[V] = {};
#pragma unroll 4
        for (int y = 0; y < tall; y++) {
            const auto v = read_channels<V>(g + (int64_t)y * OW * C, whole);
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += down[y] * opd::load(&v[k]);
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            sums[x * CH + c + k] = sum[k];
    }
    __syncthreads();
    T *to = grad_input + ((int64_t)row * W + w) * C + set * CH;
#pragma unroll 1
    for (int i = tid; i < width * vecs; i += 256) {
        const int at = i / vecs, c = (i - at * vecs) * V;
        acc_t sum[V] = {};
        for (int x = first_of[at] - left; x < first_of[at + 2] - left; x++) {
            const acc_t weight = low_of[x] == w + at ? 1 - right_of[x] : right_of[x];
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += weight * sums[x * CH + c + k];
        }
        write_channels<V>(to + (int64_t)at * C + c, sum, whole_in);
    }
}

// Block (input, set of channels): LANES vectors of them, whose outputs its other threads share.
template <class T, int V, int LANES>
__global__ void upsample_last_crowd(const T *__restrict__ grad_output, T *__restrict__ grad_input,
                                    int64_t H, int64_t W, int64_t OH, int64_t OW, int64_t C,
                                    double step_h, double step_w, double shift, int64_t CROWD_SETS)
{
    enum { OTHERS = 256 / LANES };
    using A = double;
    const int lane = (int)threadIdx.x % LANES, other = (int)threadIdx.x / LANES;
    const int64_t at = blockIdx.x / CROWD_SETS,
                  c = ((blockIdx.x - at * CROWD_SETS) * LANES + lane) * V;
    const int64_t w = at % W, h = at / W % H, n = at / W / H;
    const axis<A, int64_t> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int64_t top = rows.find(h - 1), left = columns.find(w - 1);
    const unsigned width = (unsigned)(columns.find(w + 1) - left);
    const int64_t count = c < C ? (rows.find(h + 1) - top) * width : 0;
    const bool whole = lie_whole<V>(grad_output);
    acc_t sum[V] = {};
#pragma unroll 2
    for (int64_t i = other; i < count; i += OTHERS) {
        const int64_t oh = top + i / width, ow = left + i % width;
        const acc_t weight = (acc_t)(axis<A, int64_t>::share(rows.at(oh), h) *
                                     axis<A, int64_t>::share(columns.at(ow), w));
        const auto g = read_channels<V>(grad_output + ((n * OH + oh) * OW + ow) * C + c, whole);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k] += weight * opd::load(&g[k]);
    }
    __shared__ acc_t parts[OTHERS][LANES * V];
#pragma unroll
    for (int k = 0; k < V; k++)
        parts[other][lane * V + k] = sum[k];
    __syncthreads();
    if (other > 0 || c >= C)
        return;
    for (int of = 1; of < OTHERS; of++)
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k] += parts[of][lane * V + k];
    write_channels<V>(grad_input + at * C + c, sum, lie_whole<V>(grad_input));
}
#else

template <class T>
__global__ void upsample_last_rows(const T *__restrict__ input, T *__restrict__ output, int64_t H,
                                   int64_t W, int64_t OH, int64_t OW, int64_t C, double step_h,
                                   double step_w, double shift, int64_t count)
{
    CUDA_KERNEL_LOOP(row, count)
    {
        const axis<double, int64_t> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
        const int64_t n = row / OH;
        const tap<double, int64_t> y = rows.at(row - n * OH);
        for (int64_t ow = 0; ow < OW; ow++) {
            const tap<double, int64_t> x = columns.at(ow);
            const T *a = input + ((n * H + y.low) * W + x.low) * C, *b = a + (x.high - x.low) * C,
                    *d = a + (y.high - y.low) * W * C, *e = d + (x.high - x.low) * C;
            const acc_t right = (acc_t)x.weight, down = (acc_t)y.weight;
            T *__restrict__ out = output + (row * OW + ow) * C;
            for (int64_t c = 0; c < C; c++)
                opd::store(out + c,
                           mix<acc_t>(mix<acc_t>(opd::load(a + c), opd::load(b + c), right),
                                      mix<acc_t>(opd::load(d + c), opd::load(e + c), right), down));
        }
    }
}

// The columns of outputs are worked out once, for all rows; of rows the shares of the first ones.
template <class T>
__global__ void upsample_last_backward_rows(const T *__restrict__ grad_output,
                                            T *__restrict__ grad_input,
                                            const int *__restrict__ low_of,
                                            const acc_t *__restrict__ weight_of, int64_t H,
                                            int64_t W, int64_t OH, int64_t OW, int64_t C,
                                            double step_h, double shift, int64_t count)
{
    enum { SHARES = 32 };
    CUDA_KERNEL_LOOP(row, count)
    {
        using down = axis<double, int64_t>;
        const down rows(H, OH, step_h, shift);
        const int64_t h = row % H, top = rows.find(h - 1), tall = rows.find(h + 1) - top;
        const T *image = grad_output + (row / H * OH + top) * OW * C;
        acc_t shares[SHARES];
        for (int64_t y = 0; y < min(tall, (int64_t)SHARES); y++)
            shares[y] = (acc_t)down::share(rows.at(top + y), h);
        int64_t left = 0, right = 0;
        for (int64_t w = 0; w < W; w++) {
            while (left < OW && low_of[left] < w - 1)
                left++;
            while (right < OW && low_of[right] <= w)
                right++;
            const auto each_tap = [&](const T *from, const auto &add) {
                for (int64_t y = 0; y < tall; y++) {
                    const acc_t part = y < SHARES ? shares[y]
                                                  : (acc_t)down::share(rows.at(top + y), h);
                    const T *line = from + y * OW * C;
                    for (int64_t ow = left; ow < right; ow++) {
                        const acc_t high = w < W - 1 || low_of[ow] < w ? weight_of[ow] : acc_t(0);
                        add(part * (low_of[ow] == w ? 1 - high : high), line + ow * C);
                    }
                }
            };
            T *to = grad_input + (row * W + w) * C;
            int64_t c = 0;
            for (; c + CHANNELS <= C; c += CHANNELS) {
                channels_t sum = {};
                each_tap(image + c, [&](acc_t share, const T *g) {
                    sum += share * load_channels(g, CHANNELS);
                });
                store_channels(to + c, sum, CHANNELS);
            }
            acc_t rest[CHANNELS] = {};
            if (c < C)
                each_tap(image + c, [&](acc_t share, const T *g) {
                    for (int64_t e = 0; e < C - c; e++)
                        rest[e] += share * opd::load(g + e);
                });
            for (int64_t e = 0; e < C - c; e++)
                opd::store(to + c + e, rest[e]);
        }
    }
}
#endif
