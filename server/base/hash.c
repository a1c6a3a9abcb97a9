#include "base/hash.h"

#include <endian.h>
#include <string.h>

static const uint64_t odd[3] = { 0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * odd[1];
    x = (x ^ (x >> 27)) * odd[2];
    return x ^ (x >> 31);
}

static uint64_t load_le(const uint8_t *p, size_t n)
{
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++)
        word |= (uint64_t)p[i] << (8 * i);
    return word;
}

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const uint8_t *bytes = p;
    uint64_t h = mix(seed + odd[0]) ^ ((uint64_t)n * odd[1]);
    size_t at = 0;
    for (; n - at >= 8; at += 8) {
        uint64_t word; // written out, so that it becomes one load
        memcpy(&word, bytes + at, 8);
        h = mix(h ^ le64toh(word)) + odd[0];
    }
    if (at < n)
        h = mix(h ^ load_le(bytes + at, n - at)) + odd[0];
    return mix(h);
}
