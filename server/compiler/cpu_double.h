
// Third of the texts: functions of double as cpu_float.h has them of float. The polynomials
// interpolate at Chebyshev's nodes; errors are at most 4 units in the last place.

OPD_CPU_INLINE uint64_t opd_cpu_double_bits(double v)
{
    return opd_cpu_cast<uint64_t>(v);
}

// 2^n of an integer n from -1022 to 1023 that was rounded by 0x1.8p52: its low bits are n.
OPD_CPU_INLINE double opd_cpu_power_of_two(double shifted)
{
    return opd_cpu_cast<double>((opd_cpu_double_bits(shifted) + 1023) << 52);
}

// (e^r - 1 - r) / r^2 of |r| <= log(2) / 2.
OPD_CPU_INLINE double opd_cpu_exp_rest(double r)
{
    return opd_cpu_poly(r, 2.510037592470971685e-8, 2.762007599981065105e-7,
                        2.755726848011633485e-6, 2.480152132211682417e-5, 1.984126986304066990e-4,
                        1.388888891719688114e-3, 8.333333333330064425e-3, 4.166666666662416158e-2,
                        1.666666666666666745e-1, 0.5);
}

// x - n log(2), whose first part has 11 bits of 0 at its end, so that n times it is exact.
OPD_CPU_INLINE double opd_cpu_exp_reduce(double x, double n)
{
    return (x - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
}

OPD_CPU_INLINE double opd_cpu_exp(double x)
{
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    const double n = (x * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
    const double half = n * 0.5 + 0x1.8p52, rest = n - (half - 0x1.8p52) + 0x1.8p52;
    const double r = opd_cpu_exp_reduce(x, n), p = opd_cpu_exp_rest(r) * r * r + r + 1.0;
    return p * opd_cpu_power_of_two(half) * opd_cpu_power_of_two(rest);
}

OPD_CPU_INLINE double opd_cpu_expm1(double x)
{
    const double y = x > 710.0 ? 710.0 : x < -80.0 ? -80.0 : x;
    const double shifted = y * 0x1.71547652b82fep0 + 0x1.8p52, n = shifted - 0x1.8p52;
    const double r = opd_cpu_exp_reduce(y, n), p = opd_cpu_exp_rest(r) * r * r + r;
    const double half = opd_cpu_power_of_two(shifted - 1.0);
    return __builtin_copysign((half * p + (half - 0.5)) * 2.0, x);
}

// (e^2a - 1) / (e^2a + 1): no digits go, however small a is.
OPD_CPU_INLINE double opd_cpu_tanh(double x)
{
    const double a = __builtin_fabs(x), e = opd_cpu_expm1(2.0 * (a > 20.0 ? 20.0 : a));
    return __builtin_copysign(e / (e + 2.0), x);
}

// As opd_cpu_logf, by the series of log((1 + s) / (1 - s)).
OPD_CPU_INLINE double opd_cpu_log(double x)
{
    const bool tiny = x < 0x1p-1022;
    const uint64_t bits = opd_cpu_double_bits(tiny ? x * 0x1p52 : x);
    const uint64_t e = (bits - 0x3fe6a09e667f3bcdull + (1024ull << 52)) >> 52; // and 1024 more
    const double f = opd_cpu_cast<double>(bits - ((e - 1024) << 52)) - 1.0;
    const double more = tiny ? 0x1p52 + 1076 : 0x1p52 + 1024;
    const double n = opd_cpu_cast<double>(e | 0x4330000000000000ull) - more;
    const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    const double p = opd_cpu_poly(z, 1.461645227406218726e-1, 1.533172139109577195e-1,
                                  1.818288913156320408e-1, 2.222221113470859089e-1,
                                  2.857142862597601475e-1, 3.999999999989950332e-1,
                                  6.666666666666669686e-1);
    const double tail = n * 0x1.ef35793c7673p-45 + s * (half + z * p);
    const double y = n * 0x1.62e42fefa38p-1 - ((half - tail) - f);
    const double limit = x > 0.0 ? x : x == 0.0 ? -__builtin_inf() : __builtin_nan("");
    return x > 0.0 && x < __builtin_inf() ? y : limit;
}

OPD_CPU_INLINE double opd_cpu_log1p(double x)
{
    const double u = 1.0 + x, lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    const double y = opd_cpu_log(u), fixed = y + lost / u;
    return u > 0.0 && u < __builtin_inf() ? __builtin_copysign(fixed, x) : y;
}

OPD_CPU_INLINE double opd_cpu_asin_rest(double z)
{
    const double p = opd_cpu_poly(z, 2.875785136742156471e-2, -1.485188707124720322e-2,
                                  1.740087944269402244e-2, 5.457506718640358300e-3,
                                  1.032281433018577938e-2, 1.147917741518490591e-2,
                                  1.397121297355293330e-2, 1.735239272086996929e-2,
                                  2.237217294214988787e-2, 3.038194413853124729e-2,
                                  4.464285714635542978e-2, 7.499999999998432933e-2,
                                  1.666666666666666783e-1);
    return p * z;
}

OPD_CPU_INLINE double opd_cpu_asin(double x)
{
    const double a = __builtin_fabs(x);
    const bool small = a < 0.5;
    const double z = small ? x * x : 0.5 - 0.5 * a, s = small ? a : __builtin_sqrt(z);
    const double y = s + s * opd_cpu_asin_rest(z);
    const double large = 0x1.921fb54442d18p0 - (2.0 * y - 0x1.1a62633145c07p-54);
    return __builtin_copysign(small ? y : large, x);
}

OPD_CPU_INLINE double opd_cpu_acos(double x)
{
    const double a = __builtin_fabs(x);
    const bool small = a < 0.5;
    const double z = small ? x * x : 0.5 - 0.5 * a, s = small ? x : __builtin_sqrt(z);
    const double y = s + s * opd_cpu_asin_rest(z);
    const double twice = 2.0 * y, rest = 0x1.921fb54442d18p1 - (twice - 0x1.1a62633145c07p-53);
    const double large = x > 0.0 ? twice : rest;
    return small ? 0x1.921fb54442d18p0 - (y - 0x1.1a62633145c07p-54) : large;
}

// erfc(a) e^(a^2) (1 + 2a) is smooth in (a - 4) / (a + 4), for a from 0 to 28. The square is taken
// with what its rounding leaves out, which e^ would make large.
OPD_CPU_INLINE double opd_cpu_erfc_above(double a)
{
    const double t = (a - 4.0) / (a + 4.0);
    const double p = opd_cpu_poly(t, -1.820609868030868334e-9, -1.367098986334738244e-8,
                                  -7.715418614417830130e-9, 1.153494374575415729e-7,
                                  6.270727157198310878e-8, -8.351619688696847075e-7,
                                  3.013504994487539477e-7, 5.717887284632185202e-6,
                                  -1.122478913515470071e-5, -2.440316924447407495e-5,
                                  1.506222439483029924e-4, -1.992555075561495214e-4,
                                  -7.577733414133300446e-4, 5.031969755895426114e-3,
                                  -1.619773405911500708e-2, 3.716751556249286597e-2,
                                  -6.633036581152938409e-2, 9.373283499679411589e-2,
                                  -1.010390660363521317e-1, 6.809705425473732390e-2,
                                  1.537965210262074130e-2, -1.396211168405628935e-1,
                                  1.232995118625552507);
    const double high = opd_cpu_cast<double>(opd_cpu_double_bits(a) & ~0x7ffffffull);
    const double low = a - high, square = a * a;
    const double lost = ((high * high - square) + 2.0 * high * low) + low * low;
    const double e = opd_cpu_exp(-square);
    return (e - e * lost) * p / (1.0 + 2.0 * a);
}

// erf(x) - x, of u = x^2 up to 0.7.
OPD_CPU_INLINE double opd_cpu_erf_rest(double x, double u)
{
    const double p = opd_cpu_poly(u, 1.068768619146984616e-8, -1.570122710519067628e-7,
                                  1.639972073638888205e-6, -1.492196957762470214e-5,
                                  1.205519265220832031e-4, -8.548323575637970130e-4,
                                  5.223977572514906989e-3, -2.686617064038413005e-2,
                                  1.128379167093326418e-1, -3.761263890318335942e-1,
                                  1.283791670955125622e-1);
    return x * p;
}

OPD_CPU_INLINE double opd_cpu_erf(double x)
{
    const double b = __builtin_fabs(x), a = b > 6.0 ? 6.0 : b;
    const double large = 1.0 - opd_cpu_erfc_above(a);
    return b < 0.83 ? x + opd_cpu_erf_rest(x, x * x) : __builtin_copysign(x == x ? large : x, x);
}

OPD_CPU_INLINE double opd_cpu_erfc(double x)
{
    const double b = __builtin_fabs(x), a = b > 28.0 ? 28.0 : b;
    const double above = opd_cpu_erfc_above(a), y = x < 0.0 ? 2.0 - above : above;
    return b < 0.75 ? 1.0 - (x + opd_cpu_erf_rest(x, x * x)) : x == x ? y : x;
}
