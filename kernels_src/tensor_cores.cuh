// Products of small matrices on tensor cores: a warp has parts of each in registers.
#pragma once
#ifndef OPD_CPU

// Two neighbouring blocks of 16 rows and 16 bytes, two registers each. Lanes 0 to 15 name the rows
// of the first, the others those of the second.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_blocks(uint32_t (*r)[2], uint32_t at)
{
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0][0]), "=r"(r[0][1]), "=r"(r[1][0]), "=r"(r[1][1])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0][0]), "=r"(r[0][1]), "=r"(r[1][0]), "=r"(r[1][1])
                     : "r"(at)
                     : "memory");
}

// To the nearest; what is no number need not stay so.
__device__ __forceinline__ uint32_t round_to_tf32(float v)
{
    return __float_as_uint(v) + 0x1000u & 0xffffe000u;
}

// d += a @ b, of 16 by 16 and 16 by 8 elements, or of 16 by 8 and 8 by 8.
#if __CUDA_ARCH__ >= 800
#define OPD_MULTIPLY(T, type)                                                                      \
    __device__ __forceinline__ void multiply(T, float *d, uint32_t a0, uint32_t a1, uint32_t a2,   \
                                             uint32_t a3, uint32_t b0, uint32_t b1)                \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                         \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                               \
    }                                                                                              \
    __device__ __forceinline__ void multiply(T, float *d, uint32_t a0, uint32_t a1, uint32_t b0)   \
    {                                                                                              \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." type "." type ".f32 "                          \
            "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"                                         \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a0), "r"(a1), "r"(b0));                                                          \
    }
OPD_MULTIPLY(opd::half, "f16")
OPD_MULTIPLY(opd::bfloat16, "bf16")
#undef OPD_MULTIPLY

// The same of TF32, d += a @ b of 16 by 8 and 8 by 8 elements.
__device__ __forceinline__ void multiply_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// Without them, for the same results: lane 4*g + q has columns 2*q and 2*q + 1 of rows g and g + 8.
template <class T>
__device__ __noinline__ void multiply(T, float *d, uint32_t a0, uint32_t a1, uint32_t b0)
{
    const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
    for (int s = 0; s < 4; s++) {
        const uint32_t words[4] = { __shfl_sync(~0u, a0, row + s), __shfl_sync(~0u, a1, row + s),
                                    __shfl_sync(~0u, b0, column + s),
                                    __shfl_sync(~0u, b0, column + 4 + s) };
        T v[4][2];
        for (int i = 0; i < 8; i++)
            v[i / 2][i % 2].x = (uint16_t)(words[i / 2] >> i % 2 * 16);
        for (int i = 0; i < 8; i++)
            d[i / 2] += (float)v[i / 4][i % 2] * (float)v[2 + i / 2 % 2][i % 2];
    }
}

template <class T>
__device__ __forceinline__ void multiply(T type, float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    multiply(type, d, a0, a1, b0);
    multiply(type, d, a2, a3, b1);
}

__device__ __noinline__ void multiply_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 4; i++)
            d[i] += __uint_as_float(__shfl_sync(~0u, a[k / 4 * 2 + i / 2], row + k % 4)) *
                    __uint_as_float(__shfl_sync(~0u, b[k / 4], column + i % 2 * 4 + k % 4));
}
#endif
#endif
