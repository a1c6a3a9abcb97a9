// The gradient of weight of depthwise_conv2d.cu from planes that lie in shared memory as they lie
// in the tensors: of any stride, dilation and width of rows.
#pragma once
#include "copy_to_shared.cuh"
#include "depthwise_strip.cuh"
#ifndef OPD_CPU

enum { SUM_THREADS = 128, SUM_WARPS = SUM_THREADS / 32 };

// A block has SUM_ONCE planes of a channel at a time, or SUM_H rows of outputs of one, of which
// there are SUM_PARTS_H: SUM_PIECES in all, which PARTS blocks share. Each plane has SUM_IN bytes
// of shared memory for rows of input, and SUM_OUT for those of outputs; before them are SUM_ZEROS
// bytes of zeros.
struct sum_shape {
    int N, CM, M, H, W, OH;
    opd::divisor OW, SUM_STRIPS, SUM_PARTS_H;
    int PH, PW, SUM_ONCE, SUM_H, SUM_PIECES, SUM_IN, SUM_OUT, SUM_ZEROS, PARTS;
};

// Blocks of a processor: what bounds registers.
template <int TAPS> constexpr int SUM_RESIDENT = TAPS <= 9 ? 8 : TAPS <= 25 ? 6 : 4;

// A thread sums strips of STRIP outputs below one another: what it loads of a row serves all of
// them. KH rows of the window, of large ones one of them: others are other blocks'.
template <class T, int KH, int KW, int SH, int SW, int DH, int DW, int STRIP>
__global__ void __launch_bounds__(SUM_THREADS, SUM_RESIDENT<KH * KW> * 4 / sizeof(acc_t))
    depthwise_grad_weight_planes(const T *__restrict__ input, const T *__restrict__ grad_output,
                                 acc_t *__restrict__ partial, sum_shape s)
{
    extern __shared__ uint4 shared[];
    const T *zeros = (T *)shared;
    char *const tiles = (char *)shared + s.SUM_ZEROS, *const outs = tiles + s.SUM_ONCE * s.SUM_IN;
    const int channel = (int)blockIdx.x / s.PARTS, part = (int)blockIdx.x - channel * s.PARTS;
    const int turn = (int)blockIdx.y, turns = (int)gridDim.y, above = s.PH - turn * KH * DH;
    const int64_t apart = (int64_t)(s.CM / s.M) * s.H * s.W,
                  out_apart = (int64_t)s.CM * s.OH * (int)s.OW;
    for (int i = threadIdx.x; i < s.SUM_ZEROS / 16; i += SUM_THREADS)
        shared[i] = uint4{ 0, 0, 0, 0 };
    acc_t sum[KH * KW] = {}, sum_bias = 0;
    for (int p = part; p < s.SUM_PIECES; p += s.PARTS) {
        const int group = p / s.SUM_PARTS_H, first = group * s.SUM_ONCE,
                  images = min(s.SUM_ONCE, s.N - first);
        const int oh = (p - group * s.SUM_PARTS_H) * s.SUM_H, out_rows = min(s.SUM_H, s.OH - oh);
        const int top = max(0, oh * SH - above),
                  end = min(s.H, (oh + out_rows - 1) * SH - above + (KH - 1) * DH + 1),
                  rows = max(0, end - top);
        const T *from = input + first * apart + ((int64_t)(channel / s.M) * s.H + top) * s.W,
                *out = grad_output + first * out_apart + ((int64_t)channel * s.OH + oh) * (int)s.OW;
        __syncthreads();
        // Planes have a warp each to copy them, few of them all threads.
        const int team = images < SUM_WARPS ? SUM_THREADS : 32, me = (int)threadIdx.x % team;
        for (int n = (int)threadIdx.x / team; n < images; n += SUM_THREADS / team) {
            copy_run<1>(tiles + n * s.SUM_IN, from + n * apart, rows * s.W, me, team);
            copy_run<1>(outs + n * s.SUM_OUT, out + n * out_apart, out_rows * (int)s.OW, me, team);
        }
        wait_for_copies();

        for (int i = threadIdx.x; i < images * (int)s.SUM_STRIPS * (int)s.OW; i += SUM_THREADS) {
            const int strip = i / s.OW, n = strip / s.SUM_STRIPS, ow = i - strip * (int)s.OW;
            const int y = (strip - n * (int)s.SUM_STRIPS) * STRIP, x = ow * SW - s.PW;
            const int row = (oh + y) * SH - above - top;
            const T *line = find_run(tiles + n * s.SUM_IN, from + n * apart) + row * s.W + x;
            const T *grads = find_run(outs + n * s.SUM_OUT, out + n * out_apart) + y * (int)s.OW +
                             ow;
            acc_t g[STRIP];
#pragma unroll
            for (int j = 0; j < STRIP; j++) {
                g[j] = y + j < out_rows ? opd::load(grads + j * (int)s.OW) : acc_t(0);
                sum_bias += g[j];
            }
#pragma unroll
            for (int r = 0; r <= (STRIP - 1) * SH + (KH - 1) * DH; r++) {
                const T *at = (unsigned)(row + r) < (unsigned)rows ? line + r * s.W : zeros;
                acc_t v[KW];
#pragma unroll
                for (int k = 0; k < KW; k++)
                    v[k] = (unsigned)(x + k * DW) < (unsigned)s.W ? opd::load(at + k * DW)
                                                                  : acc_t(0);
                each_reader<STRIP, KH, SH, DH>(r, [&](int j, int kh) {
#pragma unroll
                    for (int k = 0; k < KW; k++)
                        sum[kh * KW + k] += g[j] * v[k];
                });
            }
        }
    }
    __syncthreads();
    acc_t *to = partial + ((int64_t)part * s.CM + channel) * (turns * KH * KW + 1);
    store_sums<KH * KW, SUM_THREADS>(to + turn * KH * KW, sum, sum_bias, turn == turns - 1);
}
#endif
