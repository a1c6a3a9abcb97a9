// <cub/cub.cuh>: the primitives of CUB for a warp and for a block that kernels use, on the GPU and on
// the CPU device. What CUB has beside them is NVIDIA's, where its headers are installed. Sums are
// made in the order of the threads, the same in each run.
#ifndef OPD_CUB
#define OPD_CUB

#ifndef CUB_VERSION
#define CUB_VERSION 200200
#endif
#define CUB_MAX(a, b) ((a) > (b) ? (a) : (b))
#define CUB_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CUB_RUNTIME_FUNCTION
#define CUB_PTX_WARP_THREADS 32
#define OPD_FN __device__ __forceinline__

namespace cub
{

struct Sum {
    template <class T, class U> OPD_FN auto operator()(const T &a, const U &b) const
    {
        return a + b;
    }
};
struct Max {
    template <class T, class U> OPD_FN auto operator()(const T &a, const U &b) const
    {
        return a < b ? b : a;
    }
};
struct Min {
    template <class T, class U> OPD_FN auto operator()(const T &a, const U &b) const
    {
        return b < a ? b : a;
    }
};
struct Equality {
    template <class T, class U> OPD_FN bool operator()(const T &a, const U &b) const
    {
        return a == b;
    }
};
struct Inequality {
    template <class T, class U> OPD_FN bool operator()(const T &a, const U &b) const
    {
        return a != b;
    }
};
template <class K, class V> struct KeyValuePair {
    typedef K Key;
    typedef V Value;
    K key;
    V value;
    KeyValuePair() = default;
    OPD_FN KeyValuePair(const K &key, const V &value) : key(key), value(value)
    {
    }
};
// Of equal values that with the least key.
struct ArgMax {
    template <class K, class V>
    OPD_FN KeyValuePair<K, V> operator()(const KeyValuePair<K, V> &a,
                                         const KeyValuePair<K, V> &b) const
    {
        return a.value < b.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class K, class V>
    OPD_FN KeyValuePair<K, V> operator()(const KeyValuePair<K, V> &a,
                                         const KeyValuePair<K, V> &b) const
    {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};

OPD_FN int RowMajorTid(int x, int y, int)
{
    return (int)(threadIdx.x + x * (threadIdx.y + y * threadIdx.z));
}
OPD_FN unsigned LaneId()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
OPD_FN unsigned WarpId()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32;
}

// Bytes, as what lies in shared memory is not made by a constructor.
template <class T, int N> struct opd_room {
    alignas(T) unsigned char bytes[sizeof(T) * N];
    OPD_FN T &operator[](int i)
    {
        return reinterpret_cast<T *>(bytes)[i];
    }
};
struct NullType {};

// From the lane `to`, or from the lane that many before or behind, or from itself where that is none
// of its `width`; all lanes of the mask call it.
enum { OPD_FROM, OPD_BEFORE, OPD_BEHIND };
template <int HOW> OPD_FN unsigned opd_shuffle_word(unsigned mask, unsigned v, int to, int width)
{
    return HOW == OPD_BEFORE   ? __shfl_up_sync(mask, v, to, width)
           : HOW == OPD_BEHIND ? __shfl_down_sync(mask, v, to, width)
                               : __shfl_sync(mask, v, to, width);
}
template <int HOW = OPD_FROM, class T>
OPD_FN T opd_shuffle(unsigned mask, const T &v, int to, int width = 32)
{
    T out = v;
    if constexpr (sizeof(T) % 4 == 0) {
        unsigned *words = reinterpret_cast<unsigned *>(&out);
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 4); i++)
            words[i] = opd_shuffle_word<HOW>(mask, words[i], to, width);
    } else if constexpr (sizeof(T) == 2) {
        uint16_t &bits = reinterpret_cast<uint16_t &>(out);
        bits = (uint16_t)opd_shuffle_word<HOW>(mask, bits, to, width);
    } else {
        unsigned char *bytes = reinterpret_cast<unsigned char *>(&out);
#pragma unroll
        for (int i = 0; i < int(sizeof(T)); i++)
            bytes[i] = (unsigned char)opd_shuffle_word<HOW>(mask, bytes[i], to, width);
    }
    return out;
}
template <int LANE, int WIDTH = 32, class T> OPD_FN T ShuffleIndex(T v, int lane, unsigned mask)
{
    return opd_shuffle(mask, v, (int)(LaneId() & ~(WIDTH - 1)) + lane);
}

// --- warps, or parts of one with a power of two lanes

// `lane` of `width`, `n` of them with a value. The result is the first lane's.
template <class T, class Op>
OPD_FN T opd_reduce_lanes(T v, Op op, unsigned mask, int lane, int width, int n)
{
#pragma unroll
    for (int step = 1; step < width; step *= 2) {
        const T other = opd_shuffle<OPD_BEHIND>(mask, v, step, width);
        if (lane + step < n)
            v = op(v, other);
    }
    return v;
}
template <class T, class Op>
OPD_FN T opd_scan_lanes(T v, Op op, unsigned mask, int lane, int width)
{
#pragma unroll
    for (int step = 1; step < width; step *= 2) {
        const T other = opd_shuffle<OPD_BEFORE>(mask, v, step, width);
        if (lane >= step)
            v = op(other, v);
    }
    return v;
}
template <int WIDTH> OPD_FN unsigned opd_mask()
{
    return (WIDTH == 32 ? ~0u : (1u << WIDTH % 32) - 1) << (LaneId() & ~(WIDTH - 1));
}

template <class T, int WIDTH = 32, int = 0> class WarpReduce
{
  public:
    struct TempStorage {
        char unused;
    };
    OPD_FN explicit WarpReduce(TempStorage &)
    {
    }
    template <class Op> OPD_FN T Reduce(T v, Op op, int n = WIDTH)
    {
        return opd_reduce_lanes(v, op, opd_mask<WIDTH>(), (int)LaneId() % WIDTH, WIDTH, n);
    }
    OPD_FN T Sum(T v, int n = WIDTH)
    {
        return Reduce(v, cub::Sum(), n);
    }
};

template <class T, int WIDTH = 32, int = 0> class WarpScan
{
    OPD_FN static T before(T inclusive, T first)
    {
        const int lane = (int)LaneId(), at = lane % WIDTH;
        const T v = opd_shuffle(opd_mask<WIDTH>(), inclusive, at ? lane - 1 : lane);
        return at ? v : first;
    }
    OPD_FN static T last(T inclusive)
    {
        return opd_shuffle(opd_mask<WIDTH>(), inclusive, (int)LaneId() | (WIDTH - 1));
    }

  public:
    struct TempStorage {
        char unused;
    };
    OPD_FN explicit WarpScan(TempStorage &)
    {
    }
    template <class Op> OPD_FN void InclusiveScan(T v, T &out, Op op)
    {
        out = opd_scan_lanes(v, op, opd_mask<WIDTH>(), (int)LaneId() % WIDTH, WIDTH);
    }
    template <class Op> OPD_FN void InclusiveScan(T v, T &out, Op op, T &all)
    {
        InclusiveScan(v, out, op);
        all = last(out);
    }
    template <class Op> OPD_FN void ExclusiveScan(T v, T &out, T first, Op op)
    {
        T inclusive;
        InclusiveScan(v, inclusive, op);
        const T b = before(inclusive, v);
        out = LaneId() % WIDTH ? op(first, b) : first;
    }
    template <class Op> OPD_FN void ExclusiveScan(T v, T &out, T first, Op op, T &all)
    {
        T inclusive;
        InclusiveScan(v, inclusive, op, all);
        const T b = before(inclusive, v);
        out = LaneId() % WIDTH ? op(first, b) : first;
    }
    template <class Op> OPD_FN void ExclusiveScan(T v, T &out, Op op)
    {
        T inclusive;
        InclusiveScan(v, inclusive, op);
        out = before(inclusive, v);
    }
    template <class Op> OPD_FN void Scan(T v, T &inclusive, T &exclusive, Op op)
    {
        InclusiveScan(v, inclusive, op);
        exclusive = before(inclusive, v);
    }
    OPD_FN void InclusiveSum(T v, T &out)
    {
        InclusiveScan(v, out, cub::Sum());
    }
    OPD_FN void InclusiveSum(T v, T &out, T &all)
    {
        InclusiveScan(v, out, cub::Sum(), all);
    }
    OPD_FN void ExclusiveSum(T v, T &out)
    {
        ExclusiveScan(v, out, T(0), cub::Sum());
    }
    OPD_FN void ExclusiveSum(T v, T &out, T &all)
    {
        ExclusiveScan(v, out, T(0), cub::Sum(), all);
    }
    OPD_FN T Broadcast(T v, unsigned lane)
    {
        return opd_shuffle(opd_mask<WIDTH>(), v, (int)((LaneId() & ~(WIDTH - 1)) + lane));
    }
};

// --- blocks

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS,
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

// On the CPU a warp means nothing, and a value of each thread is kept.
#ifdef OPD_CPU
#define OPD_CUB_PART 1
#else
#define OPD_CUB_PART 32
#endif

template <int X, int Y, int Z> struct opd_block {
    enum { THREADS = X * Y * Z, PARTS = (THREADS + OPD_CUB_PART - 1) / OPD_CUB_PART };
    static OPD_FN int thread()
    {
        if constexpr (Y * Z == 1)
            return (int)threadIdx.x;
        else
            return RowMajorTid(X, Y, Z);
    }
    static OPD_FN unsigned mask() // the last warp may be a part of one
    {
        if constexpr (THREADS % 32 == 0)
            return ~0u;
        const int left = THREADS - thread() / 32 * 32;
        return left >= 32 ? ~0u : (1u << left) - 1;
    }
};

template <class T, int N, class Op> OPD_FN T opd_reduce_items(T (&v)[N], Op op)
{
    T sum = v[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        sum = op(sum, v[i]);
    return sum;
}

// What TempStorage and construction of the classes below are.
#define OPD_CUB_CLASS(name, ...)                                                                   \
    struct TempStorage {                                                                           \
        __VA_ARGS__;                                                                               \
    };                                                                                             \
    OPD_FN explicit name(TempStorage &room) : room(room)                                           \
    {                                                                                              \
    }                                                                                              \
    OPD_FN name() : room(own())                                                                    \
    {                                                                                              \
    }                                                                                              \
                                                                                                   \
  private:                                                                                         \
    TempStorage &room;                                                                             \
    static OPD_FN TempStorage &own()                                                               \
    {                                                                                              \
        __shared__ TempStorage room;                                                               \
        return room;                                                                               \
    }                                                                                              \
                                                                                                   \
  public:

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1,
          int = 0>
class BlockReduce
{
    typedef opd_block<X, Y, Z> block;

  public:
    OPD_CUB_CLASS(BlockReduce, opd_room<T, block::PARTS> parts)

    // The result is thread 0's.
    template <class Op> OPD_FN T Reduce(T v, Op op, int n = block::THREADS)
    {
        const int thread = block::thread();
#ifndef OPD_CPU
        v = opd_reduce_lanes(v, op, block::mask(), thread % 32, 32, n - thread / 32 * 32);
        if (block::PARTS == 1)
            return v;
#endif
        if (thread % OPD_CUB_PART == 0)
            room.parts[thread / OPD_CUB_PART] = v;
        __syncthreads();
        if (thread == 0)
#pragma unroll
            for (int i = 1; i < block::PARTS; i++)
                if (i * OPD_CUB_PART < n)
                    v = op(v, room.parts[i]);
        return v;
    }
    template <int N, class Op> OPD_FN T Reduce(T (&v)[N], Op op)
    {
        return Reduce(opd_reduce_items(v, op), op);
    }
    OPD_FN T Sum(T v, int n = block::THREADS)
    {
        return Reduce(v, cub::Sum(), n);
    }
    template <int N> OPD_FN T Sum(T (&v)[N])
    {
        return Reduce(v, cub::Sum());
    }
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan
{
    typedef opd_block<X, Y, Z> block;

  public:
    OPD_CUB_CLASS(BlockScan, opd_room<T, block::PARTS> parts; opd_room<T, 1> prefix)

  private:
    // Of all threads before this one, of which thread 0 has none, and of all.
    template <class Op> OPD_FN void scan(T v, T &before, T &all, Op op)
    {
        const int thread = block::thread(), part = thread / OPD_CUB_PART;
#ifdef OPD_CPU
        room.parts[thread] = v;
        __syncthreads();
        if (thread == 0)
            for (int i = 1; i < block::THREADS; i++)
                room.parts[i] = op(room.parts[i - 1], room.parts[i]);
        __syncthreads();
        before = room.parts[part ? part - 1 : 0];
        all = room.parts[block::THREADS - 1];
#else
        const unsigned mask = block::mask();
        const int lane = thread % 32, last = 31 - __clz((int)mask);
        const T inclusive = opd_scan_lanes(v, op, mask, lane, 32);
        before = opd_shuffle<OPD_BEFORE>(mask, inclusive, 1);
        if (lane == last)
            room.parts[part] = inclusive;
        __syncthreads();
        all = room.parts[0];
#pragma unroll
        for (int i = 1; i < block::PARTS; i++) {
            if (i == part)
                before = lane ? op(all, before) : all;
            all = op(all, room.parts[i]);
        }
#endif
    }

    template <class Op> OPD_FN T prefix(T all, Op &callback)
    {
        T first;
        if (block::thread() < 32) {
            first = callback(all);
            if (block::thread() == 0)
                room.prefix[0] = first;
        }
        __syncthreads();
        return room.prefix[0];
    }

    // ALONE: thread 0 has nothing before it.
    template <bool ALONE, bool EXCLUSIVE, int N, class Op>
    OPD_FN void apply(T (&v)[N], T (&out)[N], T before, Op op)
    {
        bool none = ALONE && block::thread() == 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const T next = none ? v[i] : op(before, v[i]);
            out[i] = EXCLUSIVE ? before : next;
            before = next;
            none = false;
        }
    }

  public:
    template <int N, class Op> OPD_FN void InclusiveScan(T (&v)[N], T (&out)[N], Op op, T &all)
    {
        T before;
        scan(opd_reduce_items(v, op), before, all, op);
        apply<true, false>(v, out, before, op);
    }
    template <int N, class Op> OPD_FN void InclusiveScan(T (&v)[N], T (&out)[N], Op op)
    {
        T all;
        InclusiveScan(v, out, op, all);
    }
    template <int N, class Op, class Prefix>
    OPD_FN void InclusiveScan(T (&v)[N], T (&out)[N], Op op, Prefix &callback)
    {
        T before, all;
        scan(opd_reduce_items(v, op), before, all, op);
        const T first = prefix(all, callback);
        apply<false, false>(v, out, block::thread() ? op(first, before) : first, op);
    }
    template <int N, class Op>
    OPD_FN void ExclusiveScan(T (&v)[N], T (&out)[N], T first, Op op, T &all)
    {
        T before;
        scan(opd_reduce_items(v, op), before, all, op);
        apply<false, true>(v, out, block::thread() ? op(first, before) : first, op);
    }
    template <int N, class Op> OPD_FN void ExclusiveScan(T (&v)[N], T (&out)[N], T first, Op op)
    {
        T all;
        ExclusiveScan(v, out, first, op, all);
    }
    template <int N, class Op> OPD_FN void ExclusiveScan(T (&v)[N], T (&out)[N], Op op)
    {
        T before, all;
        scan(opd_reduce_items(v, op), before, all, op);
        apply<true, true>(v, out, before, op);
    }
    template <int N, class Op, class Prefix>
    OPD_FN void ExclusiveScan(T (&v)[N], T (&out)[N], Op op, Prefix &callback)
    {
        T before, all;
        scan(opd_reduce_items(v, op), before, all, op);
        const T first = prefix(all, callback);
        apply<false, true>(v, out, block::thread() ? op(first, before) : first, op);
    }

#define OPD_CUB_SCALAR(name, parameters, ...)                                                      \
    template <class Op> OPD_FN void name parameters                                                \
    {                                                                                              \
        T in[1] = { v }, to[1];                                                                    \
        name(in, to, __VA_ARGS__);                                                                 \
        out = to[0];                                                                               \
    }
    OPD_CUB_SCALAR(InclusiveScan, (T v, T &out, Op op), op)
    OPD_CUB_SCALAR(InclusiveScan, (T v, T &out, Op op, T &all), op, all)
    OPD_CUB_SCALAR(ExclusiveScan, (T v, T &out, T first, Op op), first, op)
    OPD_CUB_SCALAR(ExclusiveScan, (T v, T &out, T first, Op op, T &all), first, op, all)
    OPD_CUB_SCALAR(ExclusiveScan, (T v, T &out, Op op), op)
#undef OPD_CUB_SCALAR
    template <class Op, class Prefix>
    OPD_FN void InclusiveScan(T v, T &out, Op op, Prefix &callback)
    {
        T in[1] = { v }, to[1];
        InclusiveScan(in, to, op, callback);
        out = to[0];
    }
    template <class Op, class Prefix>
    OPD_FN void ExclusiveScan(T v, T &out, Op op, Prefix &callback)
    {
        T in[1] = { v }, to[1];
        ExclusiveScan(in, to, op, callback);
        out = to[0];
    }
    template <class In, class Out> OPD_FN void InclusiveSum(In &&v, Out &&out)
    {
        InclusiveScan(v, out, cub::Sum());
    }
    template <class In, class Out, class All> OPD_FN void InclusiveSum(In &&v, Out &&out, All &all)
    {
        InclusiveScan(v, out, cub::Sum(), all);
    }
    template <class In, class Out> OPD_FN void ExclusiveSum(In &&v, Out &&out)
    {
        ExclusiveScan(v, out, T(0), cub::Sum());
    }
    template <class In, class Out> OPD_FN void ExclusiveSum(In &&v, Out &&out, T &all)
    {
        ExclusiveScan(v, out, T(0), cub::Sum(), all);
    }
    template <class In, class Out, class Prefix>
    OPD_FN void ExclusiveSum(In &&v, Out &&out, Prefix &callback)
    {
        ExclusiveScan(v, out, cub::Sum(), callback);
    }
};

// --- items of a block: thread t has N neighbours from t * N on ("blocked"), or each THREADS-th from
// t on ("striped"); the algorithms but these two differ in how they get there

enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT,
    BLOCK_LOAD_STRIPED,
    BLOCK_LOAD_VECTORIZE,
    BLOCK_LOAD_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED,
};
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT,
    BLOCK_STORE_STRIPED,
    BLOCK_STORE_VECTORIZE,
    BLOCK_STORE_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED,
};

template <class T, int X, int N, bool = false, int Y = 1, int Z = 1, int = 0> class BlockExchange
{
    typedef opd_block<X, Y, Z> block;

  public:
    OPD_CUB_CLASS(BlockExchange, opd_room<T, block::THREADS * N> items)

  private:
    template <class U> OPD_FN void exchange(T (&v)[N], U (&out)[N], bool striped)
    {
        const int thread = block::thread();
        const int from = striped ? thread : thread * N, step = striped ? block::THREADS : 1;
        const int to = striped ? thread * N : thread, stride = striped ? 1 : block::THREADS;
#pragma unroll
        for (int i = 0; i < N; i++)
            room.items[from + i * step] = v[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = room.items[to + i * stride];
    }

  public:
    template <class U> OPD_FN void StripedToBlocked(T (&v)[N], U (&out)[N])
    {
        exchange(v, out, true);
    }
    template <class U> OPD_FN void BlockedToStriped(T (&v)[N], U (&out)[N])
    {
        exchange(v, out, false);
    }
    OPD_FN void StripedToBlocked(T (&v)[N])
    {
        exchange(v, v, true);
    }
    OPD_FN void BlockedToStriped(T (&v)[N])
    {
        exchange(v, v, false);
    }
    template <class U, class I> OPD_FN void ScatterToBlocked(T (&v)[N], U (&out)[N], I (&rank)[N])
    {
        const int thread = block::thread();
#pragma unroll
        for (int i = 0; i < N; i++)
            room.items[rank[i]] = v[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = room.items[thread * N + i];
    }
};

#ifdef OPD_CPU
#define OPD_CUB_TRANSPOSES false
#else
#define OPD_CUB_TRANSPOSES true
#endif
// Where a thread's items lie in memory, and whether they come by shared memory from there.
template <class T, int X, int N, bool STRIPED, bool TRANSPOSED, int Y, int Z> struct opd_transfer {
    typedef opd_block<X, Y, Z> block;
    typedef BlockExchange<T, X, N, false, Y, Z> exchange;
    enum { APART = STRIPED || TRANSPOSED, STEP = APART ? block::THREADS : 1 };
    template <bool, int = 0> struct choose {
        typedef typename exchange::TempStorage type;
    };
    template <int I> struct choose<false, I> {
        struct type {
            char unused;
        };
    };
    typedef typename choose<TRANSPOSED>::type room;

    static OPD_FN int first()
    {
        return APART ? block::thread() : block::thread() * N;
    }
};

template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1,
          int = 0>
class BlockLoad
{
    enum { TRANSPOSED = OPD_CUB_TRANSPOSES && A >= BLOCK_LOAD_TRANSPOSE };
    typedef opd_transfer<T, X, N, A == BLOCK_LOAD_STRIPED, TRANSPOSED, Y, Z> transfer;

  public:
    OPD_CUB_CLASS(BlockLoad, typename transfer::room items)

    template <class From, class U> OPD_FN void Load(From from, U (&v)[N])
    {
        Load(from, v, transfer::block::THREADS * N);
    }
    template <class From, class U> OPD_FN void Load(From from, U (&v)[N], int n)
    {
        const int first = transfer::first();
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * transfer::STEP < n)
                v[i] = from[first + i * transfer::STEP];
        if constexpr (TRANSPOSED)
            typename transfer::exchange(room.items).StripedToBlocked(v);
    }
    template <class From, class U, class D> OPD_FN void Load(From from, U (&v)[N], int n, D other)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = other;
        Load(from, v, n);
    }
};

template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1,
          int = 0>
class BlockStore
{
    enum { TRANSPOSED = OPD_CUB_TRANSPOSES && A >= BLOCK_STORE_TRANSPOSE };
    typedef opd_transfer<T, X, N, A == BLOCK_STORE_STRIPED, TRANSPOSED, Y, Z> transfer;

  public:
    OPD_CUB_CLASS(BlockStore, typename transfer::room items)

    template <class To, class U> OPD_FN void Store(To to, U (&v)[N])
    {
        Store(to, v, transfer::block::THREADS * N);
    }
    template <class To, class U> OPD_FN void Store(To to, U (&v)[N], int n)
    {
        const int first = transfer::first();
        if constexpr (TRANSPOSED)
            typename transfer::exchange(room.items).BlockedToStriped(v);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (first + i * transfer::STEP < n)
                to[first + i * transfer::STEP] = v[i];
    }
};

} // namespace cub
#endif
