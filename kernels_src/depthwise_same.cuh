// The convolutions of depthwise_conv2d.cu where rows of input and output are equally long multiples
// of 16 bytes (stride and dilation 1, "same" padding of the columns): so many bytes at a time.
#pragma once
#include "depthwise_sums.cuh"
#ifndef OPD_CPU

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
        for (int j = 0; j < SAME_ROWS; j++) {
            const int kh = r - j;
            if (kh < 0 || kh >= KH)
                continue;
#pragma unroll
            for (int k = 0; k < KW * N; k++)
                sum[j][k % N] += w[kh * KW + k / N] * v[k % N + k / N];
        }
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

template <class T, int KH, int KW, bool WEIGHT>
__global__ void depthwise_grad_weight_same(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           acc_t *__restrict__ partial, int CM, int M, int H, int W,
                                           int OH, int QUADS, int PH, int PARTS, unsigned STRIPS)
{
    constexpr int N = 16 / sizeof(T);
    const unsigned channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS, blocks = W / N;
    const unsigned share = (STRIPS + PARTS - 1) / PARTS, end = min((part + 1) * share, STRIPS);
    acc_t sum[KH * KW] = {}, sum_bias = 0;
    for (unsigned i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const unsigned row = i / blocks, n = row / QUADS;
        const int x = (int)(i - row * blocks) * N, y = (int)(row - n * QUADS) * SAME_ROWS;
        const int64_t plane = (int64_t)n * CM + channel;
        const T *out = grad_output + plane * ((int64_t)OH * W) + (int64_t)y * W + x;
        const T *from = input + plane / M * (H * W);
        // Asked here, for what the loop does not change NVRTC makes two loops of.
        const bool aligned = opd::is_aligned(from, 16), aligned_out = opd::is_aligned(out, 16);
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
            for (int j = 0; j < SAME_ROWS; j++) {
                const int kh = r - j;
                if (kh < 0 || kh >= KH)
                    continue;
#pragma unroll
                for (int k = 0; k < KW * N; k++)
                    sum[kh * KW + k / N] += g[j][k % N] * v[k % N + k / N];
            }
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
    store_sums<KH * KW>(to, sum, sum_bias);
}
#endif
