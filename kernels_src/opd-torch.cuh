// Part of opd.cuh: the names of PyTorch's extensions. An accessor is a kernel parameter: address, sizes, strides in
// elements.
namespace at
{

typedef opd::half Half;
typedef opd::bfloat16 BFloat16;
template <class T, bool = true> using acc_type = typename opd::acc_type<T>::type;
template <class T> using opmath_type = typename opd::acc_type<T>::type;

template <class T> struct DefaultPtrTraits {
    typedef T *PtrType;
};
template <class T> struct RestrictPtrTraits {
    typedef T *__restrict__ PtrType;
};

// A view of the dimensions that are left after indexing.
template <class T, size_t N, template <class> class PtrTraits, class index_t>
struct TensorAccessor {
    typename PtrTraits<T>::PtrType data_;
    const index_t *sizes_, *strides_;

    __device__ __forceinline__ auto operator[](index_t i) const -> decltype(auto)
    {
        if constexpr (N == 1)
            return (data_[i * strides_[0]]);
        else
            return TensorAccessor<T, N - 1, PtrTraits, index_t>{ data_ + i * strides_[0],
                                                                 sizes_ + 1, strides_ + 1 };
    }
    __device__ __forceinline__ index_t size(int d) const
    {
        return sizes_[d];
    }
    __device__ __forceinline__ index_t stride(int d) const
    {
        return strides_[d];
    }
    __device__ __forceinline__ T *data() const
    {
        return data_;
    }
};

template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits,
          class index_t = int64_t>
struct PackedTensorAccessor {
    typename PtrTraits<T>::PtrType data_;
    index_t sizes_[N], strides_[N];

    __device__ __forceinline__ auto operator[](index_t i) const -> decltype(auto)
    {
        return TensorAccessor<T, N, PtrTraits, index_t>{ data_, sizes_, strides_ }[i];
    }
    __device__ __forceinline__ index_t size(int d) const
    {
        return sizes_[d];
    }
    __device__ __forceinline__ index_t stride(int d) const
    {
        return strides_[d];
    }
    __device__ __forceinline__ T *data() const
    {
        return data_;
    }
};

template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, PtrTraits, int64_t>;
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits,
          class index_t = int64_t>
using GenericPackedTensorAccessor = PackedTensorAccessor<T, N, PtrTraits, index_t>;

} // namespace at

namespace torch
{
using namespace at;
}

namespace c10
{
using at::BFloat16;
using at::Half;
} // namespace c10

template <class T> __device__ __forceinline__ T gpuAtomicAdd(T *p, T v)
{
    return atomicAdd(p, v);
}
