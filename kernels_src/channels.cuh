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

typedef decltype(channels_t{} < channels_t{}) lanes_t; // integers

// v[lane[0]] and so on.
OPD_CPU_INLINE channels_t choose_lanes(const channels_t &v, const lanes_t &lane)
{
#ifdef __clang__
    channels_t chosen;
    for (int e = 0; e < CHANNELS; e++)
        chosen[e] = v[lane[e]];
    return chosen;
#else
    return __builtin_shuffle(v, lane);
#endif
}

// All of them that lie there. 16 bits are converted as vectors: what the compiler makes of a loop
// goes through memory, from which a vector is not read before its parts have arrived there.
OPD_CPU_INLINE channels_t load_all(const acc_t *p)
{
    channels_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

OPD_CPU_INLINE void store_all(acc_t *p, const channels_t &v)
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

OPD_CPU_INLINE channels_t load_all(const opd::bfloat16 *p)
{
    channels_t v;
    opd_cpu_bfloat16s_to_floats((float *)&v, &p->x, CHANNELS);
    return v;
}

OPD_CPU_INLINE void store_all(opd::bfloat16 *p, const channels_t &v)
{
    opd_cpu_floats_to_bfloat16s(&p->x, (const float *)&v, CHANNELS);
}

// Fewer; functions of their own, for they stand in many places.
template <class T> __attribute__((noinline)) channels_t load_some(const T *p, int64_t n)
{
    acc_t some[CHANNELS] = {};
    for (int e = 0; e < n; e++)
        some[e] = opd::load(p + e);
    return load_all(some);
}

template <class T> __attribute__((noinline)) void store_some(T *p, const channels_t &v, int64_t n)
{
    for (int e = 0; e < n; e++)
        opd::store(p + e, v[e]);
}

// n of them that lie side by side; zeros behind those.
template <class T> __device__ __forceinline__ channels_t load_channels(const T *p, int64_t n)
{
    return n < CHANNELS ? load_some(p, n) : load_all(p);
}

template <class T>
__device__ __forceinline__ void store_channels(T *p, const channels_t &v, int64_t n)
{
    if (n < CHANNELS)
        store_some(p, v, n);
    else
        store_all(p, v);
}
#endif
