// The gradient of bilinear resizes of small tensors: what such a kernel takes is waiting, so each thread
// works out what its input gets and waits for that once, without shared memory. Images of NCHW are
// planes of one channel.
#pragma once
#include "channels.cuh"
#include "upsample_axis.cuh"
#ifndef OPD_CPU

// The outputs that may read input i: what each of TAPS adds to it from the first on, of which one at
// most is before the first that does, as long as a float tells hundredths of an output's index.
template <int TAPS> struct few_readers {
    int first;
    acc_t share[TAPS];

    __device__ __forceinline__ few_readers(const axis<acc_t, int> &a, int i)
    {
        const acc_t from = ((acc_t)(i - 1) + a.shift) / a.step - a.shift;
        first = i > 0 ? (int)max(from - acc_t(0.01), acc_t(0)) : 0;
        if (i > 0 && a.at(first).low < i - 1)
            first++;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            share[k] = first + k < a.out ? a.share(a.at(first + k), i) : acc_t(0);
    }
};

// A thread makes V channels of an input, in as many planes as EACH.
template <class T, int V, int EACH, int TAPS>
__global__ void upsample_backward_few(const T *__restrict__ grad_output, T *__restrict__ grad_input,
                                      int H, opd::divisor W, opd::divisor HW, int OH, int OW,
                                      double step_h, double step_w, double shift,
                                      opd::divisor VECS, int PLANES, unsigned count)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned at = i / VECS, some = at / HW, place = at - some * HW;
    const int h = (int)(place / W), w = (int)(place - h * W), C = (int)VECS * V,
              c = (int)(i - at * VECS) * V, plane = (int)some * EACH;
    const few_readers<TAPS> rows(axis<acc_t, int>(H, OH, step_h, shift), h),
        columns(axis<acc_t, int>((int)W, OW, step_w, shift), w);
    const T *from = grad_output + ((plane * OH + rows.first) * OW + columns.first) * C + c;
    T *to = grad_input + (plane * (int)HW + (int)place) * C + c;
    const bool whole = lie_whole<V>(grad_output), whole_in = lie_whole<V>(grad_input);
    opd::vec<T, V> g[EACH][TAPS][TAPS] = {};
#pragma unroll
    for (int p = 0; p < EACH; p++)
#pragma unroll
        for (int k = 0; k < TAPS * TAPS; k++)
            if (plane + p < PLANES && rows.share[k / TAPS] != 0 && columns.share[k % TAPS] != 0)
                g[p][k / TAPS][k % TAPS] = read_channels<V>(
                    from + ((p * OH + k / TAPS) * OW + k % TAPS) * C, whole);
#pragma unroll
    for (int p = 0; p < EACH; p++) {
        acc_t sum[V] = {};
#pragma unroll
        for (int k = 0; k < TAPS * V; k++) {
            acc_t line = 0;
#pragma unroll
            for (int x = 0; x < TAPS; x++)
                line += columns.share[x] * opd::load(&g[p][k / V][x][k % V]);
            sum[k % V] += rows.share[k / V] * line;
        }
        if (plane + p < PLANES)
            write_channels<V>(to + p * (int)HW * C, sum, whole_in);
    }
}
#endif
