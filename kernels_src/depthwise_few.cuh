// The gradient of weight of depthwise_conv2d.cu for few small planes, windows of 5×5 and larger.
#pragma once
#ifndef OPD_CPU

// The planes of FEW_IMAGES images lie in shared memory as what they are summed in, those of the
// input with zeros around. A warp has a row of the window, and each of its threads takes rows of
// outputs: what it loads of a row serves all taps, and no sum of one warp is added to another's.
template <class T, int KH, int KW, int DH, int DW, int OW>
__global__ void __launch_bounds__(256)
    depthwise_grad_weight_few(const T *__restrict__ input, const T *__restrict__ grad_output,
                              acc_t *__restrict__ partial, int N, int CM, int M, opd::divisor W,
                              opd::divisor HW, opd::divisor OHW, opd::divisor OH, int PH, int PW,
                              int FEW_H, int FEW_IMAGES, int PARTS)
{
    constexpr int COLUMNS = OW + (KW - 1) * DW, PITCH = COLUMNS | 1,
                  OUT_PITCH = OW | 1;
    extern __shared__ acc_t planes_of[];
    acc_t *tile = planes_of, *out_tile = tile + FEW_IMAGES * FEW_H * PITCH;
    const int channel = blockIdx.x / PARTS, part = blockIdx.x % PARTS, C = CM / M;
    const int kh = threadIdx.x / 32, lane = threadIdx.x % 32;
    acc_t sum[KW] = {}, sum_bias = 0;
    for (int n0 = part * FEW_IMAGES; n0 < N; n0 += PARTS * FEW_IMAGES) {
        const int images = min(FEW_IMAGES, N - n0);
        const T *from = input + ((int64_t)n0 * C + channel / M) * HW;
        const T *out = grad_output + ((int64_t)n0 * CM + channel) * OHW;
        __syncthreads();
        for (int i = threadIdx.x; i < images * FEW_H * PITCH; i += blockDim.x)
            tile[i] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < images * HW; i += blockDim.x) {
            const int n = i / HW, at = i - n * HW, h = at / W, y = h + PH, x = at - h * W + PW;
            const acc_t v = opd::load(from + (int64_t)n * C * HW + at);
            if (y < FEW_H && x < COLUMNS)
                tile[(n * FEW_H + y) * PITCH + x] = v;
        }
#pragma unroll 4
        for (int i = threadIdx.x; i < images * OHW; i += blockDim.x) {
            const int n = i / OHW, at = i - n * OHW;
            out_tile[i / OW * OUT_PITCH + i % OW] = opd::load(out + (int64_t)n * CM * OHW + at);
        }
        __syncthreads();
        for (int i = lane; kh < KH && i < images * OH; i += 32) {
            const int n = i / OH, y = i - n * OH;
            const acc_t *row = tile + (n * FEW_H + y + kh * DH) * PITCH,
                        *g = out_tile + i * OUT_PITCH;
            acc_t v[COLUMNS];
#pragma unroll
            for (int x = 0; x < COLUMNS; x++)
                v[x] = row[x];
#pragma unroll
            for (int x = 0; x < OW; x++) {
                const acc_t grad = g[x];
                sum_bias += grad;
#pragma unroll
                for (int kw = 0; kw < KW; kw++)
                    sum[kw] += grad * v[x + kw * DW];
            }
        }
    }
    acc_t *to = partial + ((int64_t)part * CM + channel) * (KH * KW + 1);
#pragma unroll
    for (int kw = 0; kw <= KW; kw++) {
        const acc_t total = opd::warp_reduce_sum(kw < KW ? sum[kw % KW] : sum_bias);
        if (lane == 0 && (kw < KW ? kh < KH : kh == 0))
            to[kw < KW ? kh * KW + kw : KH * KW] = total;
    }
}
#endif
