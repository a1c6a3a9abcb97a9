// depthwise_conv2d_nhwc.cu on the CPU. A small window of a wide image reads little more than once
// what it would be copied into a tile for: a thread makes a row, of some outputs and channels at a
// time.
#pragma once
#include "depthwise_tile_cpu.cuh"
#ifdef OPD_CPU

// f(c, M, n) for n channels from c on. Of one channel to each, and CHANNELS of them, the compiler
// knows that. So many are the last ones of `of`, too, if there are as many: some are made twice.
template <class F>
__device__ __forceinline__ void with_known(int64_t c, int64_t of, int64_t M, const F &f)
{
    if (of < CHANNELS)
        f(c, M, of - c);
    else if (M == 1)
        f(min(c, of - CHANNELS), 1, CHANNELS);
    else
        f(min(c, of - CHANNELS), M, CHANNELS);
}

// What a window reads of images and weights: how many rows and columns, and how far apart they and
// the outputs' are in memory. Outputs stand `step` columns of inputs apart, its own columns DW.
struct window {
    int64_t rows, columns, down, right, side, tap_down, tap_right, step, DW;
};

// SIDE outputs side by side, of which `count` are stored, for CHANNELS channels. CHECKED: some of
// the columns, the first of which is column `left`, are outside the W of a row.
template <bool CHECKED, class T>
__device__ __forceinline__ void convolve_channels(const T *from, const T *tap, const T *bias, T *to,
                                                  const window &win, int64_t left, int64_t W,
                                                  int64_t count, int64_t c, int64_t C)
{
    const channels_t start = bias ? load_all(bias + c) : channels_t{};
    channels_t sum[SIDE];
    for (int k = 0; k < SIDE; k++)
        sum[k] = start;
    for (int64_t kh = 0; kh < win.rows; kh++) {
        const T *at = from + kh * win.down + c, *weight = tap + kh * win.tap_down + c;
        int64_t x = left;
        for (int64_t kw = 0; kw < win.columns; kw++) {
            const channels_t w = load_all(weight);
#pragma GCC unroll 8
            for (int k = 0; k < SIDE; k++)
                if (!CHECKED || (x + k * win.step >= 0 && x + k * win.step < W))
                    sum[k] += w * load_all(at + k * win.side);
            at += win.right, weight += win.tap_right, x += win.DW;
        }
    }
    // Of the last row what the next ones read and these have not, and what they write.
    const T *next = from + (win.rows - 1) * win.down + (win.columns - 1) * win.right +
                    SIDE * win.side + c;
#pragma GCC unroll 8
    for (int k = 0; k < SIDE; k++) {
        __builtin_prefetch(next + k * win.side);
        __builtin_prefetch(to + (SIDE + k) * C + c, 1);
        if (k < count)
            store_all(to + k * C + c, sum[k]);
    }
}

template <bool CHECKED, class T>
__device__ __forceinline__ void convolve_row(const T *from, const T *tap, const T *bias, T *to,
                                             const window &win, int64_t left, int64_t W,
                                             int64_t count, int64_t C)
{
    for (int64_t c = 0; c < C; c += CHANNELS)
        convolve_channels<CHECKED>(from, tap, bias, to, win, left, W, count,
                                   min(c, C - CHANNELS), C);
}

// An output, its channels one by one.
template <class T>
__device__ __forceinline__ void convolve_pixel(const T *from, const T *tap, const T *bias, T *to,
                                               const window &win, int64_t left, int64_t W,
                                               int64_t CM, int64_t M)
{
    for (int64_t c = 0; c < CM; c++) {
        acc_t sum = bias ? opd::load(bias + c) : acc_t(0);
        for (int64_t kh = 0; kh < win.rows; kh++)
            for (int64_t kw = 0, x = left; kw < win.columns; kw++, x += win.DW)
                if (x >= 0 && x < W)
                    sum += opd::load(tap + kh * win.tap_down + kw * win.tap_right + c) *
                           opd::load(from + kh * win.down + kw * win.right + c / M);
        opd::store(to + c, sum);
    }
}

// A row of them. Where outputs side by side read what is side by side, and all is inside, as many
// as a vector has room for are made at once; it reads as far as `end` at most.
template <class T>
__device__ __forceinline__ void convolve_few(const T *from, const T *tap, const T *bias, T *to,
                                             const window &win, int64_t PW, int64_t W, int64_t OW,
                                             int64_t C, const T *end)
{
    const int64_t beside = CHANNELS / C, reach = (win.columns - 1) * win.DW;
    channels_t start = {};
    for (int64_t e = 0; bias && e < beside * C; e++)
        start[e] = opd::load(bias + e % C);
    for (int64_t ow = 0; ow < OW;) {
        const int64_t left = ow * win.step - PW;
        const T *at = from + left * C;
        const T *last = at + (win.rows - 1) * win.down + (win.columns - 1) * win.right + CHANNELS;
        if (win.step > 1 || ow + beside > OW || left < 0 || left + beside - 1 + reach >= W ||
            last > end) {
            convolve_pixel(at, tap, bias, to + ow++ * C, win, left, W, C, 1);
            continue;
        }
        channels_t sum = start;
        for (int64_t kh = 0; kh < win.rows; kh++)
            for (int64_t kw = 0; kw < win.columns; kw++)
                sum += load_all(tap + kh * win.tap_down + kw * win.tap_right) *
                       load_all(at + kh * win.down + kw * win.right);
        store_some(to + ow * C, sum, beside * C);
        ow += beside;
    }
}

template <class T>
__device__ __forceinline__ void convolve_rows(const T *input, const T *packed, const T *bias,
                                              T *output, int64_t H, int64_t W, int64_t OH,
                                              int64_t OW, int64_t C, int64_t CM, int64_t M,
                                              int64_t PACKED, int64_t KH, int64_t KW, int64_t SH,
                                              int64_t SW, int64_t PH, int64_t PW, int64_t DH,
                                              int64_t DW, bool FLIP, int64_t lines)
{
    CUDA_KERNEL_LOOP(row, lines)
    {
        const int64_t top = row % OH * SH - PH, first = top < 0 ? (DH - 1 - top) / DH : 0,
                      end = top < H ? min(KH, (H - 1 - top) / DH + 1) : 0;
        const int64_t turn = FLIP ? -PACKED : PACKED;
        const window win = { end - first, KW, DH * W * C, DW * C, SW * C, turn * KW, turn, SW, DW };
        const T *line = input + (row / OH * H + top + first * DH) * W * C;
        const T *tap = packed + (FLIP ? (KH - first) * KW - 1 : first * KW) * PACKED;
        if (M == 1 && C < CHANNELS) {
            convolve_few(line, tap, bias, output + row * OW * C, win, PW, W, OW, C,
                         input + (row / OH + 1) * H * W * C);
            continue;
        }
        for (int64_t ow = 0; M > 1 && ow < OW; ow++) // what no tile has room for
            convolve_pixel(line + (ow * SW - PW) * C, tap, bias, output + (row * OW + ow) * CM, win,
                           ow * SW - PW, W, CM, M);
        for (int64_t next = 0; M == 1 && next < OW; next += SIDE) {
            const int64_t ow = max((int64_t)0, min(next, OW - SIDE)),
                          count = min(OW, (int64_t)SIDE);
            const int64_t left = ow * SW - PW, right = left + (SIDE - 1) * SW + (KW - 1) * DW;
            T *to = output + (row * OW + ow) * C;
            if (left >= 0 && right < W)
                convolve_row<false>(line + left * C, tap, bias, to, win, left, W, count, C);
            else
                convolve_row<true>(line + left * C, tap, bias, to, win, left, W, count, C);
        }
    }
}

template <class T>
__global__ void convolve_last_tiles(const T *__restrict__ input, const T *__restrict__ weight,
                                    const T *__restrict__ bias, T *__restrict__ output,
                                    conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    convolve_tile<true, false>(input, weight, bias, output, s, (channels_t *)tile_memory);
}

// Of stride 1 and one filter a channel: a convolution of grad_output with the window turned round.
template <class T>
__global__ void gather_level_tiles(const T *__restrict__ grad_output, const T *__restrict__ weight,
                                   T *__restrict__ grad_input, conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    convolve_tile<true, true>(grad_output, weight, (const T *)nullptr, grad_input, s,
                              (channels_t *)tile_memory);
}

template <class T>
__global__ void convolve_last_rows(const T *__restrict__ input, const T *__restrict__ packed,
                                   const T *__restrict__ bias, T *__restrict__ output, int64_t H,
                                   int64_t W, int64_t OH, int64_t OW, int64_t C, int64_t CM,
                                   int64_t M, int64_t PACKED, int64_t KH, int64_t KW, int64_t SH,
                                   int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                                   int64_t count)
{
    convolve_rows(input, packed, bias, output, H, W, OH, OW, C, CM, M, PACKED, KH, KW, SH, SW, PH,
                  PW, DH, DW, false, count);
}

template <class T>
__global__ void gather_level_rows(const T *__restrict__ grad_output, const T *__restrict__ packed,
                                  T *__restrict__ grad_input, int64_t H, int64_t W, int64_t OH,
                                  int64_t OW, int64_t C, int64_t PACKED, int64_t KH, int64_t KW,
                                  int64_t PH, int64_t PW, int64_t DH, int64_t DW, int64_t count)
{
    convolve_rows(grad_output, packed, (const T *)nullptr, grad_input, OH, OW, H, W, C, C, 1,
                  PACKED, KH, KW, 1, 1, (KH - 1) * DH - PH, (KW - 1) * DW - PW, DH, DW, true,
                  count);
}

// Of longer strides.
template <class T>
__global__ void gather_last_tiles(const T *__restrict__ grad_output, const T *__restrict__ weight,
                                  T *__restrict__ grad_input, conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    gather_tile<true>(grad_output, weight, grad_input, s, (channels_t *)tile_memory);
}

template <class T>
__global__ void gather_last_rows(const T *__restrict__ grad_output, const T *__restrict__ packed,
                                 T *__restrict__ grad_input, int64_t H, int64_t W, int64_t OH,
                                 int64_t OW, int64_t C, int64_t CM, int64_t M, int64_t PACKED,
                                 int64_t KH, int64_t KW, int64_t SH, int64_t SW, int64_t PH,
                                 int64_t PW, int64_t DH, int64_t DW, int64_t count)
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
                                *taps = packed + (kh * KW + kw) * PACKED + c * m;
                        if (m == 1 && n >= CHANNELS)
                            sum += load_all(taps) * load_all(from);
                        else
                            for (int64_t e = 0, k = 0; e < min(n, (int64_t)CHANNELS); e++)
                                for (int64_t of = 0; of < m; of++, k++)
                                    sum[e] += opd::load(taps + k) * opd::load(from + k);
                    }
                }
                store_channels(grad_input + (row * W + w) * C + c, sum, n);
            };
            for (int64_t c = 0; c < C; c += CHANNELS)
                with_known(c, C, M, gather);
        }
    }
}

// As sum_taps_rows, of one filter to each of fewer channels than CHANNELS: as convolve_few.
template <class T, int BESIDE>
__device__ __forceinline__ void sum_few(const T *input, const T *grad_output, acc_t *to,
                                        int64_t begin, int64_t end, int64_t N, int64_t H, int64_t W,
                                        int64_t OH, int64_t OW, int64_t C, int64_t KH, int64_t KW,
                                        int64_t SH, int64_t SW, int64_t PH, int64_t PW, int64_t DH,
                                        int64_t DW, int64_t first)
{
    const int64_t beside = CHANNELS / C, reach = beside - 1 + (BESIDE - 1) * DW;
    const T *last = input + N * H * W * C - CHANNELS - (BESIDE - 1) * DW * C,
            *last_g = grad_output + N * OH * OW * C - CHANNELS;
    acc_t sum[BESIDE + 1][CHANNELS] = {};
    for (int64_t row = begin; row < end; row++) {
        const int64_t ih = row % OH * SH - PH + first / KW * DH;
        const T *g = grad_output + row * OW * C, *line = input + (row / OH * H + ih) * W * C;
        const bool reads = ih >= 0 && ih < H;
        channels_t here[BESIDE + 1] = {};
        for (int64_t ow = 0; ow < OW && (reads || first == 0);) {
            const int64_t x = ow * SW - PW + first % KW * DW;
            if (reads && SW == 1 && ow + beside <= OW && x >= 0 && x + reach < W &&
                line + x * C <= last && g + ow * C <= last_g) {
                const channels_t of = load_all(g + ow * C);
                here[BESIDE] += of;
#pragma GCC unroll 8
                for (int k = 0; k < BESIDE; k++)
                    here[k] += of * load_all(line + (x + k * DW) * C);
                ow += beside;
                continue;
            }
            for (int64_t c = 0; c < C; c++) {
                const acc_t of = opd::load(g + ow * C + c);
                sum[BESIDE][c] += of;
                for (int k = 0; k < BESIDE; k++)
                    if (reads && x + k * DW >= 0 && x + k * DW < W)
                        sum[k][c] += of * opd::load(line + (x + k * DW) * C + c);
            }
            ow++;
        }
        for (int k = 0; k < BESIDE + 1; k++)
            for (int64_t e = 0; e < beside * C; e++)
                sum[k][e] += here[k][e];
    }
    for (int k = 0; k < BESIDE + (first == 0); k++)
        for (int64_t c = 0; c < C; c++) {
            acc_t all = 0;
            for (int64_t e = c; e < beside * C; e += C)
                all += sum[k][e];
            to[(k < BESIDE ? first + k : KH * KW) * C + c] = all;
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
    const int64_t set = blockIdx.x % SETS * CHANNELS, kh = first / KW, kw = first % KW;
    const int64_t begin = blockIdx.y * share, end = min(N * OH, begin + share);
    if (M == 1 && C < CHANNELS)
        return sum_few<T, BESIDE>(input, grad_output, partial + blockIdx.y * (KH * KW + 1) * CM,
                                  begin, end, N, H, W, OH, OW, C, KH, KW, SH, SW, PH, PW, DH, DW,
                                  first);
    channels_t sum[BESIDE + 1] = {};
    with_known(set, CM, M, [&](int64_t c, int64_t m, int64_t n) {
        const sources inputs(c, C, m, n);
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
                        here[k] += of * inputs.load(line + (x + k * DW) * C);
                else if (reads)
#pragma GCC unroll 8
                    for (int k = 0; k < BESIDE; k++)
                        if (x + k * DW >= 0 && x + k * DW < W)
                            here[k] += of * inputs.load(line + (x + k * DW) * C);
            }
#pragma GCC unroll 8
            for (int k = 0; k < BESIDE + 1; k++)
                sum[k] += here[k];
        }
        acc_t *to = partial + blockIdx.y * (KH * KW + 1) * CM + c;
        for (int k = 0; k < BESIDE + (first == 0); k++)
            for (int64_t e = set - c; e < min(n, (int64_t)CHANNELS); e++)
                to[(k < BESIDE ? first + k : KH * KW) * CM + e] = sum[k][e];
    });
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
