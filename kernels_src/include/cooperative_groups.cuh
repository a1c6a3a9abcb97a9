// <cooperative_groups.h>, <cooperative_groups/reduce.h>, <cooperative_groups/scan.h>: groups of the
// threads of a block, on the GPU and on the CPU device. What needs a cooperative launch, a sync of
// the whole grid or a cluster, is not here.
#ifndef OPD_COOPERATIVE_GROUPS
#define OPD_COOPERATIVE_GROUPS

#define OPD_FN __device__ __forceinline__

namespace cooperative_groups
{

OPD_FN unsigned opd_rank()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

struct thread_block {
    static OPD_FN void sync()
    {
        __syncthreads();
    }
    static OPD_FN unsigned thread_rank()
    {
        return opd_rank();
    }
    static OPD_FN unsigned size()
    {
        return blockDim.x * blockDim.y * blockDim.z;
    }
    static OPD_FN unsigned num_threads()
    {
        return size();
    }
    static OPD_FN dim3 group_index()
    {
        return dim3(blockIdx.x, blockIdx.y, blockIdx.z);
    }
    static OPD_FN dim3 thread_index()
    {
        return dim3(threadIdx.x, threadIdx.y, threadIdx.z);
    }
    static OPD_FN dim3 group_dim()
    {
        return dim3(blockDim.x, blockDim.y, blockDim.z);
    }
    static OPD_FN dim3 dim_threads()
    {
        return group_dim();
    }
};
OPD_FN thread_block this_thread_block()
{
    return {};
}

struct grid_group {
    static OPD_FN unsigned long long block_rank()
    {
        return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    }
    static OPD_FN unsigned long long num_blocks()
    {
        return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
    }
    static OPD_FN unsigned long long thread_rank()
    {
        return block_rank() * thread_block::size() + opd_rank();
    }
    static OPD_FN unsigned long long size()
    {
        return num_blocks() * thread_block::size();
    }
    static OPD_FN unsigned long long num_threads()
    {
        return size();
    }
    template <class T = void> static OPD_FN void sync()
    {
        static_assert(sizeof(T *) == 0, "a sync of the whole grid needs a cooperative launch, which "
                                        "opd has not: make it two kernels");
    }
    static OPD_FN bool is_valid()
    {
        return false;
    }
    static OPD_FN dim3 group_dim()
    {
        return dim3(gridDim.x, gridDim.y, gridDim.z);
    }
};
OPD_FN grid_group this_grid()
{
    return {};
}

// Some lanes of a warp. The n-th of them has rank n.
struct coalesced_group {
    unsigned mask;

    OPD_FN int lane(unsigned rank) const // of that rank
    {
        unsigned left = mask;
        for (; rank > 0; rank--)
            left &= left - 1;
        return __ffs((int)left) - 1;
    }
    OPD_FN void sync() const
    {
        __syncwarp(mask);
    }
    OPD_FN unsigned thread_rank() const
    {
        return (unsigned)__popc(mask & ((1u << opd_rank() % 32) - 1));
    }
    OPD_FN unsigned size() const
    {
        return (unsigned)__popc(mask);
    }
    OPD_FN unsigned num_threads() const
    {
        return size();
    }
    OPD_FN unsigned meta_group_rank() const
    {
        return 0;
    }
    OPD_FN unsigned meta_group_size() const
    {
        return 1;
    }
    template <class T> OPD_FN T opd_from(T v, int lane) const
    {
        if constexpr (sizeof(T) <= 8 && sizeof(T) % 4 != 0) {
            return __shfl_sync(mask, v, lane);
        } else {
            unsigned *words = reinterpret_cast<unsigned *>(&v);
#pragma unroll
            for (int i = 0; i < int(sizeof(T) / 4); i++)
                words[i] = __shfl_sync(mask, words[i], lane);
            return v;
        }
    }
    template <class T> OPD_FN T shfl(T v, unsigned rank) const
    {
        return opd_from(v, lane(rank));
    }
    template <class T> OPD_FN T shfl_up(T v, unsigned delta) const
    {
        const unsigned rank = thread_rank();
        return opd_from(v, lane(rank >= delta ? rank - delta : rank));
    }
    template <class T> OPD_FN T shfl_down(T v, unsigned delta) const
    {
        const unsigned rank = thread_rank();
        return opd_from(v, lane(rank + delta < size() ? rank + delta : rank));
    }
    OPD_FN int any(int v) const
    {
        return __any_sync(mask, v);
    }
    OPD_FN int all(int v) const
    {
        return __all_sync(mask, v);
    }
    OPD_FN unsigned ballot(int v) const
    {
        unsigned lanes = __ballot_sync(mask, v), bits = 0;
        for (unsigned left = mask, i = 0; left; left &= left - 1, i++)
            bits |= (lanes >> (__ffs((int)left) - 1) & 1) << i;
        return bits;
    }
};
// On the CPU device each thread is alone: who else stands in its branch, nobody knows there.
OPD_FN coalesced_group coalesced_threads()
{
#ifdef OPD_CPU
    return { 1u << opd_rank() % 32 };
#else
    return { __activemask() };
#endif
}
// Lanes of the group with the same label.
template <class G, class T> OPD_FN coalesced_group labeled_partition(const G &group, T label)
{
    return { __match_any_sync(group.opd_mask(), label) & group.opd_mask() };
}
template <class T> OPD_FN coalesced_group labeled_partition(const coalesced_group &group, T label)
{
    return { __match_any_sync(group.mask, label) & group.mask };
}
template <class G> OPD_FN coalesced_group binary_partition(const G &group, bool label)
{
    return labeled_partition(group, (int)label);
}

// N neighbouring lanes: 1, 2, 4, 8, 16 or 32.
template <unsigned N, class Parent = void> struct thread_block_tile {
    static_assert(N <= 32 && (N & (N - 1)) == 0, "a tile of 1, 2, 4, 8, 16 or 32 threads");

    thread_block_tile() = default;
    template <class P> OPD_FN thread_block_tile(const thread_block_tile<N, P> &)
    {
    }
    static OPD_FN unsigned opd_mask()
    {
        return (N == 32 ? ~0u : (1u << N % 32) - 1) << (opd_rank() % 32 & ~(N - 1));
    }
    static OPD_FN void sync()
    {
        __syncwarp(opd_mask());
    }
    static OPD_FN unsigned thread_rank()
    {
        return opd_rank() % N;
    }
    static constexpr OPD_FN unsigned size()
    {
        return N;
    }
    static constexpr OPD_FN unsigned num_threads()
    {
        return N;
    }
    static OPD_FN unsigned meta_group_rank()
    {
        return opd_rank() / N;
    }
    static OPD_FN unsigned meta_group_size()
    {
        return (thread_block::size() + N - 1) / N;
    }
    template <class T> static OPD_FN T opd_from(T v, unsigned rank)
    {
        return coalesced_group{ opd_mask() }.opd_from(v, (int)(opd_rank() % 32 / N * N + rank));
    }
    template <class T> static OPD_FN T shfl(T v, unsigned rank)
    {
        return opd_from(v, rank % N);
    }
    template <class T> static OPD_FN T shfl_up(T v, unsigned delta)
    {
        const unsigned rank = thread_rank();
        return opd_from(v, rank >= delta ? rank - delta : rank);
    }
    template <class T> static OPD_FN T shfl_down(T v, unsigned delta)
    {
        const unsigned rank = thread_rank();
        return opd_from(v, rank + delta < N ? rank + delta : rank);
    }
    template <class T> static OPD_FN T shfl_xor(T v, unsigned lanes)
    {
        return opd_from(v, thread_rank() ^ lanes);
    }
    static OPD_FN int any(int v)
    {
        return __any_sync(opd_mask(), v);
    }
    static OPD_FN int all(int v)
    {
        return __all_sync(opd_mask(), v);
    }
    static OPD_FN unsigned ballot(int v)
    {
        return (__ballot_sync(opd_mask(), v) & opd_mask()) >> (opd_rank() % 32 & ~(N - 1));
    }
    template <class T> static OPD_FN unsigned match_any(T v)
    {
        return (__match_any_sync(opd_mask(), v) & opd_mask()) >> (opd_rank() % 32 & ~(N - 1));
    }
};
template <unsigned N, class G> OPD_FN thread_block_tile<N, G> tiled_partition(const G &)
{
    return {};
}

// --- free functions of any group

template <class G> OPD_FN void sync(const G &group)
{
    group.sync();
}
template <class G> OPD_FN void wait(const G &group)
{
    group.sync();
}

#define OPD_CG_OP(name, expression)                                                                \
    template <class T = void> struct name {                                                        \
        OPD_FN T operator()(T a, T b) const                                                        \
        {                                                                                          \
            return expression;                                                                     \
        }                                                                                          \
    };
OPD_CG_OP(plus, T(a + b))
OPD_CG_OP(less, b < a ? b : a)
OPD_CG_OP(greater, a < b ? b : a)
OPD_CG_OP(bit_and, T(a &b))
OPD_CG_OP(bit_or, T(a | b))
OPD_CG_OP(bit_xor, T(a ^ b))
#undef OPD_CG_OP

// The result is every member's, the same bits.
template <unsigned N, class P, class T, class Op>
OPD_FN T reduce(const thread_block_tile<N, P> &group, T v, Op op)
{
#pragma unroll
    for (unsigned lanes = N / 2; lanes > 0; lanes /= 2)
        v = op(v, group.shfl_xor(v, lanes));
    return v;
}
template <class T, class Op> OPD_FN T reduce(const coalesced_group &group, T v, Op op)
{
    const unsigned n = group.size(), rank = group.thread_rank();
    for (unsigned step = 1; step < n; step *= 2) {
        const T other = group.shfl_down(v, step);
        if (rank % (2 * step) == 0 && rank + step < n)
            v = op(v, other);
    }
    return group.shfl(v, 0);
}
template <class G, class T, class Op> OPD_FN T inclusive_scan(const G &group, T v, Op op)
{
    const unsigned rank = group.thread_rank();
    for (unsigned step = 1; step < group.size(); step *= 2) {
        const T other = group.shfl_up(v, step);
        if (rank >= step)
            v = op(other, v);
    }
    return v;
}
template <class G, class T> OPD_FN T inclusive_scan(const G &group, T v)
{
    return inclusive_scan(group, v, plus<T>());
}
template <class G, class T, class Op> OPD_FN T exclusive_scan(const G &group, T v, Op op)
{
    const T before = group.shfl_up(inclusive_scan(group, v, op), 1);
    return group.thread_rank() ? before : T();
}
template <class G, class T> OPD_FN T exclusive_scan(const G &group, T v)
{
    return exclusive_scan(group, v, plus<T>());
}

} // namespace cooperative_groups
#endif
