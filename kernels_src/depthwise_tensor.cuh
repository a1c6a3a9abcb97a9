// The convolutions of depthwise_conv2d.cu for 16-bit types, on tensor cores.
//
// A row of the window is a product with a band matrix: eight output columns from x on are the
// input's columns from x*SW - PW - LEAD on, times a matrix of 8 columns whose element (j, n) is
// weight[kh][kw] where j = LEAD + n*SW + kw*DW, and 0 elsewhere. LEAD makes the first of them a
// multiple of 8 of a row in shared memory, as ldmatrix has to have it. Most of the products are
// with zeros, and still they cost a fraction of what as many multiplications of floats do, and the
// bytes go from memory to the product without being converted or loaded once more for each tap.
#pragma once
#include "depthwise_tile.cuh"
#include "tensor_cores.cuh"
#ifndef OPD_CPU

enum { TENSOR_THREADS = 128, TENSOR_WARPS = TENSOR_THREADS / 32 };

template <int KW, int SW, int DW, int LEAD, int TILES> struct band {
    enum {
        DEPTH = (LEAD + 7 * SW + (KW - 1) * DW) / 8 + 1, // of the matrix, in blocks of 8
        BLOCKS = (TILES - 1) * SW + DEPTH,               // of a row of the tile
        PITCH = (BLOCKS | 1) * 8,   // odd, so that 8 rows lie in different banks
        PAIRS = 8 * DEPTH + 7 * SW, // of neighbours in a column of the matrix, whichever column
        ZERO = LEAD + 7 * SW        // the pair that begins with kw = 0
    };
};

// The pairs of the band matrix of every row of the window; FLIP turns it round.
template <class BAND, int KH, int KW, int DW, bool FLIP, class T>
__device__ __forceinline__ void fill_pairs(uint32_t *pairs, const T *weight)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < KH * BAND::PAIRS; i += TENSOR_THREADS) {
        uint32_t pair = 0;
        for (int e = 0; e < 2; e++) {
            const int at = i % BAND::PAIRS - BAND::ZERO + e;
            const int k = i / BAND::PAIRS * KW + at / DW;
            if (at >= 0 && at % DW == 0 && at / DW < KW)
                pair |= (uint32_t)weight[FLIP ? KH * KW - 1 - k : k].x << 16 * e;
        }
        pairs[i] = pair;
    }
}

// Stores one row of each of a warp's 8 groups of 4 lanes, of which each has two neighbours of each
// tile. Where it can be, lanes exchange them so that four write 32 bytes at once.
template <int TILES, class T>
__device__ __forceinline__ void store_row(T *out, const uint32_t (&words)[TILES + 1], int columns,
                                          bool row_inside, bool by_four, bool by_two)
{
    const int lane = threadIdx.x % 32, quad = lane % 4, from = lane / 4 * 4 + quad % 2 * 2;
    if (by_four) {
#pragma unroll
        for (int t = 0; t < TILES; t += 2) {
            const uint32_t left = __shfl_sync(~0u, words[t], from),
                           right = __shfl_sync(~0u, words[t], from + 1),
                           next_left = __shfl_sync(~0u, words[t + 1], from),
                           next_right = __shfl_sync(~0u, words[t + 1], from + 1);
            const int x = t * 8 + quad * 4;
            if (row_inside && x < columns && (quad < 2 || t + 1 < TILES))
                *(uint2 *)(out + x) = quad < 2 ? uint2{ left, right }
                                               : uint2{ next_left, next_right };
        }
        return;
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int x = t * 8 + quad * 2;
        if (!row_inside || x >= columns)
            continue;
        if (by_two) {
            *(uint32_t *)(out + x) = words[t];
            continue;
        }
        out[x].x = (uint16_t)words[t];
        if (x + 1 < columns)
            out[x + 1].x = (uint16_t)(words[t] >> 16);
    }
}

// A warp makes 16 rows of outputs at a time, whichever images they are of, row by row of the
// window.
template <class T, int KH, int KW, int SW, int DW, int LEAD, int EVEN, int TILES, bool ALL,
          bool FLIP>
__device__ __forceinline__ void convolve_tensor(const T *__restrict__ input,
                                                const T *__restrict__ weight,
                                                const T *__restrict__ bias, T *__restrict__ output,
                                                const tile_shape &s)
{
    typedef band<KW, SW, DW, LEAD, TILES> B;
    constexpr bool KEEP = KH * B::DEPTH <= 24; // the matrices of all rows, in registers
    extern __shared__ uint4 shared[];
    uint32_t *pairs = (uint32_t *)shared;
    T *tile = (T *)(shared + (KH * B::PAIRS + 3) / 4);
    const int in_image = s.ALONG * s.DOWN, group = blockIdx.x / in_image;
    const tile_place at(s, (int)(blockIdx.x % in_image) + group / s.CM * in_image, group % s.CM);
    const int C = s.CM / s.M, channel = at.channel, ow0 = at.ow * (TILES * 8);
    const int64_t plane = (int64_t)s.H * s.W;
    const int left = ow0 * SW - s.PW - LEAD;
    if (ALL) {
        fill_zeros((uint4 *)tile, at.images * s.HALO_H * (B::PITCH / 8));
        __syncthreads();
    }
    fill<EVEN, B::BLOCKS * 8, B::PITCH, ALL>(
        tile, input + ((int64_t)at.n * C + channel / s.M) * plane,
        planes{ C * plane, at.images, at.oh * s.SH - s.PH, s.H, left, s.W, s.HALO_H, s.HW });
    weight += (int64_t)channel * (KH * KW);
    fill_pairs<B, KH, KW, DW, FLIP>(pairs, weight);
    wait_for_copies();

    const int lane = threadIdx.x % 32, quad = lane % 4, total = at.images * s.TILE_H;
    const float start = bias ? opd::load(bias + channel) : 0.f;
    const bool by_four = s.OW % 4 == 0 && opd::is_aligned(output, 8),
               by_two = s.OW % 2 == 0 && opd::is_aligned(output, 4);
    const uint32_t *mine = pairs + B::ZERO - LEAD + 2 * quad - lane / 4 * SW;
    uint32_t kept[KEEP ? KH * B::DEPTH : 1];
#pragma unroll
    for (int i = 0; KEEP && i < KH * B::DEPTH; i++)
        kept[KEEP ? i : 0] = mine[i / B::DEPTH * B::PAIRS + i % B::DEPTH * 8];
    const int first = -left / 8, end = (s.W - left + 7) / 8; // the blocks with input in them
    for (int m0 = threadIdx.x / 32 * 16; m0 < total; m0 += TENSOR_WARPS * 16) {
        const int m = min(m0 + lane % 16, total - 1), n = m / s.TILE_H, y = m - n * s.TILE_H;
        const T *row = tile + (n * s.HALO_H + y * s.SH) * B::PITCH;
        uint32_t from = shared_address(row + lane / 16 * 8);
        float sum[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES * 4; t++)
            sum[t / 4][t % 4] = start;
#pragma unroll(KEEP ? KH : 1)
        for (int kh = 0; kh < KH; kh++, from += s.DH * (int)(B::PITCH * sizeof(T))) {
            uint32_t a[B::BLOCKS + 1][2], w[B::DEPTH];
#pragma unroll
            for (int p = 0; p < B::BLOCKS; p += 2)
                load_blocks<false>(a + p, from + p * 16);
#pragma unroll
            for (int i = 0; i < B::DEPTH; i++)
                w[i] = KEEP ? kept[KEEP ? kh * B::DEPTH + i : 0] : mine[kh * B::PAIRS + i * 8];
#pragma unroll
            for (int i = 0; i < B::DEPTH; i += 2)
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const int k = t * SW + i;
                    if (B::DEPTH > 4 && (k + 1 < first || k >= end))
                        continue;
                    if (i + 1 < B::DEPTH)
                        multiply(T(), sum[t], a[k][0], a[k][1], a[k + 1][0], a[k + 1][1], w[i],
                                 w[(i + 1) % B::DEPTH]);
                    else
                        multiply(T(), sum[t], a[k][0], a[k][1], w[i]);
                }
        }
        bool nan = false;
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            const int m = m0 + lane / 4 + lower * 8, n = m / s.TILE_H, y = at.oh + m - n * s.TILE_H;
            uint32_t words[TILES + 1] = {};
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const float u = sum[t][lower * 2], v = sum[t][lower * 2 + 1];
                nan |= u != u || v != v;
                words[t] = T(u).x | (uint32_t)T(v).x << 16;
            }
            store_row<TILES>(output + (((int64_t)(at.n + n) * s.CM + channel) * s.OH + y) * s.OW +
                                 ow0,
                             words, s.OW - ow0, m < total && y < s.OH, by_four, by_two);
        }
        if (!__any_sync(~0u, nan))
            continue;
            // A zero of the band may have met an infinity: these rows once more, term by term.
#pragma unroll 1
        for (int i = lane; i < 16 * TILES * 8; i += 32) {
            const int m = m0 + i / (TILES * 8), n = m / s.TILE_H, y = m - n * s.TILE_H;
            const int x = i % (TILES * 8);
            if (m >= total || at.oh + y >= s.OH || ow0 + x >= s.OW)
                continue;
            const T *from = tile + (n * s.HALO_H + y * s.SH) * B::PITCH + x * SW + LEAD;
            float sum = start;
#pragma unroll 1
            for (int k = 0; k < KH * KW; k++)
                sum += opd::load(weight + (FLIP ? KH * KW - 1 - k : k)) *
                       opd::load(from + k / KW * s.DH * B::PITCH + k % KW * DW);
            opd::store(output + (((int64_t)(at.n + n) * s.CM + channel) * s.OH + at.oh + y) * s.OW +
                           ow0 + x,
                       sum);
        }
    }
}

// For each row kh of the window and over all rows of outputs, products of the input's columns with
// those of grad_output: element (j, n) belongs to tap kw where j = LEAD + n*SW + kw*DW, whichever
// tile it is of, so that all tiles are summed into one matrix of 8 columns, whose diagonals are
// added last. The rows of outputs are what a product sums over, 16 of them at a time. WARPS_KH
// warps share the rows of the window, the others those of outputs. The bias's gradient is the
// product of grad_output with ones.
template <class T, int KH, int KW, int SW, int DW, int LEAD, int EVEN, int OUT_EVEN, int TILES,
          bool ALL, int WARPS_KH>
__global__ void __launch_bounds__(TENSOR_THREADS)
    depthwise_grad_weight_tensor(const T *__restrict__ input, const T *__restrict__ grad_output,
                                 acc_t *__restrict__ partial, tile_shape s, int PARTS,
                                 int ALL_TILES)
{
    typedef band<KW, SW, DW, LEAD, TILES> B;
    constexpr int OUT_PITCH = (TILES | 1) * 8, HALVES = (B::DEPTH + 1) / 2,
                  WARPS_ROW = TENSOR_WARPS / WARPS_KH, EACH = (KH + WARPS_KH - 1) / WARPS_KH;
    extern __shared__ uint4 shared[];
    const int zero_row = s.IMAGES * s.HALO_H;
    const int out_rows = s.IMAGES * s.TILE_H,
              buffer = (zero_row + 1) * B::PITCH + out_rows * OUT_PITCH + 8;
    const int channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS, C = s.CM / s.M;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kh0 = warp % WARPS_KH * EACH, share = (ALL_TILES + PARTS - 1) / PARTS;
    const int64_t plane = (int64_t)s.H * s.W, out_plane = (int64_t)s.OH * s.OW;
    const uint32_t ones = T(1.f).x * 0x10001u;
    float sum[EACH][HALVES][4] = {}, sum_bias[4] = {};
    // Two tiles lie in shared memory: while one is worked on, the next comes.
    const auto fetch = [&](int b) {
        const tile_place at(s, b, channel);
        const int ow0 = at.ow * (TILES * 8);
        T *tile = (T *)shared + b % 2 * buffer;
        fill<EVEN, B::BLOCKS * 8, B::PITCH, ALL>(
            tile, input + ((int64_t)at.n * C + channel / s.M) * plane,
            planes{ C * plane, at.images, at.oh * s.SH - s.PH, s.H, ow0 * SW - s.PW - LEAD, s.W,
                    s.HALO_H, s.HW });
        fill<OUT_EVEN, TILES * 8, OUT_PITCH, ALL>(
            tile + (zero_row + 1) * B::PITCH,
            grad_output + ((int64_t)at.n * s.CM + channel) * out_plane,
            planes{ s.CM * out_plane, at.images, at.oh, min(s.OH, at.oh + s.TILE_H), ow0, s.OW,
                    s.TILE_H, s.OHW });
    };
    const int begin = part * share, end = min(ALL_TILES, begin + share);
    fill_zeros(shared, buffer / 4);
    for (int b = begin - 1; b < end; b++) {
        wait_for_copies();
        if (b + 1 < end)
            fetch(b + 1);
        if (b < begin)
            continue;
        const int total = tile_place(s, b, channel).images * s.TILE_H;
        const T *tile = (T *)shared + b % 2 * buffer, *out_tile = tile + (zero_row + 1) * B::PITCH;
        for (int m0 = warp / WARPS_KH * 16; m0 < total; m0 += 16 * WARPS_ROW) {
            const int m = m0 + lane % 16, n = m / s.TILE_H, y = m - n * s.TILE_H;
            const bool inside = m < total;
            const int step = inside ? s.DH * (int)(B::PITCH * sizeof(T)) : 0;
            uint32_t from = shared_address(
                tile + (inside ? n * s.HALO_H + y * s.SH : zero_row) * B::PITCH + lane / 16 * 8);
            uint32_t g[TILES + 1][2];
            from += kh0 * step;
#pragma unroll
            for (int t = 0; t < TILES; t += 2)
                load_blocks<true>(g + t, shared_address((inside ? out_tile + m * OUT_PITCH
                                                                : tile + zero_row * B::PITCH) +
                                                        (t + lane / 16) * 8));
#pragma unroll
            for (int t = 0; kh0 == 0 && t < TILES; t++)
                multiply(T(), sum_bias, ones, ones, ones, ones, g[t][0], g[t][1]);
#pragma unroll
            for (int k = 0; k < EACH && kh0 + k < KH; k++, from += step) {
                uint32_t a[B::BLOCKS + 1][2];
#pragma unroll
                for (int p = 0; p < B::BLOCKS; p += 2)
                    load_blocks<true>(a + p, from + p * 16);
#pragma unroll
                for (int i = 0; i < TILES * HALVES; i++) {
                    const int t = i / HALVES, half = i % HALVES, k8 = t * SW + 2 * half;
                    const bool whole = 2 * half + 1 < B::DEPTH;
                    multiply(T(), sum[k][half], a[k8][0], whole ? a[k8 + whole][0] : 0, a[k8][1],
                             whole ? a[k8 + whole][1] : 0, g[t][0], g[t][1]);
                }
            }
        }
    }
    __syncthreads();
    // Lane 4*g + q has columns 2*q and 2*q + 1 of rows g and g + 8.
    constexpr int ROWS = HALVES * 16, WIDTH = 9;
    float *sums = (float *)shared; // [TENSOR_WARPS][ROWS][WIDTH]
    float *to = partial + ((int64_t)part * s.CM + channel) * (KH * KW + 1);
    float kept[EACH][HALVES * 4]; // not in registers: one loop for all rows compiles soon
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int i = 0; i < HALVES * 4; i++)
            kept[k][i] = sum[k][i / 4][i % 4];
#pragma unroll 1
    for (int k = 0; k < EACH; k++) {
#pragma unroll
        for (int i = 0; i < HALVES * 4; i++)
            sums[(warp * ROWS + i / 4 * 16 + lane / 4 + i % 4 / 2 * 8) * WIDTH + lane % 4 * 2 +
                 i % 2] = kept[k][i];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < WARPS_KH * KW; i += TENSOR_THREADS) {
            const int kh = i / KW * EACH + k, kw = i % KW;
            float total = 0;
#pragma unroll 1
            for (int r = 0; r < WARPS_ROW * 8; r++)
                total += sums[((i / KW + r / 8 * WARPS_KH) * ROWS + LEAD + r % 8 * SW + kw * DW) *
                                  WIDTH +
                              r % 8];
            if (kh < KH)
                to[kh * KW + kw] = total;
        }
        __syncthreads();
    }
    const float total = opd::block_reduce_sum<TENSOR_THREADS>(
        lane < 4 && kh0 == 0 ? sum_bias[0] + sum_bias[1] : 0.f);
    if (threadIdx.x == 0)
        to[KH * KW] = total;
}
#endif
