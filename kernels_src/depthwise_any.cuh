// The convolutions of depthwise_conv2d.cu for any window and any size.
#pragma once
#ifndef OPD_CPU

template <class T>
__global__ void depthwise_forward_any(const T *__restrict__ input, const T *__restrict__ weight,
                                      const T *__restrict__ bias, T *__restrict__ output,
                                      int64_t count, int64_t CM, int64_t M, int64_t H, int64_t W,
                                      int64_t OH, int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                      int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t ow = i % OW, oh = i / OW % OH, plane = i / OW / OH, channel = plane % CM;
        const T *image = input + plane / M * H * W;
        acc_t sum = bias ? opd::load(bias + channel) : acc_t(0);
        for (int64_t kh = 0; kh < KH; kh++) {
            const int64_t ih = oh * SH - PH + kh * DH;
            if (ih < 0 || ih >= H)
                continue;
            for (int64_t kw = 0; kw < KW; kw++) {
                const int64_t iw = ow * SW - PW + kw * DW;
                if (iw >= 0 && iw < W)
                    sum += opd::load(image + ih * W + iw) *
                           opd::load(weight + (channel * KH + kh) * KW + kw);
            }
        }
        opd::store(output + i, sum);
    }
}

// Of taps along W those are asked for alone that meet an output: each EVERY_W-th, whose output is
// NEXT_W before that of the last.
template <class T>
__global__ void depthwise_grad_input_any(const T *__restrict__ grad_output,
                                         const T *__restrict__ weight, T *__restrict__ grad_input,
                                         int64_t count, int64_t C, int64_t M, int64_t H, int64_t W,
                                         int64_t OH, int64_t OW, int64_t KH, int64_t KW, int64_t SH,
                                         int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                                         int64_t EVERY_W, int64_t NEXT_W)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t x = i % W, h = i / W % H, plane = i / W / H, channel = plane % C;
        int64_t first = 0; // of the taps along W
        while (first < min(EVERY_W, KW) && (x + PW - first * DW) % SW)
            first++;
        if (first == EVERY_W)
            first = KW;
        acc_t sum = 0;
        for (int64_t k = 0; k < M * KH; k++) {
            const int64_t m = k / KH, th = h + PH - (k - m * KH) * DH;
            if (th < 0 || th % SH || th / SH >= OH)
                continue;
            const T *line = grad_output + ((plane * M + m) * OH + th / SH) * OW,
                    *taps = weight + (channel * M * KH + k) * KW;
            int64_t ow = (x + PW - first * DW) / SW;
            for (int64_t kw = first; kw < KW && ow >= 0; kw += EVERY_W, ow -= NEXT_W)
                if (ow < OW)
                    sum += opd::load(line + ow) * opd::load(taps + kw);
        }
        opd::store(grad_input + i, sum);
    }
}

template <class T>
__global__ void depthwise_grad_weight_any(const T *__restrict__ input,
                                          const T *__restrict__ grad_output,
                                          acc_t *__restrict__ partial, int64_t N, int64_t CM,
                                          int64_t M, int64_t H, int64_t W, int64_t OH, int64_t OW,
                                          int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                          int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                                          int64_t PARTS)
{
    const int64_t taps = KH * KW + 1, part = blockIdx.x % PARTS, k = blockIdx.x / PARTS % taps;
    const int64_t channel = blockIdx.x / PARTS / taps;
    const int64_t count = N * OH * OW, share = (count + PARTS - 1) / PARTS,
                  end = min((part + 1) * share, count);
    acc_t sum = 0;
    for (int64_t i = part * share + threadIdx.x; i < end; i += blockDim.x) {
        const int64_t ow = i % OW, oh = i / OW % OH, plane = i / OW / OH * CM + channel;
        const int64_t ih = oh * SH - PH + k / KW * DH, iw = ow * SW - PW + k % KW * DW;
        const acc_t g = opd::load(grad_output + (plane * OH + oh) * OW + ow);
        if (k == KH * KW)
            sum += g;
        else if (ih >= 0 && ih < H && iw >= 0 && iw < W)
            sum += g * opd::load(input + (plane / M * H + ih) * W + iw);
    }
    sum = opd::block_reduce_sum<256>(sum);
    if (threadIdx.x == 0)
        partial[(part * CM + channel) * taps + k] = sum;
}
#endif
