// What the kernels of depthwise_conv2d.cu have in common that sum gradients of weights. In two
// stages, without atomics, so that the bits are the same on every run: a block sums its part into
// `partial`, then the parts are added in their order.
#pragma once
#ifndef OPD_CPU

// Adds up what the block's threads have summed for each tap, and last for the bias.
template <int TAPS>
__device__ __forceinline__ void store_sums(acc_t *to, const acc_t *sum, acc_t sum_bias)
{
    enum { WARPS = 256 / 32 };
    __shared__ acc_t parts[WARPS][TAPS + 1];
    acc_t kept[TAPS + 1]; // not in registers: a loop compiles sooner than so many sums
#pragma unroll
    for (int k = 0; k < TAPS + 1; k++)
        kept[k] = k < TAPS ? sum[k % TAPS] : sum_bias;
#pragma unroll 4
    for (int k = 0; k < TAPS + 1; k++) {
        const acc_t part = opd::warp_reduce_sum(kept[k]);
        if (threadIdx.x % 32 == 0)
            parts[threadIdx.x / 32][k] = part;
    }
    __syncthreads();
    if (threadIdx.x <= TAPS) {
        acc_t total = parts[0][threadIdx.x];
        for (int i = 1; i < WARPS; i++)
            total += parts[i][threadIdx.x];
        to[threadIdx.x] = total;
    }
}

template <class T>
__global__ void depthwise_grad_weight_sum(const acc_t *__restrict__ partial,
                                          T *__restrict__ grad_weight, T *__restrict__ grad_bias,
                                          int64_t CM, int64_t KH, int64_t KW, int64_t PARTS)
{
    const int64_t taps = KH * KW + 1, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= CM * taps)
        return;
    acc_t sum = 0;
    for (int64_t part = 0; part < PARTS; part++)
        sum += partial[part * CM * taps + i];
    const int64_t channel = i / taps, k = i % taps;
    if (k < KH * KW && grad_weight)
        opd::store(grad_weight + channel * (KH * KW) + k, sum);
    if (k == KH * KW && grad_bias)
        opd::store(grad_bias + channel, sum);
}
#endif
