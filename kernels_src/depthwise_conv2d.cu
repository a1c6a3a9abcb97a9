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
//! let     SH, SW = stride
//! let     PH, PW = padding
//! let     DH, DW = dilation
//! require C > 0 && CM > 0 && CM % C == 0 : \
//!           "weight has {CM} channels in dimension 0, input has {C}; expected [{C}*M, 1, KH, KW]"
//! require H > 0 && W > 0 : "input has {H} rows of {W} columns, expected at least one of each"
//! require KH > 0 && KW > 0 : "weight has a window of {KH} x {KW}, expected at least 1 x 1"
//! require SH > 0 && SW > 0 : "stride is {stride}, expected at least 1"
//! require DH > 0 && DW > 0 : "dilation is {dilation}, expected at least 1"
//! require PH >= 0 && PW >= 0 : "padding is {padding}, expected at least 0"
//! shape   bias [CM]
//! let     M = CM / C
//! let     REACH_H, REACH_W = H + 2*PH - DH*(KH - 1), W + 2*PW - DW*(KW - 1)
//! require REACH_H > 0 && REACH_W > 0 : \
//!           "the window of {KH} x {KW} exceeds the padded input, {H + 2*PH} x {W + 2*PW}"
//! let     OH, OW = (REACH_H - 1) / SH + 1, (REACH_W - 1) / SW + 1
//! shape   output [N, CM, OH, OW]
//! batch   N
//! batch   C CM
//! linear  input bias
//! linear  weight bias
//! let     SMALL = max(KH, KW) <= 7 && max(max(SH, SW), max(DH, DW)) <= 2 && \
//!           fits32(H*W, 2*H + 4*PH, 2*W + 4*PW, N*CM*(OH + 8)*OW, N*C*(H + 8*SH)*(W + 2))
//! let     VEC, TAPS = 16 / sizeof(scalar_t), KW <= 7 ? KW : 0
//! let     SAME = SMALL && SH*SW*DH*DW == 1 && KW == 2*PW + 1 && W % VEC == 0
//! let     ROWS = KH <= 5 && OH >= 8 && N*CM*OH*OW >= 4194304 ? 8 : 4
//! let     GROUPS, QUADS = cdiv(OH, ROWS), cdiv(OH, 4)
//! let     CELLS_H, CELLS_W = cdiv((H - 1 + PH) / SH - PH / SH + 1, 4), \
//!           (W - 1 + PW) / SW - PW / SW + 1
//! let     STRIPS = N*QUADS*(SAME ? W / VEC : OW)
//! let     LEAD, GRAD_LEAD = (VEC - PW % VEC) % VEC, ((PW - (KW - 1)*DW) % VEC + VEC) % VEC
//! let     DEPTH, GRAD_DEPTH = (LEAD + (VEC - 1)*SW + (KW - 1)*DW) / VEC + 1, \
//!           (GRAD_LEAD + VEC - 1 + (KW - 1)*DW) / VEC + 1
//! let     TALL = is(scalar_t, float64) ? 16 : sizeof(scalar_t) == 2 && SH == 1 ? 128 : 64
//! let     DOWN, GRAD_DOWN = cdiv(OH, TALL), cdiv(H, TALL)
//! let     ALONG, GRAD_ALONG = cdiv(OW, SW == 1 ? 64 : 32), cdiv(W, 64)
//! let     TILES, GRAD_TILES = cdiv(OW, VEC*ALONG), cdiv(W, VEC*GRAD_ALONG)
//! let     TILE_H, GRAD_TILE_H = cdiv(OH, DOWN), cdiv(H, GRAD_DOWN)
//! let     HALO_H, GRAD_HALO_H = (TILE_H - 1)*SH + (KH - 1)*DH + 1, GRAD_TILE_H + (KH - 1)*DH
//! let     BLOCKS, GRAD_BLOCKS = (TILES - 1)*SW + DEPTH, GRAD_TILES - 1 + GRAD_DEPTH
//! let     PITCH, GRAD_PITCH = 16*(BLOCKS / 2*2 + 1), 16*(GRAD_BLOCKS / 2*2 + 1)
//! let     IMAGES, GRAD_IMAGES = max(1, min(min(N, TALL / TILE_H), 32768 / (HALO_H*PITCH))), \
//!           max(1, min(min(N, TALL / GRAD_TILE_H), 32768 / (GRAD_HALO_H*GRAD_PITCH)))
//! let     TILE_BYTES, GRAD_BYTES = IMAGES*HALO_H*PITCH, GRAD_IMAGES*GRAD_HALO_H*GRAD_PITCH
//! let     ALL, GRAD_ALL = DOWN*ALONG == 1, GRAD_DOWN*GRAD_ALONG == 1
//! let     TILED = TILE_BYTES <= 33000 && KH <= 32 && \
//!           fits32(N*CM*DOWN*ALONG, OH*SH + 2*H + 4*PH, 3*W + 4*PW, 128*H*W, 128*OH*OW)
//! let     GRAD_TILED = TILED && M*SH*SW == 1 && GRAD_BYTES <= 33000
//! let     EVEN, OUT_EVEN = min(VEC, W % 8 > 0 ? W % 4 > 0 ? 2 - W % 2 : 4 : 8), \
//!           min(VEC, OW % 8 > 0 ? OW % 4 > 0 ? 2 - OW % 2 : 4 : 8)
//! let     OUT_PITCH, HW, OHW = 16*(TILES / 2*2 + 1), H*W, OH*OW
//! let     TENSOR = TILED && sizeof(scalar_t) == 2 && DEPTH <= 6 && BLOCKS <= 16 && \
//!           HALO_H*PITCH + TILE_H*OUT_PITCH <= 32000
//! let     WINDOW = TILED && sizeof(scalar_t) > 2 && DEPTH*VEC <= 48 && max(SH, SW) <= 4 && \
//!           (KH*KW >= 49 || !SMALL)
//! let     FEW = SMALL && OW <= 8 && KH*KW <= 25
//! let     FEW_H, FEW_W = OH + (KH - 1)*DH, OW + (KW - 1)*DW
//! let     FEW_BYTES = sizeof(acc_t)*(OH*(OW / 2*2 + 1) + FEW_H*(FEW_W / 2*2 + 1))
//! let     FEW_TURNS = max(1, cdiv(N, max(1, 32768 / FEW_BYTES)))
//! let     FEW_IMAGES = cdiv(N, FEW_TURNS)
//! let     FEW_WEIGHTS = SMALL && SH*SW == 1 && KH*KW >= 25 && N <= 64 && FEW_BYTES <= 32768 && \
//!           OW <= (sizeof(scalar_t) == 2 ? 16 : 8)
//! let     WINDOW_ROWS, GROUP = TILE_H >= 12 ? 4 : 2, KW > 8 ? 16 : 8
//! let     WEIGHT_TENSOR = TENSOR && !(SMALL && KH*KW*OW < 250)
//! let     WEIGHT_WINDOW = WINDOW && SH*SW*DH*DW == 1
//! let     WEIGHT_IMAGES = WINDOW ? IMAGES : \
//!           max(1, min(IMAGES, 30000 / (HALO_H*PITCH + TILE_H*OUT_PITCH)))
//! let     WEIGHT_BYTES = WEIGHT_IMAGES*HALO_H*PITCH
//! let     TEAM, HALVES = cdiv(KH, 8)*8*cdiv(KW, GROUP), KH*cdiv(DEPTH, 2)
//! let     ALL_TILES = cdiv(N, WEIGHT_IMAGES)*DOWN*ALONG
//! let     PARTS = max(1, FEW_WEIGHTS ? min(2048 / CM, FEW_TURNS) : \
//!           WEIGHT_TENSOR ? min(768 / CM, ALL_TILES) : \
//!           WEIGHT_WINDOW ? min(2048 / CM, ALL_TILES) : \
//!           SAME ? min(1024 / CM, STRIPS / 2048) : min(2048 / CM, STRIPS / 1024))
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
//
//! forward cpu
//!   kernel  depthwise_forward_rows<scalar_t, TAPS> threads N*CM*cdiv(OH, 8) by 1
//! forward cuda
//!   kernel  depthwise_forward_tensor<scalar_t, KH, KW, SW, DW, LEAD, EVEN, TILES, ALL>
//!   when    TENSOR && !FEW
//!   grid    cdiv(N, IMAGES)*CM*DOWN*ALONG block 128
//!   shared  TILE_BYTES + 16 + cdiv(KH*(8*DEPTH + 7*SW), 4)*16
//!   kernel  depthwise_forward_window<scalar_t, KH, KW, SH, SW, DH, DW, LEAD, EVEN, TILES, \
//!             WINDOW_ROWS, ALL> otherwise WINDOW
//!   grid    cdiv(N, IMAGES)*CM*DOWN*ALONG
//!   block   min(256, cdiv(IMAGES*cdiv(TILE_H, WINDOW_ROWS)*TILES, 32)*32)
//!   shared  TILE_BYTES + KH*cdiv(KW, VEC)*16 + WINDOW_ROWS*SH*PITCH
//!   kernel  depthwise_forward_same<scalar_t, KH, KW> otherwise SAME
//!   threads N*CM*QUADS*(W / VEC) by 128
//!   kernel  depthwise_forward<scalar_t, KH, KW, SH, SW, DH, DW, ROWS> otherwise SMALL
//!   threads N*CM*GROUPS*OW
//!   kernel  depthwise_forward_any otherwise threads numel(output)
//
//! backward cpu grad_input
//!   kernel  depthwise_grad_input_rows<scalar_t, KW <= 7 && (SW == 1 || DW == 1) ? \
//!             cdiv(KW, SW) : 0> threads N*C*cdiv(H, 8) by 1
//! backward cuda grad_input
//!   kernel  depthwise_grad_input_tensor<scalar_t, KH, KW, DW, GRAD_LEAD, OUT_EVEN, GRAD_TILES, \
//!             GRAD_ALL> when TENSOR && GRAD_TILED && GRAD_DEPTH <= 6
//!   grid    cdiv(N, GRAD_IMAGES)*CM*GRAD_DOWN*GRAD_ALONG block 128
//!   shared  GRAD_BYTES + 16 + cdiv(KH*(8*GRAD_DEPTH + 7), 4)*16
//!   bind s.H = OH bind s.W = OW bind s.OH = H bind s.OW = W bind s.SH = 1
//!   bind s.PH = (KH - 1)*DH - PH bind s.PW = (KW - 1)*DW - PW
//!   bind s.TILE_H = GRAD_TILE_H bind s.HALO_H = GRAD_HALO_H
//!   bind s.IMAGES = GRAD_IMAGES bind s.DOWN = GRAD_DOWN bind s.ALONG = GRAD_ALONG
//!   bind s.HW = OHW bind s.OHW = HW
//!   kernel  depthwise_grad_input_window<scalar_t, KH, KW, DH, DW, GRAD_LEAD, OUT_EVEN, \
//!             GRAD_TILES, WINDOW_ROWS, GRAD_ALL>
//!   otherwise WINDOW && GRAD_TILED && GRAD_DEPTH*VEC <= 48
//!   grid    cdiv(N, GRAD_IMAGES)*CM*GRAD_DOWN*GRAD_ALONG
//!   block   min(256, cdiv(GRAD_IMAGES*cdiv(GRAD_TILE_H, WINDOW_ROWS)*GRAD_TILES, 32)*32)
//!   shared  GRAD_BYTES + KH*cdiv(KW, VEC)*16 + WINDOW_ROWS*GRAD_PITCH
//!   bind s.H = OH bind s.W = OW bind s.OH = H bind s.OW = W bind s.SH = 1
//!   bind s.PH = (KH - 1)*DH - PH bind s.PW = (KW - 1)*DW - PW
//!   bind s.TILE_H = GRAD_TILE_H bind s.HALO_H = GRAD_HALO_H
//!   bind s.IMAGES = GRAD_IMAGES bind s.DOWN = GRAD_DOWN bind s.ALONG = GRAD_ALONG
//!   bind s.HW = OHW bind s.OHW = HW
//!   kernel  depthwise_grad_input_same<scalar_t, KH, KW> otherwise SAME && M == 1
//!   threads N*C*cdiv(H, 4)*(W / VEC) by 128
//!   kernel  depthwise_grad_input<scalar_t, KH, KW, SH, SW, DH, DW> otherwise SMALL
//!   threads N*C*CELLS_H*CELLS_W
//!   kernel  depthwise_grad_input_any otherwise threads numel(input)
//
//! backward cpu grad_weight grad_bias
//!   kernel  depthwise_grad_weight_rows<scalar_t, TAPS>
//!   threads CM*(cdiv(KH, 8)*(KW <= 7 ? 1 : cdiv(KW, 8)) + 1) by 1
//! backward cuda grad_weight grad_bias
//!   kernel  depthwise_grad_weight_few<scalar_t, KH, KW, DH, DW, OW> when FEW_WEIGHTS
//!   grid    CM*PARTS block 32*max(KH, 6) shared FEW_IMAGES*FEW_BYTES
//!   kernel  depthwise_grad_weight_tensor<scalar_t, KH, KW, SW, DW, LEAD, EVEN, OUT_EVEN, TILES, \
//!             ALL, HALVES <= 16 ? 1 : HALVES <= 32 ? 2 : 4>
//!   otherwise WEIGHT_TENSOR grid CM*PARTS block 128
//!   shared  max(2*(WEIGHT_BYTES + PITCH + WEIGHT_IMAGES*TILE_H*OUT_PITCH + 16), 27648)
//!   bind    s.IMAGES = WEIGHT_IMAGES
//!   kernel  depthwise_grad_weight_window<scalar_t, KH, KW, LEAD, EVEN, OUT_EVEN, TILES, GROUP, \
//!             ALL>
//!   otherwise WEIGHT_WINDOW grid CM*PARTS block cdiv(max(128, TEAM), 32)*32
//!   shared  max(WEIGHT_BYTES + IMAGES*TILE_H*TILES*16 + 256, \
//!             (TEAM + 160)*(GROUP + 1)*sizeof(acc_t))
//!   kernel  depthwise_grad_weight_same<scalar_t, KH, KW, wanted(grad_weight)> otherwise SAME
//!   grid    CM*PARTS
//!   kernel  depthwise_grad_weight<scalar_t, KH, KW, SH, SW, DH, DW, wanted(grad_weight)>
//!   otherwise SMALL grid CM*PARTS
//!   kernel  depthwise_grad_weight_any otherwise grid CM*(KH*KW + 1)*PARTS
//!   kernel  depthwise_grad_weight_sum threads CM*(KH*KW + 1)

#include "depthwise_any.cuh"
#include "depthwise_column.cuh"
#include "depthwise_cpu.cuh"
#include "depthwise_few.cuh"
#include "depthwise_same.cuh"
#include "depthwise_tensor.cuh"
#include "depthwise_window.cuh"
