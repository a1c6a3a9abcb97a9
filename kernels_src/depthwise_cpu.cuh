// The convolutions of depthwise_conv2d.cu on the CPU: in tiles whose channels are vectors, or, of few
// channels and of what no tile has room for, in rows, whose compiler makes vectors of columns.
//
// A line is copied once, as acc_t and with zeros around it, for all rows that read it: so no column
// is a special case, and its neighbours in the next rows find it in the cache.
#pragma once
#include "depthwise_tile_cpu.cuh"
#ifdef OPD_CPU

enum {
    CPU_COLUMNS = 256, // summed side by side
    CPU_ROWS = 8,      // made by a block
    CPU_TAPS = 8,      // of a window that the compiler does not know, added at once
    CPU_LANES = 16,    // columns are added in such pieces
    CPU_ROOM = (CPU_TAPS + 1) * CPU_COLUMNS
};

__device__ __forceinline__ int64_t clamp(int64_t v, int64_t most)
{
    return max((int64_t)0, min(v, most));
}

__device__ __forceinline__ int64_t whole_lanes(int64_t n)
{
    return (n + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

// by / apart if that is a whole number below `end`, else -1.
__device__ __forceinline__ int64_t find_tap(int64_t by, int64_t apart, int64_t end)
{
    if (by < 0 || (apart != 1 && by % apart != 0))
        return -1;
    const int64_t tap = apart == 1 ? by : by / apart;
    return tap < end ? tap : -1;
}

// sum + the sum over i < rows, j < columns of a[i, j] * b[y, x], where y is (top + i*down) / apart
// and x (left + j*right) / across, of those that are inside b alone; NaN as soon as it is.
template <class T>
__device__ acc_t add_inside(acc_t sum, const T *a, int64_t rows, int64_t columns, const T *b,
                            int64_t height, int64_t width, int64_t top, int64_t left, int64_t down,
                            int64_t right, int64_t apart, int64_t across)
{
    for (int64_t i = 0; i < rows && !isnan(sum); i++) {
        const int64_t y = find_tap(top + i * down, apart, height);
        for (int64_t j = 0; y >= 0 && j < columns; j++) {
            const int64_t x = find_tap(left + j * right, across, width);
            if (x >= 0)
                sum += opd::load(a + i * columns + j) * opd::load(b + y * width + x);
        }
    }
    return sum;
}

template <class T> __device__ __forceinline__ bool all_finite(const T *v, int64_t n)
{
    int others = 0;
    for (int64_t k = 0; k < n; k++)
        others += !isfinite(opd::load(v + k));
    return others == 0;
}

// to[k*step] = sums[k] for n columns.
template <class T>
__device__ __forceinline__ void store_line(T *to, int64_t step, const acc_t *sums, int64_t n)
{
    if (step == 1)
        for (int64_t k = 0; k < n; k++)
            opd::store(to + k, sums[k]);
    else
        for (int64_t k = 0; k < n; k++)
            opd::store(to + k * step, sums[k]);
}

// The zeros around a line may have met a weight that is not finite: again(k) is a sum without them,
// and stored in the place of one that is no number.
template <class T, class F>
__device__ __forceinline__ void store_again(T *to, int64_t step, const acc_t *sums, int64_t n,
                                            bool finite, const F &again)
{
    for (int64_t k = 0; !finite && k < n; k++)
        if (isnan(sums[k]))
            opd::store(to + k * step, again(k));
}

// n columns, of which those of `even` and of `odd` take turns: one by one they cost as much as all
// else.
template <class T>
__device__ __forceinline__ void store_turns(T *__restrict__ to, const acc_t *__restrict__ even,
                                            const acc_t *__restrict__ odd, int64_t n)
{
    for (int64_t k = 0; k < n / 2; k++) {
        opd::store(to + 2 * k, even[k]);
        opd::store(to + 2 * k + 1, odd[k]);
    }
    if (n % 2)
        opd::store(to + n - 1, even[n / 2]);
}

// v[k] = line[from + k*step], 0 outside of it, for n columns.
template <class T>
__device__ __forceinline__ void copy_line(acc_t *__restrict__ v, int64_t n,
                                          const T *__restrict__ line, int64_t width, int64_t from,
                                          int64_t step)
{
    const int64_t first = clamp((step - 1 - from) / step, n);
    const int64_t last = max(first, from >= width ? 0 : clamp((width - 1 - from) / step + 1, n));
    for (int64_t k = 0; k < first; k++)
        v[k] = 0;
    if (step == 1)
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k);
    else if (step == 2)
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k * 2);
    else
        for (int64_t k = first; k < last; k++)
            v[k] = opd::load(line + from + k * step);
    for (int64_t k = last; k < n; k++)
        v[k] = 0;
}

// What TAPS taps read of a line for n columns, into v, where those of tap j begin at at[j]. Columns
// that are `step` apart lie side by side; taps share them where there is room.
template <int TAPS, class T>
__device__ __forceinline__ void copy_taps(acc_t *v, int64_t *at, int64_t n, const T *line,
                                          int64_t width, int64_t from, int64_t step, int64_t apart)
{
    const int64_t reach = (TAPS - 1) * apart;
    if (step == 1 && n + reach <= CPU_ROOM) {
        copy_line(v, n + reach, line, width, from, 1);
        for (int j = 0; j < TAPS; j++)
            at[j] = j * apart;
    } else if (step == 2 && apart == 1) {
        for (int odd = 0; odd < 2; odd++)
            copy_line(v + odd * (CPU_ROOM / 2), n + TAPS / 2, line, width, from + odd, 2);
        for (int j = 0; j < TAPS; j++)
            at[j] = j % 2 * (CPU_ROOM / 2) + j / 2;
    } else {
        for (int j = 0; j < TAPS; j++) {
            at[j] = j * CPU_COLUMNS;
            copy_line(v + at[j], n, line, width, from + j * apart, step);
        }
    }
}

// sums[r][k] += the sum over j of w[j*sign] * line[from + k*step + j*apart], where w = weights(r)
// is not NULL, for n columns, of those taps that are inside the line. TAPS: 0 where only `taps`
// knows.
template <int TAPS, class T, class F>
__device__ __forceinline__ void add_line(acc_t (*__restrict__ sums)[CPU_COLUMNS], int64_t n,
                                         const T *line, int64_t width, int64_t from, int64_t step,
                                         int64_t apart, int64_t taps, int sign, const F &weights)
{
    if constexpr (TAPS == 0) {
        int64_t j = 0;
        for (; j + CPU_TAPS <= taps; j += CPU_TAPS)
            add_line<CPU_TAPS>(sums, n, line, width, from + j * apart, step, apart, taps, sign,
                               [&](int r) { return weights(r) ? weights(r) + j * sign : nullptr; });
        for (; j < taps; j++)
            add_line<1>(sums, n, line, width, from + j * apart, step, apart, taps, sign,
                        [&](int r) { return weights(r) ? weights(r) + j * sign : nullptr; });
    } else {
        alignas(64) acc_t v[CPU_ROOM];
        n = whole_lanes(n);
        int64_t at[TAPS];
        copy_taps<TAPS>(v, at, n, line, width, from, step, apart);
        for (int r = 0; r < CPU_ROWS; r++) {
            const T *weight = weights(r);
            if (!weight)
                continue;
            acc_t w[TAPS];
            for (int j = 0; j < TAPS; j++)
                w[j] = opd::load(weight + j * sign);
            acc_t *__restrict__ to = sums[r];
            for (int64_t k = 0; k < n; k++) {
                acc_t sum = to[k];
                for (int j = 0; j < TAPS; j++)
                    sum += w[j] * v[at[j] + k];
                to[k] = sum;
            }
        }
    }
}

template <class T>
__global__ void depthwise_forward_vectors(const T *__restrict__ input,
                                          const T *__restrict__ weight, const T *__restrict__ bias,
                                          T *__restrict__ output, conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    convolve_tile<false, false>(input, weight, bias, output, s, (channels_t *)tile_memory);
}

// Of stride 1 and one filter a channel: a convolution of grad_output with the window turned round.
template <class T>
__global__ void depthwise_grad_input_vectors(const T *__restrict__ grad_output,
                                             const T *__restrict__ weight,
                                             T *__restrict__ grad_input, conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    convolve_tile<false, true>(grad_output, weight, (const T *)nullptr, grad_input, s,
                               (channels_t *)tile_memory);
}

// Of longer strides.
template <class T>
__global__ void depthwise_gather_vectors(const T *__restrict__ grad_output,
                                         const T *__restrict__ weight, T *__restrict__ grad_input,
                                         conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    gather_tile<false>(grad_output, weight, grad_input, s, (channels_t *)tile_memory);
}

template <class T, int TAPS>
__global__ void depthwise_forward_rows(const T *__restrict__ input, const T *__restrict__ weight,
                                       const T *__restrict__ bias, T *__restrict__ output,
                                       int64_t CM, int64_t M, int64_t H, int64_t W, int64_t OH,
                                       int64_t OW, int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                       int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    const int64_t groups = (OH + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t channel = plane % CM, row = blockIdx.x % groups * CPU_ROWS;
    const int64_t rows = min((int64_t)CPU_ROWS, OH - row), top = row * SH - PH;
    const T *image = input + plane / M * H * W, *window = weight + channel * KH * KW;
    const bool finite = all_finite(window, KH * KW);
    const int64_t end = min(H, top + (rows - 1) * SH + (KH - 1) * DH + 1);
    for (int64_t ow = 0; ow < OW; ow += CPU_COLUMNS) {
        const int64_t n = min((int64_t)CPU_COLUMNS, OW - ow);
        alignas(64) acc_t sums[CPU_ROWS][CPU_COLUMNS];
        const acc_t start = bias ? opd::load(bias + channel) : acc_t(0);
        for (int r = 0; r < CPU_ROWS; r++)
            for (int64_t k = 0; k < whole_lanes(n); k++)
                sums[r][k] = start;
        for (int64_t ih = max((int64_t)0, top); ih < end; ih++)
            add_line<TAPS>(sums, n, image + ih * W, W, ow * SW - PW, SW, DW, KW, 1,
                           [&](int r) -> const T * {
                               const int64_t kh = find_tap(ih - top - r * SH, DH, KH);
                               return r < rows && kh >= 0 ? window + kh * KW : nullptr;
                           });
        for (int r = 0; r < rows; r++) {
            T *to = output + (plane * OH + row + r) * OW + ow;
            store_line(to, 1, sums[r], n);
            store_again(to, 1, sums[r], n, finite, [&](int64_t k) {
                return add_inside(start, window, KH, KW, image, H, W, (row + r) * SH - PH,
                                  (ow + k) * SW - PW, DH, DW, 1, 1);
            });
        }
    }
}

// A row's gradient is a window turned round. Columns that are SW apart read the same of its taps,
// every `skip`-th, and are summed side by side. TAPS: at most so many of a row, or 0.
template <class T, int TAPS>
__global__ void depthwise_grad_input_rows(const T *__restrict__ grad_output,
                                          const T *__restrict__ weight, T *__restrict__ grad_input,
                                          int64_t C, int64_t M, int64_t H, int64_t W, int64_t OH,
                                          int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                          int64_t SW, int64_t PH, int64_t PW, int64_t DH,
                                          int64_t DW)
{
    const int64_t groups = (H + CPU_ROWS - 1) / CPU_ROWS, plane = blockIdx.x / groups;
    const int64_t row = blockIdx.x % groups * CPU_ROWS, rows = min((int64_t)CPU_ROWS, H - row);
    const T *windows = weight + plane % C * M * KH * KW;
    const bool finite = all_finite(windows, M * KH * KW);
    const int64_t first = max((int64_t)0, row + PH - (KH - 1) * DH) / SH;
    const int64_t end = min(OH, (row + rows - 1 + PH) / SH + 1);
    int64_t skip = 1;
    while (skip * DW % SW != 0)
        skip++;
    const int64_t apart = skip * DW / SW;
    alignas(64) acc_t all[2][CPU_ROWS][CPU_COLUMNS];
    for (int64_t x = 0; x < W; x += x % SW == SW - 1 ? (CPU_COLUMNS - 1) * SW + 1 : 1) {
        const int64_t n = min((int64_t)CPU_COLUMNS, (W - x + SW - 1) / SW);
        const bool odd = SW == 2 && x % 2 == 1, even = SW == 2 && !odd && x + 1 < W;
        acc_t (*sums)[CPU_COLUMNS] = all[odd];
        int64_t kw = 0;
        while (kw < KW && (x + PW - kw * DW) % SW != 0)
            kw++;
        const int64_t taps = (KW - kw + skip - 1) / skip, last = kw + (taps - 1) * skip;
        const int64_t from = (x + PW - last * DW) / SW;
        for (int r = 0; r < CPU_ROWS; r++)
            for (int64_t k = 0; k < whole_lanes(n); k++)
                sums[r][k] = 0;
        for (int64_t m = 0; taps > 0 && m < M; m++) {
            const T *out = grad_output + (plane * M + m) * OH * OW;
            const T *window = windows + m * KH * KW + last;
            for (int64_t oh = first; oh < end; oh++) {
                const auto weights = [&](int r) -> const T * {
                    const int64_t kh = find_tap(row + r + PH - oh * SH, DH, KH);
                    return r < rows && kh >= 0 ? window + kh * KW : nullptr;
                };
                if (TAPS <= 1 || taps == TAPS)
                    add_line<TAPS>(sums, n, out + oh * OW, OW, from, 1, apart, taps, -(int)skip,
                                   weights);
                else
                    add_line<TAPS <= 1 ? 1 : TAPS - 1>(sums, n, out + oh * OW, OW, from, 1, apart,
                                                       taps, -(int)skip, weights);
            }
        }
        for (int r = 0; r < rows && !even; r++) {
            T *line = grad_input + (plane * H + row + r) * W;
            if (odd)
                store_turns(line + x - 1, all[0][r], all[1][r],
                            min((int64_t)(2 * CPU_COLUMNS), W - x + 1));
            else
                store_line(line + x, SW, sums[r], n);
            for (int64_t column = x - odd; column <= x; column++)
                store_again(line + column, SW, all[odd && column == x][r],
                            min((int64_t)CPU_COLUMNS, (W - column + SW - 1) / SW), finite,
                            [&](int64_t k) {
                                acc_t sum = 0;
                                for (int64_t m = 0; m < M; m++)
                                    sum = add_inside(sum, windows + m * KH * KW, KH, KW,
                                                     grad_output + (plane * M + m) * OH * OW, OH,
                                                     OW, row + r + PH, column + k * SW + PW, -DH,
                                                     -DW, SH, SW);
                                return sum;
                            });
        }
    }
}

template <class T, int TAPS>
__global__ void depthwise_grad_weight_vectors(const T *__restrict__ input,
                                              const T *__restrict__ grad_output,
                                              T *__restrict__ grad_weight,
                                              T *__restrict__ grad_bias, int64_t N, conv_shape s)
{
    extern __shared__ float4 tile_memory[];
    channels_t *const sums = (channels_t *)tile_memory;
    const channels_t total = sum_tiles<TAPS>(input, grad_output, sums, N, s,
                                                    grad_weight != nullptr);
    const conv_place<false> p(s, blockIdx.x * s.TILES_DOWN * s.TILES_ALONG, s.OH, s.OW);
    for (int64_t e = p.skip; e < p.count; e++) {
        const int64_t channel = p.c + e;
        if (grad_bias)
            opd::store(grad_bias + channel, total[e]);
        for (int64_t tap = 0; tap < s.KH * s.KW && grad_weight; tap++) {
            acc_t sum = sums[tap][e];
            const bool again = isnan(sum);
            for (int64_t n = 0; n < N && again; n++)
                sum = add_inside(n == 0 ? acc_t(0) : sum,
                                 grad_output + (n * s.CM + channel) * s.OH * s.OW, s.OH, s.OW,
                                 input + (n * s.C + channel / s.M) * s.H * s.W, s.H, s.W,
                                 tap / s.KW * s.DH - s.PH, tap % s.KW * s.DW - s.PW, s.SH, s.SW, 1,
                                 1);
            opd::store(grad_weight + channel * s.KH * s.KW + tap, sum);
        }
    }
}

// A block makes the sums of CPU_TAPS x CPU_TAPS taps, or behind those of the bias, each in
// CPU_LANES columns side by side.
template <class T, int TAPS>
__global__ void depthwise_grad_weight_rows(const T *__restrict__ input,
                                           const T *__restrict__ grad_output,
                                           T *__restrict__ grad_weight, T *__restrict__ grad_bias,
                                           int64_t N, int64_t CM, int64_t M, int64_t H, int64_t W,
                                           int64_t OH, int64_t OW, int64_t KH, int64_t KW,
                                           int64_t SH, int64_t SW, int64_t PH, int64_t PW,
                                           int64_t DH, int64_t DW)
{
    constexpr int ACROSS = TAPS ? TAPS : CPU_TAPS;
    const int64_t down = (KH + CPU_TAPS - 1) / CPU_TAPS, across = (KW + ACROSS - 1) / ACROSS;
    const int64_t part = blockIdx.x % (down * across + 1),
                  channel = blockIdx.x / (down * across + 1);
    const int64_t kh = part / across * CPU_TAPS, kw = part % across * ACROSS;
    const int64_t n_kh = min((int64_t)CPU_TAPS, KH - kh), n_kw = min((int64_t)ACROSS, KW - kw);
    const bool is_bias = part == down * across;
    if (is_bias ? !grad_bias : !grad_weight)
        return;
    alignas(64) acc_t lanes[CPU_TAPS][ACROSS][CPU_LANES] = {}, g[CPU_ROWS][CPU_COLUMNS],
                      v[CPU_ROOM];
    for (int64_t i = 0; i < N * OH; i++) {
        const int64_t plane = i / OH * CM + channel, row = i % OH;
        const int64_t rows = min((int64_t)CPU_ROWS, OH - row), top = row * SH - PH + kh * DH;
        const int64_t end = is_bias ? 0 : min(H, top + (rows - 1) * SH + (n_kh - 1) * DH + 1);
        i += rows - 1;
        for (int64_t ow = 0; ow < OW; ow += CPU_COLUMNS) {
            const int64_t n = whole_lanes(min((int64_t)CPU_COLUMNS, OW - ow));
            for (int r = 0; r < rows; r++)
                copy_line(g[r], n, grad_output + (plane * OH + row + r) * OW, OW, ow, 1);
            for (int r = 0; is_bias && r < rows; r++)
                for (int64_t k = 0; k < n; k++)
                    lanes[0][0][k % CPU_LANES] += g[r][k];
            for (int64_t ih = max((int64_t)0, top); ih < end; ih++) {
                int64_t at[ACROSS];
                copy_taps<ACROSS>(v, at, n, input + (plane / M * H + ih) * W, W,
                                  ow * SW - PW + kw * DW, SW, DW);
                for (int r = 0; r < rows; r++) {
                    const int64_t tap = find_tap(ih - top - r * SH, DH, n_kh);
                    for (int j = 0; tap >= 0 && j < ACROSS; j++) {
                        acc_t sum[CPU_LANES];
                        for (int l = 0; l < CPU_LANES; l++)
                            sum[l] = lanes[tap][j][l];
                        for (int64_t k = 0; k < n; k += CPU_LANES)
                            for (int l = 0; l < CPU_LANES; l++)
                                sum[l] += g[r][k + l] * v[at[j] + k + l];
                        for (int l = 0; l < CPU_LANES; l++)
                            lanes[tap][j][l] = sum[l];
                    }
                }
            }
        }
    }
    for (int64_t i = 0; i < (is_bias ? 1 : n_kh * n_kw); i++) {
        const int64_t y = i / n_kw, x = i % n_kw;
        acc_t sum = 0;
        for (int l = 0; l < CPU_LANES; l++)
            sum += lanes[y][x][l];
        if (isnan(sum) && !is_bias) {
            sum = 0;
            for (int64_t plane = channel; plane < N * CM; plane += CM)
                sum = add_inside(sum, grad_output + plane * OH * OW, OH, OW,
                                 input + plane / M * H * W, H, W, (kh + y) * DH - PH,
                                 (kw + x) * DW - PW, SH, SW, 1, 1);
        }
        opd::store(is_bias ? grad_bias + channel
                           : grad_weight + (channel * KH + kh + y) * KW + kw + x,
                   sum);
    }
}
#endif
