// Tiles of planes in shared memory, of depthwise_conv2d.cu: what its kernels for tensor cores and
// for large windows have in common.
#pragma once
#include "copy_to_shared.cuh"
#ifndef OPD_CPU

// What a block works on: TILE_H rows by TILES blocks of 16 bytes of outputs, of as many
// images of one channel as there is room for. An image's rows of input, of which there are HALO_H,
// lie in shared memory with zeros where they are outside. There are DOWN * ALONG tiles in an image.
struct tile_shape {
    int N, CM, M, H, OH, SH, DH, PH, PW;
    opd::divisor W, HW, OW, OHW, TILE_H, HALO_H;
    int IMAGES, DOWN, ALONG;
};

// Which tile of an image, of which channel and images, a block has.
struct tile_place {
    int channel, n, images, oh, ow;

    __device__ __forceinline__ tile_place(const tile_shape &s, int tile, int channel_)
    {
        channel = channel_;
        ow = tile % s.ALONG;
        oh = tile / s.ALONG % s.DOWN * s.TILE_H;
        n = tile / s.ALONG / s.DOWN * s.IMAGES;
        images = min(s.IMAGES, s.N - n);
    }
};

// A part of `images` planes that lie `apart`: `rows` of each from row `top` on, `bottom` of which
// are inside, and COLUMNS columns from `left` on, a multiple of a block of 16 bytes. ALL: that is
// the whole of each plane, and what is outside has zeros already: only what is inside is copied.
struct planes {
    int64_t apart;
    int images, top, bottom, left;
    opd::divisor width, rows, size;
};

template <int V, int UNROLL, int COLUMNS, int PITCH, bool ALL, class T>
__device__ __forceinline__ void fill_by(T *tile, const T *plane, const planes &p)
{
    constexpr int PARTS = COLUMNS / V;
    const int count = p.images * (ALL ? p.size / V : p.rows * PARTS);
#pragma unroll UNROLL
    for (int i = threadIdx.x; i < count; i += (int)blockDim.x) {
        if constexpr (ALL) {
            const int n = i * V / p.size, at = i * V - n * p.size, y = at / p.width;
            const int x = at - y * p.width - p.left;
            if ((unsigned)(y - p.top) < (unsigned)(int)p.rows && (unsigned)x < (unsigned)COLUMNS)
                copy_to_shared<V>(tile + (n * p.rows + y - p.top) * PITCH + x,
                                  plane + n * p.apart + at, true);
        } else {
            const int r = i / PARTS, x = i % PARTS * V, n = r / p.rows;
            const int y = p.top + r - n * p.rows, from = p.left + x;
            const bool inside = (unsigned)y < (unsigned)p.bottom &&
                                (unsigned)from < (unsigned)(int)p.width;
            copy_to_shared<V>(tile + r * PITCH + x,
                              inside ? plane + n * p.apart + (int64_t)y * p.width + from : plane,
                              inside);
        }
    }
}

// Where the plane is aligned to EVEN elements, of which its width is a multiple, by so many.
template <int EVEN, int COLUMNS, int PITCH, bool ALL, class T>
__device__ __forceinline__ void fill(T *tile, const T *plane, const planes &p)
{
    if (EVEN > 1 && (size_t)plane % (EVEN * sizeof(T)) == 0)
        fill_by<EVEN, 2, COLUMNS, PITCH, ALL>(tile, plane, p);
    else
        fill_by<1, EVEN == 1 ? 2 : 1, COLUMNS, PITCH, ALL>(tile, plane, p);
}

__device__ __forceinline__ void fill_zeros(uint4 *to, int count)
{
    for (int i = threadIdx.x; i < count; i += (int)blockDim.x)
        to[i] = uint4{ 0, 0, 0, 0 };
}

#endif
