// depthwise_conv2d_nhwc.cu on the CPU: a thread makes a row, of some outputs and channels at a
// time.
#pragma once
#include "channels.cuh"
#ifdef OPD_CPU

enum { SIDE = 7 }; // outputs side by side whose sums stay in registers, beside a tap

// What n channels of outputs from c on read, M of which have one of inputs.
template <class T>
__device__ __forceinline__ channels_t load_sources(const T *p, int64_t c, int64_t M, int64_t n)
{
    if (M == 1)
        return load_channels(p + c, n);
    channels_t v = {};
    for (int e = 0; e < min(n, (int64_t)CHANNELS); e++)
        v[e] = opd::load(p + (c + e) / M);
    return v;
}

// f(M, n): of one channel to each, and CHANNELS of them, the compiler knows that.
template <class F> __device__ __forceinline__ void with_known(int64_t M, int64_t n, const F &f)
{
    if (M == 1 && n >= CHANNELS)
        f(1, CHANNELS);
    else
        f(M, n);
}

// What a window reads of images and weights, as distances in memory, and those of its rows that are
// inside. Outputs stand `step` columns of inputs apart.
struct window {
    int64_t rows, columns, down, right, side, tap_down, tap_right, step, DW;
};

// SIDE outputs side by side, of which `count` are stored, for CHANNELS channels. CHECKED: some of
// the columns, of which the first is `left` of W, are outside.
template <bool CHECKED, class T>
__device__ __forceinline__ void convolve_channels(const T *from, const T *tap, const T *bias, T *to,
                                                  const window &win, int64_t left, int64_t W,
                                                  int64_t count, int64_t c, int64_t n, int64_t CM,
                                                  int64_t M)
{
    const channels_t start = bias ? load_channels(bias + c, n) : channels_t{};
    channels_t sum[SIDE];
    for (int k = 0; k < SIDE; k++)
        sum[k] = start;
    for (int64_t kh = 0; kh < win.rows; kh++) {
        const T *at = from + kh * win.down, *weight = tap + kh * win.tap_down + c;
        int64_t x = left;
        for (int64_t kw = 0; kw < win.columns; kw++) {
            const channels_t w = load_channels(weight, n);
#pragma GCC unroll 8
            for (int k = 0; k < SIDE; k++)
                if (!CHECKED || (x + k * win.step >= 0 && x + k * win.step < W))
                    sum[k] += w * load_sources(at + k * win.side, c, M, n);
            at += win.right, weight += win.tap_right, x += win.DW;
        }
    }
    // What the next ones read that has not been, and write.
    const T *next = from + (win.rows - 1) * win.down + SIDE * win.side + c;
#pragma GCC unroll 8
    for (int k = 0; k < SIDE; k++) {
        __builtin_prefetch(next + k * win.side);
        __builtin_prefetch(to + (SIDE + k) * CM + c, 1);
        if (k < count)
            store_channels(to + k * CM + c, sum[k], n);
    }
}

template <bool CHECKED, class T>
__device__ __forceinline__ void convolve_side(const T *from, const T *tap, const T *bias, T *to,
                                              const window &win, int64_t left, int64_t W,
                                              int64_t count, int64_t CM, int64_t M)
{
    int64_t c = 0;
    for (; M == 1 && c + CHANNELS <= CM; c += CHANNELS)
        convolve_channels<CHECKED>(from, tap, bias, to, win, left, W, count, c, CHANNELS, CM, 1);
    for (; c < CM; c += CHANNELS)
        convolve_channels<CHECKED>(from, tap, bias, to, win, left, W, count, c, CM - c, CM, M);
}

template <class T>
__device__ __forceinline__ void convolve_rows(const T *input, const T *packed, const T *bias,
                                              T *output, int64_t H, int64_t W, int64_t OH,
                                              int64_t OW, int64_t C, int64_t CM, int64_t M,
                                              int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                              int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                                              bool FLIP, int64_t lines)
{
    CUDA_KERNEL_LOOP(row, lines)
    {
        const int64_t top = row % OH * SH - PH, first = top < 0 ? (DH - 1 - top) / DH : 0,
                      end = top < H ? min(KH, (H - 1 - top) / DH + 1) : 0;
        const int64_t turn = FLIP ? -CM : CM;
        const window win = { end - first, KW, DH * W * C, DW * C, SW * C, turn * KW, turn, SW, DW };
        const T *line = input + (row / OH * H + top + first * DH) * W * C;
        const T *tap = packed + (FLIP ? ((KH - first) * KW - 1) * CM : first * KW * CM);
        for (int64_t next = 0; next < OW; next += SIDE) {
            const int64_t ow = max((int64_t)0, min(next, OW - SIDE)),
                          count = min(OW, (int64_t)SIDE);
            const int64_t left = ow * SW - PW, right = left + (SIDE - 1) * SW + (KW - 1) * DW;
            T *to = output + (row * OW + ow) * CM;
            if (left >= 0 && right < W)
                convolve_side<false>(line + left * C, tap, bias, to, win, left, W, count, CM, M);
            else
                convolve_side<true>(line + left * C, tap, bias, to, win, left, W, count, CM, M);
        }
    }
}

template <class T>
__global__ void convolve_last_rows(const T *__restrict__ input, const T *__restrict__ packed,
                                   const T *__restrict__ bias, T *__restrict__ output, int64_t H,
                                   int64_t W, int64_t OH, int64_t OW, int64_t C, int64_t CM,
                                   int64_t M, int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                   int64_t PH, int64_t PW, int64_t DH, int64_t DW, int64_t count)
{
    convolve_rows(input, packed, bias, output, H, W, OH, OW, C, CM, M, KH, KW, SH, SW, PH, PW, DH,
                  DW, false, count);
}

// Of stride 1 and one filter a channel: a convolution of grad_output with the window turned round.
template <class T>
__global__ void gather_level_rows(const T *__restrict__ grad_output, const T *__restrict__ packed,
                                  T *__restrict__ grad_input, int64_t H, int64_t W, int64_t OH,
                                  int64_t OW, int64_t C, int64_t KH, int64_t KW, int64_t PH,
                                  int64_t PW, int64_t DH, int64_t DW, int64_t count)
{
    convolve_rows(grad_output, packed, (const T *)nullptr, grad_input, OH, OW, H, W, C, C, 1, KH,
                  KW, 1, 1, (KH - 1) * DH - PH, (KW - 1) * DW - PW, DH, DW, true, count);
}

// The taps that reach a place, `at` behind the padding: from `first` on each `step`-th, of output
// `out`, then of those `down` before it.
struct reach {
    int64_t first = 0, step = 1, out = 0, down;

    reach(int64_t at, int64_t S, int64_t D, int64_t K)
    {
        while (step < K && step * D % S != 0)
            step++;
        while (first < step && (at - first * D) % S != 0)
            first++;
        if (first == step)
            first = K; // none
        else
            out = (at - first * D) / S;
        down = step * D / S;
    }
};

template <class T>
__global__ void gather_last_rows(const T *__restrict__ grad_output, const T *__restrict__ packed,
                                 T *__restrict__ grad_input, int64_t H, int64_t W, int64_t OH,
                                 int64_t OW, int64_t C, int64_t CM, int64_t M, int64_t KH,
                                 int64_t KW, int64_t SH, int64_t SW, int64_t PH, int64_t PW,
                                 int64_t DH, int64_t DW, int64_t count)
{
    CUDA_KERNEL_LOOP(row, count)
    {
        const reach rows(row % H + PH, SH, DH, KH);
        const T *image = grad_output + row / H * OH * OW * CM;
        for (int64_t w = 0; w < W; w++) {
            const reach columns(w + PW, SW, DW, KW);
            const auto gather = [&](int64_t c, int64_t m, int64_t n) {
                channels_t sum = {};
                int64_t oh = rows.out;
                for (int64_t kh = rows.first; kh < KH; kh += rows.step, oh -= rows.down) {
                    int64_t ow = columns.out;
                    for (int64_t kw = columns.first; kw < KW;
                         kw += columns.step, ow -= columns.down) {
                        if (oh < 0 || oh >= OH || ow < 0 || ow >= OW)
                            continue;
                        const T *from = image + (oh * OW + ow) * CM + c * m,
                                *taps = packed + (kh * KW + kw) * CM + c * m;
                        if (m == 1)
                            sum += load_channels(taps, n) * load_channels(from, n);
                        else
                            for (int64_t i = 0; i < min(n, (int64_t)CHANNELS) * m; i++)
                                sum[i / m] += opd::load(taps + i) * opd::load(from + i);
                    }
                }
                store_channels(grad_input + (row * W + w) * C + c, sum, n);
            };
            for (int64_t c = 0; c < C; c += CHANNELS)
                with_known(M, C - c, [&](int64_t m, int64_t n) { gather(c, m, n); });
        }
    }
}

// Thread (channels, row of taps, part): BESIDE taps side by side, and with the first the bias's.
template <class T, int BESIDE>
__global__ void sum_taps_rows(const T *__restrict__ input, const T *__restrict__ grad_output,
                              acc_t *__restrict__ partial, int64_t N, int64_t H, int64_t W,
                              int64_t OH, int64_t OW, int64_t C, int64_t CM, int64_t M, int64_t KH,
                              int64_t KW, int64_t SH, int64_t SW, int64_t PH, int64_t PW,
                              int64_t DH, int64_t DW, int64_t SETS, int64_t PARTS)
{
    const int64_t share = (N * OH + PARTS - 1) / PARTS, first = blockIdx.x / SETS * BESIDE;
    const int64_t c = blockIdx.x % SETS * CHANNELS, kh = first / KW, kw = first % KW;
    const int64_t begin = blockIdx.y * share, end = min(N * OH, begin + share);
    channels_t sum[BESIDE + 1] = {};
    with_known(M, CM - c, [&](int64_t m, int64_t n) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t ih = row % OH * SH - PH + kh * DH;
            const T *g = grad_output + row * OW * CM + c,
                    *line = input + (row / OH * H + ih) * W * C;
            const bool reads = ih >= 0 && ih < H;
            channels_t here[BESIDE + 1] = {}; // of this row, so that few are added one by one
            for (int64_t ow = 0; ow < OW && (reads || first == 0); ow++) {
                const channels_t of = load_channels(g + ow * CM, n);
                here[BESIDE] += of;
                const int64_t x = ow * SW - PW + kw * DW;
                const bool inside = x >= 0 && x + (BESIDE - 1) * DW < W;
                if (reads && inside)
#pragma GCC unroll 8
                    for (int k = 0; k < BESIDE; k++)
                        here[k] += of * load_sources(line + (x + k * DW) * C, c, m, n);
                else if (reads)
#pragma GCC unroll 8
                    for (int k = 0; k < BESIDE; k++)
                        if (x + k * DW >= 0 && x + k * DW < W)
                            here[k] += of * load_sources(line + (x + k * DW) * C, c, m, n);
            }
#pragma GCC unroll 8
            for (int k = 0; k < BESIDE + 1; k++)
                sum[k] += here[k];
        }
    });
    acc_t *to = partial + blockIdx.y * (KH * KW + 1) * CM + c;
    for (int k = 0; k < BESIDE + (first == 0); k++)
        store_channels(to + (k < BESIDE ? first + k : KH * KW) * CM, sum[k], CM - c);
}

template <class T>
__global__ void join_taps_rows(const acc_t *__restrict__ partial, T *__restrict__ grad_weight,
                               T *__restrict__ grad_bias, int64_t CM, int64_t KH, int64_t KW,
                               int64_t PARTS, int64_t count)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        acc_t sum = 0;
        for (int64_t part = 0; part < PARTS; part++)
            sum += partial[part * count + i];
        const int64_t tap = i / CM, c = i % CM;
        if (tap < KH * KW && grad_weight)
            opd::store(grad_weight + c * (KH * KW) + tap, sum);
        if (tap == KH * KW && grad_bias)
            opd::store(grad_bias + c, sum);
    }
}
#endif
