// Of C++'s library what kernels use: <algorithm> <array> <functional> <limits> <numeric> <tuple>
// <type_traits> <utility>, on the GPU and on the CPU device. Comes after opd.cuh.
#ifndef OPD_STD
#define OPD_STD

namespace std
{

using ::acos, ::acosh, ::asin, ::asinh, ::atan, ::atan2, ::atanh, ::cbrt, ::copysign, ::cosh,
    ::erfc, ::exp2, ::expm1, ::fma, ::hypot, ::ldexp, ::lgamma, ::log10, ::log1p, ::log2,
    ::nearbyint, ::rint, ::signbit, ::sinh, ::tan, ::tgamma, ::trunc;
using ::int16_t, ::int32_t, ::int64_t, ::int8_t, ::size_t, ::uint16_t, ::uint32_t, ::uint64_t,
    ::uint8_t, ::ptrdiff_t;
using ::memcpy, ::memset;
typedef decltype(nullptr) nullptr_t;

// --- <type_traits>

template <class T, T v> struct integral_constant {
    static constexpr T value = v;
    typedef T value_type;
    typedef integral_constant type;
    constexpr operator T() const
    {
        return v;
    }
    constexpr T operator()() const
    {
        return v;
    }
};
template <bool v> using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> {
    typedef T type;
};
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;

template <bool, class A, class B> struct conditional {
    typedef A type;
};
template <class A, class B> struct conditional<false, A, B> {
    typedef B type;
};
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;

template <class...> using void_t = void;
template <class T> struct type_identity {
    typedef T type;
};

#define OPD_STD_REMOVE(name, from)                                                                 \
    template <class T> struct name {                                                               \
        typedef T type;                                                                            \
    };                                                                                             \
    template <class T> struct name<from> {                                                         \
        typedef T type;                                                                            \
    };                                                                                             \
    template <class T> using name##_t = typename name<T>::type;
OPD_STD_REMOVE(remove_const, const T)
OPD_STD_REMOVE(remove_volatile, volatile T)
OPD_STD_REMOVE(remove_extent, T[])
#undef OPD_STD_REMOVE
template <class T> struct remove_reference {
    typedef T type;
};
template <class T> struct remove_reference<T &> {
    typedef T type;
};
template <class T> struct remove_reference<T &&> {
    typedef T type;
};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_cv : remove_const<remove_volatile_t<T>> {};
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_cvref : remove_cv<remove_reference_t<T>> {};
template <class T> using remove_cvref_t = typename remove_cvref<T>::type;
template <class T> struct decay : remove_cvref<T> {};
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct remove_pointer : type_identity<T> {};
template <class T> struct remove_pointer<T *> : type_identity<T> {};
template <class T> struct remove_pointer<T *const> : type_identity<T> {};
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct add_const : type_identity<const T> {};
template <class T> using add_const_t = const T;
template <class T> struct add_pointer : type_identity<remove_reference_t<T> *> {};
template <class T> using add_pointer_t = typename add_pointer<T>::type;
template <class T> struct add_lvalue_reference : type_identity<T &> {};
template <class T> using add_lvalue_reference_t = T &;

#define OPD_STD_TRAIT(name, what)                                                                  \
    template <class T> struct name : bool_constant<(what)> {};                                     \
    template <class T> inline constexpr bool name##_v = name<T>::value;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct opd_is_pointer : false_type {};
template <class T> struct opd_is_pointer<T *> : true_type {};
template <class T> struct opd_is_const : false_type {};
template <class T> struct opd_is_const<const T> : true_type {};
template <class T> struct opd_is_lvalue : false_type {};
template <class T> struct opd_is_lvalue<T &> : true_type {};
template <class T> struct opd_is_rvalue : false_type {};
template <class T> struct opd_is_rvalue<T &&> : true_type {};
template <class T> struct opd_is_array : false_type {};
template <class T> struct opd_is_array<T[]> : true_type {};
template <class T, size_t N> struct opd_is_array<T[N]> : true_type {};
OPD_STD_TRAIT(is_void, (is_same_v<remove_cv_t<T>, void>))
OPD_STD_TRAIT(is_integral, opd::is_integer<remove_cv_t<T>>::value)
OPD_STD_TRAIT(is_floating_point,
              (is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>))
OPD_STD_TRAIT(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
OPD_STD_TRAIT(is_scalar, is_arithmetic_v<T> || opd_is_pointer<remove_cv_t<T>>::value)
OPD_STD_TRAIT(is_pointer, opd_is_pointer<remove_cv_t<T>>::value)
OPD_STD_TRAIT(is_const, opd_is_const<T>::value)
OPD_STD_TRAIT(is_lvalue_reference, opd_is_lvalue<T>::value)
OPD_STD_TRAIT(is_rvalue_reference, opd_is_rvalue<T>::value)
OPD_STD_TRAIT(is_reference, opd_is_lvalue<T>::value || opd_is_rvalue<T>::value)
OPD_STD_TRAIT(is_array, opd_is_array<T>::value)
OPD_STD_TRAIT(is_enum, __is_enum(T))
OPD_STD_TRAIT(is_class, __is_class(T))
OPD_STD_TRAIT(is_empty, __is_empty(T))
OPD_STD_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
OPD_STD_TRAIT(is_pod, __is_pod(T))
template <class T, bool = is_arithmetic_v<T>> struct opd_is_signed : bool_constant<(T(-1) < T(0))> {
};
template <class T> struct opd_is_signed<T, false> : false_type {};
OPD_STD_TRAIT(is_signed, opd_is_signed<T>::value)
OPD_STD_TRAIT(is_unsigned, is_arithmetic_v<T> && !is_signed_v<T>)
#undef OPD_STD_TRAIT
template <class Base, class T> struct is_base_of : bool_constant<__is_base_of(Base, T)> {};
template <class Base, class T> inline constexpr bool is_base_of_v = __is_base_of(Base, T);

template <class T> T &&declval() noexcept;
template <class From, class To> struct opd_is_convertible {
    static void take(To);
    template <class F> static true_type test(decltype(take(declval<F>())) *);
    template <class F> static false_type test(...);
    typedef decltype(test<From>(nullptr)) type;
};
template <class From, class To>
struct is_convertible : opd_is_convertible<From, To>::type {};
template <class From, class To>
inline constexpr bool is_convertible_v = is_convertible<From, To>::value;

template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class B> struct negation : bool_constant<!B::value> {};
template <class... B> inline constexpr bool conjunction_v = (B::value && ...);
template <class... B> inline constexpr bool disjunction_v = (B::value || ...);
template <class B> inline constexpr bool negation_v = !B::value;

template <class T> struct opd_signs : type_identity<T> {};
#define OPD_STD_SIGNS(s, u)                                                                        \
    template <> struct opd_signs<s> {                                                              \
        typedef s with;                                                                            \
        typedef u without;                                                                         \
    };                                                                                             \
    template <> struct opd_signs<u> : opd_signs<s> {};
OPD_STD_SIGNS(signed char, unsigned char)
OPD_STD_SIGNS(short, unsigned short)
OPD_STD_SIGNS(int, unsigned)
OPD_STD_SIGNS(long, unsigned long)
OPD_STD_SIGNS(long long, unsigned long long)
#undef OPD_STD_SIGNS
template <> struct opd_signs<char> : opd_signs<signed char> {};
template <class T> struct make_signed : type_identity<typename opd_signs<T>::with> {};
template <class T> struct make_unsigned : type_identity<typename opd_signs<T>::without> {};
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct underlying_type : type_identity<__underlying_type(T)> {};
template <class T> using underlying_type_t = __underlying_type(T);
template <size_t n, size_t align = 16> struct aligned_storage {
    struct type {
        alignas(align) unsigned char data[n];
    };
};
template <size_t n, size_t align = 16>
using aligned_storage_t = typename aligned_storage<n, align>::type;
template <class F, class... A> struct invoke_result {
    typedef decltype(declval<F>()(declval<A>()...)) type;
};
template <class F, class... A> using invoke_result_t = typename invoke_result<F, A...>::type;

// --- <utility>

#ifdef OPD_CPU // NVRTC has these
template <class T> constexpr T &&forward(remove_reference_t<T> &v) noexcept
{
    return static_cast<T &&>(v);
}
template <class T> constexpr T &&forward(remove_reference_t<T> &&v) noexcept
{
    return static_cast<T &&>(v);
}
template <class T> constexpr remove_reference_t<T> &&move(T &&v) noexcept
{
    return static_cast<remove_reference_t<T> &&>(v);
}
template <class T> class initializer_list
{
    const T *begin_;
    size_t size_;
    constexpr initializer_list(const T *begin, size_t size) : begin_(begin), size_(size)
    {
    }

  public:
    typedef T value_type;
    constexpr initializer_list() : begin_(nullptr), size_(0)
    {
    }
    constexpr const T *begin() const
    {
        return begin_;
    }
    constexpr const T *end() const
    {
        return begin_ + size_;
    }
    constexpr size_t size() const
    {
        return size_;
    }
};
#endif
template <class T> constexpr void swap(T &a, T &b)
{
    T was = a;
    a = b;
    b = was;
}
template <class T, class U = T> constexpr T exchange(T &v, U &&next)
{
    T was = v;
    v = static_cast<U &&>(next);
    return was;
}

template <class A, class B> struct pair {
    typedef A first_type;
    typedef B second_type;
    A first;
    B second;
    constexpr pair() : first(), second()
    {
    }
    constexpr pair(const A &a, const B &b) : first(a), second(b)
    {
    }
    template <class C, class D> constexpr pair(const pair<C, D> &p) : first(p.first), second(p.second)
    {
    }
};
template <class A, class B> constexpr pair<decay_t<A>, decay_t<B>> make_pair(A &&a, B &&b)
{
    return { a, b };
}
template <class A, class B> constexpr bool operator==(const pair<A, B> &x, const pair<A, B> &y)
{
    return x.first == y.first && x.second == y.second;
}
template <class A, class B> constexpr bool operator<(const pair<A, B> &x, const pair<A, B> &y)
{
    return x.first < y.first || (!(y.first < x.first) && x.second < y.second);
}

template <class T, T... i> struct integer_sequence {
    static constexpr size_t size()
    {
        return sizeof...(i);
    }
};
template <size_t... i> using index_sequence = integer_sequence<size_t, i...>;
template <class T, size_t n, size_t... i> struct opd_count : opd_count<T, n - 1, n - 1, i...> {};
template <class T, size_t... i> struct opd_count<T, 0, i...> {
    typedef integer_sequence<T, T(i)...> type;
};
template <class T, T n> using make_integer_sequence = typename opd_count<T, size_t(n)>::type;
template <size_t n> using make_index_sequence = make_integer_sequence<size_t, n>;
template <class... T> using index_sequence_for = make_index_sequence<sizeof...(T)>;

// --- <functional>

#define OPD_STD_BINARY(name, result, op)                                                           \
    template <class T = void> struct name {                                                        \
        constexpr result operator()(const T &a, const T &b) const                                  \
        {                                                                                          \
            return a op b;                                                                         \
        }                                                                                          \
    };                                                                                             \
    template <> struct name<void> {                                                                \
        template <class A, class B> constexpr auto operator()(const A &a, const B &b) const        \
        {                                                                                          \
            return a op b;                                                                         \
        }                                                                                          \
    };
OPD_STD_BINARY(plus, T, +)
OPD_STD_BINARY(minus, T, -)
OPD_STD_BINARY(multiplies, T, *)
OPD_STD_BINARY(divides, T, /)
OPD_STD_BINARY(less, bool, <)
OPD_STD_BINARY(greater, bool, >)
OPD_STD_BINARY(less_equal, bool, <=)
OPD_STD_BINARY(greater_equal, bool, >=)
OPD_STD_BINARY(equal_to, bool, ==)
OPD_STD_BINARY(not_equal_to, bool, !=)
OPD_STD_BINARY(bit_and, T, &)
OPD_STD_BINARY(bit_or, T, |)
OPD_STD_BINARY(bit_xor, T, ^)
#undef OPD_STD_BINARY

template <class A, class R> struct unary_function {
    typedef A argument_type;
    typedef R result_type;
};
template <class A, class B, class R> struct binary_function {
    typedef A first_argument_type;
    typedef B second_argument_type;
    typedef R result_type;
};

// --- <algorithm>, <numeric>

template <class T> constexpr T max(initializer_list<T> all)
{
    T best = *all.begin();
    for (const T &v : all)
        best = best < v ? v : best;
    return best;
}
template <class T> constexpr T min(initializer_list<T> all)
{
    T best = *all.begin();
    for (const T &v : all)
        best = v < best ? v : best;
    return best;
}
template <class T, class C> constexpr const T &max(const T &a, const T &b, C less)
{
    return less(a, b) ? b : a;
}
template <class T, class C> constexpr const T &min(const T &a, const T &b, C less)
{
    return less(b, a) ? b : a;
}
template <class T> constexpr const T &clamp(const T &v, const T &low, const T &high)
{
    return v < low ? low : high < v ? high : v;
}
template <class I, class T> constexpr void fill(I at, I end, const T &v)
{
    for (; at != end; ++at)
        *at = v;
}
template <class I, class N, class T> constexpr I fill_n(I at, N n, const T &v)
{
    for (; n > 0; n--, ++at)
        *at = v;
    return at;
}
template <class I, class O> constexpr O copy(I at, I end, O to)
{
    for (; at != end; ++at, ++to)
        *to = *at;
    return to;
}
template <class I, class N, class O> constexpr O copy_n(I at, N n, O to)
{
    for (; n > 0; n--, ++at, ++to)
        *to = *at;
    return to;
}
template <class I> constexpr void reverse(I at, I end)
{
    while (at != end && at != --end)
        swap(*at++, *end);
}
template <class I, class T, class C> constexpr I lower_bound(I at, I end, const T &v, C less)
{
    for (auto n = end - at; n > 0;) {
        const auto half = n / 2;
        const bool right = less(at[half], v);
        at = right ? at + half + 1 : at;
        n = right ? n - half - 1 : half;
    }
    return at;
}
template <class I, class T> constexpr I lower_bound(I at, I end, const T &v)
{
    return std::lower_bound(at, end, v, less<>());
}
template <class I, class T> constexpr I upper_bound(I at, I end, const T &v)
{
    return std::lower_bound(at, end, v, [](const auto &a, const auto &b) { return !(b < a); });
}
template <class I> constexpr I max_element(I at, I end)
{
    I best = at;
    for (; at != end; ++at)
        best = *best < *at ? at : best;
    return best;
}
template <class I> constexpr I min_element(I at, I end)
{
    I best = at;
    for (; at != end; ++at)
        best = *at < *best ? at : best;
    return best;
}
template <class I, class C> constexpr void sort(I begin, I end, C less) // by insertion: short ones
{
    for (I i = begin; i != end; ++i)
        for (I k = i; k != begin && less(*k, k[-1]); --k)
            swap(*k, k[-1]);
}
template <class I> constexpr void sort(I begin, I end)
{
    std::sort(begin, end, less<>());
}
template <class I, class T> constexpr T accumulate(I at, I end, T sum)
{
    for (; at != end; ++at)
        sum = sum + *at;
    return sum;
}
template <class I, class T> constexpr void iota(I at, I end, T v)
{
    for (; at != end; ++at, ++v)
        *at = v;
}

// --- <limits>

template <class T> struct numeric_limits {
    static constexpr bool is_specialized = false;
};
#define OPD_STD_LIMITS(T, integer, low, least, most, eps, inf, nan, bits)                          \
    template <> struct numeric_limits<T> {                                                         \
        typedef T type;                                                                            \
        static constexpr bool is_specialized = true, is_integer = integer,                         \
                              is_signed = type(-1) < type(0), has_infinity = !integer,             \
                              has_quiet_NaN = !integer, is_iec559 = !integer, is_exact = integer;  \
        static constexpr int digits = bits, radix = 2;                                             \
        static constexpr T min()                                                                   \
        {                                                                                          \
            return least;                                                                          \
        }                                                                                          \
        static constexpr T max()                                                                   \
        {                                                                                          \
            return most;                                                                           \
        }                                                                                          \
        static constexpr T lowest()                                                                \
        {                                                                                          \
            return low;                                                                            \
        }                                                                                          \
        static constexpr T epsilon()                                                               \
        {                                                                                          \
            return eps;                                                                            \
        }                                                                                          \
        static constexpr T infinity()                                                              \
        {                                                                                          \
            return inf;                                                                            \
        }                                                                                          \
        static constexpr T quiet_NaN()                                                             \
        {                                                                                          \
            return nan;                                                                            \
        }                                                                                          \
        static constexpr T signaling_NaN()                                                         \
        {                                                                                          \
            return nan;                                                                            \
        }                                                                                          \
        static constexpr T denorm_min()                                                            \
        {                                                                                          \
            return least;                                                                          \
        }                                                                                          \
    };
#define OPD_STD_SIGNED(T, U)                                                                       \
    OPD_STD_LIMITS(T, true, type(~max()), type(~max()), type((U)~(U)0 >> 1), 0, 0, 0,              \
                   sizeof(T) * 8 - 1)                                                              \
    OPD_STD_LIMITS(U, true, 0, 0, type(~type(0)), 0, 0, 0, sizeof(T) * 8)
OPD_STD_SIGNED(signed char, unsigned char)
OPD_STD_SIGNED(short, unsigned short)
OPD_STD_SIGNED(int, unsigned)
OPD_STD_SIGNED(long, unsigned long)
OPD_STD_SIGNED(long long, unsigned long long)
OPD_STD_LIMITS(bool, true, false, false, true, 0, 0, 0, 1)
OPD_STD_LIMITS(float, false, -3.402823466e+38f, 1.175494351e-38f, 3.402823466e+38f,
               1.192092896e-07f, __builtin_bit_cast(float, 0x7f800000u), __builtin_bit_cast(float, 0x7fc00000u), 24)
OPD_STD_LIMITS(double, false, -1.7976931348623157e+308, 2.2250738585072014e-308,
               1.7976931348623157e+308, 2.2204460492503131e-16, __builtin_bit_cast(double, 0x7ff0000000000000ull),
               __builtin_bit_cast(double, 0x7ff8000000000000ull), 53)
#undef OPD_STD_SIGNED
#undef OPD_STD_LIMITS
template <> struct numeric_limits<char> : numeric_limits<signed char> {};
#define OPD_STD_LIMITS(T, low, least, most, eps, inf, nan, n)                                      \
    template <> struct numeric_limits<T> {                                                         \
        static constexpr bool is_specialized = true, is_integer = false, is_signed = true,         \
                              has_infinity = true, has_quiet_NaN = true;                           \
        static constexpr int digits = n, radix = 2;                                                \
        static constexpr T of(uint16_t bits)                                                       \
        {                                                                                          \
            T v{};                                                                                 \
            v.x = bits;                                                                            \
            return v;                                                                              \
        }                                                                                          \
        static constexpr T min()                                                                   \
        {                                                                                          \
            return of(least);                                                                      \
        }                                                                                          \
        static constexpr T max()                                                                   \
        {                                                                                          \
            return of(most);                                                                       \
        }                                                                                          \
        static constexpr T lowest()                                                                \
        {                                                                                          \
            return of(low);                                                                        \
        }                                                                                          \
        static constexpr T epsilon()                                                               \
        {                                                                                          \
            return of(eps);                                                                        \
        }                                                                                          \
        static constexpr T infinity()                                                              \
        {                                                                                          \
            return of(inf);                                                                        \
        }                                                                                          \
        static constexpr T quiet_NaN()                                                             \
        {                                                                                          \
            return of(nan);                                                                        \
        }                                                                                          \
    };
OPD_STD_LIMITS(opd::half, 0xfbff, 0x0400, 0x7bff, 0x1400, 0x7c00, 0x7e00, 11)
OPD_STD_LIMITS(opd::bfloat16, 0xff7f, 0x0080, 0x7f7f, 0x3c00, 0x7f80, 0x7fc0, 8)
#undef OPD_STD_LIMITS

// --- <array>, <tuple>

template <class T, size_t N> struct array {
    typedef T value_type;
    T elems[N ? N : 1];
    constexpr T &operator[](size_t i)
    {
        return elems[i];
    }
    constexpr const T &operator[](size_t i) const
    {
        return elems[i];
    }
    constexpr T *data()
    {
        return elems;
    }
    constexpr const T *data() const
    {
        return elems;
    }
    constexpr T *begin()
    {
        return elems;
    }
    constexpr const T *begin() const
    {
        return elems;
    }
    constexpr T *end()
    {
        return elems + N;
    }
    constexpr const T *end() const
    {
        return elems + N;
    }
    constexpr T &front()
    {
        return elems[0];
    }
    constexpr T &back()
    {
        return elems[N - 1];
    }
    static constexpr size_t size()
    {
        return N;
    }
    static constexpr bool empty()
    {
        return N == 0;
    }
    constexpr void fill(const T &v)
    {
        for (size_t i = 0; i < N; i++)
            elems[i] = v;
    }
};

template <size_t i, class T> struct opd_leaf {
    T value;
};
template <class S, class... T> struct opd_leaves;
template <size_t... i, class... T>
struct opd_leaves<integer_sequence<size_t, i...>, T...> : opd_leaf<i, T>... {
    constexpr opd_leaves() : opd_leaf<i, T>{ T() }...
    {
    }
    template <class... U>
    constexpr opd_leaves(int, U &&...v) : opd_leaf<i, T>{ static_cast<U &&>(v) }...
    {
    }
    template <class... U>
    constexpr void take(const opd_leaves<integer_sequence<size_t, i...>, U...> &from)
    {
        ((opd_leaf<i, T>::value = static_cast<const opd_leaf<i, U> &>(from).value), ...);
    }
};
template <class... T> struct tuple : opd_leaves<index_sequence_for<T...>, T...> {
    typedef opd_leaves<index_sequence_for<T...>, T...> leaves;
    constexpr tuple() = default;
    constexpr tuple(const tuple &) = default;
    constexpr tuple(const T &...v) : leaves(0, v...)
    {
    }
    template <class... U> constexpr tuple &operator=(const tuple<U...> &from)
    {
        leaves::take(from);
        return *this;
    }
    constexpr tuple &operator=(const tuple &from)
    {
        leaves::take(from);
        return *this;
    }
};
template <size_t i, class T> constexpr T &get(opd_leaf<i, T> &t)
{
    return t.value;
}
template <size_t i, class T> constexpr const T &get(const opd_leaf<i, T> &t)
{
    return t.value;
}
template <size_t i, class T, size_t N> constexpr T &get(array<T, N> &a)
{
    return a.elems[i];
}
template <size_t i, class T, size_t N> constexpr const T &get(const array<T, N> &a)
{
    return a.elems[i];
}
template <size_t i, class A, class B> constexpr auto &get(pair<A, B> &p)
{
    if constexpr (i == 0)
        return p.first;
    else
        return p.second;
}
template <size_t i, class A, class B> constexpr const auto &get(const pair<A, B> &p)
{
    if constexpr (i == 0)
        return p.first;
    else
        return p.second;
}
template <size_t i, class T> constexpr T &&get(opd_leaf<i, T> &&t)
{
    return static_cast<T &&>(t.value);
}
template <size_t i, class T, size_t N> constexpr T &&get(array<T, N> &&a)
{
    return static_cast<T &&>(a.elems[i]);
}
template <size_t i, class A, class B> constexpr auto &&get(pair<A, B> &&p)
{
    if constexpr (i == 0)
        return static_cast<A &&>(p.first);
    else
        return static_cast<B &&>(p.second);
}
template <class... T> constexpr tuple<decay_t<T>...> make_tuple(T &&...v)
{
    return tuple<decay_t<T>...>(v...);
}
template <class... T> constexpr tuple<T &...> tie(T &...v)
{
    return tuple<T &...>(v...);
}
#ifdef _LIBCUDACXX___TUPLE_STRUCTURED_BINDINGS_H // CCCL 2 and 3.0 have declared them for NVRTC
template <class...> struct tuple_size;
template <size_t i, class...> struct tuple_element;
#else
template <class T> struct tuple_size;
template <size_t i, class T> struct tuple_element;
#endif
template <class... T>
struct tuple_size<tuple<T...>> : integral_constant<size_t, sizeof...(T)> {};
template <class A, class B> struct tuple_size<pair<A, B>> : integral_constant<size_t, 2> {};
template <class T, size_t N> struct tuple_size<array<T, N>> : integral_constant<size_t, N> {};
template <class T> inline constexpr size_t tuple_size_v = tuple_size<T>::value;
template <size_t i, class... T> struct tuple_element<i, tuple<T...>> {
    typedef remove_cvref_t<decltype(std::get<i>(declval<tuple<T...> &>()))> type;
};
template <size_t i, class A, class B> struct tuple_element<i, pair<A, B>> {
    typedef conditional_t<i == 0, A, B> type;
};
template <size_t i, class T, size_t N> struct tuple_element<i, array<T, N>> {
    typedef T type;
};
template <size_t i, class T> using tuple_element_t = typename tuple_element<i, T>::type;

} // namespace std
#endif
