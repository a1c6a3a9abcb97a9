// Part of opd-formula.cuh: on a GPU.
namespace opd
{
template <class T> struct formula_is_half {
    enum : bool { value = false }; // a matter of the CPU's
};

// 16-bit elements stay in the words that were loaded until each is used: taken apart they would
// have a register each, and every load would be waited for where it stands.
template <class T, int N, bool PACKED = is_16bit<T>::value && N % 2 == 0>
struct formula_vec : vec<T, N> {
};

template <class T, int N> struct alignas(2 * N) formula_vec<T, N, true> {
    uint32_t words[N / 2];

    struct element {
        uint32_t &word;
        const int shift;
        __device__ __forceinline__ void operator=(T v)
        {
            word = (word & ~(0xffffu << shift)) | (uint32_t)v.x << shift;
        }
        __device__ __forceinline__ operator float() const
        {
            T v;
            v.x = (uint16_t)(word >> shift);
            return v;
        }
    };
    __device__ __forceinline__ element operator[](int k)
    {
        return { words[k / 2], k % 2 * 16 };
    }
    __device__ __forceinline__ const element operator[](int k) const
    {
        return { const_cast<uint32_t &>(words[k / 2]), k % 2 * 16 };
    }
};

// What is made, before it is rounded.
template <class T, bool = is_16bit<T>::value> struct formula_made {
    typedef T type;
};
template <class T> struct formula_made<T, true> {
    typedef float type;
};
template <class T, int N> using formula_result = vec<typename formula_made<T>::type, N>;

template <class T, int N> __device__ __forceinline__ void formula_load(formula_vec<T, N> &v, const T *p)
{
    v = *reinterpret_cast<const formula_vec<T, N> *>(p);
}

template <class T, class A, int N>
__device__ __forceinline__ void formula_store(T *p, const vec<A, N> &v)
{
    vec<T, N> rounded;
#pragma unroll
    for (int k = 0; k < N; k++)
        rounded[k] = T(v[k]);
    store_vec(p, rounded);
}

template <class F, int N> __device__ __forceinline__ void formula_map_block(const F &f, uint32_t block)
{
    const int64_t i = (int64_t)block * FORMULA_MAP_BLOCK + threadIdx.x, first = i * N;
    const bool whole = f.template aligned<N>();
    typename F::index at[F::offsets];
    if (whole && first + N <= f.n) {
        f.locate(i, at);
        typename F::template elements<N> e;
        f.load(e, at, 0);
#pragma unroll
        for (int k = 0; k < N; k++)
            f.compute(e, k);
        f.store(e, at, 0);
        return;
    }
    // One by one those of the last vector, or, where vectors are not aligned, of the block those
    // that lie as far apart as it has threads: a warp's lie side by side. AT_ONCE have room in the
    // registers that a vector takes.
    const int64_t from = whole ? first : first - (int64_t)threadIdx.x * (N - 1);
    const int step = whole ? 1 : FORMULA_MAP_BLOCK;
    enum { AT_ONCE = N > 1 ? N / 2 : 1 };
#pragma unroll 1
    for (int64_t m = from; m < f.n && m < from + N * step; m += AT_ONCE * step) {
        typename F::template elements<1> each[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (m + k * step < f.n) {
                f.locate((m + k * step) / N, at);
                f.load(each[k], at, (m + k * step) % N);
            }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (m + k * step < f.n) {
                f.locate((m + k * step) / N, at);
                f.compute(each[k], 0);
                f.store(each[k], at, (m + k * step) % N);
            }
    }
}

template <class F, int N> __global__ void __launch_bounds__(FORMULA_MAP_BLOCK) formula_map(F f)
{
    formula_map_block<F, N>(f, blockIdx.x);
}

template <class F, int N, int CAPACITY, int TENSORS, int... PLACES>
__global__ void __launch_bounds__(FORMULA_MAP_BLOCK)
    formula_maps(const __grid_constant__ formula_list<F, CAPACITY, TENSORS, PLACES...> list)
{
    uint32_t block = blockIdx.x;
    const F f = list.find(block);
    formula_map_block<F, N>(f, block);
}

template <class A> __device__ __forceinline__ A formula_shuffle(const A &v, int mask)
{
    return __shfl_xor_sync(0xffffffffu, v, mask);
}

template <class A, int N>
__device__ __forceinline__ formula_sums<A, N> formula_shuffle(const formula_sums<A, N> &v, int mask)
{
    formula_sums<A, N> other;
#pragma unroll
    for (int i = 0; i < N; i++)
        other.v[i] = formula_shuffle(v.v[i], mask);
    return other;
}

// A block's LANES results, or vectors of W, of which each thread has found a part: those that share
// one stand STEP apart. They join within a warp, then all that the warps have; `put` takes each.
template <class J, int LANES, int STEP, int W, class A, class P>
__device__ __forceinline__ void formula_gather(A (&sums)[W], const P &put)
{
    enum {
        OTHERS = FORMULA_BLOCK / LANES,
        IN_WARP = OTHERS * STEP < 32 ? OTHERS : STEP < 32 ? 32 / STEP : 1,
        PARTS = OTHERS / IN_WARP
    };
    const int x = (int)threadIdx.x, other = x / STEP % OTHERS;
    const int lane = STEP == 1 ? x / OTHERS : x % LANES;
#pragma unroll
    for (int half = IN_WARP / 2; half > 0; half /= 2)
#pragma unroll
        for (int w = 0; w < W; w++)
            sums[w] = J::join(sums[w], formula_shuffle(sums[w], half * STEP));
    if constexpr (PARTS == 1) {
        if (other == 0)
#pragma unroll
            for (int w = 0; w < W; w++)
                put(lane * W + w, sums[w]);
    } else {
        __shared__ alignas(16) A all[PARTS][LANES * W];
        if (other % IN_WARP == 0)
#pragma unroll
            for (int w = 0; w < W; w++)
                all[other / IN_WARP][lane * W + w] = sums[w];
        __syncthreads();
        for (int i = x; i < LANES * W; i += FORMULA_BLOCK) {
            A sum = all[0][i];
#pragma unroll
            for (int part = 1; part < PARTS; part++)
                sum = J::join(sum, all[part][i]);
            put(i, sum);
        }
    }
}

// Where the vectors of a result's elements are: of one that is askew, whose elements begin and end
// anywhere in vectors, the whole ones. What is outside those is an edge, a thread's each.
template <class F, int N> struct formula_place {
    typedef typename F::index I;
    I base[F::offsets];
    int64_t vectors;
    bool has_edge = false;
    I at_edge[F::offsets];
    typename F::template elements<1> edge;

    __device__ __forceinline__ formula_place(const F &f, int64_t index, int lane) : vectors(f.n_summed)
    {
#pragma unroll
        for (int t = 0; t < F::offsets; t++)
            base[t] = 0;
        f.kept.add((I)index, base);
        if constexpr (F::askew) {
            const int before = (N - (int)(base[0] % N)) % N;
            vectors = (f.n_summed - before) / N;
            const int behind = (int)(f.n_summed - before - vectors * N);
            has_edge = lane < before + behind;
            find_element(f, !has_edge ? 0 : lane < before ? lane : lane + vectors * N, at_edge);
            find_element(f, before, base);
            f.load(edge, at_edge, 0);
        }
    }
    // Offsets of an element, of one dimension that is summed over.
    __device__ __forceinline__ void find_element(const F &f, int64_t m, I *at) const
    {
#pragma unroll
        for (int t = 0; t < F::offsets; t++)
            at[t] = base[t] + (f.summed.stride[t][0] == 0 ? 0 : (I)m);
    }
    // Offsets of the m-th vector.
    __device__ __forceinline__ void find(const F &f, int64_t m, I *at) const
    {
#pragma unroll
        for (int t = 0; t < F::offsets; t++)
            at[t] = base[t];
        f.summed.add((I)m, at);
    }
};

// LANES results in a block, or as many vectors of N of them where these lie along the innermost
// dimension (COLUMNS); the other threads share the elements of each. The blocks of y share them
// too: their sums are added by formula_total.
template <class F, int N, bool COLUMNS, int LANES>
__global__ void __launch_bounds__(FORMULA_BLOCK) formula_sum(F f)
{
    typedef typename F::index I;
    enum { OTHERS = FORMULA_BLOCK / LANES, W = COLUMNS ? N : 1 };
    const int x = (int)threadIdx.x, lane = COLUMNS ? x % LANES : x / OTHERS;
    const int other = COLUMNS ? x / LANES : x % OTHERS;
    const int64_t result = (int64_t)blockIdx.x * LANES + lane;
    // The last part first: what a kernel before this one read last is still in the L2.
    const int64_t part = gridDim.y - 1 - blockIdx.y;
    typedef typename F::join J;
    typename F::sum_type sums[W];
#pragma unroll
    for (int w = 0; w < W; w++)
        sums[w] = J::template start<typename F::sum_type>();
    if (result * W < f.n_kept) {
        const formula_place<F, N> place(f, result, other);
        const int64_t begin = part * f.share;
        const int64_t end = formula_least(begin + f.share, place.vectors);
        const bool whole = N == 1 || f.template aligned<N>();
        if constexpr (F::askew)
            if (part == 0 && place.has_edge)
                sums[0] = J::join(sums[0], f.value(place.edge, 0));
#pragma unroll 4
        for (int64_t m = begin + other; m < end; m += OTHERS) {
            I at[F::offsets];
            place.find(f, m, at);
            if (whole) {
                typename F::template elements<N> e;
                f.load(e, at, 0);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sums[COLUMNS ? k : 0] = J::join(sums[COLUMNS ? k : 0], f.value(e, k));
            } else if constexpr (COLUMNS) {
#pragma unroll
                for (int k = 0; k < N; k++) {
                    typename F::template elements<1> e;
                    f.load(e, at, k);
                    sums[k] = J::join(sums[k], f.value(e, 0));
                }
            } else {
                // Where all threads have one, a warp's elements lie side by side.
                const bool spread = F::summed_rank == 1 && m - other + OTHERS <= end;
                if (spread)
                    place.find_element(f, (m - other) * N + other, at);
                typename F::template elements<N> e;
                f.load_each(e, at, spread ? OTHERS : 1);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sums[0] = J::join(sums[0], f.value(e, k));
            }
        }
    }
    formula_gather<J, LANES, COLUMNS ? LANES : 1>(sums, [&](int i, const typename F::sum_type &sum) {
        const int64_t to = (int64_t)blockIdx.x * LANES * W + i;
        if (to < f.n_kept)
            f.put(part * f.n_kept + to, sum);
    });
}

template <class A, class T, int LANES, class J = formula_add>
__global__ void __launch_bounds__(FORMULA_BLOCK)
    formula_total(const A *__restrict__ sums, T *__restrict__ out, int64_t n, int64_t n_parts)
{
    enum { OTHERS = FORMULA_BLOCK / LANES };
    const int lane = (int)threadIdx.x % LANES, other = (int)threadIdx.x / LANES;
    const int64_t first = (int64_t)blockIdx.x * LANES, i = first + lane;
    A sum[1] = { J::template start<A>() };
    for (int64_t part = other; i < n && part < n_parts; part += OTHERS)
        sum[0] = J::join(sum[0], sums[part * n + i]);
    formula_gather<J, LANES, LANES>(sum, [&](int result, const A &total) {
        if (first + result < n)
            out[first + result] = T(total);
    });
}

// What LANES threads have found, joined, in each of them; the same bits in all.
template <class J, int LANES, int S, class A> __device__ __forceinline__ void formula_share(A (&v)[S])
{
#pragma unroll
    for (int offset = (LANES < 32 ? LANES : 32) / 2; offset > 0; offset /= 2)
#pragma unroll
        for (int s = 0; s < S; s++)
            v[s] = J::join(v[s], __shfl_xor_sync(0xffffffffu, v[s], offset));
    if constexpr (LANES > 32) {
        enum { WARPS = LANES / 32 };
        __shared__ A all[S][(LANES > FORMULA_BLOCK ? LANES : FORMULA_BLOCK) / 32];
        const int first = (int)threadIdx.x / LANES * WARPS;
        __syncthreads(); // an earlier call's have been read
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (int s = 0; s < S; s++)
                all[s][threadIdx.x / 32] = v[s];
        __syncthreads();
#pragma unroll
        for (int s = 0; s < S; s++) {
            v[s] = all[s][first];
#pragma unroll
            for (int i = 1; i < WARPS; i++)
                v[s] = J::join(v[s], all[s][first + i]);
        }
    }
}

// A row of what is computed row by row, shared by LANES threads. Each holds ITEMS vectors of it,
// which are read once; of -ITEMS each pass over the row reads as many again at a time.
template <class F, int N, int LANES, int ITEMS> struct formula_reader {
    typedef typename F::template elements<N> E;
    typedef typename F::index I;
    typedef typename F::sum_type A;
    enum { HELD = ITEMS > 0 ? ITEMS : -ITEMS };
    const F &f;
    const int64_t index;
    const bool live; // it is one of the rows
    const bool whole;
    const int lane;
    formula_place<F, N> place;
    E held[HELD];

    __device__ __forceinline__ formula_reader(const F &f, int64_t i)
        : f(f), index(formula_least(i, f.n_kept - 1)), live(i < f.n_kept),
          whole(N == 1 || f.template aligned<N>()), lane((int)threadIdx.x % LANES), place(f, index, lane)
    {
        if constexpr (ITEMS > 0)
            hold(0);
    }
    // A thread's vectors from there on. Of those behind the last it is the last that is read: no load
    // waits for a condition.
    template <class M> __device__ __forceinline__ void hold(M from)
    {
        if (whole)
            hold_as<true>(from);
        else
            hold_as<false>(from);
    }
    template <bool WHOLE, class M> __device__ __forceinline__ void hold_as(M from)
    {
        const M last = (M)place.vectors - 1;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const M m = from + i * LANES + lane;
            I at[F::offsets];
            place.find(f, m < last ? m : last, at);
            if constexpr (WHOLE)
                f.load(held[i], at, 0);
            else
                f.load_each(held[i], at, spread(m, at));
        }
    }
    // Where all of a row's threads have a vector that is not aligned, theirs lie side by side, each
    // so far from its next: that, else 1.
    template <class M> __device__ __forceinline__ int spread(M m, I *at) const
    {
        if (F::summed_rank > 1 || m - lane + LANES > (M)place.vectors)
            return 1;
        place.find_element(f, (m - lane) * N + lane, at);
        return LANES;
    }
    template <class M> __device__ __forceinline__ int count(M from) const
    {
        return (int)(((M)place.vectors - from - lane + LANES - 1) / LANES);
    }
    __device__ __forceinline__ void put(const E &e, int64_t m) const
    {
        I at[F::offsets];
        place.find(f, m, at);
        if (whole)
            f.store(e, at, 0);
        else
            f.store_each(e, at, spread(m, at));
    }
    __device__ __forceinline__ bool is_first() const
    {
        return live && lane == 0;
    }
    // N of e's elements, where it is one that counts.
    template <class J, int COUNT, int S, class Elements, class... V>
    __device__ __forceinline__ void join(A (&sums)[S], bool counts, const Elements &e,
                                         const V &...value) const
    {
        formula_sums<A, S> joined;
#pragma unroll
        for (int s = 0; s < S; s++)
            joined.v[s] = sums[s];
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const A each[S] = { value(e, k)... };
#pragma unroll
            for (int s = 0; s < S; s++)
                joined.v[s] = J::join(joined.v[s], each[s]);
        }
#pragma unroll
        for (int s = 0; s < S; s++)
            sums[s] = counts ? joined.v[s] : sums[s];
    }
    template <class J, int S, class M, class... V>
    __device__ __forceinline__ void join_held(A (&sums)[S], M from, const V &...value) const
    {
        const int mine = count(from);
#pragma unroll
        for (int i = 0; i < HELD; i++)
            join<J, N>(sums, i < mine, held[i], value...);
    }
    // A sum of each `value`, in one pass.
    template <class J, class... V>
    __device__ __forceinline__ formula_sums<A, sizeof...(V)> join(const V &...value)
    {
        formula_sums<A, sizeof...(V)> found;
#pragma unroll
        for (int s = 0; s < (int)sizeof...(V); s++)
            found.v[s] = J::template start<A>();
        if constexpr (ITEMS > 0) {
            join_held<J>(found.v, 0, value...);
        } else {
            for (int64_t from = 0; from < place.vectors; from += HELD * LANES) {
                hold(from);
                join_held<J>(found.v, from, value...);
            }
        }
        if constexpr (F::askew)
            join<J, 1>(found.v, place.has_edge, place.edge, value...);
        formula_share<J, LANES>(found.v);
        return found;
    }
    template <class C, class M> __device__ __forceinline__ void compute_held(const C &compute, M from)
    {
        const int mine = count(from);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
#pragma unroll
            for (int k = 0; k < N; k++)
                compute(held[i], k);
            if (live && i < mine)
                put(held[i], from + i * LANES + lane);
        }
    }
    template <class C> __device__ __forceinline__ void each(const C &compute)
    {
        if constexpr (ITEMS > 0) {
            compute_held(compute, 0);
        } else {
            for (int64_t from = 0; from < place.vectors; from += HELD * LANES) {
                hold(from);
                compute_held(compute, from);
            }
        }
        if constexpr (F::askew) {
            compute(place.edge, 0);
            if (live && place.has_edge)
                f.store(place.edge, place.at_edge, 0);
        }
    }
};

// Blocks that share a row wait for themselves at barriers, and others have to run meanwhile: of 256
// threads 3, whose 80 registers hold a row, of more as many as have 1024. 0: the compiler chooses.
template <int LANES> struct formula_row_block {
    enum {
        THREADS = LANES > FORMULA_BLOCK ? LANES : FORMULA_BLOCK,
        AT_A_TIME = LANES > FORMULA_BLOCK ? 1024 / LANES : LANES == FORMULA_BLOCK ? 3 : 0
    };
};

template <class F, int N, int LANES, int ITEMS>
__global__ void __launch_bounds__(formula_row_block<LANES>::THREADS, formula_row_block<LANES>::AT_A_TIME)
    formula_row(F f)
{
    enum { ROWS = LANES > FORMULA_BLOCK ? 1 : FORMULA_BLOCK / LANES };
    formula_reader<F, N, LANES, ITEMS> row(f, (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES);
    f.run(row);
}

} // namespace opd
