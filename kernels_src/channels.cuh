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

// n of them that lie side by side; zeros behind those.
template <class T> __device__ __forceinline__ channels_t load_channels(const T *p, int64_t n)
{
    channels_t v;
    if constexpr (sizeof(T) == sizeof(acc_t))
        if (n >= CHANNELS) {
            memcpy(&v, p, sizeof(v));
            return v;
        }
    acc_t all[CHANNELS] = {};
    if (n >= CHANNELS)
        for (int e = 0; e < CHANNELS; e++)
            all[e] = opd::load(p + e);
    else
        for (int e = 0; e < n; e++)
            all[e] = opd::load(p + e);
    memcpy(&v, all, sizeof(v));
    return v;
}

template <class T>
__device__ __forceinline__ void store_channels(T *p, const channels_t &v, int64_t n)
{
    acc_t all[CHANNELS];
    memcpy(all, &v, sizeof(v));
    if (n < CHANNELS)
        for (int e = 0; e < n; e++)
            opd::store(p + e, all[e]);
    else
        for (int e = 0; e < CHANNELS; e++)
            opd::store(p + e, all[e]);
}
#endif
