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
//! shape   input [N, C, H, W]; weight [CM, 1, KH, KW]
//! let     SH, SW, PH, PW, DH, DW = stride, padding, dilation; PADDED_H = H + 2*PH; PADDED_W = W + 2*PW
//! require min(C, H, W, KH, KW) > 0 : "input is {input}, weight is {weight}, expected no 0 but for N in their shapes"
//! require CM > 0 && CM % C == 0 : "weight has {CM} channels in dimension 0, input has {C}; expected [{C}*M, 1, KH, KW]"
//! require min(SH, SW, DH, DW) > 0 : "stride is {stride}, dilation is {dilation}, expected at least 1"
//! require PH >= 0 && PW >= 0 : "padding is {padding}, expected at least 0"
//! require PADDED_H > DH*(KH - 1) && PADDED_W > DW*(KW - 1) : \
//!           "the window of {KH} x {KW} exceeds the padded input, {PADDED_H} x {PADDED_W}"
//! let     OH = (PADDED_H - DH*(KH - 1) - 1) / SH + 1; OW = (PADDED_W - DW*(KW - 1) - 1) / SW + 1; HW = H*W; OHW = OH*OW
//! shape   bias [CM]; output [N, CM, OH, OW]
//! batch   N; C CM
//! linear  input bias; weight bias
//! channels_last depthwise_conv2d_nhwc input output when CM == C && (cpu ? C*sizeof(acc_t) >= 32 || SH*SW == 1 : KH*KW <= 49 && max(SH, SW, DH, DW) <= 2)
//! let     M = CM / C; VEC = 16 / sizeof(scalar_t); TAPS = KW <= 7 ? KW : 0; NEAR = max(SH, SW) <= 4 && \
//!           fits32(HW, 2*H + 4*PH, 2*W + 4*PW, N*CM*(OH + 8)*OW, N*C*(H + 8*SH)*(W + 2))
// SMALL: window, stride and dilation are compiled in. FLAT: long windows of one row. TINY: no waiting for shared memory.
//! let     SMALL = NEAR && max(KH, KW) <= 7 && max(DH, DW) <= 2; FLAT = NEAR && VEC >= 4 && KH == 1 && KW <= 31 && H < 8
//! let     MADE = N*CM*OHW; TINY = NEAR && max(KH, KW) <= 7 && KH*KW <= 25 && (KH - 1)*DH <= 128 && MADE <= 262144
//! let     ROWS = TINY ? (MADE <= 65536 ? 1 : 2) : KH <= 5 && OH >= 8 && MADE >= 4194304 ? 8 : 4; GROUPS = cdiv(OH, ROWS); QUADS = cdiv(OH, 4)
//! let     EVEN = gcd(W, VEC); OUT_EVEN = gcd(OW, VEC); LEAD = (VEC - PW % VEC) % VEC
//! let     LEVEL = (SMALL || FLAT && EVEN > 1) && SH*SW*DH*DW == 1 && KW == 2*PW + 1; SAME = SMALL && LEVEL && W % VEC == 0
//! let     CELLS_H = cdiv((H - 1 + PH) / SH - PH / SH + 1, 4); CELLS_W = (W - 1 + PW) / SW - PW / SW + 1
// Parts of planes of depthwise_planes.cuh, of about 12 KB, of large windows less in small tensors: strips of STRIP by SIDE.
//! let     PART = SMALL && KH*KW <= 25 ? 12544 : max(2048, min(12544, N*C*HW*sizeof(scalar_t) / 264)); STRIP = OH % 7 == 0 ? 7 : min(OH, 8)
//! let     PART_H = min(cdiv(OH, STRIP), max(1, PART / (STRIP*SH*W*sizeof(scalar_t))))*STRIP
//! let     PARTS_H = cdiv(OH, PART_H); AT_ONCE = M*PARTS_H == 1 ? max(1, PART / (max(H, PART_H*SH)*W*sizeof(scalar_t))) : 1
//! let     PLANES = N*CM; PART_BYTES = (SMALL ? 256 : 384) + W*sizeof(scalar_t)*(AT_ONCE > 1 ? AT_ONCE*H : min(H, (PART_H - 1)*SH + KH))
//! let     SIDE = LEVEL ? EVEN : FLAT && !SMALL && SW == 1 ? 4 : 1; PART_BLOCK = 64*max(1, min(4, VEC / (SIDE*SH*SW)))
//! let     PLANAR = (SMALL || FLAT) && !TINY && max(SH, SW) <= 2 && DH*DW == 1 && PART_BYTES <= 65536 \
//!           && KH*KW <= (FLAT ? 31 : VEC == 4 && LEVEL ? 49 : VEC == 8 && EVEN == 8 ? (LEVEL ? 9 : 0) : 25)
// Tiles of depthwise_tile.cuh: TILE_H rows of TILES blocks of 16 bytes each; of input HALO_H of BLOCKS.
//! let     DEPTH = (LEAD + (VEC - 1)*SW + (KW - 1)*DW) / VEC + 1; TALL = VEC == 2 ? 16 : SH == 1 ? 16*VEC : VEC == 8 ? 64 : max(8, 128 / (min(SH, 4)*min(SH, 4)))
//! let     DOWN = cdiv(OH, TALL); ALONG = cdiv(OW, SW == 1 ? 64 : 32); ALL = DOWN*ALONG == 1
//! let     TILES = cdiv(OW, VEC*ALONG); TILE_H = cdiv(OH, DOWN); HALO_H = (TILE_H - 1)*SH + (KH - 1)*DH + 1
//! let     BLOCKS = (TILES - 1)*SW + DEPTH; PITCH = 16*(BLOCKS / 2*2 + 1); OUT_PITCH = 16*(TILES / 2*2 + 1)
//! let     IMAGES = max(1, min(N, TALL / TILE_H, 32768 / (HALO_H*PITCH))); ALL_TILES = cdiv(N, IMAGES)*DOWN*ALONG
//! let     TILE_BYTES = IMAGES*HALO_H*PITCH; WINDOW_ROWS = VEC == 8 ? 0 : TILE_H >= 12 ? 4 : 2
//! let     BLOCK = VEC == 8 ? 128 : min(256, cdiv(IMAGES*cdiv(TILE_H, WINDOW_ROWS)*TILES, 32)*32)
//! let     SHARED = TILE_BYTES + 16*(VEC == 8 ? cdiv(KH*(8*DEPTH + 7*SW), 4) + 1 : KH*cdiv(KW, VEC)) + WINDOW_ROWS*SH*PITCH
//! let     FITS = TILE_BYTES <= 33000 && SHARED <= 65536 && KH <= 64 && DEPTH*VEC <= 72
//! let     TILED = FITS && fits32(N*CM*DOWN*ALONG, OH*SH + 2*H + 4*PH, 3*W + 4*PW, 128*HW, 128*OHW) && (VEC == 8 \
//!           ? BLOCKS <= 16 : max(SH, SW) <= 4 && !(SMALL && (KH*KW < 49 || max(SH, SW) > 2)))
// grad_input is a convolution of grad_output; of grad_weight a tile of either lies in shared memory.
//! again   BACK : H, W, OH, OW, PH, PW, WINDOW_ROWS = OH, OW, H, W, (KH - 1)*DH - PH, (KW - 1)*DW - PW, WINDOW_ROWS
//! let     TURNED = M*SH*SW == 1 && BACK.FITS; STRIPS = N*QUADS*(SAME ? W / VEC : OW)
//! again   GRAD : TALL, IMAGES = VEC == 8 && HALO_H*PITCH + TILE_H*OUT_PITCH > 32000 ? 64 : TALL, \
//!           VEC < 8 ? IMAGES : max(1, min(IMAGES, 30000 / (HALO_H*PITCH + TILE_H*OUT_PITCH)))
//! let     GROUP = KW > 8 ? 16 : 8; TEAM = cdiv(KH, 8)*8*cdiv(KW, GROUP); WARPS_KH = min(4, pow2(cdiv(KH*cdiv(DEPTH, 2), 16)))
//! let     WEIGHT_TILED = TILED && (VEC == 8 ? GRAD.HALO_H*PITCH + GRAD.TILE_H*OUT_PITCH <= 32000 && \
//!           cdiv(KH, WARPS_KH)*cdiv(DEPTH, 2) <= 32 && !(SMALL && KH*KW*OW < 250) \
//!           : SH*SW*DH*DW == 1 && TEAM <= 256)
// All planes of so few images, for depthwise_few.cuh; then what grad_weight is summed in.
//! let     FEW_H = OH + (KH - 1)*DH; FEW_BYTES = sizeof(acc_t)*(OH*(OW / 2*2 + 1) + FEW_H*((OW + (KW - 1)*DW) / 2*2 + 1))
//! let     FEW_TURNS = max(1, cdiv(N, max(1, 32768 / FEW_BYTES))); FEW_IMAGES = cdiv(N, FEW_TURNS)
//! let     FEW = SMALL && SH*SW == 1 && KH*KW >= 25 && N <= 64 && FEW_BYTES <= 32768 && OW <= (VEC == 8 ? 16 : 8)
// Planes of depthwise_sums.cuh, or rows of them, with outputs: about 24 KB, less of small tensors; for SUM_KH rows of taps.
//! let     SUM_KH = max(KH, KW) <= 7 ? KH : 1; ROW_BYTES = (min(SH, H)*W + OW)*sizeof(scalar_t); GOAL = max(4096, min(25088, N*CM*OH*ROW_BYTES / 1056))
//! let     SUM_H = min(cdiv(OH, STRIP), max(1, GOAL / (STRIP*ROW_BYTES)))*STRIP; SUM_PARTS_H = cdiv(OH, SUM_H)
//! let     SUM_STRIPS = SUM_H / STRIP; SUM_ROWS = SUM_PARTS_H == 1 ? H : min(H, (SUM_H - 1)*SH + (SUM_KH - 1)*DH + 1)
//! let     SUM_IN = 128 + cdiv(SUM_ROWS*W*sizeof(scalar_t), 16)*16
//! let     SUM_OUT = 128 + cdiv(min(SUM_H, OH)*OW*sizeof(scalar_t), 16)*16
//! let     SUM_ONCE = SUM_PARTS_H == 1 ? max(1, min(N, GOAL / (SUM_IN + SUM_OUT))) : 1; SUM_PIECES = cdiv(N, SUM_ONCE)*SUM_PARTS_H
//! let     SUM_ZEROS = cdiv(((KW - 1)*DW + 1)*sizeof(scalar_t), 16)*16; SUM_BYTES = SUM_ZEROS + SUM_ONCE*(SUM_IN + SUM_OUT)
// They serve long windows of one row, what has no other kernel of its own, and what they were measured to be fastest for.
//! let     LONG = KH == 1 && KW > 7 && KW <= 31 && OH < 8; BIG = N*C*HW >= 8388608 / VEC
//! let     FASTEST = VEC < 8 ? KH*KW <= 25 && SH*SW == 1 && OHW >= 196 && BIG \
//!           : (EVEN == 1 && HW > 196) || (N*C*HW <= 524288 && OHW >= 512) || (KH*KW <= 25 && OHW >= (BIG ? 196*SH*SW : 512))
//! let     SUMMED = (LONG ? VEC < 8 || N*OH < 16 || !WEIGHT_TILED : max(KH, KW) > 7 ? !WEIGHT_TILED && KW <= 31 \
//!           : (max(SH, SW, DH, DW) > 2 || (KH*KW <= 25 && !FEW && STRIPS <= 128) || FASTEST)) \
//!           && max(SH, SW) <= 4 && (SUM_KH - 1)*DH <= 128 && KH <= 65535 && SUM_BYTES <= 63488 && fits32((H + 2*PH)*W, OHW, N*CM, OH*SH)
// On the CPU tiles of outputs, whose inputs are vectors of 64 bytes of channels, up to IN_MOST of them.
//! let     REACH_H, REACH_W = (KH - 1)*DH, (KW - 1)*DW
//! let     BELOW = OW < 7 && OH >= 7; OUT_WIDE, IN_MOST = REACH_H > 12 ? 28 : 56, REACH_H > 12 ? 2240 : 1024; OUT_COLUMNS = OW <= OUT_WIDE ? OW : cdiv(OW, 7*cdiv(OW, OUT_WIDE))*7
//! let     IN_COLUMNS = ((BELOW ? OUT_COLUMNS : max(OUT_COLUMNS, 7)) - 1)*SW + REACH_W + 1; WHOLE = min(IN_COLUMNS, 4096)*min(H + BELOW*(REACH_H + SH), 4096) <= IN_MOST
//! let     OUT_ROWS = cdiv(OH, cdiv(OH, WHOLE ? OH : max(1, (IN_MOST / IN_COLUMNS - REACH_H - 1) / SH + 1))); ALL_ROWS = ((BELOW ? max(OUT_ROWS, 7) : OUT_ROWS) - 1)*SH + REACH_H + 1
//! let     IN_ROWS = BELOW ? ALL_ROWS : min(H, ALL_ROWS); TILES_DOWN = cdiv(OH, OUT_ROWS); TILES_ALONG = cdiv(OW, OUT_COLUMNS)
//! let     CPU_BYTES = 64*(min(KH*KW, 4096) + min(IN_COLUMNS, 4096)*min(IN_ROWS, 4096)); CPU_BLOCKS = N*cdiv(CM*sizeof(acc_t), 64)*TILES_DOWN*TILES_ALONG
// DENSE: most of what is copied is read, and for more than a row.
//! let     DENSE = REACH_H <= 3*OUT_ROWS + KH && SH*SW <= 2*KH*KW
//! let     CPU_TILED = cpu && CPU_BYTES <= 229376 && CM*sizeof(acc_t) >= 32 && DENSE && (KH*KW > 25 || OW < 56)
//! let     SUM_TILE = 64*(min(KH*KW, 4096) + min(OUT_ROWS, 4096)*OUT_COLUMNS + min(IN_COLUMNS, 4096)*min(ALL_ROWS, 4096))
//! let     SUM_VECTORS = cpu && SUM_TILE <= 229376 && CM*sizeof(acc_t) >= 256 && DENSE && (KW >= 7 || OW < 40)
//! again   TURN : H, W, OH, OW, PH, PW = OH, OW, H, W, REACH_H - PH, REACH_W - PW
// Of gradients of inputs by longer strides.
//! let     BACK_COLUMNS = W <= OUT_WIDE ? W : cdiv(W, 7*SW*cdiv(W, OUT_WIDE))*7*SW; GRAD_COLUMNS = (max(BACK_COLUMNS, 7*SW) - 1 + REACH_W) / SW + 2
//! let     BACK_ROWS = cdiv(H, cdiv(H, max(1, (IN_MOST / GRAD_COLUMNS - 2)*SH - REACH_H))); GRAD_ROWS = (BACK_ROWS - 1 + REACH_H) / SH + 2
//! let     GATHER_BYTES = 64*(min(KH*KW, 4096) + min(GRAD_COLUMNS, 4096)*min(GRAD_ROWS, 4096))
//! let     GATHERED = cpu && M == 1 && SH*SW > 1 && GATHER_BYTES <= 229376 && REACH_H <= 3*BACK_ROWS + KH && C*sizeof(acc_t) >= 32
//! again   GATHER : OUT_ROWS, OUT_COLUMNS, IN_COLUMNS, TILES_DOWN, TILES_ALONG = BACK_ROWS, BACK_COLUMNS, GRAD_COLUMNS, cdiv(H, BACK_ROWS), cdiv(W, BACK_COLUMNS)
//! let     MOST = SUMMED ? (SUM_KH == KH ? 1056 : 2112 / KH) : FEW ? 2048 : WEIGHT_TILED && VEC == 8 ? 768 : WEIGHT_TILED || !SAME ? 2048 : 1024
//! let     PARTS = max(1, min(MOST / CM, SUMMED ? SUM_PIECES : FEW ? FEW_TURNS : WEIGHT_TILED ? GRAD.ALL_TILES : STRIPS / (SAME ? 2048 : 1024)))
//! scratch partial acc_t [PARTS, CM, KH*KW + 1]
//! empty   output grad_input grad_weight grad_bias
//! example input=[2,3,9,11] weight=[6,1,3,3] bias=[6] stride=2 padding=1; input=[2,2,11,16] weight=[4,1,3,3] bias=[4] padding=1
//! example input=[3,460,14,14] weight=[460,1,3,3] padding=1; input=[2,86,40,40] weight=[86,1,5,5] padding=2
//! example input=[2,132,64,64] weight=[132,1,3,3] stride=2 padding=1; input=[2,50,51,53] weight=[50,1,3,3] bias=[50] padding=1
//! example input=[1,2,9,24] weight=[2,1,7,7] padding=3; input=[1,4,12,10] weight=[4,1,5,5] bias=[4] padding=2 dilation=2
//! example input=[2,3,12,13] weight=[3,1,1,7] padding=[0,3] stride=[1,2]; input=[2,3,11,11] weight=[3,1,2,2] stride=3
//! example input=[2,3,2,100] weight=[3,1,1,15] padding=[0,7]; input=[1,2,20,17] weight=[2,1,9,9] bias=[2] padding=4
//! example input=[2,17,30,2] weight=[17,1,5,2] bias=[17] padding=[2,1]; input=[2,20,9,10] weight=[20,1,3,3] stride=[2,3] padding=1
//! example input=[1,2,3,3] weight=[4,1,3,3] bias=[4] padding=4; input=[1,2,21,18] weight=[2,1,9,8] padding=4 stride=2
//! forward
//!   kernel  depthwise_forward_vectors when CPU_TILED grid CPU_BLOCKS block 1 shared CPU_BYTES
//!   kernel  depthwise_forward_rows otherwise cpu threads N*CM*cdiv(OH, 8) by 1
//!   kernel  depthwise_forward_planes otherwise PLANAR grid cdiv(PLANES, AT_ONCE)*PARTS_H block PART_BLOCK
//!   shared  PART_BYTES
//!   kernel  depthwise_forward_tile otherwise TILED && !TINY grid CM*ALL_TILES block BLOCK shared SHARED
//!   kernel  depthwise_forward otherwise SMALL || TINY threads N*CM*GROUPS*OW
//!   kernel  depthwise_forward_any otherwise threads numel(output)
//! backward grad_input
//!   kernel  depthwise_grad_input_vectors when M*SH*SW == 1 && TURN.CPU_TILED as TURN grid CPU_BLOCKS block 1 shared CPU_BYTES
//!   kernel  depthwise_gather_vectors otherwise GATHERED as GATHER grid CPU_BLOCKS block 1 shared GATHER_BYTES
//!   kernel  depthwise_grad_input_rows otherwise cpu threads N*C*cdiv(H, 8) by 1 bind TAPS = min(SW, DW) > 1 ? 0 : cdiv(TAPS, SW)
//!   kernel  depthwise_grad_input_planes otherwise M*SH*SW == 1 && BACK.PLANAR as BACK grid cdiv(PLANES, AT_ONCE)*PARTS_H
//!   block   PART_BLOCK shared PART_BYTES
//!   kernel  depthwise_grad_input_tile otherwise TILED && TURNED && !(BACK.TINY && SMALL) as BACK grid CM*ALL_TILES block BLOCK shared SHARED
//!   kernel  depthwise_grad_input otherwise SMALL threads N*C*CELLS_H*CELLS_W
//!   kernel  depthwise_grad_input_any otherwise threads numel(input) bind EVERY_W = SW / gcd(SW, DW) bind NEXT_W = DW / gcd(SW, DW)
//! backward grad_weight grad_bias
//!   kernel  depthwise_grad_weight_vectors when SUM_VECTORS grid cdiv(CM*sizeof(acc_t), 64) block 1 shared SUM_TILE
//!   kernel  depthwise_grad_weight_rows otherwise cpu threads CM*(cdiv(KH, 8)*(KW <= 7 ? 1 : cdiv(KW, 8)) + 1) by 1
//!   kernel  depthwise_grad_weight_planes otherwise SUMMED grid CM*PARTS, KH / SUM_KH block 128 shared SUM_BYTES bind KH = SUM_KH
//!   kernel  depthwise_grad_weight_few otherwise FEW grid CM*PARTS block 32*max(KH, 6) shared FEW_IMAGES*FEW_BYTES
//!   kernel  depthwise_grad_weight_tensor otherwise WEIGHT_TILED && VEC == 8 as GRAD grid CM*PARTS block 128
//!   shared  max(2*(TILE_BYTES + PITCH + IMAGES*TILE_H*OUT_PITCH + 16), 27648)
//!   kernel  depthwise_grad_weight_window otherwise WEIGHT_TILED grid CM*PARTS block cdiv(max(128, TEAM), 32)*32
//!   shared  max(TILE_BYTES + IMAGES*TILE_H*TILES*16 + 256, (TEAM + 160)*(GROUP + 1)*sizeof(acc_t))
//!   kernel  depthwise_grad_weight_same otherwise SAME grid CM*PARTS bind WEIGHT = wanted(grad_weight)
//!   kernel  depthwise_grad_weight otherwise SMALL grid CM*PARTS bind WEIGHT = wanted(grad_weight)
//!   kernel  depthwise_grad_weight_any otherwise grid CM*(KH*KW + 1)*PARTS
//!   kernel  depthwise_grad_weight_sum when cuda threads CM*(KH*KW + 1)

#include "depthwise_any.cuh"
#include "depthwise_cpu.cuh"
#include "depthwise_few.cuh"
#include "depthwise_planes.cuh"
#include "depthwise_strip.cuh"
#include "depthwise_sums.cuh"
#include "depthwise_tensor.cuh"
#include "depthwise_window.cuh"
#ifndef OPD_CPU

// In tiles: on tensor cores where T has 16 bits.
template <class T, int KH, int KW, int SH, int SW, int DH, int DW, int LEAD, int EVEN, int TILES,
          int WINDOW_ROWS, bool ALL>
__global__ void __launch_bounds__(sizeof(T) == 2 ? TENSOR_THREADS : WINDOW_THREADS)
    depthwise_forward_tile(const T *__restrict__ input, const T *__restrict__ weight,
                           const T *__restrict__ bias, T *__restrict__ output, tile_shape s)
{
    if constexpr (sizeof(T) == 2)
        convolve_tensor<T, KH, KW, SW, DW, LEAD, EVEN, TILES, ALL, false>(input, weight, bias,
                                                                          output, s);
    else
        convolve_window<T, KH, KW, SH, SW, DH, DW, LEAD, EVEN, TILES, WINDOW_ROWS, ALL, false>(
            input, weight, bias, output, s);
}

// Of stride 1: a convolution of grad_output with the window turned round.
template <class T, int KH, int KW, int DH, int DW, int LEAD, int EVEN, int TILES, int WINDOW_ROWS,
          bool ALL>
__global__ void __launch_bounds__(sizeof(T) == 2 ? TENSOR_THREADS : WINDOW_THREADS)
    depthwise_grad_input_tile(const T *__restrict__ grad_output, const T *__restrict__ weight,
                              T *__restrict__ grad_input, tile_shape s)
{
    if constexpr (sizeof(T) == 2)
        convolve_tensor<T, KH, KW, 1, DW, LEAD, EVEN, TILES, ALL, true>(
            grad_output, weight, nullptr, grad_input, s);
    else
        convolve_window<T, KH, KW, 1, 1, DH, DW, LEAD, EVEN, TILES, WINDOW_ROWS, ALL, true>(
            grad_output, weight, nullptr, grad_input, s);
}
#endif
