// Channels that lie side by side in memory: several read, made and stored at once.
#pragma once
#ifndef OPD_CPU

// Whether V channels side by side may be read or written at once, wherever V of them begin.
template <int V, class T> __device__ __forceinline__ bool lie_whole(const T *p)
{
    return opd::is_aligned(p, alignof(opd::vec<T, V>));
}

// V channels side by side, where they may be read at once.
template <int V, class T>
__device__ __forceinline__ opd::vec<T, V> read_channels(const T *p, bool whole)
{
    if (whole)
        return opd::load_vec<V>(p);
    opd::vec<T, V> v;
    for (int e = 0; e < V; e++)
        v[e] = p[e];
    return v;
}

template <int V, class T>
__device__ __forceinline__ void write_channels(T *p, const acc_t *v, bool whole)
{
    opd::vec<T, V> made;
    for (int e = 0; e < V; e++)
        opd::store(&made[e], v[e]);
    if (whole)
        opd::store_vec(p, made);
    else
        for (int e = 0; e < V; e++)
            p[e] = made[e];
}

#else

typedef acc_t channels_t __attribute__((vector_size(64)));
enum { CHANNELS = 64 / sizeof(acc_t) };

// All of them that lie there. 16 bits are converted as vectors: what the compiler makes of a loop
// goes through memory, from which a vector is not read before its parts have arrived there.
template <class T> OPD_CPU_INLINE channels_t load_all(const T *p)
{
    channels_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

template <class T> OPD_CPU_INLINE void store_all(T *p, const channels_t &v)
{
    memcpy(p, &v, sizeof(v));
}

OPD_CPU_INLINE channels_t load_all(const opd::half *p)
{
    channels_t v;
    opd_cpu_halves_to_floats((float *)&v, &p->x, CHANNELS);
    return v;
}

OPD_CPU_INLINE void store_all(opd::half *p, const channels_t &v)
{
    opd_cpu_floats_to_halves(&p->x, (const float *)&v, CHANNELS);
}

typedef uint16_t words_t __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t bits_t __attribute__((vector_size(64), may_alias));

OPD_CPU_INLINE channels_t load_all(const opd::bfloat16 *p)
{
    channels_t v;
    opd_cpu_bfloat16s_to_floats((float *)&v, &p->x, CHANNELS);
    return v;
}

OPD_CPU_INLINE void store_all(opd::bfloat16 *p, const channels_t &v)
{
    const bits_t u = (bits_t)v, is_nan = (bits_t)((u & 0x7fffffffu) > 0x7f800000u);
    const bits_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    *(words_t *)p = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fffu), words_t);
}

// n of them that lie side by side; zeros behind those.
template <class T> __device__ __forceinline__ channels_t load_channels(const T *p, int64_t n)
{
    if (n >= CHANNELS)
        return load_all(p);
    acc_t some[CHANNELS] = {};
    for (int e = 0; e < n; e++)
        some[e] = opd::load(p + e);
    return load_all(some);
}

template <class T>
__device__ __forceinline__ void store_channels(T *p, const channels_t &v, int64_t n)
{
    if (n >= CHANNELS)
        return store_all(p, v);
    for (int e = 0; e < n; e++)
        opd::store(p + e, v[e]);
}
#endif
