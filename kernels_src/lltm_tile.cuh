// A step of lltm_sequence.cu in one launch, the product with h and the cell, and of lltm.cu.
//
// A block makes 2*UNITS rows by UNITS units. Its product is on tensor cores: of 16 bits, or of TF32
// where that is allowed. Else it is as exact as one of floats: each float is the sum of two of TF32
// but for 2^-23 of it, three of their four products count, and what eight terms give is added as
// floats, since the cores round sums towards zero. What is not finite has no such parts: sums that
// come out so are made again. What the gates take from inputs comes from memory meanwhile.
#pragma once
#include "lltm.cuh"
#ifndef OPD_CPU
#include "copy_to_shared.cuh"
#include "tensor_cores.cuh"

// A warp multiplies 32 rows by 48 columns of a stage: DEPTH words of each row of h, then of each row
// of weights; the cores take a word of 16-bit elements as they take one of TF32. Where a block has
// less than eight such parts its warps share the depth, in slices. Of a row's 16 bytes the place is
// turned by the row's number, so that those of 8 rows lie in different banks.
template <class T, int UNITS, bool EXACT> struct lltm_tile {
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
        STAGE = (ROWS + COLS) * DEPTH,
        STAGES = 3,
        SUM_PITCH = COLS + 8,
        M = WARP_ROWS / 16,
        N = WARP_COLS / 8,
        TOGETHER = EXACT && UNITS == 32 ? N : 2, // columns in flight: two blocks share registers
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

    // Where a row's k-th word is, of four that lie side by side.
    __device__ __forceinline__ static int place(int row, int k)
    {
        return row * DEPTH + (k ^ row % 8 * 4);
    }

    __device__ __forceinline__ void add(const uint32_t *stage)
    {
        const int lane = threadIdx.x % 32, row = top() + lane % 16,
                  col = ROWS + left() + lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int k = slice() * 8; k < DEPTH; k += SLICES * 8) {
            const uint32_t *a = stage + place(row, k + lane / 16 * 4),
                           *b = stage + place(col, k + lane / 8 % 2 * 4);
            uint32_t x[M][2][2], small_x[M][2][2];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_blocks<false>(x[m], shared_address(a + m * 16 * DEPTH));
#pragma unroll
            for (int i = 0; i < M * 4; i++)
                split(x[i / 4][i / 2 % 2][i % 2], small_x[i / 4][i / 2 % 2][i % 2]);
#pragma unroll
            for (int n = 0; n < N; n += TOGETHER) {
                uint32_t y[TOGETHER][2], small_y[TOGETHER][2];
#pragma unroll
                for (int i = 0; i < TOGETHER; i += 2)
                    load_blocks<false>(y + i, shared_address(b + (n + i) * 8 * DEPTH));
#pragma unroll
                for (int i = 0; i < TOGETHER * 2; i++)
                    split(y[i / 2][i % 2], small_y[i / 2][i % 2]);
                if constexpr (!EXACT) {
#pragma unroll
                    for (int i = 0; i < M * TOGETHER; i++)
                        multiply_words(sum[i % M][n + i / M], x[i % M][0], y[i / M]);
                } else {
                    // Between two products of the same sum there are those of all others.
                    float part[M * TOGETHER][4] = {};
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
    }

    __device__ __forceinline__ static void multiply_words(float *d, const uint32_t *a, const uint32_t *b)
    {
        if constexpr (sizeof(T) == 2)
            multiply(T(), d, a[0], a[1], a[2], a[3], b[0], b[1]);
        else
            multiply_tf32(d, a, b);
    }

    // x of floats is what is big of it from here on. What is not finite leaves a part that is none,
    // too.
    __device__ __forceinline__ static void split(uint32_t &x, uint32_t &small)
    {
        if constexpr (sizeof(T) == 4) {
            const float whole = __uint_as_float(x);
            const uint32_t big = round_to_tf32(whole);
            const float rest = whole - __uint_as_float(big);
            small = rest == rest ? round_to_tf32(rest) : 0x7fc00000u;
            if (EXACT || rest == rest)
                x = big;
            else if (whole != whole)
                x = 0x7fc00000u; // its digits might all be among those that TF32 has not
        }
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

// Of a row that is there or not, from any address. What is rare is no part of the kernel: to compile
// it there takes as long as all else.
template <int N, class T> __device__ __noinline__ void copy_each(T *to, const T *from, bool there)
{
    for (int e = 0; e < N; e++)
        copy_to_shared<1>(to + e, from + e, there);
}

template <class T>
__device__ __noinline__ float sum_products(const T *a, const T *b, int64_t n)
{
    float sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += a[k] * b[k];
    return sum;
}

// What a unit of a row has beside the product: of its gates, and its cell.
struct lltm_given {
    float gates[3], cell;
};

// The block's units from the product of h, or of [h, x] where JOINED, with weights, whose rows are
// K apart. given(b, s) is read meanwhile; finish(b, s, gates, cell) takes what is made.
template <int UNITS, bool EXACT, bool JOINED, class T, class Given, class Finish>
__device__ __forceinline__ void
make_lltm_tile(const T *__restrict__ weights, const T *__restrict__ bias, const T *h, const T *x,
               int64_t B, int64_t S, int64_t K, const Given &given, const Finish &finish)
{
    typedef lltm_tile<T, UNITS, EXACT> tile;
    enum {
        STAGES = tile::STAGES,
        PER_WORD = 4 / sizeof(T),
        COPIED = 4 * PER_WORD, // elements of 16 bytes
        DEPTH = tile::DEPTH * PER_WORD,
        CELLS = tile::ROWS * UNITS / tile::THREADS, // of a thread, in one column
        ROWS_APART = tile::THREADS / UNITS,
    };
    extern __shared__ float4 lltm_memory[];
    uint32_t *const stages = (uint32_t *)lltm_memory;
    float *const sums = (float *)lltm_memory; // once all stages have been read
    const uint32_t across = (uint32_t)((S + UNITS - 1) / UNITS);
    const int64_t top = blockIdx.x / across * tile::ROWS, left = blockIdx.x % across * UNITS;
    const int64_t deep = JOINED ? K : S, I = K - S;
    // A thread copies 16 bytes of two rows of h or x and of a unit's three of weights.
    static_assert(tile::THREADS * 4 == UNITS * tile::DEPTH, "a line for each unit");
    const int word = (int)threadIdx.x % (tile::DEPTH / 4) * 4,
              line = (int)threadIdx.x / (tile::DEPTH / 4), chunk = word * PER_WORD;
    const T *from_h = h + (top + line) * S + chunk,
            *from_x = JOINED ? x + (top + line) * I + chunk - S : nullptr,
            *from_weights = weights + (left + line) * K + chunk;
    const bool even = opd::is_aligned(h, 16) && opd::is_aligned(weights, 16) &&
                      (!JOINED || opd::is_aligned(x, 16));
    const int steps = (int)((deep + DEPTH - 1) / DEPTH);
    auto copy = [&](int step) {
        uint32_t *to = stages + step % STAGES * tile::STAGE + tile::place(line, word);
        const int64_t k = (int64_t)step * DEPTH;
        const bool of_x = JOINED && k + chunk >= S;
#pragma unroll
        for (int i = 0; i < 5; i++, to += UNITS * tile::DEPTH) {
            const T *from = i >= 2 ? from_weights + (i - 2) * S * K
                            : of_x ? from_x + i * UNITS * I
                                   : from_h + i * UNITS * S;
            const bool there = k + chunk < deep &&
                               (i < 2 ? top + line + i * UNITS < B : left + line < S);
            if (even)
                copy_to_shared<COPIED>((T *)to, there ? from + k : weights, there);
            else
                copy_each<COPIED>((T *)to, there ? from + k : weights, there);
        }
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps)
            copy(step);
        commit_copies();
    }
    const int unit = (int)threadIdx.x % UNITS, first = (int)threadIdx.x / UNITS;
    const int64_t s = left + unit;
    lltm_given had[CELLS] = {};
    float by[3] = {};
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const int64_t b = top + first + i * ROWS_APART;
        if (b < B && s < S)
            had[i] = given(b, s);
    }
#pragma unroll
    for (int g = 0; g < 3; g++)
        by[g] = s < S ? opd::load(bias + g * S + s) : 0.f;
    tile product = {};
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies_but<STAGES - 2>();
        if (step + STAGES - 1 < steps)
            copy(step + STAGES - 1);
        commit_copies();
        product.add(stages + step % STAGES * tile::STAGE);
    }
    __syncthreads();
    product.store(sums);
    __syncthreads();
    // What is added is put to the sums, so that the cells are a loop: compiled at a third of the
    // cost.
    float *const old_cells = sums + tile::ROWS * tile::SUM_PITCH; // where slice 1 was
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const int row = first + i * ROWS_APART;
#pragma unroll
        for (int g = 0; g < 3; g++)
            tile::collapse(sums, row, g * UNITS + unit, had[i].gates[g]);
        old_cells[row * tile::SUM_PITCH + unit] = had[i].cell;
    }
#pragma unroll (CELLS > 2 ? 1 : 2)
    for (int i = 0; i < CELLS; i++) {
        const int row = first + i * ROWS_APART;
        const int64_t b = top + row;
        if (b >= B || s >= S)
            continue;
        const float *sum = sums + row * tile::SUM_PITCH + unit;
        float z[3] = { sum[0], sum[UNITS], sum[2 * UNITS] };
        if (EXACT && !(z[0] - z[0] + z[1] - z[1] + z[2] - z[2] == 0)) {
            const lltm_given again = given(b, s);
            for (int j = 0; j < 3; j++) {
                z[j] = again.gates[j];
                if (z[j] == z[j]) // else it is no number whatever is added
                    z[j] += sum_products(h + b * S, weights + (j * S + s) * K, S);
            }
        }
        const lltm_gates a = lltm_gates::activate(z[0] + by[0], z[1] + by[1], z[2] + by[2]);
        finish(b, s, a, old_cells[row * tile::SUM_PITCH + unit] + a.candidate * a.i);
    }
}

template <int UNITS, bool EXACT, class T>
__global__ void __launch_bounds__(256, UNITS == 32 ? 1 : 2)
    lltm_tile_step(const T *__restrict__ weights, const T *__restrict__ bias,
                   const T *__restrict__ h0, const T *__restrict__ c0, T *hs, T *__restrict__ h,
                   T *__restrict__ c, float *gates, float *cells, int64_t t, int64_t n, int64_t B,
                   int64_t S, int64_t K, int64_t last, bool KEEP)
{
    const T *state = t > 0 ? hs + (t - 1) * n : h0;
    const auto given = [&](int64_t b, int64_t s) {
        lltm_given had;
#pragma unroll
        for (int g = 0; g < 3; g++)
            had.gates[g] = gates[t * 3 * n + (b * 3 + g) * S + s];
        had.cell = t > 0 ? cells[(KEEP ? (t - 1) * n : 0) + b * S + s] : opd::load(c0 + b * S + s);
        return had;
    };
    const auto finish = [&](int64_t b, int64_t s, const lltm_gates &a, float cell) {
        const int64_t at = b * S + s;
        const float made = a.make_h(cell);
        if (KEEP)
            a.store(gates + (t * B + b) * 3 * S + s, S);
        cells[(KEEP ? t * n : 0) + at] = cell;
        opd::store(hs + t * n + at, made);
        if (t == last) {
            opd::store(h + at, made);
            opd::store(c + at, cell);
        }
    };
    make_lltm_tile<UNITS, EXACT, false>(weights, bias, state, state, B, S, K, given, finish);
}
#endif
