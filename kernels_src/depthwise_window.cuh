// The convolutions of depthwise_conv2d.cu for float and double with windows of 7 x 7 and more,
// where arithmetic is the bound: a thread's outputs lie side by side, 16 bytes of each of several
// rows, so that one row of input that it has loaded from shared memory serves all taps of all of
// them.
#pragma once
#include "depthwise_tile.cuh"
#ifndef OPD_CPU

enum { WINDOW_THREADS = 256, KEPT_TAPS = 49 }; // at most; so many weights lie in registers

template <class T, int KH, int KW, int SH, int SW, int DH, int DW, int LEAD, int EVEN, int TILES,
          int ROWS, bool ALL, bool FLIP>
__device__ __forceinline__ void convolve_window(const T *__restrict__ input,
                                                const T *__restrict__ weight,
                                                const T *__restrict__ bias, T *__restrict__ output,
                                                const tile_shape &s)
{
    constexpr int V = 16 / sizeof(T), DEPTH = (LEAD + (V - 1) * SW + (KW - 1) * DW) / V + 1;
    constexpr int BLOCKS = (TILES - 1) * SW + DEPTH, PITCH = (BLOCKS | 1) * V;
    constexpr int ROWS_IN = (ROWS - 1) * SH + (KH - 1) * DH + 1, TAPS = KH * KW;
    constexpr int ROW_TAPS = (KW + V - 1) / V * V; // of a row in shared memory
    constexpr bool KEEP = TAPS <= KEPT_TAPS && ROWS_IN <= 64;
    extern __shared__ uint4 shared[];
    T *table = (T *)shared, *tile = table + KH * ROW_TAPS;
    const int in_image = s.ALONG * s.DOWN, group = blockIdx.x / in_image;
    const tile_place at(s, (int)(blockIdx.x % in_image) + group / s.CM * in_image, group % s.CM);
    const int C = s.CM / s.M, channel = at.channel, ow0 = at.ow * (TILES * V);
    const int64_t plane = (int64_t)s.H * s.W;
    if (ALL) {
        fill_zeros((uint4 *)tile, at.images * s.HALO_H * (PITCH / V));
        __syncthreads();
    }
    fill<EVEN, BLOCKS * V, PITCH, ALL>(tile, input + ((int64_t)at.n * C + channel / s.M) * plane,
                                       planes{ C * plane, at.images, at.oh * s.SH - s.PH, s.H,
                                               ow0 * SW - s.PW - LEAD, s.W, s.HALO_H, s.HW });
    weight += (int64_t)channel * TAPS;
    T kept[KEEP ? TAPS : 1];
    if constexpr (KEEP) {
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            kept[k] = weight[FLIP ? TAPS - 1 - k : k];
    } else {
        for (int i = threadIdx.x; i < KH * ROW_TAPS; i += blockDim.x) {
            const int k = i / ROW_TAPS * KW + i % ROW_TAPS;
            table[i] = i % ROW_TAPS < KW ? weight[FLIP ? TAPS - 1 - k : k] : T(0);
        }
    }
    wait_for_copies();

    const acc_t start = bias ? bias[channel] : acc_t(0);
    const int strips = (s.TILE_H + ROWS - 1) / ROWS;
    const bool whole = s.OW % V == 0 && opd::is_aligned(output, 16);
    for (int i = threadIdx.x; i < at.images * strips * TILES; i += blockDim.x) {
        const int x = i % TILES * V, strip = i / TILES, n = strip / strips,
                  y = (strip - n * strips) * ROWS;
        const T *from = tile + (n * s.HALO_H + y * SH) * PITCH + x * SW;
        T sum[ROWS][V];
#pragma unroll
        for (int k = 0; k < ROWS * V; k++)
            sum[k / V][k % V] = start;
#pragma unroll(KEEP ? ROWS_IN : 1)
        for (int r = 0; r < ROWS_IN; r++, from += PITCH) {
            T v[DEPTH * V];
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                const opd::vec<T, V> block = opd::load_vec<V>(from + k * V);
#pragma unroll
                for (int e = 0; e < V; e++)
                    v[k * V + e] = block[e];
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                const int below = r - j * SH, kh = below / DH;
                if (below < 0 || kh >= KH || kh * DH != below)
                    continue;
#pragma unroll
                for (int k = 0; k < KW; k += V) {
                    opd::vec<T, V> w;
                    if constexpr (!KEEP)
                        w = opd::load_vec<V>(table + kh * ROW_TAPS + k);
#pragma unroll
                    for (int e = 0; e < V * V; e++) {
                        const int tap = k + e / V, c = e % V;
                        if (tap < KW)
                            sum[j][c] += (KEEP ? kept[KEEP ? kh * KW + tap : 0] : w[e / V]) *
                                         v[LEAD + c * SW + tap * DW];
                    }
                }
            }
        }
        T *out = output + (((int64_t)(at.n + n) * s.CM + channel) * s.OH + at.oh + y) * s.OW + ow0 +
                 x;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            if (y + j >= s.TILE_H || at.oh + y + j >= s.OH)
                break;
            opd::vec<T, V> block;
#pragma unroll
            for (int c = 0; c < V; c++) {
                block[c] = sum[j][c];
                if (!whole && ow0 + x + c < s.OW)
                    out[(int64_t)j * s.OW + c] = sum[j][c];
            }
            if (whole && ow0 + x < s.OW)
                opd::store_vec(out + (int64_t)j * s.OW, block);
        }
    }
}

// A thread sums GROUP neighbouring taps of a row of the window, along the rows of outputs, of which
// each team of threads that has all taps takes its own. The rows of the window are in groups of 8
// lanes, whose rows of input lie in different banks; grad_output is the same for all. Stride and
// dilation are 1.
template <class T, int KH, int KW, int LEAD, int EVEN, int OUT_EVEN, int TILES, int GROUP, bool ALL>
__global__ void __launch_bounds__(WINDOW_THREADS)
    depthwise_grad_weight_window(const T *__restrict__ input, const T *__restrict__ grad_output,
                                 acc_t *__restrict__ partial, tile_shape s, int PARTS,
                                 int ALL_TILES)
{
    constexpr int V = 16 / sizeof(T), DEPTH = (LEAD + V - 1 + KW - 1) / V + 1;
    constexpr int BLOCKS = TILES - 1 + DEPTH, PITCH = (BLOCKS | 1) * V, COLUMNS = TILES * V;
    constexpr int KH_LANES = (KH + 7) / 8 * 8, SEGMENTS = (KW + GROUP - 1) / GROUP,
                  TEAM = KH_LANES * SEGMENTS;
    constexpr int REACH = (LEAD + GROUP + 2 * V - 2) / V * V; // columns in registers
    extern __shared__ uint4 shared[];
    T *tile = (T *)shared, *out_tile = tile + s.IMAGES * s.HALO_H * PITCH;
    const int channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS, C = s.CM / s.M;
    const int team = threadIdx.x / TEAM, teams = blockDim.x / TEAM, me = threadIdx.x % TEAM;
    const int kh = me % KH_LANES, segment = me / KH_LANES;
    const bool works = kh < KH && team < teams;
    const int64_t plane = (int64_t)s.H * s.W, out_plane = (int64_t)s.OH * s.OW;
    const int share = (ALL_TILES + PARTS - 1) / PARTS;
    T sum[GROUP] = {}, sum_bias = 0;
    fill_zeros(shared, s.IMAGES * (s.HALO_H * (PITCH / V) + s.TILE_H * TILES));
    for (int b = part * share; b < min(ALL_TILES, (part + 1) * share); b++) {
        const tile_place at(s, b, channel);
        const int ow0 = at.ow * COLUMNS;
        __syncthreads();
        fill<EVEN, BLOCKS * V, PITCH, ALL>(tile,
                                           input + ((int64_t)at.n * C + channel / s.M) * plane,
                                           planes{ C * plane, at.images, at.oh - s.PH, s.H,
                                                   ow0 - s.PW - LEAD, s.W, s.HALO_H, s.HW });
        fill<OUT_EVEN, COLUMNS, COLUMNS, ALL>(
            out_tile, grad_output + ((int64_t)at.n * s.CM + channel) * out_plane,
            planes{ s.CM * out_plane, at.images, at.oh, min(s.OH, at.oh + s.TILE_H), ow0, s.OW,
                    s.TILE_H, s.OHW });
        wait_for_copies();
        for (int m = team; works && m < at.images * s.TILE_H; m += teams) {
            const int n = m / s.TILE_H, y = m - n * s.TILE_H;
            const T *g = out_tile + m * COLUMNS,
                    *from = tile + (n * s.HALO_H + y + kh) * PITCH + segment * GROUP;
            T v[REACH];
#pragma unroll
            for (int k = V; k < REACH; k++)
                v[k] = from[k - V];
#pragma unroll 2
            for (int c = 0; c < COLUMNS; c += V) {
                const opd::vec<T, V> gs = opd::load_vec<V>(g + c),
                                     next = opd::load_vec<V>(from + c + REACH - V);
#pragma unroll
                for (int k = 0; k < REACH; k++)
                    v[k] = k < REACH - V ? v[(k + V) % REACH] : next[k % V];
#pragma unroll
                for (int e = 0; e < V; e++) {
                    if (me == 0)
                        sum_bias += gs[e];
#pragma unroll
                    for (int k = 0; k < GROUP; k++)
                        sum[k] += gs[e] * v[LEAD + e + k];
                }
            }
        }
    }
    __syncthreads();
    T *sums = (T *)shared, *bias_sums = sums + blockDim.x * GROUP; // [threads][GROUP], [teams]
    acc_t *to = partial + ((int64_t)part * s.CM + channel) * (KH * KW + 1);
#pragma unroll
    for (int k = 0; k < GROUP; k++)
        sums[threadIdx.x * GROUP + k] = sum[k];
    if (me == 0 && team < teams)
        bias_sums[team] = sum_bias;
    __syncthreads();
    for (int i = threadIdx.x; i <= KH * KW; i += blockDim.x) {
        const int kw = i % KW, lane = kw / GROUP * KH_LANES + i / KW;
        acc_t total = 0;
        for (int r = 0; r < teams; r++)
            total += i == KH * KW ? bias_sums[r] : sums[(r * TEAM + lane) * GROUP + kw % GROUP];
        to[i] = total;
    }
}
#endif
