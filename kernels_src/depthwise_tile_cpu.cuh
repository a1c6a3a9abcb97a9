// Depthwise convolutions on the CPU, of images in either layout: CHANNELS of them are a vector.
//
// A block copies what a tile of outputs reads of one image, channel by channel side by side, with
// zeros left and right of it: so no output is a special case, 16 bits are converted once, and what a
// window reads lies in the cache, wherever it lay in memory.
#pragma once
#include "channels.cuh"
#ifdef OPD_CPU

enum {
    SIDE = 7,     // outputs side by side whose sums stay in registers, beside a tap
    AHEAD = 14,   // pixels that are fetched meanwhile
    AT_ONCE = 64, // pixels of 16 bits that are held before they are converted
};

// What n channels of outputs from c on read, M of which have one of C of inputs.
struct sources {
    int64_t first, M, n;
    lanes_t lane = {};

    __device__ __forceinline__ sources(int64_t c, int64_t C, int64_t M, int64_t n)
        : first(c), M(M), n(n)
    {
        if (M == 1)
            return;
        first = min(c / M, max((int64_t)0, C - CHANNELS));
        this->n = min(C - first, (int64_t)CHANNELS);
        for (int e = 0; e < min(n, (int64_t)CHANNELS); e++)
            lane[e] = (c + e) / M - first;
    }
    template <class T> __device__ __forceinline__ channels_t load(const T *p) const
    {
        const channels_t v = load_channels(p + first, n);
        return M == 1 ? v : choose_lanes(v, lane);
    }
};

// A tile is OUT_ROWS rows of OUT_COLUMNS outputs, TILES_DOWN * TILES_ALONG of them an image; it
// reads rows of IN_COLUMNS. BELOW: rows are short, and outputs of a column are summed side by side.
struct conv_shape {
    bool BELOW;
    int64_t C, CM, M, H, W, OH, OW, KH, KW, SH, SW, PH, PW, DH, DW;
    int64_t OUT_ROWS, OUT_COLUMNS, IN_COLUMNS, TILES_DOWN, TILES_ALONG;
};

// CHANNELS outputs from channel c on, of fewer the first n; those before `skip` are others' to
// store. Tile by tile of an image, from row oh and column ow on.
template <bool LAST> struct conv_place {
    int64_t n, c, count, skip, oh, ow, rows, columns;

    __device__ __forceinline__ conv_place(const conv_shape &s, int64_t block, int64_t height,
                                          int64_t width)
    {
        const int64_t chunks = (s.CM + CHANNELS - 1) / CHANNELS, tiles = s.TILES_DOWN * s.TILES_ALONG;
        const int64_t chunk = LAST ? block % chunks : block / tiles % chunks,
                      tile = LAST ? block / chunks % tiles : block % tiles;
        n = block / chunks / tiles;
        c = max((int64_t)0, min(chunk * CHANNELS, s.CM - CHANNELS));
        count = min(s.CM - c, (int64_t)CHANNELS);
        skip = chunk * CHANNELS - c;
        oh = tile / s.TILES_ALONG * s.OUT_ROWS;
        ow = tile % s.TILES_ALONG * s.OUT_COLUMNS;
        rows = min(s.OUT_ROWS, height - oh);
        columns = min(s.OUT_COLUMNS, width - ow);
    }
};

// What `count` channels of outputs from c on read of an image: M of them have one of C. Pixels are
// `pixel` elements apart, channels `channel`.
template <bool LAST, class T> struct conv_source {
    const T *image, *end;
    int64_t pixel, channel, c, count, M;
    sources lanes;

    __device__ __forceinline__ conv_source(const T *images, int64_t n, int64_t c, int64_t count,
                                           int64_t C, int64_t M, int64_t size)
        : image(images + n * C * size), end(image + C * size), pixel(LAST ? C : 1),
          channel(LAST ? 1 : size), c(c), count(count), M(M), lanes(c, C, M, count)
    {
    }
    __device__ __forceinline__ acc_t at(int64_t e, int64_t i) const
    {
        return opd::load(image + (c + e) / M * channel + i * pixel);
    }
    // Rows `first` to `end`, of each `n` pixels from column `left` on; zeros where those are none of
    // H by W.
    __device__ __forceinline__ void copy_rows(channels_t *to, int64_t first, int64_t end,
                                              int64_t left, int64_t H, int64_t W, int64_t n) const
    {
        const int64_t top = min(end, max(first, (int64_t)0)), bottom = max(top, min(end, H));
        const int64_t begin = min(n, max((int64_t)0, -left)), last = max(begin, min(n, W - left));
        memset(to, 0, (size_t)((top - first) * n) * sizeof *to);
        memset(to + (bottom - first) * n, 0, (size_t)((end - bottom) * n) * sizeof *to);
        to += (top - first) * n;
        if (left == 0 && n == W)
            copy(to, top * W, (bottom - top) * W);
        else
            for (int64_t ih = top; ih < bottom; ih++, to += n) {
                memset(to, 0, (size_t)begin * sizeof *to);
                memset(to + last, 0, (size_t)(n - last) * sizeof *to);
                copy(to + begin, ih * W + left + begin, last - begin);
            }
    }
    // n pixels from i on.
    __device__ __forceinline__ void copy(channels_t *to, int64_t i, int64_t n) const
    {
        if constexpr (LAST) {
            // Of fewer channels the pixels behind are read, too, as far as there are some.
            const int64_t size = end - image, left = (size - CHANNELS) / pixel + 1 - i,
                          whole = M == 1 && count < CHANNELS && size >= CHANNELS ? min(n, left) : 0;
            int64_t x = 0;
            for (; x < whole; x++)
                to[x] = load_all(image + (i + x) * pixel);
            for (; x < n; x++) {
                __builtin_prefetch(image + (i + x + AHEAD) * pixel + lanes.first);
                to[x] = lanes.load(image + (i + x) * pixel);
            }
        } else {
            enum : bool { STRAIGHT = sizeof(T) == sizeof(acc_t) };
            T held[STRAIGHT ? 1 : AT_ONCE * CHANNELS];
            for (int64_t at = 0, some = 0; at < n; at += some, to += some) {
                some = STRAIGHT ? n : min(n - at, (int64_t)AT_ONCE);
                T *const turned = STRAIGHT ? (T *)to : held;
                if (count < CHANNELS)
                    memset((void *)turned, 0, (size_t)(some * CHANNELS) * sizeof(T));
                for (int64_t e = 0; e < count; e++) {
                    const T *__restrict__ from = image + (c + e) / M * channel + i + at;
                    T *__restrict__ lane = turned + e;
                    for (int64_t x = 0; x < some; x++)
                        lane[x * CHANNELS] = from[x];
                }
                for (int64_t x = 0; x < some && !STRAIGHT; x++)
                    to[x] = load_all(held + x * CHANNELS);
            }
        }
    }
};

// As a convolution is defined, by the taps that are inside: where a weight is not finite, zeros
// around an image would make no numbers.
template <bool FLIP, bool LAST, class T>
__device__ __noinline__ acc_t convolve_one(const conv_source<LAST, T> &from, const T *window,
                                           acc_t sum, int64_t e, int64_t oh, int64_t ow,
                                           const conv_shape &s)
{
    for (int64_t tap = 0; tap < s.KH * s.KW; tap++) {
        const int64_t ih = oh * s.SH - s.PH + tap / s.KW * s.DH,
                      iw = ow * s.SW - s.PW + tap % s.KW * s.DW;
        if (ih >= 0 && ih < s.H && iw >= 0 && iw < s.W)
            sum += opd::load(window + (FLIP ? s.KH * s.KW - 1 - tap : tap)) *
                   from.at(e, ih * s.W + iw);
    }
    return sum;
}

// As the gradient of an input is defined.
template <bool LAST, class T>
__device__ __noinline__ acc_t gather_one(const conv_source<LAST, T> &from, const T *window,
                                         int64_t e, int64_t h, int64_t w, const conv_shape &s)
{
    acc_t sum = 0;
    for (int64_t tap = 0; tap < s.KH * s.KW; tap++) {
        const int64_t y = h + s.PH - tap / s.KW * s.DH, x = w + s.PW - tap % s.KW * s.DW;
        if (y >= 0 && y % s.SH == 0 && y / s.SH < s.OH && x >= 0 && x % s.SW == 0 &&
            x / s.SW < s.OW)
            sum += opd::load(window + tap) * from.at(e, y / s.SH * s.OW + x / s.SW);
    }
    return sum;
}

// Rows of taps from `taps` on with what they read for SIDE outputs, whose rows are `down` apart.
__device__ __forceinline__ void convolve_side(channels_t *sum, const channels_t *taps,
                                              const channels_t *at, int64_t rows, int64_t down,
                                              int64_t KW, int64_t SW, int64_t DW)
{
    channels_t v[SIDE];
    for (int k = 0; k < SIDE; k++)
        v[k] = sum[k];
    for (int64_t kh = 0; kh < rows; kh++, at += down)
        for (int64_t kw = 0; kw < KW; kw++) {
            const channels_t w = *taps++, *from = at + kw * DW;
#pragma GCC unroll 8
            for (int k = 0; k < SIDE; k++)
                v[k] += w * from[k * SW];
        }
    for (int k = 0; k < SIDE; k++)
        sum[k] = v[k];
}

// The taps that reach a place, `at` behind the padding: from `first` on each `step`-th, of output
// `out`, then of those `down` before it.
struct reach {
    int64_t first = 0, step = 1, out = 0, down;

    reach(int64_t at, int64_t S, int64_t D, int64_t K)
    {
        while (step < K && step * D % S != 0)
            step++;
        while (first < step && (at - first * D) % S != 0)
            first++;
        if (first == step)
            first = K; // none
        else
            out = (at - first * D) / S;
        down = step * D / S;
    }
};

// CHANNELS windows, tap by tap; turned round where FLIP. False if a weight is not finite.
template <bool FLIP, class T>
__device__ __forceinline__ bool pack_windows(channels_t *taps, const T *weight, int64_t count,
                                             int64_t n_taps)
{
    channels_t bad = {};
    if (count < CHANNELS)
        memset(taps, 0, (size_t)n_taps * sizeof *taps);
    for (int64_t e = 0; e < count; e++) {
        const T *__restrict__ window = weight + e * n_taps;
        acc_t *__restrict__ lane = (acc_t *)taps + e;
        for (int64_t tap = 0; tap < n_taps; tap++)
            lane[tap * CHANNELS] = opd::load(window + (FLIP ? n_taps - 1 - tap : tap));
    }
    for (int64_t tap = 0; tap < n_taps; tap++)
        bad += taps[tap] - taps[tap];
    bool finite = true;
    for (int e = 0; e < CHANNELS; e++)
        finite = finite && bad[e] == 0;
    return finite;
}

// Outputs `step` elements apart, from pixel `place` of a plane of `size` on.
template <bool LAST, class T>
__device__ __forceinline__ void store_side(T *output, const channels_t *sum, int64_t count,
                                           const conv_place<LAST> &p, int64_t C, int64_t size,
                                           int64_t place, int64_t step)
{
    if constexpr (LAST) {
        T *to = output + (p.n * size + place) * C + p.c;
        for (int64_t k = 0; k < SIDE; k++)
            __builtin_prefetch(to + (SIDE + k) * step * C, 1);
        for (int64_t k = 0; k < count; k++, to += step * C)
            if (p.skip == 0)
                store_channels(to, sum[k], p.count);
            else
                for (int64_t e = p.skip; e < CHANNELS; e++)
                    opd::store(to + e, sum[k][e]);
    } else {
        T made[SIDE][CHANNELS];
        for (int k = 0; k < SIDE; k++)
            store_all(made[k], sum[k]);
        for (int64_t e = p.skip; e < p.count; e++) {
            T *to = output + (p.n * C + p.c + e) * size + place;
            for (int64_t k = 0; k < count; k++)
                to[k * step] = made[k][e];
        }
    }
}

template <bool LAST, bool FLIP, class T>
__device__ __forceinline__ void convolve_tile(const T *input, const T *weight, const T *bias,
                                              T *output, const conv_shape &s, channels_t *taps)
{
    const conv_place<LAST> p(s, blockIdx.x, s.OH, s.OW);
    const int64_t n_taps = s.KH * s.KW;
    const conv_source<LAST, T> from(input, p.n, p.c, p.count, s.C, s.M, s.H * s.W);
    channels_t *const tile = taps + n_taps, start = {};
    for (int64_t e = 0; bias && e < p.count; e++)
        start[e] = opd::load(bias + p.c + e);
    const bool finite = pack_windows<FLIP>(taps, weight + p.c * n_taps, p.count, n_taps);
    const bool below = s.BELOW;
    const int64_t top = p.oh * s.SH - s.PH, left = p.ow * s.SW - s.PW;
    const int64_t first = below ? top : max((int64_t)0, top);
    const int64_t bottom = top + ((below ? max(p.rows, (int64_t)SIDE) : p.rows) - 1) * s.SH +
                           (s.KH - 1) * s.DH + 1;
    if (finite)
        from.copy_rows(tile, first, below ? bottom : max(first, min(s.H, bottom)), left, s.H, s.W,
                       s.IN_COLUMNS);
    const int64_t lines = below ? p.columns : p.rows, along = below ? p.rows : p.columns;
    for (int64_t line = 0; line < lines; line++) {
        const int64_t at = top + line * s.SH; // a row's
        const int64_t kh = below || at >= 0 ? 0 : (s.DH - 1 - at) / s.DH;
        const int64_t rows = below ? s.KH : at < s.H ? min(s.KH, (s.H - 1 - at) / s.DH + 1) - kh : 0;
        for (int64_t next = 0; next < along; next += SIDE) {
            const int64_t begin = max((int64_t)0, min(next, along - SIDE)),
                          count = min(along, (int64_t)SIDE);
            const int64_t r = below ? begin : line, ow = below ? line : begin;
            channels_t sum[SIDE];
            for (int k = 0; k < SIDE; k++)
                sum[k] = start;
            const channels_t *of = taps + kh * s.KW,
                             *row = tile + ow * s.SW +
                                    (top + r * s.SH + kh * s.DH - first) * s.IN_COLUMNS;
            if (!finite)
                for (int64_t i = 0; i < count * p.count; i++) {
                    const int64_t k = i / p.count, e = i % p.count;
                    sum[k][e] = convolve_one<FLIP>(from, weight + (p.c + e) * n_taps, start[e], e,
                                                   p.oh + r + below * k, p.ow + ow + !below * k, s);
                }
            else if (!below && s.SW == 1)
                convolve_side(sum, of, row, rows, s.DH * s.IN_COLUMNS, s.KW, 1, s.DW);
            else
                convolve_side(sum, of, row, rows, s.DH * s.IN_COLUMNS, s.KW,
                              below ? s.SH * s.IN_COLUMNS : s.SW, s.DW);
            store_side<LAST>(output, sum, count, p, s.CM, s.OH * s.OW,
                             (p.oh + r) * s.OW + p.ow + ow, below ? s.OW : 1);
        }
    }
}

// The gradient of an input of one filter a channel: columns that are SW apart read the same taps,
// and gradients side by side. OUT_ROWS and OUT_COLUMNS are here an input's.
template <bool LAST, class T>
__device__ __forceinline__ void gather_tile(const T *grad_output, const T *weight, T *grad_input,
                                            const conv_shape &s, channels_t *taps)
{
    const conv_place<LAST> p(s, blockIdx.x, s.H, s.W);
    const int64_t n_taps = s.KH * s.KW;
    const conv_source<LAST, T> from(grad_output, p.n, p.c, p.count, s.C, 1, s.OH * s.OW);
    channels_t *const tile = taps + n_taps;
    const bool finite = pack_windows<false>(taps, weight + p.c * n_taps, p.count, n_taps);
    const auto before = [](int64_t at, int64_t S) { return at < 0 ? -((S - 1 - at) / S) : at / S; };
    const int64_t top = max((int64_t)0, before(p.oh + s.PH - (s.KH - 1) * s.DH, s.SH)),
                  bottom = min(s.OH, (p.oh + p.rows - 1 + s.PH) / s.SH + 1),
                  left = before(p.ow + s.PW - (s.KW - 1) * s.DW, s.SW);
    if (finite)
        from.copy_rows(tile, top, max(top, bottom), left, s.OH, s.OW, s.IN_COLUMNS);
    for (int64_t r = 0; r < p.rows; r++) {
        const reach rows(p.oh + r + s.PH, s.SH, s.DH, s.KH);
        for (int64_t phase = 0; phase < min(s.SW, p.columns); phase++) {
            const reach columns(p.ow + phase + s.PW, s.SW, s.DW, s.KW);
            const int64_t along = (p.columns - phase + s.SW - 1) / s.SW;
            for (int64_t next = 0; next < along; next += SIDE) {
                const int64_t begin = max((int64_t)0, min(next, along - SIDE)),
                              count = min(along, (int64_t)SIDE);
                channels_t sum[SIDE] = {};
                int64_t oh = rows.out;
                for (int64_t kh = rows.first; kh < s.KH; kh += rows.step, oh -= rows.down) {
                    if (oh < 0 || oh >= s.OH)
                        continue;
                    const channels_t *at = tile + (oh - top) * s.IN_COLUMNS + columns.out + begin -
                                           left;
                    for (int64_t kw = columns.first; kw < s.KW; kw += columns.step) {
                        const channels_t w = taps[kh * s.KW + kw];
#pragma GCC unroll 8
                        for (int k = 0; k < SIDE; k++)
                            sum[k] += w * at[k];
                        at -= columns.down;
                    }
                }
                const int64_t h = p.oh + r, x = p.ow + phase + begin * s.SW;
                for (int64_t i = 0; !finite && i < count * p.count; i++) {
                    const int64_t k = i / p.count, e = i % p.count;
                    sum[k][e] = gather_one(from, weight + (p.c + e) * n_taps, e, h, x + k * s.SW, s);
                }
                store_side<LAST>(grad_input, sum, count, p, s.C, s.H * s.W, h * s.W + x, s.SW);
            }
        }
    }
}

// Adds to TALL by BESIDE sums, rows of which are `apart`, the products of a tile's gradients with
// what these taps read.
template <int TALL, int BESIDE>
__device__ __forceinline__ void sum_side(channels_t *sums, int64_t apart, const channels_t *grads,
                                         const channels_t *tile, int64_t rows, int64_t columns,
                                         const conv_shape &s)
{
    channels_t v[TALL][BESIDE] = {};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t ow = 0; ow < columns; ow++) {
            const channels_t g = grads[r * columns + ow],
                             *at = tile + r * s.SH * s.IN_COLUMNS + ow * s.SW;
#pragma GCC unroll 8
            for (int i = 0; i < TALL; i++)
#pragma GCC unroll 8
                for (int j = 0; j < BESIDE; j++)
                    v[i][j] += g * at[i * s.DH * s.IN_COLUMNS + j * s.DW];
        }
    for (int i = 0; i < TALL; i++)
        for (int j = 0; j < BESIDE; j++)
            sums[i * apart + j] += v[i][j];
}

// The gradients of CHANNELS windows, in `sums`, and what grad_output itself sums to: of all images,
// tile by tile, whose rows of zeros are there, too. BESIDE: how long a row of the window is, or 0.
// NCHW. Without `taps` only the latter.
template <int BESIDE, class T>
__device__ __forceinline__ channels_t sum_tiles(const T *input, const T *grad_output,
                                                channels_t *sums, int64_t N, const conv_shape &s,
                                                bool taps)
{
    const int64_t n_taps = s.KH * s.KW, tiles = s.TILES_DOWN * s.TILES_ALONG;
    channels_t *const grads = sums + n_taps, *const tile = grads + s.OUT_ROWS * s.OUT_COLUMNS;
    channels_t total = {};
    memset(sums, 0, (size_t)n_taps * sizeof *sums);
    for (int64_t i = 0; i < N * tiles; i++) {
        const int64_t chunks = (s.CM + CHANNELS - 1) / CHANNELS, n = i / tiles;
        const conv_place<false> p(s, (n * chunks + blockIdx.x) * tiles + i % tiles, s.OH, s.OW);
        const conv_source<false, T> from(input, n, p.c, p.count, s.C, s.M, s.H * s.W),
            of(grad_output, n, p.c, p.count, s.CM, 1, s.OH * s.OW);
        const int64_t top = p.oh * s.SH - s.PH;
        of.copy_rows(grads, p.oh, p.oh + p.rows, p.ow, s.OH, s.OW, p.columns);
        channels_t here = {}; // of this tile, so that few are added one by one
        for (int64_t k = 0; k < p.rows * p.columns; k++)
            here += grads[k];
        total += here;
        if (!taps)
            continue;
        from.copy_rows(tile, top, top + (p.rows - 1) * s.SH + (s.KH - 1) * s.DH + 1,
                       p.ow * s.SW - s.PW, s.H, s.W, s.IN_COLUMNS);
        for (int64_t kh = 0; kh < s.KH;) {
            const channels_t *row = tile + kh * s.DH * s.IN_COLUMNS;
            channels_t *to = sums + kh * s.KW;
            constexpr int ALL = BESIDE > 0 ? BESIDE : 1;
            if (ALL <= 3 && BESIDE > 0 && kh + 3 <= s.KH) {
                sum_side<3, ALL>(to, s.KW, grads, row, p.rows, p.columns, s);
                kh += 3;
                continue;
            }
            int64_t kw = 0;
            for (; BESIDE == 0 && kw + SIDE <= s.KW; kw += SIDE)
                sum_side<1, SIDE>(to + kw, s.KW, grads, row + kw * s.DW, p.rows, p.columns, s);
            for (; kw < s.KW; kw += ALL)
                sum_side<1, ALL>(to + kw, s.KW, grads, row + kw * s.DW, p.rows, p.columns, s);
            kh++;
        }
    }
    return total;
}
#endif
