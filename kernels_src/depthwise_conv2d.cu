// Depthwise 2-D convolution, NCHW, as torch.nn.functional.conv2d with groups = C. Output channel c
// of C*M reads input channel c / M alone:
//   output[n, c, oh, ow] = bias[c] +
//       sum over kh, kw of weight[c, 0, kh, kw] * input[n, c / M, ih, iw]
//   with ih = oh*SH - PH + kh*DH, iw = ow*SW - PW + kw*DW for stride, padding and dilation.
//
//! op      depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias=None, *, \
//!           int[2] stride=1, int[2] padding=0, int[2] dilation=1) -> Tensor output
//! doc     One filter for each channel: conv2d with groups equal to the input's channels.
//! doc     The weight may have M filters for each: output channel c then reads input channel c / M.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   input [N, C, H, W]
//! shape   weight [CM, 1, KH, KW]
//! let     SH, SW = stride
//! let     PH, PW = padding
//! let     DH, DW = dilation
//! require C > 0 && CM > 0 && CM % C == 0 : \
//!           "weight has {CM} channels in dimension 0, input has {C}; expected [{C}*M, 1, KH, KW]"
//! require H > 0 && W > 0 : "input has {H} rows of {W} columns, expected at least one of each"
//! require KH > 0 && KW > 0 : "weight has a window of {KH} x {KW}, expected at least 1 x 1"
//! require SH > 0 && SW > 0 : "stride is {stride}, expected at least 1"
//! require DH > 0 && DW > 0 : "dilation is {dilation}, expected at least 1"
//! require PH >= 0 && PW >= 0 : "padding is {padding}, expected at least 0"
//! shape   bias [CM]
//! let     M = CM / C
//! let     REACH_H, REACH_W = H + 2*PH - DH*(KH - 1), W + 2*PW - DW*(KW - 1)
//! require REACH_H > 0 && REACH_W > 0 : \
//!           "the window of {KH} x {KW} exceeds the padded input, {H + 2*PH} x {W + 2*PW}"
//! let     OH, OW = (REACH_H - 1) / SH + 1, (REACH_W - 1) / SW + 1
//! shape   output [N, CM, OH, OW]
//! batch   N
//! batch   C CM
//! linear  input bias
//! linear  weight bias
//! let     SMALL = max(KH, KW) <= 7 && max(max(SH, SW), max(DH, DW)) <= 2 && \
//!           fits32(H*W, 2*H + 4*PH, 2*W + 4*PW, N*CM*(OH + 8)*OW, N*C*(H + 8*SH)*(W + 2))
//! let     VEC, TAPS = 16 / sizeof(scalar_t), KW <= 7 ? KW : 0
//! let     SAME = SMALL && SH*SW*DH*DW == 1 && KW == 2*PW + 1 && W % VEC == 0
//! let     ROWS = KH <= 5 && OH >= 8 && N*CM*OH*OW >= 4194304 ? 8 : 4
//! let     GROUPS, QUADS = cdiv(OH, ROWS), cdiv(OH, 4)
//! let     CELLS_H, CELLS_W = cdiv((H - 1 + PH) / SH - PH / SH + 1, 4), \
//!           (W - 1 + PW) / SW - PW / SW + 1
//! let     STRIPS = N*QUADS*(SAME ? W / VEC : OW)
//! let     PARTS = max(1, SAME ? min(1024 / CM, STRIPS / 2048) : min(2048 / CM, STRIPS / 1024))
//! scratch partial acc_t [PARTS, CM, KH*KW + 1]
//! empty   output grad_input grad_weight grad_bias
//! example input=[2,3,9,11] weight=[6,1,3,3] bias=[6] stride=2 padding=1
//! example input=[2,8,14,14] weight=[8,1,3,3] padding=1
//! example input=[2,2,11,16] weight=[4,1,3,3] bias=[4] padding=1
//! example input=[1,2,9,24] weight=[2,1,7,7] padding=3
//! example input=[1,4,12,10] weight=[4,1,5,5] bias=[4] padding=2 dilation=2
//! example input=[2,3,12,13] weight=[3,1,1,7] padding=[0,3] stride=[1,2]
//! example input=[1,2,20,17] weight=[2,1,9,9] bias=[2] padding=4
//! example input=[2,3,11,11] weight=[3,1,2,2] stride=3
//! example input=[1,2,3,3] weight=[4,1,3,3] bias=[4] padding=4
//
//! forward cpu
//!   kernel  depthwise_forward_rows<scalar_t, TAPS, min(SW, 3) % 3> threads N*CM*cdiv(OH, 8) by 1
//! forward cuda
//!   kernel  depthwise_forward_same<scalar_t, KH, KW> when SAME threads N*CM*QUADS*(W / VEC) by 128
//!   kernel  depthwise_forward<scalar_t, KH, KW, SH, SW, DH, DW, ROWS> otherwise SMALL
//!   threads N*CM*GROUPS*OW
//!   kernel  depthwise_forward_any otherwise threads numel(output)
//
//! backward cpu grad_input
//!   kernel  depthwise_grad_input_rows<scalar_t, SW == 1 ? TAPS : 0, SW == 1>
//!   threads N*C*cdiv(H, 8) by 1
//! backward cuda grad_input
//!   kernel  depthwise_grad_input_same<scalar_t, KH, KW> when SAME && M == 1
//!   threads N*C*cdiv(H, 4)*(W / VEC) by 128
//!   kernel  depthwise_grad_input<scalar_t, KH, KW, SH, SW, DH, DW> otherwise SMALL
//!   threads N*C*CELLS_H*CELLS_W
//!   kernel  depthwise_grad_input_any otherwise threads numel(input)
//
//! backward cpu grad_weight grad_bias
//!   kernel  depthwise_grad_weight_rows<scalar_t, SW == 1> threads CM*(KH*KW + 1) by 1
//! backward cuda grad_weight grad_bias
//!   kernel  depthwise_grad_weight_same<scalar_t, KH, KW, wanted(grad_weight)> when SAME
//!   grid    CM*PARTS
//!   kernel  depthwise_grad_weight<scalar_t, KH, KW, SH, SW, DH, DW, wanted(grad_weight)>
//!   otherwise SMALL grid CM*PARTS
//!   kernel  depthwise_grad_weight_any otherwise grid CM*(KH*KW + 1)*PARTS
//!   kernel  depthwise_grad_weight_sum threads CM*(KH*KW + 1)

// ---- 16 bytes at a time, where rows of input and output are equally long multiples of that
// (stride and dilation 1, "same" padding of the columns).

// N = 16 / sizeof(T) neighbours in a row; zeros where they are outside it.
template <int N, class T>
__device__ __forceinline__ void load_block(acc_t *v, const T *p, bool inside, bool aligned)
{
    if (inside && aligned) {
        const opd::vec<T, N> block = opd::load_vec<N>(p);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = opd::load(&block[k]);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = inside ? opd::load(p + k) : acc_t(0);
}

// The N elements from column x on, which is a multiple of N, and HALO more on both sides.
template <int N, int HALO, class T>
__device__ __forceinline__ void load_columns(acc_t *v, const T *line, int x, int W, bool aligned)
{
    load_block<N>(v + HALO, line + x, true, aligned);
#pragma unroll
    for (int k = 0; k < HALO; k++) {
        const int left = x - HALO + k, right = x + N + k;
        v[k] = left >= 0 ? opd::load(line + left) : acc_t(0);
        v[HALO + N + k] = right < W ? opd::load(line + right) : acc_t(0);
    }
}

enum { SAME_ROWS = 4 }; // a thread's

// SAME_ROWS x N outputs from row y and column x on; FLIP turns the window round, for grad_input.
template <int KH, int KW, bool FLIP, class T>
__device__ __forceinline__ void convolve_same(const T *__restrict__ from,
                                              const T *__restrict__ weight, acc_t start,
                                              T *__restrict__ to, int from_rows, int to_rows, int W,
                                              int y, int x, int PH)
{
    constexpr int N = 16 / sizeof(T);
    const bool aligned = opd::is_aligned(from, 16), aligned_to = opd::is_aligned(to, 16);
    acc_t w[KH * KW], sum[SAME_ROWS][N];
#pragma unroll
    for (int k = 0; k < KH * KW; k++)
        w[k] = opd::load(weight + (FLIP ? KH * KW - 1 - k : k));
#pragma unroll
    for (int j = 0; j < SAME_ROWS * N; j++)
        sum[j / N][j % N] = start;
#pragma unroll
    for (int r = 0; r < SAME_ROWS + KH - 1; r++) {
        const int row = y - PH + r;
        if ((unsigned)row >= (unsigned)from_rows)
            continue;
        acc_t v[N + KW - 1];
        load_columns<N, KW / 2>(v, from + (int64_t)row * W, x, W, aligned);
#pragma unroll
        for (int j = 0; j < SAME_ROWS; j++)
#pragma unroll
            for (int k = 0; k < KH * KW; k++)
#pragma unroll
                for (int c = 0; c < N; c++)
                    if (j + k / KW == r)
                        sum[j][c] += w[k] * v[c + k % KW];
    }
#pragma unroll
    for (int j = 0; j < SAME_ROWS; j++) {
        if (y + j >= to_rows)
            return;
        T *out = to + (int64_t)(y + j) * W + x;
        opd::vec<T, N> block;
#pragma unroll
        for (int c = 0; c < N; c++)
            opd::store(&block[c], sum[j][c]);
        if (aligned_to) {
            opd::store_vec(out, block);
            continue;
        }
#pragma unroll
        for (int c = 0; c < N; c++)
            out[c] = block[c];
    }
}

template <class T, int KH, int KW>
__global__ void depthwise_forward_same(const T *__restrict__ input, const T *__restrict__ weight,
                                       const T *__restrict__ bias, T *__restrict__ output,
                                       unsigned count, int CM, int M, int H, int W, int OH, int PH)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned blocks = W * sizeof(T) / 16, groups = (OH + SAME_ROWS - 1) / SAME_ROWS;
    const unsigned row = i / blocks, plane = row / groups, channel = plane % CM;
    convolve_same<KH, KW, false>(
        input + (int64_t)(plane / M) * (H * W), weight + (size_t)channel * (KH * KW),
        bias ? opd::load(bias + channel) : acc_t(0), output + (int64_t)plane * ((int64_t)OH * W), H,
        OH, W, (int)(row - plane * groups) * SAME_ROWS, (int)(i - row * blocks) * (16 / sizeof(T)),
        PH);
}

template <class T, int KH, int KW>
__global__ void depthwise_grad_input_same(const T *__restrict__ grad_output,
                                          const T *__restrict__ weight, T *__restrict__ grad_input,
                                          unsigned count, int C, int H, int W, int OH, int PH)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned blocks = W * sizeof(T) / 16, groups = (H + SAME_ROWS - 1) / SAME_ROWS;
    const unsigned row = i / blocks, plane = row / groups;
    convolve_same<KH, KW, true>(grad_output + (int64_t)plane * ((int64_t)OH * W),
                                weight + (size_t)(plane % C) * (KH * KW), acc_t(0),
                                grad_input + (int64_t)plane * (H * W), OH, H, W,
                                (int)(row - plane * groups) * SAME_ROWS,
                                (int)(i - row * blocks) * (16 / sizeof(T)), KH - 1 - PH);
}

// ---- one column a thread

// A thread makes ROWS outputs below one another, so that each input row that it reads serves
// several of them.
template <class T, int KH, int KW, int SH, int SW, int DH, int DW, int ROWS>
__global__ void depthwise_forward(const T *__restrict__ input, const T *__restrict__ weight,
                                  const T *__restrict__ bias, T *__restrict__ output,
                                  unsigned count, opd::divisor CM, opd::divisor M, int H, int W,
                                  int OH, opd::divisor OW, opd::divisor GROUPS, int PH, int PW)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned row = i / OW, plane = row / GROUPS, channel = plane % CM;
    const int ow = (int)(i - row * OW), oh = (int)(row - plane * GROUPS) * ROWS;
    const int iw = ow * SW - PW, ih = oh * SH - PH;
    const T *line = input + plane / M * (int64_t)(H * W) + (int64_t)ih * W + iw;

    acc_t w[KH * KW], sum[ROWS];
#pragma unroll
    for (int k = 0; k < KH * KW; k++)
        w[k] = opd::load(weight + (size_t)channel * (KH * KW) + k);
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        sum[j] = bias ? opd::load(bias + channel) : acc_t(0);
#pragma unroll
    for (int r = 0; r <= (ROWS - 1) * SH + (KH - 1) * DH; r++, line += W) {
        acc_t v[KW];
#pragma unroll
        for (int k = 0; k < KW; k++)
            v[k] = (unsigned)(ih + r) < (unsigned)H && (unsigned)(iw + k * DW) < (unsigned)W
                       ? opd::load(line + k * DW)
                       : acc_t(0);
#pragma unroll
        for (int j = 0; j < ROWS; j++)
#pragma unroll
            for (int k = 0; k < KH * KW; k++)
                if (j * SH + k / KW * DH == r)
                    sum[j] += w[k] * v[k % KW];
    }
    T *out = output + (int64_t)plane * ((int64_t)OH * OW) + (int64_t)oh * OW + ow;
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        if (oh + j < OH)
            opd::store(out + (int64_t)j * OW, sum[j]);
}

// Any window, any size.
template <class T>
__global__ void depthwise_forward_any(const T *__restrict__ input, const T *__restrict__ weight,
                                      const T *__restrict__ bias, T *__restrict__ output,
                                      int64_t count, int64_t CM, int64_t M, int64_t H, int64_t W,
                                      int64_t OH, int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                      int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t ow = i % OW, oh = i / OW % OH, plane = i / OW / OH, channel = plane % CM;
        const T *image = input + plane / M * H * W;
        acc_t sum = bias ? opd::load(bias + channel) : acc_t(0);
        for (int64_t kh = 0; kh < KH; kh++) {
            const int64_t ih = oh * SH - PH + kh * DH;
            if (ih < 0 || ih >= H)
                continue;
            for (int64_t kw = 0; kw < KW; kw++) {
                const int64_t iw = ow * SW - PW + kw * DW;
                if (iw >= 0 && iw < W)
                    sum += opd::load(image + ih * W + iw) *
                           opd::load(weight + (channel * KH + kh) * KW + kw);
            }
        }
        opd::store(output + i, sum);
    }
}

// grad_input[n, c, h, w] = sum over m, kh, kw of weight * grad_output[n, c*M + m, (h + PH - kh*DH)
// / SH, ...], where that divides. A thread makes 4 cells below one another, each of SH x SW
// elements whose h + PH is a multiple of SH and on: so which taps divide is known to the compiler.
// Gathered, so that no sum depends on the order of threads.
template <class T, int KH, int KW, int SH, int SW, int DH, int DW>
__global__ void depthwise_grad_input(const T *__restrict__ grad_output,
                                     const T *__restrict__ weight, T *__restrict__ grad_input,
                                     unsigned count, opd::divisor C, int M, int H, int W, int OH,
                                     int OW, opd::divisor CELLS_H, opd::divisor CELLS_W, int PH,
                                     int PW)
{
    constexpr int CELLS = 4, UP = (KH - 1) * DH / SH, LEFT = (KW - 1) * DW / SW;
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned row = i / CELLS_W, plane = row / CELLS_H, channel = plane % C;
    const int b = PW / SW + (int)(i - row * CELLS_W),
              a = PH / SH + (int)(row - plane * CELLS_H) * CELLS;

    acc_t sum[CELLS][SH][SW] = {};
    for (int m = 0; m < M; m++) {
        const T *line = grad_output + ((int64_t)plane * M + m) * ((int64_t)OH * OW) +
                        (int64_t)(a - UP) * OW + b;
        acc_t w[KH * KW];
#pragma unroll
        for (int k = 0; k < KH * KW; k++)
            w[k] = opd::load(weight + ((size_t)channel * M + m) * (KH * KW) + k);
#pragma unroll
        for (int r = 0; r < CELLS + UP; r++, line += OW) {
            acc_t v[LEFT + 1];
#pragma unroll
            for (int f = 0; f <= LEFT; f++)
                v[f] = (unsigned)(a + r - UP) < (unsigned)OH && (unsigned)(b - f) < (unsigned)OW
                           ? opd::load(line - f)
                           : acc_t(0);
#pragma unroll
            for (int j = 0; j < CELLS; j++)
#pragma unroll
                for (int f = 0; f <= LEFT; f++)
#pragma unroll
                    for (int p = 0; p < SH * SW; p++) {
                        const int up = j + UP - r, kh = p / SW + up * SH, kw = p % SW + f * SW;
                        if (up >= 0 && kh % DH == 0 && kh / DH < KH && kw % DW == 0 && kw / DW < KW)
                            sum[j][p / SW][p % SW] += v[f] * w[kh / DH * KW + kw / DW];
                    }
        }
    }
#pragma unroll
    for (int p = 0; p < CELLS * SH * SW; p++) {
        const int h = a * SH + p / SW - PH, x = b * SW + p % SW - PW;
        if ((unsigned)h < (unsigned)H && (unsigned)x < (unsigned)W)
            opd::store(grad_input + (int64_t)plane * (H * W) + (int64_t)h * W + x,
                       sum[p / SW / SH][p / SW % SH][p % SW]);
    }
}

template <class T>
__global__ void depthwise_grad_input_any(const T *__restrict__ grad_output,
                                         const T *__restrict__ weight, T *__restrict__ grad_input,
                                         int64_t count, int64_t C, int64_t M, int64_t H, int64_t W,
                                         int64_t OH, int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                         int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t x = i % W, h = i / W % H, plane = i / W / H, channel = plane % C;
        acc_t sum = 0;
        for (int64_t k = 0; k < M * KH * KW; k++) {
            const int64_t m = k / KW / KH, th = h + PH - k / KW % KH * DH,
                          tw = x + PW - k % KW * DW;
            if (th >= 0 && tw >= 0 && th % SH == 0 && tw % SW == 0 && th / SH < OH && tw / SW < OW)
                sum += opd::load(grad_output + ((plane * M + m) * OH + th / SH) * OW + tw / SW) *
                       opd::load(weight + channel * M * KH * KW + k);
        }
        opd::store(grad_input + i, sum);
    }
}

// Adds up what the block's threads have summed for each tap, and last for the bias.
template <int TAPS>
__device__ __forceinline__ void store_sums(acc_t *to, const acc_t *sum, acc_t sum_bias)
{
#pragma unroll
    for (int k = 0; k < TAPS + 1; k++) {
        const acc_t total = opd::block_reduce_sum<256>(k < TAPS ? sum[k % TAPS] : sum_bias);
        if (threadIdx.x == 0)
            to[k] = total;
    }
}

// grad_weight[c, 0, kh, kw] = sum over n, oh, ow of grad_output * input, and grad_bias[c] = sum of
// grad_output. In two stages, without atomics, so that the bits are the same on every run: block
// (c, part) sums its part of the strips of 4 rows into `partial`, whose last column is the bias's;
// then the parts are added in their order.
template <class T, int KH, int KW, int SH, int SW, int DH, int DW, bool WEIGHT>
__global__ void depthwise_grad_weight(const T *__restrict__ input,
                                      const T *__restrict__ grad_output,
                                      acc_t *__restrict__ partial, int CM, int M, int H, int W,
                                      int OH, opd::divisor OW, opd::divisor QUADS, int PH, int PW,
                                      int PARTS, unsigned STRIPS)
{
    constexpr int ROWS = 4;
    const unsigned channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const unsigned share = (STRIPS + PARTS - 1) / PARTS, end = min((part + 1) * share, STRIPS);
    acc_t sum[KH * KW] = {}, sum_bias = 0;
    for (unsigned i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const unsigned row = i / OW, n = row / QUADS;
        const int ow = (int)(i - row * OW), oh = (int)(row - n * QUADS) * ROWS;
        const int iw = ow * SW - PW, ih = oh * SH - PH;
        const int64_t plane = (int64_t)n * CM + channel;
        const T *out = grad_output + plane * ((int64_t)OH * OW) + (int64_t)oh * OW + ow;
        const T *line = input + plane / M * (H * W) + (int64_t)ih * W + iw;
        acc_t g[ROWS];
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            g[j] = oh + j < OH ? opd::load(out + (int64_t)j * OW) : acc_t(0);
            sum_bias += g[j];
        }
#pragma unroll
        for (int r = 0; WEIGHT && r <= (ROWS - 1) * SH + (KH - 1) * DH; r++, line += W) {
            acc_t v[KW];
#pragma unroll
            for (int k = 0; k < KW; k++)
                v[k] = (unsigned)(ih + r) < (unsigned)H && (unsigned)(iw + k * DW) < (unsigned)W
                           ? opd::load(line + k * DW)
                           : acc_t(0);
#pragma unroll
            for (int j = 0; j < ROWS; j++)
#pragma unroll
                for (int k = 0; k < KH * KW; k++)
                    if (j * SH + k / KW * DH == r)
                        sum[k] += g[j] * v[k % KW];
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
    store_sums<KH * KW>(to, sum, sum_bias);
}

template <class T, int KH, int KW, bool WEIGHT>
__global__ void depthwise_grad_weight_same(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           acc_t *__restrict__ partial, int CM, int M, int H, int W,
                                           int OH, int QUADS, int PH, int PARTS, unsigned STRIPS)
{
    constexpr int N = 16 / sizeof(T);
    const unsigned channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS, blocks = W / N;
    const unsigned share = (STRIPS + PARTS - 1) / PARTS, end = min((part + 1) * share, STRIPS);
    const bool aligned = opd::is_aligned(input, 16), aligned_out = opd::is_aligned(grad_output, 16);
    acc_t sum[KH * KW] = {}, sum_bias = 0;
    for (unsigned i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const unsigned row = i / blocks, n = row / QUADS;
        const int x = (int)(i - row * blocks) * N, y = (int)(row - n * QUADS) * SAME_ROWS;
        const int64_t plane = (int64_t)n * CM + channel;
        const T *out = grad_output + plane * ((int64_t)OH * W) + (int64_t)y * W + x;
        const T *from = input + plane / M * (H * W);
        acc_t g[SAME_ROWS][N];
#pragma unroll
        for (int j = 0; j < SAME_ROWS; j++) {
            load_block<N>(g[j], out + (int64_t)j * W, y + j < OH, aligned_out);
#pragma unroll
            for (int c = 0; c < N; c++)
                sum_bias += g[j][c];
        }
#pragma unroll
        for (int r = 0; WEIGHT && r < SAME_ROWS + KH - 1; r++) {
            const int ih = y - PH + r;
            if ((unsigned)ih >= (unsigned)H)
                continue;
            acc_t v[N + KW - 1];
            load_columns<N, KW / 2>(v, from + (int64_t)ih * W, x, W, aligned);
#pragma unroll
            for (int j = 0; j < SAME_ROWS; j++)
#pragma unroll
                for (int k = 0; k < KH * KW; k++)
#pragma unroll
                    for (int c = 0; c < N; c++)
                        if (j + k / KW == r)
                            sum[k] += g[j][c] * v[c + k % KW];
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
    store_sums<KH * KW>(to, sum, sum_bias);
}

template <class T>
__global__ void depthwise_grad_weight_any(const T *__restrict__ input,
                                          const T *__restrict__ grad_output,
                                          acc_t *__restrict__ partial, int64_t N, int64_t CM,
                                          int64_t M, int64_t H, int64_t W, int64_t OH, int64_t OW,
                                          int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                          int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                                          int64_t PARTS)
{
    const int64_t taps = KH * KW + 1, part = blockIdx.x % PARTS, k = blockIdx.x / PARTS % taps;
    const int64_t channel = blockIdx.x / PARTS / taps;
    const int64_t count = N * OH * OW, share = (count + PARTS - 1) / PARTS,
                  end = min((part + 1) * share, count);
    acc_t sum = 0;
    for (int64_t i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const int64_t ow = i % OW, oh = i / OW % OH, plane = i / OW / OH * CM + channel;
        const int64_t ih = oh * SH - PH + k / KW * DH, iw = ow * SW - PW + k % KW * DW;
        const acc_t g = opd::load(grad_output + (plane * OH + oh) * OW + ow);
        if (k == KH * KW)
            sum += g;
        else if (ih >= 0 && ih < H && iw >= 0 && iw < W)
            sum += g * opd::load(input + (plane / M * H + ih) * W + iw);
    }
    sum = opd::block_reduce_sum<256>(sum);
    if (threadIdx.x == 0)
        partial[(part * CM + channel) * taps + k] = sum;
}

template <class T>
__global__ void depthwise_grad_weight_sum(const acc_t *__restrict__ partial,
                                          T *__restrict__ grad_weight, T *__restrict__ grad_bias,
                                          int64_t CM, int64_t KH, int64_t KW, int64_t PARTS)
{
    const int64_t taps = KH * KW + 1, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= CM * taps)
        return;
    acc_t sum = 0;
    for (int64_t part = 0; part < PARTS; part++)
        sum += partial[part * CM * taps + i];
    const int64_t channel = i / taps, k = i % taps;
    if (k < KH * KW && grad_weight)
        opd::store(grad_weight + channel * (KH * KW) + k, sum);
    if (k == KH * KW && grad_bias)
        opd::store(grad_bias + channel, sum);
}

// ---- on the CPU, whose compiler makes vectors of columns

enum { CPU_COLUMNS = 256, CPU_ROWS = 8 }; // summed side by side; made by a block

__device__ __forceinline__ int64_t clamp(int64_t v, int64_t most)
{
    return max((int64_t)0, min(v, most));
}

// sums[k] += the sum over j of weight[j*sign] * line[(begin + k)*step + from + j*apart], for n
// columns, of those taps that are inside the line. TAPS and STEP are 0 where only `taps` and `step`
// know them.
template <int TAPS, int STEP, class T>
__device__ __forceinline__ void add_window(acc_t *sums, int64_t begin, int64_t n, const T *line,
                                           int64_t width, int64_t from, const T *weight, int sign,
                                           int64_t taps, int64_t step, int64_t apart)
{
    if constexpr (TAPS == 0) {
        for (int64_t j = 0; j < taps; j++)
            add_window<1, STEP>(sums, begin, n, line, width, from + j * apart, weight + j * sign,
                                sign, 1, step, apart);
    } else {
        step = STEP ? STEP : step;
        from += begin * step;
        acc_t w[TAPS];
        for (int j = 0; j < TAPS; j++)
            w[j] = opd::load(weight + j * sign);
        // From `first` to `last` all taps are inside.
        const int64_t reach = width - 1 - from - (TAPS - 1) * apart;
        const int64_t first = clamp((step - 1 - from) / step, n);
        const int64_t last = max(first, reach < 0 ? 0 : clamp(reach / step + 1, n));
        for (int64_t k = first > 0 ? 0 : last; k < n; k = k + 1 == first ? last : k + 1)
            for (int j = 0; j < TAPS; j++) {
                const int64_t at = k * step + from + j * apart;
                if (at >= 0 && at < width)
                    sums[k] += w[j] * opd::load(line + at);
            }
        line += from;
        for (int64_t k = first; k < last; k++) {
            acc_t sum = sums[k];
            for (int j = 0; j < TAPS; j++)
                sum += w[j] * opd::load(line + k * step + j * apart);
            sums[k] = sum;
        }
    }
}

template <class T, int TAPS, int STEP>
__global__ void depthwise_forward_rows(const T *__restrict__ input, const T *__restrict__ weight,
                                       const T *__restrict__ bias, T *__restrict__ output,
                                       int64_t CM, int64_t M, int64_t H, int64_t W, int64_t OH,
                                       int64_t OW, int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                       int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    const int64_t groups = (OH + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t channel = plane % CM, row = blockIdx.x % groups * CPU_ROWS;
    const T *image = input + plane / M * H * W;
    for (int64_t oh = row; oh < min(row + CPU_ROWS, OH); oh++)
        for (int64_t ow = 0; ow < OW; ow += CPU_COLUMNS) {
            const int64_t n = min((int64_t)CPU_COLUMNS, OW - ow);
            acc_t sums[CPU_COLUMNS];
            for (int64_t k = 0; k < n; k++)
                sums[k] = bias ? opd::load(bias + channel) : acc_t(0);
            for (int64_t kh = 0; kh < KH; kh++) {
                const int64_t ih = oh * SH - PH + kh * DH;
                if (ih >= 0 && ih < H)
                    add_window<TAPS, STEP>(sums, ow, n, image + ih * W, W, -PW,
                                           weight + (channel * KH + kh) * KW, 1, KW, SW, DW);
            }
            for (int64_t k = 0; k < n; k++)
                opd::store(output + (plane * OH + oh) * OW + ow + k, sums[k]);
        }
}

// DENSE: SW is 1, and a row's gradient is a window turned round. Else each column of grad_output is
// added where it came from.
template <class T, int TAPS, bool DENSE>
__global__ void depthwise_grad_input_rows(const T *__restrict__ grad_output,
                                          const T *__restrict__ weight, T *__restrict__ grad_input,
                                          int64_t C, int64_t M, int64_t H, int64_t W, int64_t OH,
                                          int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                          int64_t SW, int64_t PH, int64_t PW, int64_t DH,
                                          int64_t DW)
{
    const int64_t groups = (H + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t row = blockIdx.x % groups * CPU_ROWS;
    for (int64_t h = row; h < min(row + CPU_ROWS, H); h++)
        for (int64_t x = 0; x < W; x += CPU_COLUMNS) {
            const int64_t n = min((int64_t)CPU_COLUMNS, W - x);
            acc_t sums[CPU_COLUMNS] = {};
            for (int64_t i = 0; i < M * KH; i++) {
                const int64_t th = h + PH - i % KH * DH;
                if (th < 0 || th % SH != 0 || th / SH >= OH)
                    continue;
                const T *line = grad_output + ((plane * M + i / KH) * OH + th / SH) * OW;
                const T *w = weight + (plane % C * M * KH + i) * KW;
                if constexpr (DENSE) {
                    add_window<TAPS, 1>(sums, x, n, line, OW, PW - (KW - 1) * DW, w + KW - 1, -1,
                                        KW, 1, DW);
                } else {
                    for (int64_t kw = 0; kw < KW; kw++) {
                        const int64_t from = kw * DW - PW - x; // of column 0 in sums
                        const int64_t end = clamp((n - 1 - from + SW) / SW, OW);
                        for (int64_t ow = clamp((SW - 1 - from) / SW, OW); ow < end; ow++)
                            sums[ow * SW + from] += opd::load(w + kw) * opd::load(line + ow);
                    }
                }
            }
            for (int64_t k = 0; k < n; k++)
                opd::store(grad_input + (plane * H + h) * W + x + k, sums[k]);
        }
}

// One thread makes one sum: row by row, in LANES columns side by side, which are a vector.
template <class T, bool DENSE>
__global__ void depthwise_grad_weight_rows(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           T *__restrict__ grad_weight, T *__restrict__ grad_bias,
                                           int64_t N, int64_t CM, int64_t M, int64_t H, int64_t W,
                                           int64_t OH, int64_t OW, int64_t KH, int64_t KW,
                                           int64_t SH, int64_t SW, int64_t PH, int64_t PW,
                                           int64_t DH, int64_t DW)
{
    enum { LANES = 16 };
    const int64_t taps = KH * KW + 1, k = blockIdx.x % taps, channel = blockIdx.x / taps,
                  step = DENSE ? 1 : SW;
    const bool is_bias = k == KH * KW;
    if (is_bias ? !grad_bias : !grad_weight)
        return;
    // Columns whose input is inside: first <= ow < end, from 0 <= ow*SW + shift < W.
    const int64_t shift = k % KW * DW - PW;
    const int64_t first = is_bias || shift >= 0 ? 0 : (-shift + SW - 1) / SW;
    const int64_t end = is_bias ? OW : shift >= W ? 0 : min((W - 1 - shift) / SW + 1, OW);
    acc_t lanes[LANES] = {}, sum = 0;
    for (int64_t i = 0; i < N * OH; i++) {
        const int64_t plane = i / OH * CM + channel, ih = i % OH * SH - PH + k / KW * DH;
        const T *out = grad_output + (plane * OH + i % OH) * OW;
        const T *line = input + (plane / M * H + ih) * W + shift;
        int64_t ow = first;
        if (is_bias) {
            for (; ow < end; ow++)
                lanes[ow % LANES] += opd::load(out + ow);
        } else if (ih >= 0 && ih < H) {
            for (; ow + LANES <= end; ow += LANES)
                for (int l = 0; l < LANES; l++)
                    lanes[l] += opd::load(out + ow + l) * opd::load(line + (ow + l) * step);
            for (; ow < end; ow++)
                sum += opd::load(out + ow) * opd::load(line + ow * step);
        }
    }
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    opd::store(is_bias ? grad_bias + channel : grad_weight + channel * (KH * KW) + k, sum);
}
