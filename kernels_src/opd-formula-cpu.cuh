// Part of opd-formula.cuh: on the CPU device, where a block has one thread.
namespace opd
{
// A half is a float as soon as it is loaded: many are converted at once, and the compiler's vectors
// are of one size.
template <class T> struct formula_is_half {
    typedef T held;
    enum : bool { value = false };
};
template <> struct formula_is_half<half> {
    typedef float held;
    enum : bool { value = true };
};

template <class T, int N> struct alignas(N % 16 == 0 ? 64 : 8) formula_vec {
    typename formula_is_half<T>::held v[N];
    OPD_CPU_INLINE auto &operator[](int i)
    {
        return v[i];
    }
    OPD_CPU_INLINE const auto &operator[](int i) const
    {
        return v[i];
    }
};

template <class T, int N> using formula_result = formula_vec<T, N>;

template <class T, int N> OPD_CPU_INLINE void formula_load(formula_vec<T, N> &v, const T *p)
{
    if constexpr (formula_is_half<T>::value)
        opd_cpu_halves_to_floats(v.v, &p->x, N);
    else
        for (int k = 0; k < N; k++)
            v.v[k] = p[k];
}

template <class T, int N> OPD_CPU_INLINE void formula_store(T *p, const formula_vec<T, N> &v)
{
    if constexpr (formula_is_half<T>::value)
        opd_cpu_floats_to_halves(&p->x, v.v, N);
    else
        for (int k = 0; k < N; k++)
            p[k] = v.v[k];
}

// use(e, i, k): element i of e is the k-th of `count` that lie side by side. WRITES: it is stored
// then. Only where there are halves, which are converted so many at once; returns how many were
// used, the rest is the caller's.
template <bool WRITES, class F, class U>
OPD_CPU_INLINE int64_t formula_tiles(const F &f, const typename F::index *at, int64_t count,
                                     const U &use)
{
    enum { TILE = 64 };
    int64_t k = 0;
    if constexpr (F::halves)
        for (; k + TILE <= count; k += TILE) {
            typename F::template elements<TILE> e;
            f.load(e, at, k);
            OPD_CPU_VECTORIZE
            for (int i = 0; i < TILE; i++)
                use(e, i, k + i);
            if constexpr (WRITES)
                f.store(e, at, k);
        }
    return k;
}

template <class F, int N> OPD_CPU_INLINE void formula_map_block(const F &f, int64_t block)
{
    int64_t i = block * f.share;
    const int64_t end = formula_least(i + f.share, f.n), row = f.row();
    while (i < end) {
        typename F::index at[F::offsets];
        f.locate(i, at);
        const int64_t count = formula_least(row - i % row, end - i);
        int64_t k = formula_tiles<true>(f, at, count,
                                        [&](auto &e, int k, int64_t) { f.compute(e, k); });
        OPD_CPU_VECTORIZE
        for (; k < count; k++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            f.compute(e, 0);
            f.store(e, at, k);
        }
        i += count;
    }
}

template <class F, int N> __global__ void formula_map(F f)
{
    formula_map_block<F, N>(f, blockIdx.x);
}

template <class F, int N, int CAPACITY, int TENSORS, int... PLACES>
__global__ void formula_maps(const formula_list<F, CAPACITY, TENSORS, PLACES...> &list)
{
    uint32_t block = blockIdx.x;
    const F f = list.find(block);
    formula_map_block<F, N>(f, block);
}

// A tile of results that are neighbours, side by side.
template <class F> OPD_CPU_INLINE void formula_sum_columns(const F &f, int64_t m, int64_t end)
{
    enum { TILE = 256 };
    const int64_t row = f.kept.size[F::kept_rank - 1], tiles = (row + TILE - 1) / TILE;
    const int64_t column = blockIdx.x % tiles * TILE, first = blockIdx.x / tiles * row + column;
    const int64_t count = formula_least(TILE, row - column);
    typename F::index base[F::offsets] = {}, at[F::offsets];
    typename F::sum_type sums[TILE];
    for (int64_t k = 0; k < TILE; k++)
        sums[k] = F::join::template start<typename F::sum_type>();
    f.kept.add((typename F::index)first, base);
    for (; m < end; m++) {
        for (int t = 0; t < F::offsets; t++)
            at[t] = base[t];
        f.summed.add((typename F::index)m, at);
        int64_t k = formula_tiles<false>(f, at, count, [&](const auto &e, int i, int64_t k) {
            sums[k] = F::join::join(sums[k], f.value(e, i));
        });
        OPD_CPU_VECTORIZE
        for (; k < count; k++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            sums[k] = F::join::join(sums[k], f.value(e, 0));
        }
    }
    for (int64_t k = 0; k < count; k++)
        f.put(blockIdx.y * f.n_kept + first + k, sums[k]);
}

// What the elements m to end of a row become by `value`, in lanes side by side.
template <class F, class J, class V>
OPD_CPU_INLINE typename F::sum_type formula_join(const F &f, int64_t result, int64_t m, int64_t end,
                                                 const V &value)
{
    enum { LANES = 32 }; // some vectors of them: one waits for the one before
    typedef typename F::sum_type A;
    const int64_t row = f.summed.size[F::summed_rank - 1];
    A sums[LANES];
    const int used = end - m < LANES ? (int)(end - m) : 0;
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] = J::template start<A>();
    for (int64_t count; m < end; m += count) {
        typename F::index at[F::offsets] = {};
        f.kept.add((typename F::index)result, at);
        f.summed.add((typename F::index)m, at);
        count = formula_least(row - m % row, end - m);
        int64_t k = 0;
        for (; k + LANES <= count; k += LANES) {
            if constexpr (F::halves) {
                typename F::template elements<LANES> e;
                f.load(e, at, k);
                OPD_CPU_VECTORIZE
                for (int lane = 0; lane < LANES; lane++)
                    sums[lane] = J::join(sums[lane], value(e, lane));
            } else {
                OPD_CPU_VECTORIZE
                for (int lane = 0; lane < LANES; lane++) {
                    typename F::template elements<1> e;
                    f.load(e, at, k + lane);
                    sums[lane] = J::join(sums[lane], value(e, 0));
                }
            }
        }
        for (int lane = 0; k < count; k++, lane++) {
            typename F::template elements<1> e;
            f.load(e, at, k);
            sums[lane] = J::join(sums[lane], value(e, 0));
        }
    }
    for (int lane = 1; lane < used; lane++)
        sums[0] = J::join(sums[0], sums[lane]);
    for (int half = used > 0 ? 0 : LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sums[lane] = J::join(sums[lane], sums[lane + half]);
    return sums[0];
}

// One result after the other.
template <class F> OPD_CPU_INLINE void formula_sum_rows(const F &f, int64_t begin, int64_t end)
{
    const int64_t last = formula_least((blockIdx.x + 1) * f.group, f.n_kept);
    for (int64_t result = blockIdx.x * f.group; result < last; result++)
        f.put(blockIdx.y * f.n_kept + result,
              formula_join<F, typename F::join>(f, result, begin, end, [&](const auto &e, int k) {
                  return f.value(e, k);
              }));
}

// A row of what is computed row by row: it is read once more for each of its sums.
template <class F> struct formula_reader {
    const F &f;
    int64_t index;
    OPD_CPU_INLINE bool is_first() const
    {
        return true;
    }
    template <class J, class... V>
    OPD_CPU_INLINE formula_sums<typename F::sum_type, sizeof...(V)> join(const V &...value) const
    {
        return { { formula_join<F, J>(f, index, 0, f.n_summed, value)... } };
    }
    template <class C> OPD_CPU_INLINE void each(const C &compute) const
    {
        const int64_t row = f.summed.size[F::summed_rank - 1];
        for (int64_t m = 0; m < f.n_summed; m += row) {
            typename F::index at[F::offsets] = {};
            f.kept.add((typename F::index)index, at);
            f.summed.add((typename F::index)m, at);
            int64_t k = formula_tiles<true>(f, at, row,
                                            [&](auto &e, int k, int64_t) { compute(e, k); });
            OPD_CPU_VECTORIZE
            for (; k < row; k++) {
                typename F::template elements<1> e;
                f.load(e, at, k);
                compute(e, 0);
                f.store(e, at, k);
            }
        }
    }
};

template <class F, int N, int LANES, int ITEMS> __global__ void formula_row(F f)
{
    const int64_t last = formula_least((blockIdx.x + 1) * f.group, f.n_kept);
    for (int64_t i = blockIdx.x * f.group; i < last; i++)
        f.run(formula_reader<F>{ f, i });
}

template <class F, int N, bool COLUMNS, int LANES> __global__ void formula_sum(F f)
{
    const int64_t begin = blockIdx.y * f.share;
    const int64_t end = formula_least(begin + f.share, f.n_summed);
    if constexpr (COLUMNS)
        formula_sum_columns(f, begin, end);
    else
        formula_sum_rows(f, begin, end);
}

template <class A, class T, int LANES, class J = formula_add>
__global__ void formula_total(const A *sums, T *out, int64_t n, int64_t n_parts)
{
    const int64_t begin = blockIdx.x * 1024ll, end = formula_least(begin + 1024, n);
    for (int64_t i = begin; i < end; i++) {
        A sum = J::template start<A>();
        for (int64_t part = 0; part < n_parts; part++)
            sum = J::join(sum, sums[part * n + i]);
        out[i] = T(sum);
    }
}

} // namespace opd
