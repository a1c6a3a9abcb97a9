// A step of lltm_sequence.cu in float32 in one launch: the product with h, and the cell.
//
// A block makes 2*UNITS rows by UNITS units. Its product is on tensor cores, and as exact as one of
// floats: each float is the sum of two of TF32 but for 2^-23 of it, three of their four products
// count, and what eight terms give is added as floats, since the cores round sums towards zero.
// What is not finite has no such parts: sums that come out so are made again. What the gates take
// from inputs comes from memory meanwhile.
#pragma once
#include "lltm.cuh"
#ifndef OPD_CPU
#include "copy_to_shared.cuh"
#include "tensor_cores.cuh"

// A warp multiplies 32 rows by 48 columns of a stage: DEPTH of each row of h, then of each row of
// weights. Where a block has less than eight such parts its warps share the depth, in slices.
template <int UNITS> struct lltm_tile {
    enum {
        THREADS = 256,
        ROWS = 2 * UNITS,
        COLS = 3 * UNITS,
        WARP_ROWS = 32,
        WARP_COLS = 48,
        ACROSS = COLS / WARP_COLS,
        PARTS = ROWS / WARP_ROWS * ACROSS,
        SLICES = 8 / PARTS,
        DEPTH = SLICES > 4 ? 8 * SLICES : 32,
        PITCH = DEPTH + 4, // so that 8 rows lie in different banks
        STAGE = (ROWS + COLS) * PITCH,
        STAGES = UNITS == 32 ? 2 : 3,
        SUM_PITCH = COLS + 8,
        M = WARP_ROWS / 16,
        N = WARP_COLS / 8,
        TOGETHER = UNITS == 32 ? N : 2, // columns of products in flight: two blocks share registers
    };
    float sum[M][N][4];

    __device__ __forceinline__ static int slice()
    {
        return threadIdx.x / 32 / PARTS;
    }

    __device__ __forceinline__ static int top()
    {
        return threadIdx.x / 32 % PARTS / ACROSS * WARP_ROWS;
    }

    __device__ __forceinline__ static int left()
    {
        return threadIdx.x / 32 % ACROSS * WARP_COLS;
    }

    __device__ __forceinline__ void add(const float *stage)
    {
        const int lane = threadIdx.x % 32;
        const float *a = stage + (top() + lane % 16) * PITCH + lane / 16 * 4,
                    *b = stage + (ROWS + left() + lane % 8 + lane / 16 * 8) * PITCH +
                         lane / 8 % 2 * 4;
#pragma unroll
        for (int k = slice() * 8; k < DEPTH; k += SLICES * 8) {
            uint32_t x[M][2][2], small_x[M][2][2];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_blocks<false>(x[m], shared_address(a + m * 16 * PITCH + k));
#pragma unroll
            for (int i = 0; i < M * 4; i++)
                split(x[i / 4][i / 2 % 2][i % 2], small_x[i / 4][i / 2 % 2][i % 2]);
#pragma unroll
            for (int n = 0; n < N; n += TOGETHER) {
                // Between two products of the same sum there are those of all others.
                uint32_t y[TOGETHER][2], small_y[TOGETHER][2];
                float part[M * TOGETHER][4] = {};
#pragma unroll
                for (int i = 0; i < TOGETHER; i += 2)
                    load_blocks<false>(y + i, shared_address(b + (n + i) * 8 * PITCH + k));
#pragma unroll
                for (int i = 0; i < TOGETHER * 2; i++)
                    split(y[i / 2][i % 2], small_y[i / 2][i % 2]);
#pragma unroll
                for (int i = 0; i < M * TOGETHER; i++)
                    multiply_tf32(part[i], small_x[i % M][0], y[i / M]);
#pragma unroll
                for (int i = 0; i < M * TOGETHER; i++)
                    multiply_tf32(part[i], x[i % M][0], small_y[i / M]);
#pragma unroll
                for (int i = 0; i < M * TOGETHER; i++)
                    multiply_tf32(part[i], x[i % M][0], y[i / M]);
#pragma unroll
                for (int i = 0; i < M * TOGETHER * 4; i++)
                    sum[i / 4 % M][n + i / 4 / M][i % 4] += part[i / 4][i % 4];
            }
        }
    }

    // x is what is big of it from here on. What is not finite leaves a part that is none, too.
    __device__ __forceinline__ static void split(uint32_t &x, uint32_t &small)
    {
        const float whole = __uint_as_float(x);
        x = round_to_tf32(whole);
        const float rest = whole - __uint_as_float(x);
        small = rest == rest ? round_to_tf32(rest) : 0x7fc00000u;
    }

    // Into shared memory, where those of the slices are still to be added.
    __device__ __forceinline__ void store(float *to) const
    {
        const int lane = threadIdx.x % 32;
        to += (slice() * ROWS + top() + lane / 4) * SUM_PITCH + left() + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < M * N * 2; i++) {
            const int m = i / 2 / N, n = i / 2 % N, half = i % 2;
            *(float2 *)(to + (m * 16 + half * 8) * SUM_PITCH +
                        n * 8) = float2{ sum[m][n][half * 2], sum[m][n][half * 2 + 1] };
        }
    }

    // Adds the slices and what is given, into the first one's.
    __device__ __forceinline__ static void collapse(float *sums, int row, int col, float given)
    {
        float v = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            v += sums[(s * ROWS + row) * SUM_PITCH + col];
        sums[row * SUM_PITCH + col] = v + given;
    }
};

// Four floats of a row that is there or not, from any address. What is rare is no part of the
// kernel: to compile it there takes as long as all else.
__device__ __noinline__ void copy_four(float *to, const float *from, bool there)
{
    for (int e = 0; e < 4; e++)
        copy_to_shared<1>(to + e, from + e, there);
}

__device__ __noinline__ float sum_products(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += a[k] * b[k];
    return sum;
}

template <int UNITS>
__global__ void __launch_bounds__(256, UNITS == 32 ? 1 : 2)
    lltm_tile_step(const float *__restrict__ weights, const float *__restrict__ bias,
                   const float *__restrict__ h0, const float *__restrict__ c0, float *hs,
                   float *__restrict__ h, float *__restrict__ c, float *gates, float *cells,
                   int64_t t, int64_t n, int64_t B, int64_t S, int64_t K, int64_t last, bool KEEP)
{
    typedef lltm_tile<UNITS> tile;
    enum {
        STAGES = tile::STAGES,
        CELLS = tile::ROWS * UNITS / tile::THREADS, // of a thread, in one column
        ROWS_APART = tile::THREADS / UNITS,
    };
    extern __shared__ float4 lltm_memory[];
    float *const stages = (float *)lltm_memory;
    const int64_t across = (S + UNITS - 1) / UNITS;
    const int64_t top = blockIdx.x / across * tile::ROWS, left = blockIdx.x % across * UNITS;
    const float *state = t > 0 ? hs + (t - 1) * n : h0;
    // A thread copies four floats of two rows of h and of a unit's three of weights.
    static_assert(tile::THREADS * 4 == UNITS * tile::DEPTH, "a line for each unit");
    const int chunk = (int)threadIdx.x % (tile::DEPTH / 4) * 4,
              line = (int)threadIdx.x / (tile::DEPTH / 4);
    const float *from_h = state + (top + line) * S + chunk,
                *from_weights = weights + (left + line) * K + chunk;
    const bool even = opd::is_aligned(state, 16) && opd::is_aligned(weights, 16);
    const int steps = (int)((S + tile::DEPTH - 1) / tile::DEPTH);
    auto copy = [&](int step) {
        float *to = stages + step % STAGES * tile::STAGE + line * tile::PITCH + chunk;
        const int64_t k = (int64_t)step * tile::DEPTH;
#pragma unroll
        for (int i = 0; i < 5; i++, to += UNITS * tile::PITCH) {
            const float *from = i < 2 ? from_h + i * UNITS * S : from_weights + (i - 2) * S * K;
            const bool there = k + chunk < S &&
                               (i < 2 ? top + line + i * UNITS < B : left + line < S);
            if (even)
                copy_to_shared<4>(to, there ? from + k : weights, there);
            else
                copy_four(to, there ? from + k : weights, there);
        }
    };
    const int unit = (int)threadIdx.x % UNITS, first = (int)threadIdx.x / UNITS;
    const int64_t s = left + unit;
    float given[CELLS][3] = {}, cell[CELLS] = {}, by[3] = {};
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const int64_t b = top + first + i * ROWS_APART;
        if (b >= B || s >= S)
            continue;
#pragma unroll
        for (int g = 0; g < 3; g++)
            given[i][g] = gates[t * 3 * n + (b * 3 + g) * S + s];
        cell[i] = t > 0 ? cells[(t - 1) * n + b * S + s] : c0[b * S + s];
    }
#pragma unroll
    for (int g = 0; g < 3; g++)
        by[g] = s < S ? bias[g * S + s] : 0.f;
    tile product = {};
    for (int ahead = 0; ahead < steps + STAGES - 1; ahead++) {
        const int step = ahead - STAGES + 1;
        if (step >= 0)
            wait_for_copies_but<STAGES - 2>();
        if (ahead < steps)
            copy(ahead);
        commit_copies();
        if (step >= 0)
            product.add(stages + step % STAGES * tile::STAGE);
    }
    __syncthreads();
    product.store(stages);
    __syncthreads();
    // What is added is put to the sums, so that the cells are a loop: compiled at a third of the
    // cost.
    float *const old_cells = stages + tile::ROWS * tile::SUM_PITCH; // where slice 1 was
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const int row = first + i * ROWS_APART;
#pragma unroll
        for (int g = 0; g < 3; g++)
            tile::collapse(stages, row, g * UNITS + unit, given[i][g]);
        old_cells[row * tile::SUM_PITCH + unit] = cell[i];
    }
#pragma unroll 1
    for (int i = 0; i < CELLS; i++) {
        const int row = first + i * ROWS_APART;
        const int64_t b = top + row, at = b * S + s;
        if (b >= B || s >= S)
            continue;
        const float *sums = stages + row * tile::SUM_PITCH + unit;
        float *g = gates + (t * B + b) * 3 * S + s,
              z[3] = { sums[0], sums[UNITS], sums[2 * UNITS] };
        if (!(z[0] - z[0] + z[1] - z[1] + z[2] - z[2] == 0))
            for (int j = 0; j < 3; j++) {
                z[j] = g[j * S];
                if (z[j] == z[j]) // else it is no number whatever is added
                    z[j] += sum_products(state + b * S, weights + (j * S + s) * K, S);
            }
        const lltm_gates a = lltm_gates::activate(z[0] + by[0], z[1] + by[1], z[2] + by[2]);
        const float made_cell = old_cells[row * tile::SUM_PITCH + unit] + a.candidate * a.i;
        const float made = tanh(made_cell) * a.o;
        if (KEEP)
            a.store(g, S);
        cells[t * n + at] = made_cell;
        hs[t * n + at] = made;
        if (t == last) {
            h[at] = made;
            c[at] = made_cell;
        }
    }
}
#endif
