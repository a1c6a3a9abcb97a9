// The convolutions of depthwise_conv2d.cu whose threads make strips of outputs, some rows below one
// another, for windows, strides and dilations that the compiler knows: of one column, or, for gradients
// of weights, of 16 bytes where rows of input and output are equally long multiples of that (stride
// and dilation 1, "same" padding of the columns).
//
// Gradients of weights are summed in two stages, without atomics, so that the bits are the same on
// every run: a block sums its part into `partial`, then the parts are added in their order.
#pragma once
#ifndef OPD_CPU

enum { STRIP_ROWS = 4 }; // of a thread's outputs, where a template parameter says no other

// N neighbours in a row; zeros where they are outside it.
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

// What N outputs side by side read of a row: from column x on KW elements that are DW apart, with
// zeros where they are outside, or N and their neighbours. False: the row is outside, v untouched.
template <int N, int KW, int DW, class T>
__device__ __forceinline__ bool load_row(acc_t *v, const T *plane, const T *line, int row, int x,
                                         int H, int W, bool aligned)
{
    const bool inside = (unsigned)row < (unsigned)H;
    if constexpr (N > 1) {
        if (inside)
            load_columns<N, KW / 2>(v, plane + (int64_t)row * W, x, W, aligned);
        return inside;
    } else {
#pragma unroll
        for (int k = 0; k < KW; k++)
            v[k] = inside && (unsigned)(x + k * DW) < (unsigned)W ? opd::load(line + k * DW)
                                                                  : acc_t(0);
        return true;
    }
}

// f(j, kh) for those of ROWS outputs, SH below one another, that read the r-th row of input from
// where the first one's window begins: by row kh of theirs.
template <int ROWS, int KH, int SH, int DH, class F>
__device__ __forceinline__ void each_reader(int r, const F &f)
{
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const int below = r - j * SH, kh = below / DH;
        if (below >= 0 && kh < KH && kh * DH == below)
            f(j, kh);
    }
}

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
        load_row<1, KW, DW>(v, line, line, ih + r, iw, H, W, false);
        each_reader<ROWS, KH, SH, DH>(r, [&](int j, int kh) {
#pragma unroll
            for (int k = 0; k < KW; k++)
                sum[j] += w[kh * KW + k] * v[k];
        });
    }
    T *out = output + (int64_t)plane * ((int64_t)OH * OW) + (int64_t)oh * OW + ow;
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        if (oh + j < OH)
            opd::store(out + (int64_t)j * OW, sum[j]);
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

// Adds up what the block's threads have summed for each tap, and last, where that is wanted, for the bias.
template <int TAPS, int THREADS = 256>
__device__ __forceinline__ void store_sums(acc_t *to, const acc_t *sum, acc_t sum_bias,
                                           bool with_bias = true)
{
    enum { WARPS = THREADS / 32 };
    __shared__ acc_t parts[WARPS][TAPS + 1];
    acc_t kept[TAPS + 1]; // not in registers: a loop compiles sooner than so many sums
#pragma unroll
    for (int k = 0; k < TAPS + 1; k++)
        kept[k] = k < TAPS ? sum[k % TAPS] : sum_bias;
#pragma unroll 4
    for (int k = 0; k < TAPS + 1; k++) {
        const acc_t part = opd::warp_reduce_sum(kept[k]);
        if (threadIdx.x % 32 == 0)
            parts[threadIdx.x / 32][k] = part;
    }
    __syncthreads();
    if (threadIdx.x < TAPS + with_bias) {
        acc_t total = parts[0][threadIdx.x];
        for (int i = 1; i < WARPS; i++)
            total += parts[i][threadIdx.x];
        to[threadIdx.x] = total;
    }
}

// grad_weight[c, 0, kh, kw] = sum over n, oh, ow of grad_output * input, and grad_bias[c] = sum of
// grad_output: block (c, part) sums its part of the strips of N columns into `partial`, whose last
// column is the bias's.
template <int N, int KH, int KW, int SH, int SW, int DH, int DW, bool WEIGHT, class T, class Width,
          class Quads>
__device__ __forceinline__ void
sum_strips(const T *__restrict__ input, const T *__restrict__ grad_output,
           acc_t *__restrict__ partial, int CM, int M, int H, int W, int OH, Width OW, Quads QUADS,
           int PH, int PW, int PARTS, unsigned STRIPS)
{
    const unsigned channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const auto across = [&] {
        if constexpr (N > 1)
            return (unsigned)(OW / N);
        else
            return OW;
    }();
    const unsigned share = (STRIPS + PARTS - 1) / PARTS, end = min((part + 1) * share, STRIPS);
    acc_t sum[KH * KW] = {}, sum_bias = 0;
    for (unsigned i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const unsigned row = i / across, n = row / QUADS;
        const int ow = (int)(i - row * across) * N, oh = (int)(row - n * QUADS) * STRIP_ROWS;
        const int iw = N > 1 ? ow : ow * SW - PW, ih = oh * SH - PH;
        const int64_t plane = (int64_t)n * CM + channel;
        const T *out = grad_output + plane * ((int64_t)OH * OW) + (int64_t)oh * OW + ow;
        const T *from = input + plane / M * (H * W), *line = from + (int64_t)ih * W + iw;
        // Asked here, for what the loop does not change NVRTC makes two loops of.
        const bool aligned = N > 1 && opd::is_aligned(from, 16),
                   aligned_out = N > 1 && opd::is_aligned(out, 16);
        acc_t g[STRIP_ROWS][N];
#pragma unroll
        for (int j = 0; j < STRIP_ROWS; j++) {
            if constexpr (N > 1)
                load_block<N>(g[j], out + (int64_t)j * OW, oh + j < OH, aligned_out);
            else
                g[j][0] = oh + j < OH ? opd::load(out + (int64_t)j * OW) : acc_t(0);
#pragma unroll
            for (int c = 0; c < N; c++)
                sum_bias += g[j][c];
        }
#pragma unroll
        for (int r = 0; WEIGHT && r <= (STRIP_ROWS - 1) * SH + (KH - 1) * DH; r++, line += W) {
            acc_t v[N + KW - 1];
            if (!load_row<N, KW, DW>(v, from, line, ih + r, iw, H, W, aligned))
                continue;
            each_reader<STRIP_ROWS, KH, SH, DH>(r, [&](int j, int kh) {
#pragma unroll
                for (int k = 0; k < KW * N; k++)
                    sum[kh * KW + k / N] += g[j][k % N] * v[k % N + k / N];
            });
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
    store_sums<KH * KW>(to, sum, sum_bias);
}

template <class T, int KH, int KW, int SH, int SW, int DH, int DW, bool WEIGHT>
__global__ void depthwise_grad_weight(const T *__restrict__ input,
                                      const T *__restrict__ grad_output,
                                      acc_t *__restrict__ partial, int CM, int M, int H, int W,
                                      int OH, opd::divisor OW, opd::divisor QUADS, int PH, int PW,
                                      int PARTS, unsigned STRIPS)
{
    sum_strips<1, KH, KW, SH, SW, DH, DW, WEIGHT>(input, grad_output, partial, CM, M, H, W, OH, OW,
                                                  QUADS, PH, PW, PARTS, STRIPS);
}

template <class T, int KH, int KW, bool WEIGHT>
__global__ void depthwise_grad_weight_same(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           acc_t *__restrict__ partial, int CM, int M, int H, int W,
                                           int OH, int QUADS, int PH, int PARTS, unsigned STRIPS)
{
    constexpr int N = 16 / sizeof(T);
    sum_strips<N, KH, KW, 1, 1, 1, 1, WEIGHT>(input, grad_output, partial, CM, M, H, W, OH, W,
                                              QUADS, PH, 0, PARTS, STRIPS);
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
#endif
