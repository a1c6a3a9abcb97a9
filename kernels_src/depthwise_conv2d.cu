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
//! let     LEAD, GRAD_LEAD = (VEC - PW % VEC) % VEC, ((PW - (KW - 1)*DW) % VEC + VEC) % VEC
//! let     DEPTH, GRAD_DEPTH = (LEAD + (VEC - 1)*SW + (KW - 1)*DW) / VEC + 1, \
//!           (GRAD_LEAD + VEC - 1 + (KW - 1)*DW) / VEC + 1
//! let     TALL = is(scalar_t, float64) ? 16 : sizeof(scalar_t) == 2 && SH == 1 ? 128 : 64
//! let     DOWN, GRAD_DOWN = cdiv(OH, TALL), cdiv(H, TALL)
//! let     ALONG, GRAD_ALONG = cdiv(OW, SW == 1 ? 64 : 32), cdiv(W, 64)
//! let     TILES, GRAD_TILES = cdiv(OW, VEC*ALONG), cdiv(W, VEC*GRAD_ALONG)
//! let     TILE_H, GRAD_TILE_H = cdiv(OH, DOWN), cdiv(H, GRAD_DOWN)
//! let     HALO_H, GRAD_HALO_H = (TILE_H - 1)*SH + (KH - 1)*DH + 1, GRAD_TILE_H + (KH - 1)*DH
//! let     BLOCKS, GRAD_BLOCKS = (TILES - 1)*SW + DEPTH, GRAD_TILES - 1 + GRAD_DEPTH
//! let     PITCH, GRAD_PITCH = 16*(BLOCKS / 2*2 + 1), 16*(GRAD_BLOCKS / 2*2 + 1)
//! let     IMAGES, GRAD_IMAGES = max(1, min(min(N, TALL / TILE_H), 32768 / (HALO_H*PITCH))), \
//!           max(1, min(min(N, TALL / GRAD_TILE_H), 32768 / (GRAD_HALO_H*GRAD_PITCH)))
//! let     TILE_BYTES, GRAD_BYTES = IMAGES*HALO_H*PITCH, GRAD_IMAGES*GRAD_HALO_H*GRAD_PITCH
//! let     ALL, GRAD_ALL = DOWN*ALONG == 1, GRAD_DOWN*GRAD_ALONG == 1
//! let     TILED = TILE_BYTES <= 33000 && KH <= 32 && \
//!           fits32(N*CM*DOWN*ALONG, OH*SH + 2*H + 4*PH, 3*W + 4*PW, 128*H*W, 128*OH*OW)
//! let     GRAD_TILED = TILED && M*SH*SW == 1 && GRAD_BYTES <= 33000
//! let     OUT_PITCH, HW, OHW = 16*(TILES / 2*2 + 1), H*W, OH*OW
//! let     TENSOR = TILED && sizeof(scalar_t) == 2 && DEPTH <= 6 && BLOCKS <= 16 && \
//!           HALO_H*PITCH + TILE_H*OUT_PITCH <= 32000
//! let     WINDOW = TILED && sizeof(scalar_t) > 2 && DEPTH*VEC <= 48 && max(SH, SW) <= 4 && \
//!           (KH*KW >= 49 || !SMALL)
//! let     FEW, FEW_WEIGHTS = SMALL && OW <= 8 && KH*KW <= 25, SMALL && KH*KW*OW < 250
//! let     WINDOW_ROWS, GROUP = TILE_H >= 12 ? 4 : 2, KW > 8 ? 16 : 8
//! let     WEIGHT_TENSOR, WEIGHT_WINDOW = TENSOR && !FEW_WEIGHTS, WINDOW && SH*SW*DH*DW == 1
//! let     WEIGHT_IMAGES = WINDOW ? IMAGES : \
//!           max(1, min(IMAGES, 30000 / (HALO_H*PITCH + TILE_H*OUT_PITCH)))
//! let     WEIGHT_BYTES = WEIGHT_IMAGES*HALO_H*PITCH
//! let     TEAM, HALVES = cdiv(KH, 8)*8*cdiv(KW, GROUP), KH*cdiv(DEPTH, 2)
//! let     ALL_TILES = cdiv(N, WEIGHT_IMAGES)*DOWN*ALONG
//! let     PARTS = max(1, WEIGHT_TENSOR ? min(768 / CM, ALL_TILES) : \
//!           WEIGHT_WINDOW ? min(2048 / CM, ALL_TILES) : \
//!           SAME ? min(1024 / CM, STRIPS / 2048) : min(2048 / CM, STRIPS / 1024))
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
//!   kernel  depthwise_forward_rows<scalar_t, TAPS> threads N*CM*cdiv(OH, 8) by 1
//! forward cuda
//!   kernel  depthwise_forward_tensor<scalar_t, KH, KW, SW, DW, LEAD, TILES, ALL>
//!   when    TENSOR && !FEW
//!   grid    cdiv(N, IMAGES)*CM*DOWN*ALONG block 128
//!   shared  TILE_BYTES + 16 + cdiv(KH*(8*DEPTH + 7*SW), 4)*16
//!   kernel  depthwise_forward_window<scalar_t, KH, KW, SH, SW, DH, DW, LEAD, TILES, WINDOW_ROWS, \
//!             ALL> otherwise WINDOW
//!   grid    cdiv(N, IMAGES)*CM*DOWN*ALONG
//!   block   min(256, cdiv(IMAGES*cdiv(TILE_H, WINDOW_ROWS)*TILES, 32)*32)
//!   shared  TILE_BYTES + KH*cdiv(KW, VEC)*16 + WINDOW_ROWS*SH*PITCH
//!   kernel  depthwise_forward_same<scalar_t, KH, KW> otherwise SAME
//!   threads N*CM*QUADS*(W / VEC) by 128
//!   kernel  depthwise_forward<scalar_t, KH, KW, SH, SW, DH, DW, ROWS> otherwise SMALL
//!   threads N*CM*GROUPS*OW
//!   kernel  depthwise_forward_any otherwise threads numel(output)
//
//! backward cpu grad_input
//!   kernel  depthwise_grad_input_rows<scalar_t, TAPS> when SW == 1 threads N*C*cdiv(H, 8) by 1
//!   kernel  depthwise_grad_input_apart otherwise threads N*C*cdiv(H, 8) by 1
//! backward cuda grad_input
//!   kernel  depthwise_grad_input_tensor<scalar_t, KH, KW, DW, GRAD_LEAD, GRAD_TILES, GRAD_ALL>
//!   when    TENSOR && GRAD_TILED && GRAD_DEPTH <= 6
//!   grid    cdiv(N, GRAD_IMAGES)*CM*GRAD_DOWN*GRAD_ALONG block 128
//!   shared  GRAD_BYTES + 16 + cdiv(KH*(8*GRAD_DEPTH + 7), 4)*16
//!   bind s.H = OH bind s.W = OW bind s.OH = H bind s.OW = W bind s.SH = 1
//!   bind s.PH = (KH - 1)*DH - PH bind s.PW = (KW - 1)*DW - PW
//!   bind s.TILE_H = GRAD_TILE_H bind s.HALO_H = GRAD_HALO_H
//!   bind s.IMAGES = GRAD_IMAGES bind s.DOWN = GRAD_DOWN bind s.ALONG = GRAD_ALONG
//!   bind s.HW = OHW bind s.OHW = HW
//!   kernel  depthwise_grad_input_window<scalar_t, KH, KW, DH, DW, GRAD_LEAD, GRAD_TILES, \
//!             WINDOW_ROWS, GRAD_ALL> otherwise WINDOW && GRAD_TILED && GRAD_DEPTH*VEC <= 48
//!   grid    cdiv(N, GRAD_IMAGES)*CM*GRAD_DOWN*GRAD_ALONG
//!   block   min(256, cdiv(GRAD_IMAGES*cdiv(GRAD_TILE_H, WINDOW_ROWS)*GRAD_TILES, 32)*32)
//!   shared  GRAD_BYTES + KH*cdiv(KW, VEC)*16 + WINDOW_ROWS*GRAD_PITCH
//!   bind s.H = OH bind s.W = OW bind s.OH = H bind s.OW = W bind s.SH = 1
//!   bind s.PH = (KH - 1)*DH - PH bind s.PW = (KW - 1)*DW - PW
//!   bind s.TILE_H = GRAD_TILE_H bind s.HALO_H = GRAD_HALO_H
//!   bind s.IMAGES = GRAD_IMAGES bind s.DOWN = GRAD_DOWN bind s.ALONG = GRAD_ALONG
//!   bind s.HW = OHW bind s.OHW = HW
//!   kernel  depthwise_grad_input_same<scalar_t, KH, KW> otherwise SAME && M == 1
//!   threads N*C*cdiv(H, 4)*(W / VEC) by 128
//!   kernel  depthwise_grad_input<scalar_t, KH, KW, SH, SW, DH, DW> otherwise SMALL
//!   threads N*C*CELLS_H*CELLS_W
//!   kernel  depthwise_grad_input_any otherwise threads numel(input)
//
//! backward cpu grad_weight grad_bias
//!   kernel  depthwise_grad_weight_rows<scalar_t, TAPS>
//!   threads CM*(cdiv(KH, 8)*(KW <= 7 ? 1 : cdiv(KW, 8)) + 1) by 1
//! backward cuda grad_weight grad_bias
//!   kernel  depthwise_grad_weight_tensor<scalar_t, KH, KW, SW, DW, LEAD, TILES, ALL, \
//!             HALVES <= 16 ? 1 : HALVES <= 32 ? 2 : 4>
//!   when    WEIGHT_TENSOR grid CM*PARTS block 128
//!   shared  max(2*(WEIGHT_BYTES + PITCH + WEIGHT_IMAGES*TILE_H*OUT_PITCH + 16), 27648)
//!   bind    s.IMAGES = WEIGHT_IMAGES
//!   kernel  depthwise_grad_weight_window<scalar_t, KH, KW, LEAD, TILES, GROUP, ALL>
//!   otherwise WEIGHT_WINDOW grid CM*PARTS block cdiv(max(128, TEAM), 32)*32
//!   shared  max(WEIGHT_BYTES + IMAGES*TILE_H*TILES*16 + 256, \
//!             (TEAM + 160)*(GROUP + 1)*sizeof(acc_t))
//!   kernel  depthwise_grad_weight_same<scalar_t, KH, KW, wanted(grad_weight)> otherwise SAME
//!   grid    CM*PARTS
//!   kernel  depthwise_grad_weight<scalar_t, KH, KW, SH, SW, DH, DW, wanted(grad_weight)>
//!   otherwise SMALL grid CM*PARTS
//!   kernel  depthwise_grad_weight_any otherwise grid CM*(KH*KW + 1)*PARTS
//!   kernel  depthwise_grad_weight_sum threads CM*(KH*KW + 1)

#include "depthwise_tensor.cuh"
#include "depthwise_window.cuh"

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
//
// A line is copied once, as acc_t and with zeros around it, for all rows that read it: so no column
// is a special case, and its neighbours in the next rows find it in the cache.

enum {
    CPU_COLUMNS = 256, // summed side by side
    CPU_ROWS = 8,      // made by a block
    CPU_TAPS = 8,      // of a window that the compiler does not know, added at once
    CPU_LANES = 16,    // columns are added in such pieces
    CPU_ROOM = (CPU_TAPS + 1) * CPU_COLUMNS
};

__device__ __forceinline__ int64_t clamp(int64_t v, int64_t most)
{
    return max((int64_t)0, min(v, most));
}

__device__ __forceinline__ int64_t whole_lanes(int64_t n)
{
    return (n + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

// by / apart if that is a whole number below `end`, else -1.
__device__ __forceinline__ int64_t find_tap(int64_t by, int64_t apart, int64_t end)
{
    if (by < 0 || (apart != 1 && by % apart != 0))
        return -1;
    const int64_t tap = apart == 1 ? by : by / apart;
    return tap < end ? tap : -1;
}

// sum + the sum over i < rows, j < columns of a[i, j] * b[(top + i*down) / apart, left + j*right],
// of those that are inside b alone; NaN as soon as it is.
template <class T>
__device__ acc_t add_inside(acc_t sum, const T *a, int64_t rows, int64_t columns, const T *b,
                            int64_t height, int64_t width, int64_t top, int64_t left, int64_t down,
                            int64_t right, int64_t apart)
{
    for (int64_t i = 0; i < rows && !isnan(sum); i++) {
        const int64_t y = find_tap(top + i * down, apart, height);
        for (int64_t j = 0; y >= 0 && j < columns; j++) {
            const int64_t x = left + j * right;
            if (x >= 0 && x < width)
                sum += opd::load(a + i * columns + j) * opd::load(b + y * width + x);
        }
    }
    return sum;
}

// v[k] = line[from + k*step], 0 outside of it, for n columns.
template <class T>
__device__ __forceinline__ void copy_line(acc_t *__restrict__ v, int64_t n,
                                          const T *__restrict__ line, int64_t width, int64_t from,
                                          int64_t step)
{
    const int64_t first = clamp((step - 1 - from) / step, n);
    const int64_t last = max(first, from >= width ? 0 : clamp((width - 1 - from) / step + 1, n));
    for (int64_t k = 0; k < first; k++)
        v[k] = 0;
    if (step == 1)
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k);
    else if (step == 2)
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k * 2);
    else
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k * step);
    for (int64_t k = last; k < n; k++)
        v[k] = 0;
}

// What TAPS taps read of a line for n columns, into v, where those of tap j begin at at[j]. Columns
// that are `step` apart lie side by side; taps share them where there is room.
template <int TAPS, class T>
__device__ __forceinline__ void copy_taps(acc_t *v, int64_t *at, int64_t n, const T *line,
                                          int64_t width, int64_t from, int64_t step, int64_t apart)
{
    const int64_t reach = (TAPS - 1) * apart;
    if (step == 1 && n + reach <= CPU_ROOM) {
        copy_line(v, n + reach, line, width, from, 1);
        for (int j = 0; j < TAPS; j++)
            at[j] = j * apart;
    } else if (step == 2 && apart == 1) {
        for (int odd = 0; odd < 2; odd++)
            copy_line(v + odd * (CPU_ROOM / 2), n + TAPS / 2, line, width, from + odd, 2);
        for (int j = 0; j < TAPS; j++)
            at[j] = j % 2 * (CPU_ROOM / 2) + j / 2;
    } else {
        for (int j = 0; j < TAPS; j++) {
            at[j] = j * CPU_COLUMNS;
            copy_line(v + at[j], n, line, width, from + j * apart, step);
        }
    }
}

// sums[r][k] += the sum over j of w[j*sign] * line[from + k*step + j*apart], where w = weights(r)
// is not NULL, for n columns, of those taps that are inside the line. TAPS: 0 where only `taps`
// knows.
template <int TAPS, class T, class F>
__device__ __forceinline__ void add_line(acc_t (*__restrict__ sums)[CPU_COLUMNS], int64_t n,
                                         const T *line, int64_t width, int64_t from, int64_t step,
                                         int64_t apart, int64_t taps, int sign, const F &weights)
{
    if constexpr (TAPS == 0) {
        int64_t j = 0;
        for (; j + CPU_TAPS <= taps; j += CPU_TAPS)
            add_line<CPU_TAPS>(sums, n, line, width, from + j * apart, step, apart, taps, sign,
                               [&](int r) { return weights(r) ? weights(r) + j * sign : nullptr; });
        for (; j < taps; j++)
            add_line<1>(sums, n, line, width, from + j * apart, step, apart, taps, sign,
                        [&](int r) { return weights(r) ? weights(r) + j * sign : nullptr; });
    } else {
        alignas(64) acc_t v[CPU_ROOM];
        n = whole_lanes(n);
        int64_t at[TAPS];
        copy_taps<TAPS>(v, at, n, line, width, from, step, apart);
        for (int r = 0; r < CPU_ROWS; r++) {
            const T *weight = weights(r);
            if (!weight)
                continue;
            acc_t w[TAPS];
            for (int j = 0; j < TAPS; j++)
                w[j] = opd::load(weight + j * sign);
            acc_t *__restrict__ to = sums[r];
            for (int64_t k = 0; k < n; k++) {
                acc_t sum = to[k];
                for (int j = 0; j < TAPS; j++)
                    sum += w[j] * v[at[j] + k];
                to[k] = sum;
            }
        }
    }
}

template <class T, int TAPS>
__global__ void depthwise_forward_rows(const T *__restrict__ input, const T *__restrict__ weight,
                                       const T *__restrict__ bias, T *__restrict__ output,
                                       int64_t CM, int64_t M, int64_t H, int64_t W, int64_t OH,
                                       int64_t OW, int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                       int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    const int64_t groups = (OH + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t channel = plane % CM, row = blockIdx.x % groups * CPU_ROWS;
    const int64_t rows = min((int64_t)CPU_ROWS, OH - row), top = row * SH - PH;
    const T *image = input + plane / M * H * W;
    const int64_t end = min(H, top + (rows - 1) * SH + (KH - 1) * DH + 1);
    for (int64_t ow = 0; ow < OW; ow += CPU_COLUMNS) {
        const int64_t n = min((int64_t)CPU_COLUMNS, OW - ow);
        alignas(64) acc_t sums[CPU_ROWS][CPU_COLUMNS];
        const acc_t start = bias ? opd::load(bias + channel) : acc_t(0);
        for (int r = 0; r < CPU_ROWS; r++)
            for (int64_t k = 0; k < whole_lanes(n); k++)
                sums[r][k] = start;
        for (int64_t ih = max((int64_t)0, top); ih < end; ih++)
            add_line<TAPS>(
                sums, n, image + ih * W, W, ow * SW - PW, SW, DW, KW, 1, [&](int r) -> const T * {
                    const int64_t kh = find_tap(ih - top - r * SH, DH, KH);
                    return r < rows && kh >= 0 ? weight + (channel * KH + kh) * KW : nullptr;
                });
        for (int r = 0; r < rows; r++)
            for (int64_t k = 0; k < n; k++)
                opd::store(output + (plane * OH + row + r) * OW + ow + k, sums[r][k]);
    }
}

// SW is 1: a row's gradient is a window turned round.
template <class T, int TAPS>
__global__ void depthwise_grad_input_rows(const T *__restrict__ grad_output,
                                          const T *__restrict__ weight, T *__restrict__ grad_input,
                                          int64_t C, int64_t M, int64_t H, int64_t W, int64_t OH,
                                          int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                          int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    const int64_t groups = (H + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t row = blockIdx.x % groups * CPU_ROWS, rows = min((int64_t)CPU_ROWS, H - row);
    const int64_t first = max((int64_t)0, row + PH - (KH - 1) * DH) / SH;
    const int64_t end = min(OH, (row + rows - 1 + PH) / SH + 1);
    for (int64_t x = 0; x < W; x += CPU_COLUMNS) {
        const int64_t n = min((int64_t)CPU_COLUMNS, W - x);
        alignas(64) acc_t sums[CPU_ROWS][CPU_COLUMNS] = {};
        for (int64_t m = 0; m < M; m++) {
            const T *out = grad_output + (plane * M + m) * OH * OW;
            const T *last = weight + ((plane % C * M + m) * KH + 1) * KW - 1;
            for (int64_t oh = first; oh < end; oh++)
                add_line<TAPS>(sums, n, out + oh * OW, OW, x + PW - (KW - 1) * DW, 1, DW, KW, -1,
                               [&](int r) -> const T * {
                                   const int64_t kh = find_tap(row + r + PH - oh * SH, DH, KH);
                                   return r < rows && kh >= 0 ? last + kh * KW : nullptr;
                               });
        }
        for (int r = 0; r < rows; r++) {
            T *to = grad_input + (plane * H + row + r) * W + x;
            int nans = 0; // zeros around a line may have met an infinite weight
            for (int64_t k = 0; k < n; k++)
                opd::store(to + k, sums[r][k]);
            for (int64_t k = 0; k < whole_lanes(n); k++)
                nans += isnan(sums[r][k]);
            for (int64_t k = 0; nans && k < n; k++) {
                if (!isnan(sums[r][k]))
                    continue;
                acc_t sum = 0;
                for (int64_t m = 0; m < M; m++)
                    sum = add_inside(sum, weight + (plane % C * M + m) * KH * KW, KH, KW,
                                     grad_output + (plane * M + m) * OH * OW, OH, OW, row + r + PH,
                                     x + k + PW, -DH, -DW, SH);
                opd::store(to + k, sum);
            }
        }
    }
}

// Else each column of grad_output is added where it came from. Columns that are SW apart lie side
// by side in `sums`, since one tap adds to those.
template <class T>
__global__ void depthwise_grad_input_apart(const T *__restrict__ grad_output,
                                           const T *__restrict__ weight, T *__restrict__ grad_input,
                                           int64_t C, int64_t M, int64_t H, int64_t W, int64_t OH,
                                           int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                           int64_t SW, int64_t PH, int64_t PW, int64_t DH,
                                           int64_t DW)
{
    const int64_t groups = (H + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t row = blockIdx.x % groups * CPU_ROWS, rows = min((int64_t)CPU_ROWS, H - row);
    const int64_t first_oh = max((int64_t)0, row + PH - (KH - 1) * DH) / SH;
    const int64_t end_oh = min(OH, (row + rows - 1 + PH) / SH + 1), pitch = CPU_COLUMNS / SW + 1;
    for (int64_t x = 0; x < W; x += CPU_COLUMNS) {
        const int64_t n = min((int64_t)CPU_COLUMNS, W - x);
        alignas(64) acc_t sums[CPU_ROWS][2 * CPU_COLUMNS] = {};
        for (int64_t i = 0; i < M * KW; i++) {
            const int64_t m = i / KW, kw = i % KW, from = kw * DW - PW - x; // of column 0 in sums
            const int64_t begin = clamp((SW - 1 - from) / SW, OW), at = from + begin * SW;
            const int64_t count = clamp((n - 1 - from + SW) / SW, OW) - begin;
            const T *out = grad_output + (plane * M + m) * OH * OW + begin;
            for (int64_t oh = first_oh; count > 0 && oh < end_oh; oh++)
                for (int r = 0; r < rows; r++) {
                    const int64_t kh = find_tap(row + r + PH - oh * SH, DH, KH);
                    if (kh < 0)
                        continue;
                    const acc_t w = opd::load(weight + ((plane % C * M + m) * KH + kh) * KW + kw);
                    acc_t *__restrict__ to = sums[r] + at % SW * pitch + at / SW;
                    for (int64_t k = 0; k < count; k++)
                        to[k] += w * opd::load(out + oh * OW + k);
                }
        }
        for (int r = 0; r < rows; r++)
            for (int64_t phase = 0; phase < min(SW, n); phase++)
                for (int64_t k = phase, i = 0; k < n; k += SW, i++)
                    opd::store(grad_input + (plane * H + row + r) * W + x + k,
                               sums[r][phase * pitch + i]);
    }
}

// A block makes the sums of CPU_TAPS x CPU_TAPS taps, or behind those of the bias, each in
// CPU_LANES columns side by side.
template <class T, int TAPS>
__global__ void depthwise_grad_weight_rows(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           T *__restrict__ grad_weight, T *__restrict__ grad_bias,
                                           int64_t N, int64_t CM, int64_t M, int64_t H, int64_t W,
                                           int64_t OH, int64_t OW, int64_t KH, int64_t KW,
                                           int64_t SH, int64_t SW, int64_t PH, int64_t PW,
                                           int64_t DH, int64_t DW)
{
    constexpr int ACROSS = TAPS ? TAPS : CPU_TAPS;
    const int64_t down = (KH + CPU_TAPS - 1) / CPU_TAPS, across = (KW + ACROSS - 1) / ACROSS;
    const int64_t part = blockIdx.x % (down * across + 1),
                  channel = blockIdx.x / (down * across + 1);
    const int64_t kh = part / across * CPU_TAPS, kw = part % across * ACROSS;
    const int64_t n_kh = min((int64_t)CPU_TAPS, KH - kh), n_kw = min((int64_t)ACROSS, KW - kw);
    const bool is_bias = part == down * across;
    if (is_bias ? !grad_bias : !grad_weight)
        return;
    alignas(64) acc_t lanes[CPU_TAPS][ACROSS][CPU_LANES] = {}, g[CPU_ROWS][CPU_COLUMNS],
                      v[CPU_ROOM];
    for (int64_t i = 0; i < N * OH; i++) {
        const int64_t plane = i / OH * CM + channel, row = i % OH;
        const int64_t rows = min((int64_t)CPU_ROWS, OH - row), top = row * SH - PH + kh * DH;
        const int64_t end = is_bias ? 0 : min(H, top + (rows - 1) * SH + (n_kh - 1) * DH + 1);
        i += rows - 1;
        for (int64_t ow = 0; ow < OW; ow += CPU_COLUMNS) {
            const int64_t n = whole_lanes(min((int64_t)CPU_COLUMNS, OW - ow));
            for (int r = 0; r < rows; r++)
                copy_line(g[r], n, grad_output + (plane * OH + row + r) * OW, OW, ow, 1);
            for (int r = 0; is_bias && r < rows; r++)
                for (int64_t k = 0; k < n; k++)
                    lanes[0][0][k % CPU_LANES] += g[r][k];
            for (int64_t ih = max((int64_t)0, top); ih < end; ih++) {
                int64_t at[ACROSS];
                copy_taps<ACROSS>(v, at, n, input + (plane / M * H + ih) * W, W,
                                  ow * SW - PW + kw * DW, SW, DW);
                for (int r = 0; r < rows; r++) {
                    const int64_t tap = find_tap(ih - top - r * SH, DH, n_kh);
                    for (int j = 0; tap >= 0 && j < ACROSS; j++) {
                        acc_t sum[CPU_LANES];
                        for (int l = 0; l < CPU_LANES; l++)
                            sum[l] = lanes[tap][j][l];
                        for (int64_t k = 0; k < n; k += CPU_LANES)
                            for (int l = 0; l < CPU_LANES; l++)
                                sum[l] += g[r][k + l] * v[at[j] + k + l];
                        for (int l = 0; l < CPU_LANES; l++)
                            lanes[tap][j][l] = sum[l];
                    }
                }
            }
        }
    }
    for (int64_t i = 0; i < (is_bias ? 1 : n_kh * n_kw); i++) {
        const int64_t y = i / n_kw, x = i % n_kw;
        acc_t sum = 0;
        for (int l = 0; l < CPU_LANES; l++)
            sum += lanes[y][x][l];
        if (isnan(sum) && !is_bias) {
            sum = 0;
            for (int64_t plane = channel; plane < N * CM; plane += CM)
                sum = add_inside(sum, grad_output + plane * OH * OW, OH, OW,
                                 input + plane / M * H * W, H, W, (kh + y) * DH - PH,
                                 (kw + x) * DW - PW, SH, SW, 1);
        }
        opd::store(is_bias ? grad_bias + channel
                           : grad_weight + (channel * KH + kh + y) * KW + kw + x,
                   sum);
    }
}
