// Depthwise 2-D convolution, NCHW, as torch.nn.functional.conv2d with groups = C. Output channel c
// of C*M reads input channel c / M alone:
//   output[n, c, oh, ow] = bias[c] +
//       sum over kh, kw of weight[c, 0, kh, kw] * input[n, c / M, ih, iw]
//   with ih = oh*SH - PH + kh*DH, iw = ow*SW - PW + kw*DW for stride, padding and dilation.
//
//! op      depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias=None, *, \
//!           int[2] stride=1, int[2] padding=0, int[2] dilation=1) -> Tensor output
//! doc     One filter for each channel: conv2d with groups equal to the input's channels.
//! doc     The weight may have M filters for each: output channel c then reads input channel c / M.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   input [N, C, H, W]
//! shape   weight [CM, 1, KH, KW]
//! let     SH, SW, PH, PW, DH, DW = stride, padding, dilation
//! require C > 0 && CM > 0 && CM % C == 0 : \
//!           "weight has {CM} channels in dimension 0, input has {C}; expected [{C}*M, 1, KH, KW]"
//! require H > 0 && W > 0 : "input has {H} rows of {W} columns, expected at least one of each"
//! require KH > 0 && KW > 0 : "weight has a window of {KH} x {KW}, expected at least 1 x 1"
//! require SH > 0 && SW > 0 : "stride is {stride}, expected at least 1"
//! require DH > 0 && DW > 0 : "dilation is {dilation}, expected at least 1"
//! require PH >= 0 && PW >= 0 : "padding is {padding}, expected at least 0"
//! shape   bias [CM]
//! let     M, REACH_H, REACH_W = CM / C, H + 2*PH - DH*(KH - 1), W + 2*PW - DW*(KW - 1)
//! require REACH_H > 0 && REACH_W > 0 : "the window of {KH} x {KW} exceeds the padded input, {H + 2*PH} x {W + 2*PW}"
//! let     OH, OW = (REACH_H - 1) / SH + 1, (REACH_W - 1) / SW + 1
//! shape   output [N, CM, OH, OW]
//! batch   N
//! batch   C CM
//! linear  input bias
//! linear  weight bias
//! let     SMALL = max(KH, KW) <= 7 && max(SH, SW, DH, DW) <= 2 && \
//!           fits32(H*W, 2*H + 4*PH, 2*W + 4*PW, N*CM*(OH + 8)*OW, N*C*(H + 8*SH)*(W + 2))
//! let     VEC, TAPS, HW, OHW = 16 / sizeof(scalar_t), KW <= 7 ? KW : 0, H*W, OH*OW
//! let     SAME = SMALL && SH*SW*DH*DW == 1 && KW == 2*PW + 1 && W % VEC == 0
//! let     ROWS = KH <= 5 && OH >= 8 && N*CM*OH*OW >= 4194304 ? 8 : 4
//! let     GROUPS, QUADS, CELLS_H, CELLS_W = cdiv(OH, ROWS), cdiv(OH, 4), \
//!           cdiv((H - 1 + PH) / SH - PH / SH + 1, 4), (W - 1 + PW) / SW - PW / SW + 1
//! let     STRIPS, LEAD = N*QUADS*(SAME ? W / VEC : OW), (VEC - PW % VEC) % VEC
//! let     EVEN, OUT_EVEN, DEPTH = gcd(W, VEC), gcd(OW, VEC), (LEAD + (VEC - 1)*SW + (KW - 1)*DW) / VEC + 1
//! let     TALL = is(scalar_t, float64) ? 16 : sizeof(scalar_t) == 2 && SH == 1 ? 128 : 64
//! let     DOWN, ALONG = cdiv(OH, TALL), cdiv(OW, SW == 1 ? 64 : 32)
//! let     ALL, TILES, TILE_H = DOWN*ALONG == 1, cdiv(OW, VEC*ALONG), cdiv(OH, DOWN)
//! let     HALO_H, BLOCKS = (TILE_H - 1)*SH + (KH - 1)*DH + 1, (TILES - 1)*SW + DEPTH
//! let     PITCH, OUT_PITCH = 16*(BLOCKS / 2*2 + 1), 16*(TILES / 2*2 + 1)
//! let     IMAGES = max(1, min(N, TALL / TILE_H, 32768 / (HALO_H*PITCH)))
//! let     TILE_BYTES, GRID = IMAGES*HALO_H*PITCH, cdiv(N, IMAGES)*CM*DOWN*ALONG
//! let     TILED = TILE_BYTES <= 33000 && KH <= 32 && \
//!           fits32(N*CM*DOWN*ALONG, OH*SH + 2*H + 4*PH, 3*W + 4*PW, 128*H*W, 128*OH*OW)
//! let     TENSOR = TILED && sizeof(scalar_t) == 2 && DEPTH <= 6 && BLOCKS <= 16 && HALO_H*PITCH + TILE_H*OUT_PITCH <= 32000
//! let     WINDOW = TILED && sizeof(scalar_t) > 2 && DEPTH*VEC <= 48 && max(SH, SW) <= 4 && (KH*KW >= 49 || !SMALL)
//! let     WINDOW_ROWS, GROUP = TILE_H >= 12 ? 4 : 2, KW > 8 ? 16 : 8
//! let     WINDOW_BLOCK = min(256, cdiv(IMAGES*cdiv(TILE_H, WINDOW_ROWS)*TILES, 32)*32)
//! let     WINDOW_SHARED = TILE_BYTES + KH*cdiv(KW, VEC)*16 + WINDOW_ROWS*SH*PITCH
//! again   BACK : H, W, OH, OW, SH, SW, PH, PW, WINDOW_ROWS = \
//!           OH, OW, H, W, 1, 1, (KH - 1)*DH - PH, (KW - 1)*DW - PW, WINDOW_ROWS
//! let     BACK_TILED = M*SH*SW == 1 && BACK.TILE_BYTES <= 33000
//! let     FEW_H, FEW_W = OH + (KH - 1)*DH, OW + (KW - 1)*DW
//! let     FEW_BYTES = sizeof(acc_t)*(OH*(OW / 2*2 + 1) + FEW_H*(FEW_W / 2*2 + 1))
//! let     FEW_TURNS = max(1, cdiv(N, max(1, 32768 / FEW_BYTES)))
//! let     FEW, FEW_IMAGES = SMALL && SH*SW == 1 && KH*KW >= 25 && N <= 64 && \
//!           FEW_BYTES <= 32768 && OW <= (sizeof(scalar_t) == 2 ? 16 : 8), cdiv(N, FEW_TURNS)
//! let     WEIGHT_TENSOR, WEIGHT_WINDOW = TENSOR && !(SMALL && KH*KW*OW < 250), WINDOW && SH*SW*DH*DW == 1
//! let     WEIGHT_IMAGES = WINDOW ? IMAGES : max(1, min(IMAGES, 30000 / (HALO_H*PITCH + TILE_H*OUT_PITCH)))
//! let     WEIGHT_BYTES, ALL_TILES = WEIGHT_IMAGES*HALO_H*PITCH, cdiv(N, WEIGHT_IMAGES)*DOWN*ALONG
//! let     TEAM, HALVES = cdiv(KH, 8)*8*cdiv(KW, GROUP), KH*cdiv(DEPTH, 2)
//! let     PARTS = max(1, min((FEW || !WEIGHT_TENSOR && (WEIGHT_WINDOW || !SAME) ? 2048 : \
//!           WEIGHT_TENSOR ? 768 : 1024) / CM, FEW ? FEW_TURNS : \
//!           WEIGHT_TENSOR || WEIGHT_WINDOW ? ALL_TILES : STRIPS / (SAME ? 2048 : 1024)))
//! scratch partial acc_t [PARTS, CM, KH*KW + 1]
//! empty   output grad_input grad_weight grad_bias
//! example input=[2,3,9,11] weight=[6,1,3,3] bias=[6] stride=2 padding=1
//! example input=[2,8,14,14] weight=[8,1,3,3] padding=1
//! example input=[2,2,11,16] weight=[4,1,3,3] bias=[4] padding=1
//! example input=[1,2,9,24] weight=[2,1,7,7] padding=3
//! example input=[1,4,12,10] weight=[4,1,5,5] bias=[4] padding=2 dilation=2
//! example input=[2,3,12,13] weight=[3,1,1,7] padding=[0,3] stride=[1,2]
//! example input=[1,2,20,17] weight=[2,1,9,9] bias=[2] padding=4
//! example input=[2,3,11,11] weight=[3,1,2,2] stride=3
//! example input=[1,2,3,3] weight=[4,1,3,3] bias=[4] padding=4
//! forward cpu
//!   kernel  depthwise_forward_rows threads N*CM*cdiv(OH, 8) by 1
//! forward cuda
//!   kernel  depthwise_forward_tensor when TENSOR && !(SMALL && OW <= 8 && KH*KW <= 25)
//!   grid    GRID block 128 shared TILE_BYTES + 16 + cdiv(KH*(8*DEPTH + 7*SW), 4)*16
//!   kernel  depthwise_forward_window otherwise WINDOW grid GRID block WINDOW_BLOCK shared WINDOW_SHARED
//!   kernel  depthwise_forward_same otherwise SAME threads N*CM*QUADS*(W / VEC) by 128
//!   kernel  depthwise_forward otherwise SMALL threads N*CM*GROUPS*OW
//!   kernel  depthwise_forward_any otherwise threads numel(output)
//! backward cpu grad_input
//!   kernel  depthwise_grad_input_rows threads N*C*cdiv(H, 8) by 1
//!   bind    TAPS = KW <= 7 && (SW == 1 || DW == 1) ? cdiv(KW, SW) : 0
//! backward cuda grad_input
//!   kernel  depthwise_grad_input_tensor when TENSOR && BACK_TILED && BACK.DEPTH <= 6 as BACK
//!   grid    GRID block 128 shared TILE_BYTES + 16 + cdiv(KH*(8*DEPTH + 7*SW), 4)*16
//!   kernel  depthwise_grad_input_window otherwise WINDOW && BACK_TILED && BACK.DEPTH*VEC <= 48
//!   as BACK grid GRID block WINDOW_BLOCK shared WINDOW_SHARED
//!   kernel  depthwise_grad_input_same otherwise SAME && M == 1 threads N*C*cdiv(H, 4)*(W / VEC) by 128
//!   kernel  depthwise_grad_input otherwise SMALL threads N*C*CELLS_H*CELLS_W
//!   kernel  depthwise_grad_input_any otherwise threads numel(input)
//! backward cpu grad_weight grad_bias
//!   kernel  depthwise_grad_weight_rows threads CM*(cdiv(KH, 8)*(KW <= 7 ? 1 : cdiv(KW, 8)) + 1) by 1
//! backward cuda grad_weight grad_bias
//!   kernel  depthwise_grad_weight_few when FEW grid CM*PARTS block 32*max(KH, 6) shared FEW_IMAGES*FEW_BYTES
//!   kernel  depthwise_grad_weight_tensor otherwise WEIGHT_TENSOR grid CM*PARTS block 128
//!   bind    WARPS_KH = HALVES <= 16 ? 1 : HALVES <= 32 ? 2 : 4 bind s.IMAGES = WEIGHT_IMAGES
//!   shared  max(2*(WEIGHT_BYTES + PITCH + WEIGHT_IMAGES*TILE_H*OUT_PITCH + 16), 27648)
//!   kernel  depthwise_grad_weight_window otherwise WEIGHT_WINDOW
//!   grid    CM*PARTS block cdiv(max(128, TEAM), 32)*32 shared max(WEIGHT_BYTES + \
//!           IMAGES*TILE_H*TILES*16 + 256, (TEAM + 160)*(GROUP + 1)*sizeof(acc_t))
//!   kernel  depthwise_grad_weight_same otherwise SAME grid CM*PARTS bind WEIGHT = wanted(grad_weight)
//!   kernel  depthwise_grad_weight otherwise SMALL grid CM*PARTS bind WEIGHT = wanted(grad_weight)
//!   kernel  depthwise_grad_weight_any otherwise grid CM*(KH*KW + 1)*PARTS
//!   kernel  depthwise_grad_weight_sum threads CM*(KH*KW + 1)

#include "depthwise_any.cuh"
#include "depthwise_column.cuh"
#include "depthwise_cpu.cuh"
#include "depthwise_few.cuh"
#include "depthwise_same.cuh"
#include "depthwise_tensor.cuh"
#include "depthwise_window.cuh"
