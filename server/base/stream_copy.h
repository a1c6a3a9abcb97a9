#pragma once

// A copy past the caches, which would first read what is overwritten, and keep what nobody reads
// soon: for pieces of what is larger than they are.

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

// The two do not overlap.
static inline void stream_copy(char *to, const char *from, size_t size)
{
#ifdef __SSE2__
    enum { LINE = 64 };
    size_t odd = (LINE - (uintptr_t)to % LINE) % LINE; // before the first whole line
    odd = odd < size ? odd : size;
    memcpy(to, from, odd);
    to += odd, from += odd, size -= odd;
    for (; size >= LINE; to += LINE, from += LINE, size -= LINE) {
        const __m128i *in = (const __m128i *)(const void *)from;
        __m128i *out = (__m128i *)(void *)to;
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();
#endif
    memcpy(to, from, size);
}
