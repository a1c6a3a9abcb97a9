// Depthwise
#include <cuda_fp16.h>
//! op      depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias=None, *, \
//!           int[2] stride=1, int[2] padding=0, int[2] dilation=1) -> Tensor output
//! doc     One filter per channel ... (repeatable; lines are joined by newline)
//! doc     Second line "quoted
//! dtypes  float16 bfloat16 float32 float64
//! shape   input [N, C, H, W]
//! shape   weight [CM, 1, KH, KW]
//! require C > 0 && CM % C == 0 : "weight has {CM} channels in dimension 0, input has {C}; expected [{C}*M, 1, KH, KW]"
//! let     M = CM / C
//! shape   bias [CM]
//! let     OH = (H + 2*padding[0] - dilation[0]*(KH - 1) - 1) / stride[0] + 1
//! let     OW = (W + 2*padding[1] - dilation[1]*(KW - 1) - 1) / stride[1] + 1
//! require OH > 0 && OW > 0
//! shape   output [N, CM, OH, OW]
//! scratch partial acc_t [8, CM]
//! example input=[2,3,9,11] weight=[6,1,3,3] bias=[6] stride=2 padding=1
//! example input=[2,3,9,11] weight=[3,1,1,9] stride=[2,1]

//! forward
//!   kernel  depthwise_forward<scalar_t, KH, KW, stride[0]>
//!   when    KH <= 7 && KW <= 7
//!   grid    cdiv(numel(output), 256)
//!   block   256
//!   shared  KH * KW * 4
//!   bind    n = numel(output)
//!   kernel  depthwise_forward_any<scalar_t>
//!   otherwise
//!   bind    n = numel(output)
//!   bind    sh = stride[0]
//! backward grad_input
//!   kernel depthwise_backward_input<scalar_t>
//! backward grad_weight grad_bias
//!   zero   grad_weight
//!   kernel depthwise_backward_weight<scalar_t>

template <typename T, int KH, int KW, int S>
__global__ void __launch_bounds__(256) depthwise_forward(const T* __restrict__ input, T const *weight,
    const T *bias, T *output, int64_t n, int H, int W)
{
}
template <typename T>
__global__ void depthwise_forward_any(const T* __restrict__ input, T const *weight,
    const T *bias, T *output, int64_t n, int H, int W, int KH, int KW, int sh) { }
template <typename scalar_t>
__global__ void depthwise_backward_input(const scalar_t *grad_output, const scalar_t *weight, scalar_t *grad_input) { }
template <typename scalar_t>
__global__ void depthwise_backward_weight(const scalar_t *grad_output,
  torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> input, scalar_t *grad_weight, scalar_t *grad_bias, acc_t *partial) { }
