// Copies from a tensor into shared memory, which go on while other things are done: those of sm_80
// and later pass no registers.
#pragma once
#ifndef OPD_CPU

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// V elements, or zeros: without going through registers, where the hardware can.
template <int V, class T>
__device__ __forceinline__ void copy_to_shared(T *to, const T *from, bool inside)
{
    constexpr int BYTES = V * sizeof(T);
#if __CUDA_ARCH__ >= 800
    constexpr bool THROUGH_REGISTERS = BYTES < 4;
#else
    constexpr bool THROUGH_REGISTERS = true;
#endif
    if constexpr (THROUGH_REGISTERS) {
        opd::vec<T, V> v;
        for (int k = 0; k < V; k++)
            v[k] = T(0.f);
        if (inside)
            v = opd::load_vec<V>(from);
        opd::store_vec(to, v);
    } else if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                     "l"(from), "r"(inside ? BYTES : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)),
                     "l"(from), "r"(inside ? BYTES : 0), "n"(BYTES)
                     : "memory");
    }
}

// Where copy_run<1>() has a run: as far behind `room` as it was behind a multiple of 128 bytes, since
// copies that lie askew take a quarter more.
template <class T> __device__ __forceinline__ T *find_run(void *room, const T *from)
{
    return (T *)((char *)room + (size_t)from % 128);
}

// `count` elements that lie side by side, by a block or so many threads of it, and where they are
// then: EVEN of them can be read at once where they could be.
template <int EVEN, class T>
__device__ __forceinline__ T *copy_run(void *room, const T *from, int count,
                                          int me = (int)threadIdx.x, int threads = (int)blockDim.x)
{
    constexpr int V = 16 / sizeof(T);
    const int skew = (int)((size_t)from % 128);
    const bool aligned = skew % (EVEN * sizeof(T)) == 0;
    T *to = (T *)((char *)room + (aligned ? skew : skew / 16 * 16));
    const int head = aligned ? min(count, (128 - skew) % 16 / (int)sizeof(T)) : count;
    const int tail = head + (count - head) / V * V;
#pragma unroll 4
    for (int i = head + me * V; i < tail; i += threads * V)
        copy_to_shared<V>(to + i, from + i, true);
#pragma unroll 1
    for (int i = me; i < head; i += threads)
        copy_to_shared<1>(to + i, from + i, true);
#pragma unroll 1
    for (int i = tail + me; i < count; i += threads)
        copy_to_shared<1>(to + i, from + i, true);
    return to;
}

__device__ __forceinline__ void wait_for_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

// Copies from here on are another group.
__device__ __forceinline__ void commit_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// For all groups but the last N.
template <int N> __device__ __forceinline__ void wait_for_copies_but()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
    __syncthreads();
}

// N elements that lie side by side, as what they accumulate in. 16-bit ones are taken out of words:
// one instruction for each.
template <int N, class T> __device__ __forceinline__ void load_words(acc_t *v, const T *p)
{
    if constexpr (sizeof(T) == 2 && N > 1) {
        const auto words = opd::load_vec<N / 2>((const uint32_t *)p);
#pragma unroll
        for (int k = 0; k < N; k++) {
            T e;
            e.x = (uint16_t)(words[k / 2] >> k % 2 * 16);
            v[k] = opd::load(&e);
        }
    } else {
        const auto block = opd::load_vec<N>(p);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = opd::load(&block[k]);
    }
}

// From shared memory, where they lie as far from a multiple of 16 bytes as there.
template <class T> __device__ __forceinline__ void copy_back(T *to, const T *from, int count)
{
    constexpr int V = 16 / sizeof(T);
    const int threads = (int)blockDim.x;
    const int head = min(count, (int)((16 - (size_t)to % 16) % 16 / sizeof(T)));
    const int tail = head + (count - head) / V * V;
    for (int i = head + (int)threadIdx.x * V; i < tail; i += threads * V)
        opd::store_vec(to + i, opd::load_vec<V>(from + i));
    for (int i = threadIdx.x; i < head; i += threads)
        to[i] = from[i];
    if (tail + (int)threadIdx.x < count)
        to[tail + threadIdx.x] = from[tail + threadIdx.x];
}
#endif
