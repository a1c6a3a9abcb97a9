// The convolutions of depthwise_conv2d.cu of stride and dilation 1 whose rows of input and output
// are equally long. Some planes, or some rows of one, lie side by side in memory: a block copies
// them into shared memory as they lie, waits for that once and makes its outputs. Other blocks of
// the processor copy meanwhile: fewer that copy ahead of themselves move less.
#pragma once
#include "depthwise_strip.cuh"
#include "depthwise_tile.cuh"
#ifndef OPD_CPU

// A block has AT_ONCE planes, or PART_H rows of outputs of one, of which there are PARTS_H. A
// thread makes strips of STRIP rows by EVEN columns.
struct part_shape {
    int PLANES, CM, M, H, W, OH, PH, AT_ONCE, PART_H, PARTS_H;
};

// Threads of a block, more of them where each makes less, and of a processor: what bounds
// registers.
template <class T, int EVEN>
constexpr int PART_THREADS = 64 * (16 / (int)sizeof(T) / EVEN < 4 ? 16 / (int)sizeof(T) / EVEN : 4);
template <int TAPS> constexpr int PART_RESIDENT = TAPS > 25 ? 512 : 640;

enum { PART_HEAD = 128, PART_ZEROS = 48 }; // bytes before the rows; in them those of a row outside

// N elements of shared memory. 16-bit ones are taken out of words: one instruction for each.
template <int N, class T> __device__ __forceinline__ void load_words(acc_t *v, const T *p)
{
    if constexpr (sizeof(T) == 2 && N > 1) {
        const auto words = opd::load_vec<N / 2>((const uint32_t *)p);
#pragma unroll
        for (int k = 0; k < N; k++) {
            T e;
            e.x = (uint16_t)(words[k / 2] >> k % 2 * 16);
            v[k] = opd::load(&e);
        }
    } else {
        const auto block = opd::load_vec<N>(p);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = opd::load(&block[k]);
    }
}

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
template <class T, int KH, int KW, int STRIP, int EVEN, bool FLIP>
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
    const int top = whole ? 0 : max(0, oh - s.PH), end = oh - s.PH + s.PART_H + KH - 1;
    const int rows = whole ? s.H : max(0, min(s.H, end) - top);
    const T *from = input + (int64_t)(first / s.M) * (s.H * s.W) + (int64_t)top * s.W;
    const T *zeros = (T *)((char *)shared + PART_ZEROS);
    if (threadIdx.x < PART_HEAD / 16)
        shared[threadIdx.x] = uint4{ 0, 0, 0, 0 };
    const T *tile = copy_run<EVEN>((char *)shared + PART_HEAD, from, count * rows * s.W);
    wait_for_copies();

    const int across = s.W / EVEN, strips = s.PART_H / STRIP;
    for (int i = threadIdx.x; i < count * strips * across; i += (int)blockDim.x) {
        const int strip = i / across, n = strip / strips, plane = first + n, channel = plane % s.CM;
        const int x = (i - strip * across) * EVEN, y = oh + (strip - n * strips) * STRIP,
                  row = y - s.PH - top;
        const T *line = tile + (n * s.H + row) * s.W + x;
        acc_t w[KH * KW], sum[STRIP][EVEN];
#pragma unroll
        for (int k = 0; k < KH * KW; k++)
            w[k] = opd::load(weight + (int64_t)channel * (KH * KW) + (FLIP ? KH * KW - 1 - k : k));
        const acc_t start = bias ? opd::load(bias + channel) : acc_t(0);
#pragma unroll
        for (int k = 0; k < STRIP * EVEN; k++)
            sum[k / EVEN][k % EVEN] = start;
#pragma unroll
        for (int r = 0; r < STRIP + KH - 1; r++) {
            const bool inside = (unsigned)(row + r) < (unsigned)rows;
            acc_t v[EVEN + KW - 1];
            load_beside<EVEN, KW / 2>(v, inside ? line + r * s.W : zeros, x, s.W);
            each_reader<STRIP, KH, 1, 1>(r, [&](int j, int kh) {
#pragma unroll
                for (int k = 0; k < KW * EVEN; k++)
                    sum[j][k % EVEN] += w[kh * KW + k / EVEN] * v[k % EVEN + k / EVEN];
            });
        }
        T *out = output + ((int64_t)plane * s.OH + y) * s.W + x;
        const int left = min(s.OH, oh + s.PART_H) - y;
        const bool aligned = opd::is_aligned(output, EVEN * sizeof(T));
#pragma unroll
        for (int j = 0; j < STRIP; j++) {
            opd::vec<T, EVEN> block;
#pragma unroll
            for (int c = 0; c < EVEN; c++)
                opd::store(&block[c], sum[j][c]);
            if (j < left && aligned)
                opd::store_vec(out + j * s.W, block);
#pragma unroll
            for (int c = 0; c < EVEN; c++)
                if (j < left && !aligned)
                    out[j * s.W + c] = block[c];
        }
    }
}

template <class T, int KH, int KW, int STRIP, int EVEN>
__global__ void __launch_bounds__(PART_THREADS<T, EVEN>,
                                  PART_RESIDENT<KH * KW> / PART_THREADS<T, EVEN>)
    depthwise_forward_planes(const T *__restrict__ input, const T *__restrict__ weight,
                             const T *__restrict__ bias, T *__restrict__ output, part_shape s)
{
    convolve_planes<T, KH, KW, STRIP, EVEN, false>(input, weight, bias, output, s);
}

template <class T, int KH, int KW, int STRIP, int EVEN>
__global__ void __launch_bounds__(PART_THREADS<T, EVEN>,
                                  PART_RESIDENT<KH * KW> / PART_THREADS<T, EVEN>)
    depthwise_grad_input_planes(const T *__restrict__ grad_output, const T *__restrict__ weight,
                                T *__restrict__ grad_input, part_shape s)
{
    convolve_planes<T, KH, KW, STRIP, EVEN, true>(grad_output, weight, nullptr, grad_input, s);
}
#endif
