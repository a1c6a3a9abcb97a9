// The kernels of depthwise_conv2d_nhwc.cu. A block copies a tile of images into shared memory, with
// zeros where it is outside, waits for that once, and makes ROWS rows of outputs of some channels:
// a thread WIDE columns of them, of one channel. What it takes of a row is read once, for all rows
// of the window, whose weights stay in registers; of a large window for one row of it after the
// other. Channels whose number is odd cannot be copied by blocks of some: threads read those from
// the images, with all lanes at work, since neighbours in memory are theirs.
#pragma once
#include "copy_to_shared.cuh"
#ifndef OPD_CPU

// What is made, OH by OW, of sources of H by W. BACK makes a gradient of inputs from one of
// outputs, and LEAD more before its first row and column, so that the first is one that a whole
// step reaches.
struct last_shape {
    int C, H, W, OH, OW, TOP, LEFT, LEAD_H, LEAD_W, CHUNKS, DOWN, ALONG, STRIPS;
    opd::divisor TILE_W;
};

enum { LAST_THREADS = 256, LAST_AT_ONCE = 16 }; // of a block; taps that its threads sum together

// Along one dimension: a window of K taps, D apart, at every S-th place.
template <int K, int S, int D, bool BACK> struct last_window {
    enum { REACH = (K - 1) * D };

    // Sources that `made` neighbours are made of.
    static constexpr int count(int made)
    {
        return BACK ? (made - 1) / S + REACH / S + 1 : (made - 1) * S + REACH + 1;
    }

    // How far behind its first source that of the next strip of `made` is.
    static constexpr int step(int made)
    {
        return BACK ? made / S : made * S;
    }

    // The one that source `from` goes to by `tap`; none: -1.
    static constexpr int find_made(int from, int tap)
    {
        if (BACK)
            return from * S - REACH / S * S + tap * D;
        const int left = from - tap * D;
        return left < 0 || left % S ? -1 : left / S;
    }

    // The source of `made` by `tap`; none: -1.
    static constexpr int find_source(int made, int tap)
    {
        const int left = made + REACH / S * S - tap * D;
        return !BACK ? made * S + tap * D : left % S ? -1 : left / S;
    }
};

// What a block and a thread of it make.
template <int CH, int ROWS, int WIDE> struct last_place {
    int strip, first, channel, oh, ow, n, tile_h, tile_w;

    __device__ __forceinline__ last_place(const last_shape &s, int tile, int chunk)
    {
        strip = (int)threadIdx.x / CH;
        first = chunk * CH, channel = first + (int)threadIdx.x % CH;
        const int along = tile % s.ALONG, down = tile / s.ALONG;
        tile_h = down % s.DOWN, tile_w = along * s.STRIPS, n = down / s.DOWN;
        oh = tile_h * ROWS - s.LEAD_H, ow = (tile_w + strip) * WIDE - s.LEAD_W;
    }
};

// A part of an image of H by W by C: `rows` of `columns` from (top, left) on, zeros where that is
// outside.
struct last_part {
    int H, W, C, top, left, rows;
    opd::divisor columns;
};

template <int V, int CH, class T>
__device__ __forceinline__ void fill_last_by(T *tile, const T *image, int channels,
                                             const last_part &p)
{
    constexpr int PIECES = CH / V;
    const int count = p.rows * p.columns * PIECES;
#pragma unroll 2
    for (int i = threadIdx.x; i < count; i += (int)blockDim.x) {
        const int at = i / PIECES, c = i % PIECES * V, row = at / p.columns;
        const int x = p.left + at - row * p.columns, y = p.top + row;
        const bool inside = (unsigned)y < (unsigned)p.H && (unsigned)x < (unsigned)p.W &&
                            c < channels;
        copy_to_shared<V>(tile + i * V, inside ? image + ((int64_t)y * p.W + x) * p.C + c : image,
                          inside);
    }
}

// CH channels, of which `channels` are there. EVEN of them can be read at once where they could be.
template <int EVEN, int CH, class T>
__device__ __forceinline__ void fill_last(T *tile, const T *image, int channels, const last_part &p)
{
    if (EVEN > 1 && opd::is_aligned(image, EVEN * sizeof(T)))
        fill_last_by<EVEN, CH>(tile, image, channels, p);
    else
        fill_last_by<1, CH>(tile, image, channels, p);
}

// Weights of CH channels, HERE of the TAPS that each has, and where they are then.
template <int CH, int TAPS, int HERE, class T>
__device__ __forceinline__ const T *copy_window(void *room, const T *weight, int channels)
{
    if constexpr (HERE == TAPS) {
        return copy_run<1>(room, weight, channels * TAPS);
    } else {
        for (int i = threadIdx.x; i < channels * HERE; i += (int)blockDim.x)
            copy_to_shared<1>((T *)room + i, weight + i / HERE * TAPS + i % HERE, true);
        return (const T *)room;
    }
}

// One channel of a copied tile whose rows have so many pixels, from a pixel on.
template <int CH, class T> struct copied_pixels {
    const T *from;
    int width;

    __device__ __forceinline__ acc_t at(int r, int x) const
    {
        return opd::load(from + (r * width + x) * CH);
    }
};

// One channel of an image of H by W by C, from pixel (top, left) on; zeros where that is outside.
template <class T> struct image_pixels {
    const T *from;
    int H, W, C, top, left;

    __device__ __forceinline__ image_pixels(const T *channel, int h, int w, int c, int y, int x)
        : from(channel + ((int64_t)y * w + x) * c), H(h), W(w), C(c), top(y), left(x)
    {
    }

    __device__ __forceinline__ acc_t at(int r, int x) const
    {
        T v = T(0.f);
        if ((unsigned)(top + r) < (unsigned)H && (unsigned)(left + x) < (unsigned)W)
            v = from[(r * W + x) * C];
        return opd::load(&v);
    }
};

// f(j, kh, v) for each row of pixels and tap kh by which row j of those made has it: v is SPAN columns.
template <class DOWN, int ROWS, int TAPS, int SPAN, class P, class F>
__device__ __forceinline__ void each_row(const P &pixels, const F &f)
{
#pragma unroll
    for (int r = 0; r < DOWN::count(ROWS); r++) {
        acc_t v[SPAN];
#pragma unroll
        for (int x = 0; x < SPAN; x++)
            v[x] = pixels.at(r, x);
#pragma unroll
        for (int kh = 0; kh < TAPS; kh++) {
            const int j = DOWN::find_made(r, kh);
            if (j >= 0 && j < ROWS)
                f(j, kh, v);
        }
    }
}

// AT_ONCE rows of the window in turn: the tile begins that many rows later, of a gradient earlier.
template <class T, int EVEN, int CH, int KH, int KW, int AT_ONCE, int SH, int SW, int DH, int DW,
          int ROWS, int WIDE, bool BACK>
__device__ __forceinline__ void convolve_last(const T *input, const T *weight, const T *bias,
                                              T *output, const last_shape &s)
{
    using down = last_window<AT_ONCE, SH, DH, BACK>;
    using along = last_window<KW, SW, DW, BACK>;
    enum { TAPS = AT_ONCE * KW, TILE_H = down::count(ROWS), SPAN = along::count(WIDE) };
    extern __shared__ uint4 shared[];
    const last_place<CH, ROWS, WIDE> p(s, (int)blockIdx.x / s.CHUNKS, (int)blockIdx.x % s.CHUNKS);
    const int lane = p.channel - p.first, channels = min(CH, s.C - p.first);
    const bool busy = lane < channels && p.ow < s.OW;
    T *tile = (T *)shared;
    constexpr bool DIRECT = EVEN == 1 && AT_ONCE == KH;
    const int size = DIRECT ? 0 : TILE_H * s.TILE_W * CH * (int)sizeof(T);
    const int top = s.TOP + p.tile_h * down::step(ROWS), left = s.LEFT + p.tile_w * along::step(WIDE);
    const T *image = input + (int64_t)p.n * s.H * s.W * s.C + p.first;

    const acc_t start = bias && busy ? opd::load(bias + p.channel) : acc_t(0);
    acc_t sum[ROWS][WIDE];
#pragma unroll
    for (int k = 0; k < ROWS * WIDE; k++)
        sum[k / WIDE][k % WIDE] = start;
    const auto add = [&](const T *window, const auto &pixels) {
        acc_t w[TAPS];
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            w[k] = opd::load(window + k);
        each_row<down, ROWS, AT_ONCE, SPAN>(pixels, [&](int j, int kh, const acc_t *v) {
#pragma unroll
            for (int k = 0; k < KW * WIDE; k++) {
                const int x = along::find_source(k % WIDE, k / WIDE);
                if (x >= 0)
                    sum[j][k % WIDE] += w[kh * KW + k / WIDE] * v[x];
            }
        });
    };
#pragma unroll 1
    for (int at = 0; at < KH; at += AT_ONCE) {
        const int later = (BACK ? KH - AT_ONCE - at : at) * DH;
        if (!DIRECT)
            fill_last<EVEN, CH>(tile, image, channels,
                                { s.H, s.W, s.C, top + later, left, TILE_H, s.TILE_W });
        const T *window = copy_window<CH, KH * KW, TAPS>(
            shared + (size + 15) / 16, weight + (int64_t)p.first * (KH * KW) + at * KW, channels);
        wait_for_copies();
        if constexpr (DIRECT) {
            if (busy)
                add(window + lane * TAPS, image_pixels<T>(image + lane, s.H, s.W, s.C, top,
                                                          left + p.strip * along::step(WIDE)));
        } else
            add(window + lane * TAPS,
                copied_pixels<CH, T>{ tile + p.strip * along::step(WIDE) * CH + lane, s.TILE_W });
        if (AT_ONCE < KH)
            __syncthreads();
    }
    if (!busy)
        return;
    T *to = output + (((int64_t)p.n * s.OH + p.oh) * s.OW + p.ow) * s.C + p.channel;
#pragma unroll
    for (int j = 0; j < ROWS; j++)
#pragma unroll
        for (int x = 0; x < WIDE; x++)
            if ((unsigned)(p.oh + j) < (unsigned)s.OH && (unsigned)(p.ow + x) < (unsigned)s.OW)
                opd::store(to + ((int64_t)j * s.OW + x) * s.C, sum[j][x]);
}

template <class T, int EVEN, int CH, int KH, int KW, int AT_ONCE, int SH, int SW, int DH, int DW,
          int ROWS, int WIDE>
__global__ void __launch_bounds__(LAST_THREADS)
    depthwise_last_forward(const T *__restrict__ input, const T *__restrict__ weight,
                           const T *__restrict__ bias, T *__restrict__ output, last_shape s)
{
    convolve_last<T, EVEN, CH, KH, KW, AT_ONCE, SH, SW, DH, DW, ROWS, WIDE, false>(input, weight,
                                                                                   bias, output, s);
}

template <class T, int EVEN, int CH, int KH, int KW, int AT_ONCE, int SH, int SW, int DH, int DW,
          int ROWS, int WIDE>
__global__ void __launch_bounds__(LAST_THREADS)
    depthwise_last_grad_input(const T *__restrict__ grad_output, const T *__restrict__ weight,
                              T *__restrict__ grad_input, last_shape s)
{
    convolve_last<T, EVEN, CH, KH, KW, AT_ONCE, SH, SW, DH, DW, ROWS, WIDE, true>(
        grad_output, weight, nullptr, grad_input, s);
}

// Block (channels, part, rows of the window) sums the products of its part of the tiles: a thread
// those of its outputs' gradients, for each tap, and of them alone for the bias; then the strips.
template <class T, int EVEN, int CH, int KH, int KW, int AT_ONCE, int SH, int SW, int DH, int DW,
          int ROWS, int WIDE>
__global__ void __launch_bounds__(LAST_THREADS)
    depthwise_last_grad_weight(const T *__restrict__ input, const T *__restrict__ grad_output,
                               acc_t *__restrict__ partial, int TILES, int PARTS,
                               opd::divisor COLUMNS, last_shape s)
{
    using down = last_window<AT_ONCE, SH, DH, false>;
    using along = last_window<KW, SW, DW, false>;
    enum { TAPS = AT_ONCE * KW, TILE_H = down::count(ROWS), SPAN = along::count(WIDE) };
    extern __shared__ uint4 shared[];
    T *grads = (T *)shared,
      *tile = (T *)(shared + (ROWS * COLUMNS * CH * (int)sizeof(T) + 15) / 16);
    const int part = (int)blockIdx.x / s.CHUNKS, chunk = (int)blockIdx.x % s.CHUNKS,
              at = (int)blockIdx.y * AT_ONCE;
    const int share = (TILES + PARTS - 1) / PARTS, channels = min(CH, s.C - chunk * CH);
    const int lane = (int)threadIdx.x % CH, strip = (int)threadIdx.x / CH;
    acc_t sum[TAPS + 1] = {};
    for (int i = part * share; i < min(TILES, (part + 1) * share); i++) {
        const last_place<CH, ROWS, WIDE> p(s, i, chunk);
        const int top = s.TOP + p.tile_h * down::step(ROWS) + at * DH,
                  left = s.LEFT + p.tile_w * along::step(WIDE);
        const T *image = input + (int64_t)p.n * s.H * s.W * s.C + p.first,
                *made = grad_output + (int64_t)p.n * s.OH * s.OW * s.C + p.first;
        const auto add = [&](const auto &outputs, const auto &pixels) {
            acc_t g[ROWS][WIDE];
#pragma unroll
            for (int j = 0; j < ROWS; j++)
#pragma unroll
                for (int x = 0; x < WIDE; x++) {
                    g[j][x] = outputs.at(j, x);
                    sum[TAPS] += g[j][x];
                }
            each_row<down, ROWS, AT_ONCE, SPAN>(pixels, [&](int j, int kh, const acc_t *v) {
#pragma unroll
                for (int k = 0; k < KW * WIDE; k++)
                    sum[kh * KW + k / WIDE] += g[j][k % WIDE] *
                                               v[along::find_source(k % WIDE, k / WIDE)];
            });
        };
        if constexpr (EVEN == 1 && AT_ONCE == KH) {
            if (lane < channels)
                add(image_pixels<T>(made + lane, s.OH, s.OW, s.C, p.oh, p.ow),
                    image_pixels<T>(image + lane, s.H, s.W, s.C, top,
                                    left + strip * along::step(WIDE)));
        } else {
            fill_last<EVEN, CH>(tile, image, channels,
                                { s.H, s.W, s.C, top, left, TILE_H, s.TILE_W });
            fill_last<EVEN, CH>(grads, made, channels,
                                { s.OH, s.OW, s.C, p.oh, p.tile_w * WIDE, ROWS, COLUMNS });
            wait_for_copies();
            add(copied_pixels<CH, T>{ grads + strip * WIDE * CH + lane, COLUMNS },
                copied_pixels<CH, T>{ tile + strip * along::step(WIDE) * CH + lane, s.TILE_W });
            __syncthreads();
        }
    }
    acc_t *sums = (acc_t *)shared, *to = partial + (int64_t)part * (KH * KW + 1) * s.C + chunk * CH;
    const int size = s.STRIPS * CH;
#pragma unroll
    for (int first = 0; first < TAPS + 1; first += LAST_AT_ONCE) {
        const int count = min((int)LAST_AT_ONCE, TAPS + 1 - first);
#pragma unroll
        for (int k = 0; k < LAST_AT_ONCE && k < TAPS + 1 - first; k++)
            sums[k * size + (int)threadIdx.x] = sum[first + k];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < count * CH; i += (int)blockDim.x) {
            const int tap = i / CH, c = i % CH;
            acc_t all = 0;
#pragma unroll 1
            for (int of = c; of < size; of += CH)
                all += sums[tap * size + of];
            const bool is_bias = first + tap == TAPS;
            if (c < channels && !(is_bias && at > 0))
                to[(is_bias ? KH * KW : at * KW + first + tap) * s.C + c] = all;
        }
        __syncthreads();
    }
}

enum { JOIN_SLICES = 16 };

// A block sums the parts of 32 channels' products by one tap.
template <class T>
__global__ void join_taps(const acc_t *__restrict__ partial, T *__restrict__ grad_weight,
                          T *__restrict__ grad_bias, int64_t CM, int64_t KH, int64_t KW,
                          int64_t PARTS)
{
    __shared__ acc_t sums[JOIN_SLICES][32];
    const int lane = (int)threadIdx.x % 32, slice = (int)threadIdx.x / 32;
    const int64_t sets = (CM + 31) / 32, tap = blockIdx.x / sets, apart = (KH * KW + 1) * CM;
    const int64_t c = (blockIdx.x - tap * sets) * 32 + lane;
    acc_t sum = 0;
#pragma unroll 4
    for (int64_t part = slice; part < PARTS && c < CM; part += JOIN_SLICES)
        sum += partial[part * apart + tap * CM + c];
    sums[slice][lane] = sum;
    __syncthreads();
    if (slice > 0 || c >= CM)
        return;
    for (int of = 1; of < JOIN_SLICES; of++)
        sum += sums[of][lane];
    if (tap == KH * KW && grad_bias)
        opd::store(grad_bias + c, sum);
    if (tap < KH * KW && grad_weight)
        opd::store(grad_weight + c * (KH * KW) + tap, sum);
}
#endif
