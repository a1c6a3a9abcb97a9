// One step of the cell of lltm.cuh, whose gates are [old_h, input] @ weights.T + bias.
//
//! op      lltm(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell) \
//!           -> (Tensor new_h, Tensor new_cell)
//! doc     One step of long-long-term memory: an LSTM without forget gate, its candidate an ELU.
//! doc     gates = [old_h, input] @ weights.T + bias; in thirds: input, output, candidate.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   input [B, I]; old_h old_cell new_h new_cell [B, S]
//! shape   weights [3*S, S + I]; bias [3*S]
//! batch   B
//! let     K = S + I; TILES = cdiv(K, 32); SMALL = cuda && max(B, 1)*max(S, 1)*K*3 <= 4194304 && K <= 1048576
//! let     JOINED = gcd(gcd(S, I), cpu ? 16 : 16 / sizeof(scalar_t)); X_PIECES = B*K / JOINED
// Tiles of 32 rows by 16 units.
//! let     CELL_TILES = cdiv(B, 32)*cdiv(S, 16)
//! let     TILED = cuda && sizeof(scalar_t) == 2 && !SMALL && S % 8 == 0 && I % 8 == 0 && K <= 1280 && CELL_TILES <= 132
//! let     UNITS = max(32, min(256, pow2(S))); BIAS_BLOCKS = cuda && B <= 1024 ? cdiv(3*S, 8) : 0
//! saved   gates acc_t [B, 3*S]
//! scratch d_gates [B, 3*S]
//! scratch x [SMALL ? 0 : B, K]; grad_x [SMALL ? 0 : B, K]
//! empty   gates grad_input grad_old_h grad_bias
//! example input=[3,5] weights=[21,12] bias=[21] old_h=[3,7] old_cell=[3,7]
//! example input=[16,32] weights=[384,160] bias=[384] old_h=[16,128] old_cell=[16,128]
//! example input=[96,64] weights=[384,192] bias=[384] old_h=[96,128] old_cell=[96,128]
//
//! forward
//!   kernel lltm_forward_small when SMALL grid cdiv(B, 16)*cdiv(S, 4)
//!   kernel lltm_forward_tile when TILED grid CELL_TILES block 256 shared 61440 bind KEEP = wanted(gates)
//!   kernel lltm_join when !SMALL && !TILED threads X_PIECES
//!   matmul gates = x @ weights.T when !SMALL && !TILED
//!   kernel lltm_forward_cells when !SMALL && !TILED grid B*cdiv(S, UNITS) block UNITS bind KEEP = wanted(gates)
//
//! backward grad_input grad_weights grad_bias grad_old_h grad_old_cell
//!   kernel lltm_backward_small when SMALL
//!   bind WEIGHT_BLOCKS = (wanted(grad_weights) || wanted(grad_bias)) * cdiv(3*S, 8)
//!   bind X_BLOCKS = (wanted(grad_old_h) || wanted(grad_input)) * cdiv(B, 2) * TILES
//!   grid (wanted(grad_weights) || wanted(grad_bias)) * cdiv(3*S, 8) + \
//!        (wanted(grad_old_h) || wanted(grad_input)) * cdiv(B, 2) * TILES + \
//!        wanted(grad_old_cell) * cdiv(B*S, 256)
//!   kernel lltm_join when cpu && wanted(grad_weights) threads X_PIECES
//!   kernel lltm_backward_cells when !SMALL grid B*cdiv(S, UNITS) block UNITS
//!   bind JOINS = cuda*wanted(grad_weights)*X_PIECES
//!   matmul grad_weights = d_gates.T @ x when !SMALL
//!   matmul grad_x = d_gates @ weights when !SMALL && wanted(grad_old_h) && wanted(grad_input)
//!   kernel lltm_finish when !SMALL && wanted(grad_old_h) && wanted(grad_input)
//!   bind SUMS = wanted(grad_bias)*BIAS_BLOCKS
//!   grid wanted(grad_bias)*BIAS_BLOCKS + cdiv(X_PIECES, 256)
//!   matmul grad_old_h = d_gates @ matrix(weights, 3*S, S, K) when !SMALL && !wanted(grad_input)
//!   matmul grad_input = d_gates @ matrix(weights, 3*S, I, K, S) when !SMALL && !wanted(grad_old_h)
//!   sum grad_bias = d_gates over 0
//!   when !SMALL && (BIAS_BLOCKS == 0 || !wanted(grad_old_h) || !wanted(grad_input))

#include "lltm_tile.cuh"

// What the gates are made of: element k of [old_h, input] in row b.
template <class T>
__device__ __forceinline__ acc_t load_x(const T *old_h, const T *input, int64_t b, int64_t k,
                                        int64_t S, int64_t I)
{
    return k < S ? opd::load(old_h + b * S + k) : opd::load(input + b * I + k - S);
}

// Of N elements side by side, all at once where both lie so.
template <int N, class T> __device__ __forceinline__ void copy_piece(T *to, const T *from)
{
    if (N > 1 && opd::is_aligned(to, N * sizeof(T)) && opd::is_aligned(from, N * sizeof(T)))
        opd::store_vec(to, opd::load_vec<N>(from));
    else
        for (int e = 0; e < N; e++)
            to[e] = from[e];
}

// All of forward in one launch, where launches are what takes the time. A block makes 4 units of 16
// rows; 4 threads share the sums of a unit.
template <class T>
__global__ void lltm_forward_small(const T *__restrict__ input, const T *__restrict__ weights,
                                   const T *__restrict__ bias, const T *__restrict__ old_h,
                                   const T *__restrict__ old_cell, T *__restrict__ new_h,
                                   T *__restrict__ new_cell, acc_t *__restrict__ gates, int B,
                                   int I, int S)
{
    enum { ROWS = 16, UNITS = 4, PARTS = 4, DEPTH = 160, STRIDE = DEPTH + 4 };
    __shared__ acc_t x[ROWS * STRIDE], w[3 * UNITS * STRIDE];
    const int across = (S + UNITS - 1) / UNITS, block = (int)blockIdx.x;
    const int K = S + I;
    const int top = block / across * ROWS, left = block % across * UNITS;
    const int part = (int)threadIdx.x % PARTS, unit = (int)threadIdx.x / PARTS % UNITS,
              row = (int)threadIdx.x / (PARTS * UNITS);
    acc_t sum[3] = {};
    for (int from = 0; from < K; from += DEPTH) {
#pragma unroll
        for (int i = (int)threadIdx.x; i < ROWS * DEPTH; i += 256) {
            const int b = top + i / DEPTH, k = from + i % DEPTH;
            x[i / DEPTH * STRIDE + i % DEPTH] = b < B && k < K ? load_x(old_h, input, b, k, S, I)
                                                               : acc_t(0);
        }
#pragma unroll
        for (int i = (int)threadIdx.x; i < 3 * UNITS * DEPTH; i += 256) {
            const int s = left + i / DEPTH % UNITS, k = from + i % DEPTH;
            const int r = i / DEPTH / UNITS * S + s;
            w[i / DEPTH * STRIDE + i % DEPTH] = s < S && k < K ? opd::load(weights + r * K + k)
                                                               : acc_t(0);
        }
        __syncthreads();
#pragma unroll 16
        for (int k = part; k < DEPTH; k += PARTS)
#pragma unroll
            for (int g = 0; g < 3; g++)
                sum[g] += x[row * STRIDE + k] * w[(g * UNITS + unit) * STRIDE + k];
        __syncthreads();
    }
#pragma unroll
    for (int g = 0; g < 3; g++) {
        sum[g] += __shfl_xor_sync(0xffffffffu, sum[g], 1);
        sum[g] += __shfl_xor_sync(0xffffffffu, sum[g], 2);
    }
    const int b = top + row, s = left + unit;
    if (part != 0 || b >= B || s >= S)
        return;
    const lltm_gates a = lltm_gates::activate(sum[0] + opd::load(bias + s),
                                              sum[1] + opd::load(bias + S + s),
                                              sum[2] + opd::load(bias + 2 * S + s));
    const acc_t cell = opd::load(old_cell + b * S + s) + a.candidate * a.i;
    a.store(gates + b * 3 * S + s, S);
    opd::store(new_cell + b * S + s, cell);
    opd::store(new_h + b * S + s, a.make_h(cell));
}

#ifndef OPD_CPU
// All of forward in one launch, on tensor cores, where all tiles run at once.
template <class T>
__global__ void __launch_bounds__(256, 2)
    lltm_forward_tile(const T *__restrict__ input, const T *__restrict__ weights,
                      const T *__restrict__ bias, const T *__restrict__ old_h,
                      const T *__restrict__ old_cell, T *__restrict__ new_h,
                      T *__restrict__ new_cell, float *gates, int64_t B, int64_t S, int64_t K,
                      bool KEEP)
{
    const auto given = [&](int64_t b, int64_t s) {
        return lltm_given{ {}, opd::load(old_cell + b * S + s) };
    };
    const auto finish = [&](int64_t b, int64_t s, const lltm_gates &a, float cell) {
        if (KEEP)
            a.store(gates + b * 3 * S + s, S);
        opd::store(new_cell + b * S + s, cell);
        opd::store(new_h + b * S + s, a.make_h(cell));
    };
    make_lltm_tile<16, false, true>(weights, bias, old_h, input, B, S, K, given, finish);
}
#endif

// x = [old_h, input], so many elements a thread as lie side by side in both: one product with all of
// it takes less time than two with the halves.
template <int JOINED, class T>
__device__ __forceinline__ void join(T *x, const T *old_h, const T *input, int64_t S, int64_t I,
                                     int64_t count)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t b = i * JOINED / (S + I), k = i * JOINED % (S + I);
        copy_piece<JOINED>(x + i * JOINED, k < S ? old_h + b * S + k : input + b * I + k - S);
    }
}

// Before the product.
template <class T, int JOINED>
__global__ void lltm_join(const T *__restrict__ input, const T *__restrict__ old_h,
                          T *__restrict__ x, int64_t I, int64_t S, int64_t count)
{
    join<JOINED>(x, old_h, input, S, I, count);
}

// After the product: activates the gates where they lie.
template <class T>
__global__ void lltm_forward_cells(const T *__restrict__ bias, const T *__restrict__ old_cell,
                                   T *__restrict__ new_h, T *__restrict__ new_cell,
                                   acc_t *__restrict__ gates, int64_t S, bool KEEP)
{
    const lltm_place<1> place(S);
    const int64_t s = place.s, at = place.b * S + s;
    if (s >= S)
        return;
    acc_t *g = gates + place.b * 3 * S + s;
    const lltm_gates a = lltm_gates::activate(g[0] + opd::load(bias + s),
                                              g[S] + opd::load(bias + S + s),
                                              g[2 * S] + opd::load(bias + 2 * S + s));
    const acc_t cell = opd::load(old_cell + at) + a.candidate * a.i;
    if (KEEP)
        a.store(g, S);
    opd::store(new_cell + at, cell);
    opd::store(new_h + at, a.make_h(cell));
}

template <class T>
__device__ __forceinline__ lltm_slopes find_slopes(const acc_t *gates, const T *new_cell,
                                                   const T *grad_new_h, const T *grad_new_cell,
                                                   int64_t b, int64_t s, int64_t S)
{
    const int64_t at = b * S + s;
    return lltm_slopes(lltm_gates::load(gates + b * 3 * S + s, S), opd::load(new_cell + at),
                       opd::load(grad_new_h + at), opd::load(grad_new_cell + at));
}

// All of backward in one launch. The slopes are cheap, so each block works out those it needs:
// blocks make 8 rows of grad_weights, or 2 rows of 32 columns of the gradient of [old_h, input], or
// 256 elements of grad_old_cell.
template <class T>
__global__ void lltm_backward_small(const T *__restrict__ input, const T *__restrict__ weights,
                                    const T *__restrict__ old_h, const T *__restrict__ new_cell,
                                    const acc_t *__restrict__ gates,
                                    const T *__restrict__ grad_new_h,
                                    const T *__restrict__ grad_new_cell, T *__restrict__ grad_input,
                                    T *__restrict__ grad_weights, T *__restrict__ grad_bias,
                                    T *__restrict__ grad_old_h, T *__restrict__ grad_old_cell,
                                    int B, int I, int S, int TILES,
                                    int WEIGHT_BLOCKS, int X_BLOCKS)
{
    enum { ROWS = 8, DEPTH = 64, X_ROWS = 2, UNITS = 256 / X_ROWS };
    __shared__ acc_t d[3 * 256], parts[8][X_ROWS][32]; // slopes, of either kind of block
    const int K = S + I;
    const int id = (int)threadIdx.x;
    int block = (int)blockIdx.x;
    if (block < WEIGHT_BLOCKS) {
        const int top = block * ROWS;
        for (int first = 0; first < K + 1; first += 256) { // column K is the bias's
            const int k = first + id, pitch = k < S ? S : I;
            const T *x = k < S ? old_h + k : input + k - S;
            acc_t sum[ROWS] = {};
            for (int from = 0; from < B; from += DEPTH) {
                __syncthreads();
                for (int i = id; i < ROWS * DEPTH; i += 256) {
                    const int r = top + i / DEPTH, b = from + i % DEPTH;
                    d[i] = r < 3 * S && b < B ? find_slopes(gates, new_cell, grad_new_h,
                                                            grad_new_cell, b, r % S, S)
                                                    .g[r / S]
                                              : acc_t(0);
                }
                __syncthreads();
                const int count = k <= K ? min(B - from, (int)DEPTH) : 0;
#pragma unroll 8
                for (int j = 0; j < count; j++) {
                    const acc_t v = k < K ? opd::load(x + (from + j) * pitch) : acc_t(1);
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        sum[r] += d[r * DEPTH + j] * v;
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (top + r < 3 * S && k < K && grad_weights)
                    opd::store(grad_weights + (top + r) * K + k, sum[r]);
                if (top + r < 3 * S && k == K && grad_bias)
                    opd::store(grad_bias + top + r, sum[r]);
            }
        }
        return;
    }
    block -= WEIGHT_BLOCKS;
    if (block < X_BLOCKS) {
        const int top = block / TILES * X_ROWS, k = block % TILES * 32 + id % 32;
        acc_t sum[X_ROWS] = {};
        for (int from = 0; from < S; from += UNITS) {
            __syncthreads();
            const int b = top + id / UNITS, s = from + id % UNITS;
            const bool there = b < B && s < S;
            const lltm_slopes of = find_slopes(gates, new_cell, grad_new_h, grad_new_cell,
                                               there ? b : 0, there ? s : 0, S);
#pragma unroll
            for (int g = 0; g < 3; g++)
                d[g * 256 + id] = there ? of.g[g] : acc_t(0);
            __syncthreads();
#pragma unroll 4
            for (int u = id / 32; u < UNITS; u += 8)
#pragma unroll
                for (int g = 0; g < 3; g++) {
                    const acc_t w = from + u < S && k < K
                                        ? opd::load(weights + (g * S + from + u) * K + k)
                                        : acc_t(0);
#pragma unroll
                    for (int row = 0; row < X_ROWS; row++)
                        sum[row] += d[g * 256 + row * UNITS + u] * w;
                }
        }
#pragma unroll
        for (int row = 0; row < X_ROWS; row++)
            parts[id / 32][row][id % 32] = sum[row];
        __syncthreads();
        const int b = top + id / 32;
        if (id >= 32 * X_ROWS || b >= B || k >= K)
            return;
        acc_t total = 0;
        for (int part = 0; part < 8; part++)
            total += parts[part][id / 32][id % 32];
        if (k < S && grad_old_h)
            opd::store(grad_old_h + b * S + k, total);
        if (k >= S && grad_input)
            opd::store(grad_input + b * I + k - S, total);
        return;
    }
    const int at = (block - X_BLOCKS) * 256 + id;
    if (at < B * S && grad_old_cell)
        opd::store(grad_old_cell + at,
                   find_slopes(gates, new_cell, grad_new_h, grad_new_cell, at / S, at % S, S).cell);
}

// Before the products. On a GPU it makes x, too, of which JOINS pieces are wanted.
template <class T, int JOINED>
__global__ void lltm_backward_cells(const T *__restrict__ input, const T *__restrict__ old_h,
                                    const T *__restrict__ new_cell, const acc_t *__restrict__ gates,
                                    const T *__restrict__ grad_new_h,
                                    const T *__restrict__ grad_new_cell,
                                    T *__restrict__ grad_old_cell, T *__restrict__ d_gates,
                                    T *__restrict__ x, int64_t I, int64_t S, int64_t JOINS)
{
    join<JOINED>(x, old_h, input, S, I, JOINS);
    const lltm_place<1> place(S);
    const int64_t b = place.b, s = place.s;
    if (s >= S)
        return;
    const lltm_slopes d = find_slopes(gates, new_cell, grad_new_h, grad_new_cell, b, s, S);
    for (int g = 0; g < 3; g++)
        opd::store(d_gates + (b * 3 + g) * S + s, d.g[g]);
    if (grad_old_cell)
        opd::store(grad_old_cell + b * S + s, d.cell);
}

// After the products, in one launch. The first SUMS blocks sum 8 columns of grad_bias, each by 32
// threads, where that is a GPU's; the others take the gradient of x apart, JOINED elements a thread.
template <class T, int JOINED>
__global__ void lltm_finish(const T *__restrict__ d_gates, const T *__restrict__ grad_x,
                            T *__restrict__ grad_input, T *__restrict__ grad_old_h,
                            T *__restrict__ grad_bias, int64_t B, int64_t I, int64_t S,
                            int64_t X_PIECES, int64_t SUMS)
{
    const int id = (int)threadIdx.x;
#ifndef OPD_CPU
    enum { COLUMNS = 8, ROWS = 32 };
    __shared__ acc_t parts[ROWS][COLUMNS];
    if (blockIdx.x < SUMS) {
        const int64_t column = (int64_t)blockIdx.x * COLUMNS + id % COLUMNS;
        acc_t sum = 0;
#pragma unroll 8
        for (int64_t b = id / COLUMNS; b < B && column < 3 * S; b += ROWS)
            sum += opd::load(d_gates + b * 3 * S + column);
        parts[id / COLUMNS][id % COLUMNS] = sum;
        __syncthreads();
        if (id >= COLUMNS || column >= 3 * S)
            return;
#pragma unroll
        for (int row = 1; row < ROWS; row++)
            sum += parts[row][id];
        opd::store(grad_bias + column, sum);
        return;
    }
#endif
    const int64_t i = (blockIdx.x - SUMS) * 256 + id;
    if (i >= X_PIECES)
        return;
    const int64_t b = i * JOINED / (S + I), k = i * JOINED % (S + I);
    copy_piece<JOINED>(k < S ? grad_old_h + b * S + k : grad_input + b * I + k - S,
                       grad_x + i * JOINED);
}
