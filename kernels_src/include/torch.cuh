// What kernels use of PyTorch's headers beyond opd.cuh: types that only host code has, but that its
// declarations name, and small helpers. Everything under torch/, ATen/, c10/ and THC/ is this.
#ifndef OPD_TORCH
#define OPD_TORCH

#define TORCH_VERSION_MAJOR 2
#define TORCH_VERSION_MINOR 6
#define TORCH_VERSION_PATCH 0
#define C10_HOST
#define C10_DEVICE __device__
#define C10_HOST_DEVICE __device__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_RESTRICT __restrict__
#define C10_WARP_SIZE 32
#define C10_MAX_THREADS_PER_BLOCK(n) (n)
#define C10_MIN_BLOCKS_PER_SM(threads, blocks) (blocks)
#define C10_LAUNCH_BOUNDS_0
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_UNUSED
#define C10_LIKELY(x) (x)
#define C10_UNLIKELY(x) (x)
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
#define GPU_LAMBDA __device__
#define TORCH_CHECK(...)
#define TORCH_CHECK_EQ(...)
#define TORCH_INTERNAL_ASSERT(...)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...)
#define AT_ASSERT(...)
#define AT_ASSERTM(...)
#define AT_ERROR(...)

#define OPD_FN __device__ __forceinline__

namespace at
{
struct Tensor;
struct TensorOptions;
template <class T> struct OptionalTensorRef;
namespace native
{
}
namespace indexing
{
}
template <class A, class B> constexpr OPD_FN A ceil_div(A a, B b)
{
    return (a + b - 1) / b;
}
} // namespace at
namespace torch
{
namespace autograd
{
}
} // namespace torch
namespace c10
{
using at::Tensor;
struct Float8_e4m3fn { // as they lie in memory
    uint8_t x;
};
struct Float8_e4m3fnuz {
    uint8_t x;
};
struct Float8_e5m2 {
    uint8_t x;
};
struct Float8_e5m2fnuz {
    uint8_t x;
};
template <class T> OPD_FN T load(const T *p)
{
    return *p;
}
namespace cuda
{
namespace compat
{
using ::abs, ::acos, ::asin, ::atan, ::atan2, ::ceil, ::copysign, ::cos, ::cosh, ::erf, ::erfc,
    ::exp, ::expm1, ::floor, ::fmod, ::log, ::log1p, ::max, ::min, ::pow, ::rsqrt, ::sin, ::sinh,
    ::sqrt, ::tan, ::tanh;
}
} // namespace cuda
} // namespace c10

template <class T> OPD_FN void gpuAtomicAddNoReturn(T *p, T v)
{
    atomicAdd(p, v);
}

template <class T> OPD_FN T WARP_SHFL(T v, int lane, int width = 32, unsigned mask = ~0u)
{
    return __shfl_sync(mask, v, lane, width);
}
template <class T> OPD_FN T WARP_SHFL_XOR(T v, int lanes, int width = 32, unsigned mask = ~0u)
{
    return __shfl_xor_sync(mask, v, lanes, width);
}
template <class T> OPD_FN T WARP_SHFL_UP(T v, unsigned delta, int width = 32, unsigned mask = ~0u)
{
    return __shfl_up_sync(mask, v, delta, width);
}
template <class T> OPD_FN T WARP_SHFL_DOWN(T v, unsigned delta, int width = 32, unsigned mask = ~0u)
{
    return __shfl_down_sync(mask, v, delta, width);
}
OPD_FN unsigned WARP_BALLOT(int v, unsigned mask = ~0u)
{
    return __ballot_sync(mask, v);
}
OPD_FN unsigned ACTIVE_MASK()
{
    return __activemask();
}
template <class T> OPD_FN T doLdg(const T *p)
{
    return __ldg(p);
}
template <class From, class To> struct ScalarConvert {
    static OPD_FN To to(From v)
    {
        return static_cast<To>(v);
    }
};

namespace at
{
namespace native
{
template <class T, class I>
OPD_FN void fastAtomicAdd(T *tensor, I index, I, T v, bool = true)
{
    atomicAdd(tensor + index, v);
}
template <class T, class I>
OPD_FN void fastSpecializedAtomicAdd(T *tensor, I index, I, T v)
{
    atomicAdd(tensor + index, v);
}
} // namespace native

namespace cuda
{
namespace detail
{
constexpr int CUDA_NUM_THREADS = 1024;
constexpr OPD_FN int GET_BLOCKS(int64_t n, int64_t threads = CUDA_NUM_THREADS)
{
    return (int)((n + threads - 1) / threads);
}

// A strided tensor, as kernels take it; MAX_TENSORINFO_DIMS as in PyTorch.
enum { MAX_TENSORINFO_DIMS = 25 };
template <class T, class I> struct TensorInfo {
    T *data;
    I sizes[MAX_TENSORINFO_DIMS], strides[MAX_TENSORINFO_DIMS];
    int dims;

    OPD_FN bool isContiguous() const
    {
        return dims == 1 && strides[0] == 1;
    }
};

// Where the element `linear` lies. Dims: how many dimensions; -1: as many as it has, -2: contiguous.
template <class T, class I, int Dims> struct IndexToOffset {
    static OPD_FN I get(I linear, const TensorInfo<T, I> &info)
    {
        if (Dims == -2)
            return linear;
        I offset = 0;
        for (int d = (Dims < 0 ? info.dims : Dims) - 1; d > 0; d--) {
            offset += linear % info.sizes[d] * info.strides[d];
            linear /= info.sizes[d];
        }
        return offset + linear * info.strides[0];
    }
};
} // namespace detail
} // namespace cuda
} // namespace at
#endif
