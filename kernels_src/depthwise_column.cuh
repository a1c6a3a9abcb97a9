// The convolutions of depthwise_conv2d.cu whose threads make one column each, of windows, strides
// and dilations that the compiler knows.
#pragma once
#include "depthwise_sums.cuh"
#ifndef OPD_CPU

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
        for (int j = 0; j < ROWS; j++) {
            const int below = r - j * SH, kh = below / DH;
            if (below < 0 || kh >= KH || kh * DH != below)
                continue;
#pragma unroll
            for (int k = 0; k < KW; k++)
                sum[j] += w[kh * KW + k] * v[k];
        }
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

// grad_weight[c, 0, kh, kw] = sum over n, oh, ow of grad_output * input, and grad_bias[c] = sum of
// grad_output: block (c, part) sums its part of the strips of 4 rows into `partial`, whose last
// column is the bias's.
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
            for (int j = 0; j < ROWS; j++) {
                const int below = r - j * SH, kh = below / DH;
                if (below < 0 || kh >= KH || kh * DH != below)
                    continue;
#pragma unroll
                for (int k = 0; k < KW; k++)
                    sum[kh * KW + k] += g[j] * v[k];
            }
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
    store_sums<KH * KW>(to, sum, sum_bias);
}
#endif
