// The convolutions of depthwise_conv2d.cu of small windows without dilation. Some planes, or some
// rows of one, lie side by side in memory: a block copies them into shared memory as they lie,
// waits for that once and makes its outputs. Other blocks of the processor copy meanwhile: fewer
// that copy ahead of themselves move less.
#pragma once
#include "depthwise_strip.cuh"
#include "depthwise_tile.cuh"
#ifndef OPD_CPU

// A block has AT_ONCE planes, or PART_H rows of outputs of one, of which there are PARTS_H. A
// thread makes strips of STRIP rows by SIDE columns: of several where rows of input and output are
// equally long and the stride is 1 (LEVEL), which are read at once then, and of long windows.
struct part_shape {
    int PLANES, CM, M, H, W, OH, OW, PH, PW, AT_ONCE, PART_H, PARTS_H;
};

// Threads of a block, more of them where each reads less, and of a processor: what bounds
// registers.
template <class T, int EACH>
constexpr int PART_THREADS = 64 * (16 / (int)sizeof(T) <= EACH       ? 1
                                   : 16 / (int)sizeof(T) >= 4 * EACH ? 4
                                                                     : 16 / (int)sizeof(T) / EACH);
template <int TAPS> constexpr int PART_RESIDENT = TAPS > 25 ? 512 : 640;

// Bytes before the rows, and among them where those of a row outside begin.
template <int KW> constexpr int PART_HEAD = KW > 7 ? 256 : 128;
template <int KW> constexpr int PART_ZEROS = KW > 7 ? 64 : 48;

// N columns of a row from x on, which is a multiple of N, and HALO on both sides: zeros where those
// are outside.
template <int N, int HALO, class T>
__device__ __forceinline__ void load_beside(acc_t *v, const T *line, int x, int W)
{
    load_words<N>(v + HALO, line);
    if constexpr (sizeof(T) == 4 && HALO > 1 && HALO <= N) {
        acc_t before[N] = {}, behind[N] = {};
        if (x > 0)
            load_words<N>(before, line - N);
        if (x + N < W)
            load_words<N>(behind, line + N);
#pragma unroll
        for (int k = 0; k < HALO; k++)
            v[k] = before[N - HALO + k], v[HALO + N + k] = behind[k];
    } else {
#pragma unroll
        for (int k = 0; k < HALO; k++) { // all of a side where they are no more than N
            const int left = HALO - k, right = HALO <= N ? N : N + k;
            v[k] = x >= (HALO <= N ? 1 : left) ? opd::load(line - left) : acc_t(0);
            v[HALO + N + k] = x + right < W ? opd::load(line + N + k) : acc_t(0);
        }
    }
}

// FLIP turns the window round, for grad_input.
template <class T, int KH, int KW, int SH, int SW, int STRIP, int SIDE, bool LEVEL, bool FLIP>
__device__ __forceinline__ void convolve_planes(const T *__restrict__ input,
                                                const T *__restrict__ weight,
                                                const T *__restrict__ bias, T *__restrict__ output,
                                                const part_shape &s)
{
    extern __shared__ uint4 shared[];
    const int part = (int)blockIdx.x / s.PARTS_H, first = part * s.AT_ONCE,
              count = min(s.AT_ONCE, s.PLANES - first);
    const int oh = ((int)blockIdx.x - part * s.PARTS_H) * s.PART_H;
    const bool whole = s.AT_ONCE > 1;
    const int top = whole ? 0 : max(0, oh * SH - s.PH), end = (oh + s.PART_H - 1) * SH - s.PH + KH;
    const int rows = whole ? s.H : max(0, min(s.H, end) - top);
    const T *from = input + (int64_t)(first / s.M) * (s.H * s.W) + (int64_t)top * s.W;
    const T *zeros = (T *)((char *)shared + PART_ZEROS<KW>);
    if (threadIdx.x < PART_HEAD<KW> / 16)
        shared[threadIdx.x] = uint4{ 0, 0, 0, 0 };
    const T *tile = copy_run<LEVEL ? SIDE : 1>((char *)shared + PART_HEAD<KW>, from, count * rows * s.W);
    wait_for_copies();

    const int across = (s.OW + SIDE - 1) / SIDE, strips = s.PART_H / STRIP;
    for (int i = threadIdx.x; i < count * strips * across; i += (int)blockDim.x) {
        const int strip = i / across, n = strip / strips, plane = first + n, channel = plane % s.CM;
        const int ow = (i - strip * across) * SIDE, y = oh + (strip - n * strips) * STRIP;
        const int x = LEVEL ? ow : ow * SW - s.PW, row = y * SH - s.PH - top;
        const T *line = tile + (n * s.H + row) * s.W + x;
        acc_t w[KH * KW], sum[STRIP][SIDE];
#pragma unroll
        for (int k = 0; k < KH * KW; k++)
            w[k] = opd::load(weight + (int64_t)channel * (KH * KW) + (FLIP ? KH * KW - 1 - k : k));
        const acc_t start = bias ? opd::load(bias + channel) : acc_t(0);
#pragma unroll
        for (int k = 0; k < STRIP * SIDE; k++)
            sum[k / SIDE][k % SIDE] = start;
#pragma unroll
        for (int r = 0; r < (STRIP - 1) * SH + KH; r++) {
            const T *from = (unsigned)(row + r) < (unsigned)rows ? line + r * s.W : zeros;
            acc_t v[SIDE + KW - 1];
            if constexpr (LEVEL)
                load_beside<SIDE, KW / 2>(v, from, x, s.W);
            else
                load_row<1, SIDE + KW - 1, 1>(v, from, from, 0, x, 1, s.W, false);
            each_reader<STRIP, KH, SH, 1>(r, [&](int j, int kh) {
#pragma unroll
                for (int k = 0; k < KW * SIDE; k++)
                    sum[j][k % SIDE] += w[kh * KW + k / SIDE] * v[k % SIDE + k / SIDE];
            });
        }
        T *out = output + ((int64_t)plane * s.OH + y) * s.OW + ow;
        const int left = min(s.OH, oh + s.PART_H) - y;
        const bool aligned = LEVEL && opd::is_aligned(output, SIDE * sizeof(T));
#pragma unroll
        for (int j = 0; j < STRIP; j++) {
            opd::vec<T, SIDE> block;
#pragma unroll
            for (int c = 0; c < SIDE; c++)
                opd::store(&block[c], sum[j][c]);
            if (j < left && aligned)
                opd::store_vec(out + j * s.OW, block);
#pragma unroll
            for (int c = 0; c < SIDE; c++)
                if (j < left && !aligned && (LEVEL || ow + c < s.OW))
                    out[j * s.OW + c] = block[c];
        }
    }
}

template <class T, int KH, int KW, int SH, int SW, int STRIP, int SIDE, bool LEVEL>
__global__ void __launch_bounds__(PART_THREADS<T, SH * SW * SIDE>,
                                  PART_RESIDENT<KH * KW> / PART_THREADS<T, SH * SW * SIDE>)
    depthwise_forward_planes(const T *__restrict__ input, const T *__restrict__ weight,
                             const T *__restrict__ bias, T *__restrict__ output, part_shape s)
{
    convolve_planes<T, KH, KW, SH, SW, STRIP, SIDE, LEVEL, false>(input, weight, bias, output, s);
}

// Of stride 1.
template <class T, int KH, int KW, int STRIP, int SIDE, bool LEVEL>
__global__ void __launch_bounds__(PART_THREADS<T, SIDE>,
                                  PART_RESIDENT<KH * KW> / PART_THREADS<T, SIDE>)
    depthwise_grad_input_planes(const T *__restrict__ grad_output, const T *__restrict__ weight,
                                T *__restrict__ grad_input, part_shape s)
{
    convolve_planes<T, KH, KW, 1, 1, STRIP, SIDE, LEVEL, true>(grad_output, weight, nullptr,
                                                               grad_input, s);
}
#endif
