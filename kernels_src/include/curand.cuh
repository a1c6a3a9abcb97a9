// <curand_kernel.h>: cuRAND's generators for kernels, Philox4_32_10 and XORWOW, with the same numbers,
// on the GPU and on the CPU device. Normal numbers may differ in their last place.
#ifndef OPD_CURAND
#define OPD_CURAND

#define OPD_FN __device__ __forceinline__

struct curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned STATE; // how many of the output have been taken
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;

struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef curandStateXORWOW curandStateXORWOW_t, curandState_t, curandState;

// --- Philox: a block cipher of a counter

OPD_FN uint4 curand_Philox4x32_10(uint4 c, uint2 key)
{
#pragma unroll
    for (int i = 0; i < 10; i++) {
        const unsigned high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
        const unsigned high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
        c = make_uint4(high1 ^ c.y ^ key.x, low1, high0 ^ c.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

// Adds 2^64 * high + low to the counter.
OPD_FN void opd_philox_skip(curandStatePhilox4_32_10 *s, unsigned long long low,
                            unsigned long long high)
{
    const unsigned long long was = s->ctr.x | (unsigned long long)s->ctr.y << 32, next = was + low;
    high += (s->ctr.z | (unsigned long long)s->ctr.w << 32) + (next < was);
    s->ctr = make_uint4((unsigned)next, (unsigned)(next >> 32), (unsigned)high,
                        (unsigned)(high >> 32));
    s->output = curand_Philox4x32_10(s->ctr, s->key);
}
OPD_FN void skipahead(unsigned long long n, curandStatePhilox4_32_10 *s)
{
    n += s->STATE;
    s->STATE = n % 4;
    opd_philox_skip(s, n / 4, 0);
}
OPD_FN void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10 *s)
{
    opd_philox_skip(s, 0, n);
}
OPD_FN void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStatePhilox4_32_10 *s)
{
    *s = {};
    s->key = make_uint2((unsigned)seed, (unsigned)(seed >> 32));
    s->STATE = offset % 4;
    opd_philox_skip(s, offset / 4, subsequence);
}
OPD_FN unsigned curand(curandStatePhilox4_32_10 *s)
{
    const unsigned v = s->STATE == 0   ? s->output.x
                       : s->STATE == 1 ? s->output.y
                       : s->STATE == 2 ? s->output.z
                                       : s->output.w;
    if (++s->STATE == 4) {
        opd_philox_skip(s, 1, 0);
        s->STATE = 0;
    }
    return v;
}
OPD_FN uint4 curand4(curandStatePhilox4_32_10 *s)
{
    const uint4 a = s->output;
    opd_philox_skip(s, 1, 0);
    const uint4 b = s->output;
    return s->STATE == 0   ? a
           : s->STATE == 1 ? make_uint4(a.y, a.z, a.w, b.x)
           : s->STATE == 2 ? make_uint4(a.z, a.w, b.x, b.y)
                           : make_uint4(a.w, b.x, b.y, b.z);
}

// --- XORWOW: a linear map of 160 bits and a counter. n steps are the polynomial x^n of the map, by
// its characteristic polynomial.

struct opd_polynomial {
    unsigned w[5];
};

OPD_FN opd_polynomial opd_multiply(const opd_polynomial &a, opd_polynomial b)
{
    const unsigned characteristic[5] = { 0x00060001, 0x08610030, 0x00062121, 0x0f3c0035,
                                         0x00000f0e };
    opd_polynomial product = {};
    for (int i = 0; i < 160; i++) {
        const unsigned takes = 0u - (a.w[i / 32] >> i % 32 & 1), wraps = 0u - (b.w[4] >> 31);
        for (int k = 0; k < 5; k++)
            product.w[k] ^= b.w[k] & takes;
        for (int k = 4; k > 0; k--)
            b.w[k] = (b.w[k] << 1 | b.w[k - 1] >> 31) ^ (characteristic[k] & wraps);
        b.w[0] = b.w[0] << 1 ^ (characteristic[0] & wraps);
    }
    return product;
}
OPD_FN void opd_xorwow_step(unsigned *v)
{
    const unsigned t = v[0] ^ v[0] >> 2;
    for (int i = 0; i < 4; i++)
        v[i] = v[i + 1];
    v[4] ^= v[4] << 4 ^ t ^ t << 1;
}
static __device__ __noinline__ void opd_xorwow_skip(unsigned *v, opd_polynomial base,
                                                    unsigned long long n)
{
    opd_polynomial p = { { 1 } };
    for (; n > 0; n /= 2) {
        if (n % 2)
            p = opd_multiply(p, base);
        base = opd_multiply(base, base);
    }
    unsigned sum[5] = {};
    for (int i = 0; i < 160; i++) {
        const unsigned takes = 0u - (p.w[i / 32] >> i % 32 & 1);
        for (int k = 0; k < 5; k++)
            sum[k] ^= v[k] & takes;
        opd_xorwow_step(v);
    }
    for (int k = 0; k < 5; k++)
        v[k] = sum[k];
}
OPD_FN void skipahead(unsigned long long n, curandStateXORWOW *s)
{
    s->d += 362437u * (unsigned)n;
    if (n > 0)
        opd_xorwow_skip(s->v, { { 2 } }, n);
}
OPD_FN void skipahead_sequence(unsigned long long n, curandStateXORWOW *s)
{
    if (n > 0) // by 2^67 each
        opd_xorwow_skip(s->v, { { 0x26294934, 0x77bbc248, 0x1a87dad0, 0x930052d4, 0x947e6dd2 } },
                        n);
}
OPD_FN void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStateXORWOW *s)
{
    const unsigned t0 = 1099087573u * ((unsigned)seed ^ 0xaad26b49u);
    const unsigned t1 = 2591861531u * ((unsigned)(seed >> 32) ^ 0xf7dcefddu);
    *s = { 6615241u + t1 + t0,
           { 123456789u + t0, 362436069u ^ t0, 521288629u + t1, 88675123u ^ t1, 5783321u + t0 } };
    skipahead_sequence(subsequence, s);
    skipahead(offset, s);
}
OPD_FN unsigned curand(curandStateXORWOW *s)
{
    opd_xorwow_step(s->v);
    return s->v[4] + (s->d += 362437u);
}

// --- distributions: in (0, 1], and normal

OPD_FN float opd_uniform(unsigned x)
{
    return x * 2.3283064e-10f + 2.3283064e-10f / 2;
}
OPD_FN double opd_uniform_double(unsigned x, unsigned y)
{
    const unsigned long long z = x ^ (unsigned long long)y << 21;
    return z * 1.1102230246251565e-16 + 1.1102230246251565e-16 / 2;
}
OPD_FN float2 opd_box_muller(unsigned x, unsigned y)
{
    float2 v;
    const float angle = y * (2.3283064e-10f * 6.2831855f) + 2.3283064e-10f * 6.2831855f / 2;
    const float radius = sqrtf(-2.0f * logf(opd_uniform(x)));
    sincosf(angle, &v.x, &v.y);
    return make_float2(radius * v.x, radius * v.y);
}
OPD_FN double2 opd_box_muller_double(uint4 u)
{
    double2 v;
    const double radius = sqrt(-2.0 * log(opd_uniform_double(u.x, u.y)));
    sincos(opd_uniform_double(u.z, u.w) * 6.2831853071795864769, &v.x, &v.y);
    return make_double2(radius * v.x, radius * v.y);
}

OPD_FN double curand_uniform_double(curandStatePhilox4_32_10 *s)
{
    const double unit = 2.3283064365386963e-10;
    return curand(s) * unit + unit;
}
OPD_FN double curand_uniform_double(curandStateXORWOW *s)
{
    const unsigned x = curand(s), y = curand(s);
    return opd_uniform_double(x, y);
}
OPD_FN uint4 opd_four(curandStatePhilox4_32_10 *s)
{
    return curand4(s);
}
OPD_FN uint4 opd_four(curandStateXORWOW *s)
{
    const unsigned x = curand(s), y = curand(s), z = curand(s), w = curand(s);
    return make_uint4(x, y, z, w);
}

template <class S> OPD_FN float curand_uniform(S *s)
{
    return opd_uniform(curand(s));
}
template <class S> OPD_FN float2 curand_normal2(S *s)
{
    const unsigned x = curand(s), y = curand(s);
    return opd_box_muller(x, y);
}
template <class S> OPD_FN float curand_normal(S *s)
{
    s->boxmuller_flag = !s->boxmuller_flag;
    if (!s->boxmuller_flag)
        return s->boxmuller_extra;
    const float2 v = curand_normal2(s);
    s->boxmuller_extra = v.y;
    return v.x;
}
template <class S> OPD_FN double2 curand_normal2_double(S *s)
{
    return opd_box_muller_double(opd_four(s));
}
template <class S> OPD_FN double curand_normal_double(S *s)
{
    s->boxmuller_flag_double = !s->boxmuller_flag_double;
    if (!s->boxmuller_flag_double)
        return s->boxmuller_extra_double;
    const double2 v = curand_normal2_double(s);
    s->boxmuller_extra_double = v.y;
    return v.x;
}
template <class S> OPD_FN float curand_log_normal(S *s, float mean, float deviation)
{
    return expf(mean + deviation * curand_normal(s));
}
OPD_FN float4 curand_uniform4(curandStatePhilox4_32_10 *s)
{
    const uint4 u = curand4(s);
    return make_float4(opd_uniform(u.x), opd_uniform(u.y), opd_uniform(u.z), opd_uniform(u.w));
}
OPD_FN double2 curand_uniform2_double(curandStatePhilox4_32_10 *s)
{
    const uint4 u = curand4(s);
    return make_double2(opd_uniform_double(u.x, u.y), opd_uniform_double(u.z, u.w));
}
OPD_FN float4 curand_normal4(curandStatePhilox4_32_10 *s)
{
    const uint4 u = curand4(s);
    const float2 a = opd_box_muller(u.x, u.y), b = opd_box_muller(u.z, u.w);
    return make_float4(a.x, a.y, b.x, b.y);
}
#endif
