// The gradient of upsample_bilinear2d.cu where it goes up.
#pragma once
#include "copy_to_shared.cuh"
#include "upsample_axis.cuh"
#ifndef OPD_CPU
// The rows of outputs that rows of inputs below one another get, each summed down to the two that it
// stands between, in V columns of a thread. BLOCKS: these are side by side, and read at once. The
// AHEAD rows that come next are on their way meanwhile. Sums go to shared memory, where one column
// in 33 is left out, so that steps of a power of two meet no bank twice.
template <class T, int V, bool BLOCKS, int AHEAD, int PITCH> struct sum_down {
    const T *line;
    int OW, count, at[V];
    int low; // the row of inputs whose sums are in `here`; in `next` those of the one below it
    acc_t here[V], next[V];
    opd::vec<T, V> ahead[AHEAD];

    __device__ __forceinline__ sum_down(const T *first, int pitch, int wide, int n, int row)
        : line(first), OW(pitch), count(n), low(row)
    {
        const int x = (int)threadIdx.x;
#pragma unroll
        for (int k = 0; k < V; k++) {
            at[k] = BLOCKS ? min(x * V, wide - V) + k : min(x + k * (int)blockDim.x, wide - 1);
            here[k] = next[k] = 0;
        }
        if (count > 0)
            fetch(0);
    }

    __device__ __forceinline__ void fetch(int i)
    {
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const T *from = line + min(i + n, count - 1) * OW;
            if constexpr (BLOCKS)
                ahead[n] = opd::load_vec<V>(from + at[0]);
            else
#pragma unroll
                for (int k = 0; k < V; k++)
                    ahead[n][k] = from[at[k]];
        }
    }

    // Rows of inputs above that one have all that they get; those from h on are stored.
    __device__ __forceinline__ void finish(int row, int h, acc_t *sums)
    {
        for (; low < row; low++) {
            acc_t *to = sums + (low - h) * PITCH;
#pragma unroll
            for (int k = 0; k < V; k++) {
                if (low >= h)
                    to[BLOCKS ? at[0] + at[0] / 32 + k : at[k] + at[k] / 32] = here[k];
                here[k] = next[k];
                next[k] = 0;
            }
        }
    }

    // By outputs i to stop: all that rows of inputs h to end still get.
    __device__ __forceinline__ void make(int i, int stop, int h, int end, const int *low_of,
                                         const acc_t *below_of, acc_t *sums)
    {
        for (; i < stop; i += AHEAD) {
            opd::vec<T, V> rows[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                rows[n] = ahead[n];
            fetch(min(i + AHEAD, stop));
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                if (i + n < stop) {
                    finish(low_of[i + n], h, sums);
                    const acc_t below = below_of[i + n];
                    acc_t v[V];
                    load_words<V>(v, &rows[n][0]);
#pragma unroll
                    for (int k = 0; k < V; k++) {
                        here[k] += (1 - below) * v[k];
                        next[k] += below * v[k];
                    }
                }
        }
        finish(end, h, sums);
    }
};

// Going up, each gradient is read once: a block makes UP_ROWS rows of inputs in UP_COLUMNS columns of
// UP_Y planes, 8 rows at a time. Rows of outputs are summed down to them first; what has come of that
// is summed along W then, by a thread for each column of inputs.
template <class T, int V, bool EVEN, int PITCH>
__global__ void __launch_bounds__(256, 3)
    upsample_backward_up(const T *__restrict__ grad_output, T *__restrict__ grad_input, int H, int W,
                         int OH, int OW, double step_h, double step_w, double shift, int PLANES,
                         int UP_WIDE, int UP_COLUMNS, int UP_TILES, int UP_ROWS, int UP_GROUPS,
                         int UP_TABLE)
{
    constexpr int ROUND = 8;
    extern __shared__ double of_block[];
    __shared__ int edges[2];             // of the columns of outputs
    __shared__ int stops[1 + 16 / ROUND]; // of the rows: the first, and those behind each round's
    const int x = (int)threadIdx.x, y = (int)threadIdx.y, threads = (int)blockDim.x;
    acc_t *weight_of = (acc_t *)of_block; // of the second neighbour, for each column of outputs
    acc_t *below_of = weight_of + UP_WIDE; // the same of rows
    acc_t *all_sums = below_of + UP_TABLE, *sums = all_sums + y * ROUND * PITCH;
    int *low_of = (int *)(all_sums + (int)blockDim.y * ROUND * PITCH);
    int *first = low_of + UP_TABLE; // the outputs that read w0 - 1, w0, ... as their low begin there

    const int group = (int)blockIdx.x / UP_TILES, some = group / UP_GROUPS;
    const int w0 = ((int)blockIdx.x - group * UP_TILES) * UP_COLUMNS, made = min(UP_COLUMNS, W - w0);
    const int h = (group - some * UP_GROUPS) * UP_ROWS, end = min(h + UP_ROWS, H);
    const int plane = some * (int)blockDim.y + y;
    const axis<acc_t, int> rows(H, OH, step_h, shift), columns(W, OW, step_w, shift);
    const int thread = y * threads + x, all = threads * (int)blockDim.y;
    if (thread < 2)
        edges[thread] = UP_TILES == 1 ? thread * OW : columns.find(thread == 0 ? w0 - 1 : w0 + made);
    if ((thread - 1) * ROUND < UP_ROWS)
        stops[thread] = rows.find(thread == 0 ? h - 1 : min(h + thread * ROUND, end));
    __syncthreads();
    const int left = edges[0] / V * V, wide = edges[1] - left;
    const int top = stops[0], count = stops[UP_ROWS / ROUND] - top;
    for (int i = thread; i < count; i += all) {
        const tap<acc_t, int> t = rows.at(top + i);
        low_of[i] = t.low;
        below_of[i] = t.high > t.low ? t.weight : acc_t(0);
    }
    for (int c = thread; c < wide; c += all) {
        const tap<acc_t, int> t = columns.at(left + c);
        weight_of[c] = t.high > t.low ? t.weight : acc_t(0);
        const int before = c > 0 ? columns.at(left + c - 1).low : w0 - 2;
        for (int i = max(before + 1, w0 - 1); i <= t.low; i++)
            first[i - w0 + 1] = c;
        for (int i = t.low + 1; c == wide - 1 && i <= w0 + made; i++)
            first[i - w0 + 1] = wide;
    }
    __syncthreads();
    const T *line = grad_output + ((int64_t)plane * OH + top) * OW + left;
    const bool mine = plane < PLANES;
    const auto go = [&](auto down) {
        for (int round = 0; h + round * ROUND < end; round++) {
            const int row = h + round * ROUND, until = min(row + ROUND, end);
            if (round > 0)
                __syncthreads();
            if (mine)
                down.make(stops[round] - top, stops[round + 1] - top, row, until, low_of, below_of,
                          sums);
            __syncthreads();
            for (int w = x; mine && w < made; w += threads) {
                acc_t sum[ROUND] = {};
                const int middle = first[w + 1], last = first[w + 2];
#pragma unroll 1
                for (int c = first[w]; c < last; c++) {
                    const acc_t weight = weight_of[c], share = c < middle ? weight : 1 - weight;
#pragma unroll
                    for (int k = 0; k < ROUND; k++)
                        sum[k] += share * sums[k * PITCH + c + c / 32];
                }
                T *to = grad_input + ((int64_t)plane * H + row) * W + w0 + w;
#pragma unroll
                for (int k = 0; k < ROUND; k++)
                    if (row + k < until)
                        opd::store(to + k * W, sum[k]);
            }
        }
    };
    const int n = mine ? count : 0, low = max(h - 1, 0);
    if (EVEN && opd::is_aligned(grad_output, V * sizeof(T)))
        go(sum_down<T, V, EVEN, 4, PITCH>(line, OW, OW - left, n, low));
    else // seldom where rows are even
        go(sum_down<T, V, false, EVEN ? 1 : 4, PITCH>(line, OW, wide, n, low));
}
#endif
