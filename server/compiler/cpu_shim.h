// CUDA's language for the host's C++ compiler: first of six texts (then cpu_float.h, cpu_double.h,
// cpu_math.h, cpu_launch.h, cpu_refuse.c's) that come before opd.cuh in every translation unit of
// the CPU device. cpu_image.h stands before it.
//
// Small on purpose, and without the C++ library: <cmath> alone would cost more time than a usual
// kernel.

#include <stddef.h>
#include <stdint.h>

#define OPD_CPU 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#ifdef __clang__
#define __shared__ static thread_local
#else // which else asks at each use whether an array of a class has been made
#define __shared__ static thread_local __constinit
#endif
#define __grid_constant__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

#ifdef __clang__
#define OPD_CPU_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define OPD_CPU_VECTORIZE _Pragma("GCC ivdep")
#endif
#define OPD_CPU_INLINE inline __attribute__((always_inline))

// Under the thread sanitizer each thread of a block is a thread of its own; what the shim does
// between them is not to be looked at.
#if defined(__SANITIZE_THREAD__)
#define OPD_CPU_RACE 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OPD_CPU_RACE 1
#endif
#endif
#ifdef OPD_CPU_RACE
#define OPD_CPU_UNSEEN __attribute__((noinline, no_sanitize("thread")))
#define OPD_CPU_RACE_CALL(call) opd_cpu_rt->call
#else
#define OPD_CPU_UNSEEN OPD_CPU_INLINE
#define OPD_CPU_RACE_CALL(call) (void)0
#endif

extern "C" {
void *memcpy(void *, const void *, size_t) noexcept;
void *memset(void *, int, size_t) noexcept;
}

// Vector types, aligned as CUDA aligns them. Kernels copy whatever by them.
#define OPD_CPU_VECTORS(T, base, a2, a4)                                                           \
    struct __attribute__((may_alias)) base##1                                                      \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    struct __attribute__((may_alias, aligned(a2))) base##2                                         \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct __attribute__((may_alias)) base##3                                                      \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct __attribute__((may_alias, aligned(a4))) base##4                                         \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    OPD_CPU_INLINE base##1 make_##base##1(T x)                                                     \
    {                                                                                              \
        return { x };                                                                              \
    }                                                                                              \
    OPD_CPU_INLINE base##2 make_##base##2(T x, T y)                                                \
    {                                                                                              \
        return { x, y };                                                                           \
    }                                                                                              \
    OPD_CPU_INLINE base##3 make_##base##3(T x, T y, T z)                                           \
    {                                                                                              \
        return { x, y, z };                                                                        \
    }                                                                                              \
    OPD_CPU_INLINE base##4 make_##base##4(T x, T y, T z, T w)                                      \
    {                                                                                              \
        return { x, y, z, w };                                                                     \
    }
OPD_CPU_VECTORS(signed char, char, 2, 4)
OPD_CPU_VECTORS(unsigned char, uchar, 2, 4)
OPD_CPU_VECTORS(short, short, 4, 8)
OPD_CPU_VECTORS(unsigned short, ushort, 4, 8)
OPD_CPU_VECTORS(int, int, 8, 16)
OPD_CPU_VECTORS(unsigned int, uint, 8, 16)
OPD_CPU_VECTORS(long, long, 16, 16)
OPD_CPU_VECTORS(unsigned long, ulong, 16, 16)
OPD_CPU_VECTORS(long long, longlong, 16, 16)
OPD_CPU_VECTORS(unsigned long long, ulonglong, 16, 16)
OPD_CPU_VECTORS(float, float, 8, 16)
OPD_CPU_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
    constexpr operator uint3() const
    {
        return { x, y, z };
    }
};

// Where the running thread is. Internal to this object, and their addresses never leave it: else
// the compilers would reload them after every store, and vectorise nothing. Spread out, so that no
// two are read as one vector.
struct opd_cpu_index {
    alignas(16) unsigned x;
    alignas(16) unsigned y;
    alignas(16) unsigned z;
    OPD_CPU_INLINE operator uint3() const
    {
        return { x, y, z };
    }
    OPD_CPU_INLINE operator dim3() const
    {
        return dim3(x, y, z);
    }
};
static thread_local opd_cpu_index threadIdx, blockIdx, blockDim, gridDim;
static thread_local unsigned
    opd_cpu_bound; // the loop over a row of threads ends here; 0 once it was left for others
static thread_local opd_cpu_worker *opd_cpu_self;
static thread_local void *opd_cpu_arena;
static const opd_cpu_runtime *opd_cpu_rt;
constexpr int warpSize = 32;

// Not the C library's, of which compilers know too much: they would make puts() of it.
__attribute__((noinline, cold, format(printf, 1, 2))) static int printf(const char *format, ...)
{
    __builtin_va_list args;
    __builtin_va_start(args, format);
    const int n = opd_cpu_rt->print(format, args);
    __builtin_va_end(args);
    return n;
}

OPD_CPU_INLINE unsigned opd_cpu_thread()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// Other threads may have run meanwhile: this one is itself again, and the loop that it came from
// now belongs to others.
#define OPD_CPU_WAIT(call)                                                                         \
    const unsigned x_ = threadIdx.x, y_ = threadIdx.y, z_ = threadIdx.z;                           \
    const auto result_ = call;                                                                     \
    threadIdx.x = x_;                                                                              \
    threadIdx.y = y_;                                                                              \
    threadIdx.z = z_;                                                                              \
    opd_cpu_bound = 0;                                                                             \
    return result_

static OPD_CPU_UNSEEN unsigned opd_cpu_barrier(int value)
{
    OPD_CPU_WAIT(opd_cpu_rt->barrier(opd_cpu_self, opd_cpu_thread(), value));
}

static OPD_CPU_UNSEEN unsigned long long opd_cpu_warp(unsigned mask, opd_cpu_warp_op op,
                                                      unsigned long long value, unsigned source)
{
    OPD_CPU_WAIT(opd_cpu_rt->warp(opd_cpu_self, opd_cpu_thread(), mask, op, value, source));
}

OPD_CPU_INLINE void __syncthreads()
{
    opd_cpu_barrier(0);
}
OPD_CPU_INLINE int __syncthreads_count(int v)
{
    return (int)(opd_cpu_barrier(v) & 0xffff);
}
OPD_CPU_INLINE int __syncthreads_or(int v)
{
    return (opd_cpu_barrier(v) & 0xffff) != 0;
}
OPD_CPU_INLINE int __syncthreads_and(int v)
{
    const unsigned r = opd_cpu_barrier(v);
    return (r & 0xffff) == r >> 16;
}

OPD_CPU_INLINE void __syncwarp(unsigned mask = 0xffffffffu)
{
    opd_cpu_warp(mask, OPD_CPU_SYNC, 0, 0);
}
OPD_CPU_INLINE unsigned __ballot_sync(unsigned mask, int v)
{
    return (unsigned)opd_cpu_warp(mask, OPD_CPU_BALLOT, v != 0, 0);
}
OPD_CPU_INLINE int __any_sync(unsigned mask, int v)
{
    return __ballot_sync(mask, v) != 0;
}
OPD_CPU_INLINE int __all_sync(unsigned mask, int v)
{
    return __ballot_sync(mask, !v) == 0;
}
OPD_CPU_INLINE unsigned __activemask()
{
    return opd_cpu_rt->active(opd_cpu_self, opd_cpu_thread());
}

template <class T> OPD_CPU_INLINE unsigned long long opd_cpu_to_bits(const T &v)
{
    static_assert(sizeof(T) <= 8, "a warp exchanges values of 8 bytes at most");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &v, sizeof v);
    return bits;
}

template <class T> OPD_CPU_INLINE T opd_cpu_from_bits(unsigned long long bits)
{
    T v;
    __builtin_memcpy((void *)&v, &bits, sizeof v);
    return v;
}

template <class T> OPD_CPU_INLINE T opd_cpu_shuffle(unsigned mask, T v, unsigned source)
{
    return opd_cpu_from_bits<T>(opd_cpu_warp(mask, OPD_CPU_SHUFFLE, opd_cpu_to_bits(v), source));
}

// A shuffle stays in its segment of `width` lanes: who would reach out of it gets its own value.
template <class T> OPD_CPU_INLINE T __shfl_sync(unsigned mask, T v, int lane, int width = 32)
{
    const unsigned first = opd_cpu_thread() % 32 & ~(unsigned)(width - 1);
    return opd_cpu_shuffle(mask, v, first + ((unsigned)lane & (unsigned)(width - 1)));
}
template <class T>
OPD_CPU_INLINE T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const unsigned self = opd_cpu_thread() % 32, at = self & (unsigned)(width - 1);
    return opd_cpu_shuffle(mask, v, delta > at ? self : self - delta);
}
template <class T>
OPD_CPU_INLINE T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const unsigned self = opd_cpu_thread() % 32, at = self & (unsigned)(width - 1);
    return opd_cpu_shuffle(mask, v, delta >= (unsigned)width - at ? self : self + delta);
}
template <class T> OPD_CPU_INLINE T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32)
{
    const unsigned self = opd_cpu_thread() % 32, end = (self | (unsigned)(width - 1)) + 1;
    const unsigned source = self ^ (unsigned)lanes;
    return opd_cpu_shuffle(mask, v, source >= end ? self : source);
}
template <class T> OPD_CPU_INLINE unsigned __match_any_sync(unsigned mask, T v)
{
    return (unsigned)opd_cpu_warp(mask, OPD_CPU_MATCH, opd_cpu_to_bits(v), 0);
}

OPD_CPU_INLINE void opd_cpu_fence()
{
#ifdef OPD_CPU_RACE
    opd_cpu_rt->race_fence(opd_cpu_self); // the sanitizer knows no fences
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
OPD_CPU_INLINE void __threadfence()
{
    opd_cpu_fence();
}
OPD_CPU_INLINE void __threadfence_block()
{
    opd_cpu_fence();
}
OPD_CPU_INLINE void __threadfence_system()
{
    opd_cpu_fence();
}

// Ends the launch with an error; nothing else of the block runs.
static __attribute__((noinline, cold)) void opd_cpu_fail(const char *what)
{
    const unsigned block[3] = { blockIdx.x, blockIdx.y, blockIdx.z };
    const unsigned thread[3] = { threadIdx.x, threadIdx.y, threadIdx.z };
    opd_cpu_rt->fail(opd_cpu_self, what, block, thread);
    __builtin_unreachable();
}
#define OPD_CPU_TEXT_(x) #x
#define OPD_CPU_TEXT(x) OPD_CPU_TEXT_(x)
#define assert(x)                                                                                  \
    ((x) ? (void)0                                                                                 \
         : opd_cpu_fail(__FILE__ ":" OPD_CPU_TEXT(__LINE__) ": assertion '" #x "' failed"))
#define __trap() opd_cpu_fail(__FILE__ ":" OPD_CPU_TEXT(__LINE__) ": __trap()")

// Atomics return the old value.
template <class T> struct opd_cpu_same {
    typedef T type;
};
template <unsigned long> struct opd_cpu_word {
    typedef unsigned type;
};
template <> struct opd_cpu_word<2> {
    typedef unsigned short type;
};
template <> struct opd_cpu_word<8> {
    typedef unsigned long long type;
};
#ifdef OPD_CPU_RACE
// What is compared goes by value: at an address it would lie on a stack that threads share one
// after the other, and be taken for memory of theirs all.
#define OPD_CPU_COMPARE_EXCHANGE(bits, T)                                                          \
    extern "C" T __tsan_atomic##bits##_compare_exchange_val(volatile T *, T, T, int, int);         \
    OPD_CPU_INLINE T opd_cpu_exchange(T *p, T expected, T next, int order)                         \
    {                                                                                              \
        return __tsan_atomic##bits##_compare_exchange_val(p, expected, next, order, order);        \
    }
OPD_CPU_COMPARE_EXCHANGE(16, unsigned short)
OPD_CPU_COMPARE_EXCHANGE(32, unsigned)
OPD_CPU_COMPARE_EXCHANGE(64, unsigned long long)
#undef OPD_CPU_COMPARE_EXCHANGE
template <class T, class F> OPD_CPU_INLINE T opd_cpu_update(T *p, F f)
{
    typedef typename opd_cpu_word<sizeof(T)>::type word;
    typedef word __attribute__((may_alias)) any;
    word seen = __atomic_load_n((any *)p, __ATOMIC_RELAXED), expected, wanted;
    T was;
    do {
        expected = seen;
        __builtin_memcpy(&was, &expected, sizeof was);
        const T next = f(was);
        __builtin_memcpy(&wanted, &next, sizeof wanted);
        seen = opd_cpu_exchange((word *)p, expected, wanted, __ATOMIC_RELAXED);
    } while (seen != expected);
    return was;
}
#else
template <class T, class F> OPD_CPU_INLINE T opd_cpu_update(T *p, F f)
{
    T was, next;
    __atomic_load(p, &was, __ATOMIC_RELAXED);
    do
        next = f(was);
    while (!__atomic_compare_exchange(p, &was, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return was;
}
template <class T> OPD_CPU_INLINE T opd_cpu_exchange(T *p, T expected, T next, int)
{
    __atomic_compare_exchange_n(p, &expected, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
#endif
#define OPD_CPU_ATOMIC(T)                                                                          \
    OPD_CPU_INLINE T atomicAdd(T *p, T v)                                                          \
    {                                                                                              \
        return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    OPD_CPU_INLINE T atomicSub(T *p, T v)                                                          \
    {                                                                                              \
        return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    OPD_CPU_INLINE T atomicAnd(T *p, T v)                                                          \
    {                                                                                              \
        return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    OPD_CPU_INLINE T atomicOr(T *p, T v)                                                           \
    {                                                                                              \
        return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);                                          \
    }                                                                                              \
    OPD_CPU_INLINE T atomicXor(T *p, T v)                                                          \
    {                                                                                              \
        return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    OPD_CPU_INLINE T atomicExch(T *p, T v)                                                         \
    {                                                                                              \
        return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);                                        \
    }                                                                                              \
    OPD_CPU_INLINE T atomicMax(T *p, T v)                                                          \
    {                                                                                              \
        return opd_cpu_update(p, [v](T a) { return a < v ? v : a; });                              \
    }                                                                                              \
    OPD_CPU_INLINE T atomicMin(T *p, T v)                                                          \
    {                                                                                              \
        return opd_cpu_update(p, [v](T a) { return v < a ? v : a; });                              \
    }
OPD_CPU_ATOMIC(int)
OPD_CPU_ATOMIC(unsigned)
OPD_CPU_ATOMIC(unsigned long long)
OPD_CPU_ATOMIC(long long)
#define OPD_CPU_ATOMIC_CAS(T)                                                                      \
    OPD_CPU_INLINE T atomicCAS(T *p, T expected, T v)                                              \
    {                                                                                              \
        typedef opd_cpu_word<sizeof(T)>::type word;                                                \
        return (T)opd_cpu_exchange((word *)p, (word)expected, (word)v, __ATOMIC_SEQ_CST);          \
    }
OPD_CPU_ATOMIC_CAS(unsigned short)
OPD_CPU_ATOMIC_CAS(int)
OPD_CPU_ATOMIC_CAS(unsigned)
OPD_CPU_ATOMIC_CAS(unsigned long long)
#define OPD_CPU_ATOMIC_FLOAT(T)                                                                    \
    OPD_CPU_INLINE T atomicAdd(T *p, T v)                                                          \
    {                                                                                              \
        return opd_cpu_update(p, [v](T a) { return a + v; });                                      \
    }                                                                                              \
    OPD_CPU_INLINE T atomicExch(T *p, T v)                                                         \
    {                                                                                              \
        return opd_cpu_update(p, [v](T) { return v; });                                            \
    }
OPD_CPU_ATOMIC_FLOAT(float)
OPD_CPU_ATOMIC_FLOAT(double)
OPD_CPU_INLINE unsigned atomicInc(unsigned *p, unsigned last)
{
    return opd_cpu_update(p, [last](unsigned a) { return a >= last ? 0 : a + 1; });
}
OPD_CPU_INLINE unsigned atomicDec(unsigned *p, unsigned last)
{
    return opd_cpu_update(p, [last](unsigned a) { return a == 0 || a > last ? last : a - 1; });
}

template <class T> OPD_CPU_INLINE T __ldg(const T *p)
{
    return *p;
}
template <class T> OPD_CPU_INLINE T __ldcg(const T *p)
{
    return *p;
}
template <class T> OPD_CPU_INLINE T __ldcs(const T *p)
{
    return *p;
}
template <class T> OPD_CPU_INLINE void __stcg(T *p, typename opd_cpu_same<T>::type v)
{
    *p = v;
}
template <class T> OPD_CPU_INLINE void __stcs(T *p, typename opd_cpu_same<T>::type v)
{
    *p = v;
}

OPD_CPU_INLINE long long clock64()
{
#ifdef __x86_64__
    return (long long)__builtin_ia32_rdtsc();
#else
    return 0;
#endif
}
OPD_CPU_INLINE void __nanosleep(unsigned)
{
}
