// depthwise_conv2d.cu of images whose channels lie side by side, as PyTorch's channels_last.
//
//! op      depthwise_conv2d_nhwc(Tensor input, Tensor weight, Tensor? bias=None, *, \
//!           int[2] stride=1, int[2] padding=0, int[2] dilation=1) -> Tensor output
//! doc     depthwise_conv2d of [N, H, W, C]; output is [N, OH, OW, C*M]. weight is as there.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   input [N, H, W, C]; weight [CM, 1, KH, KW]
//! let     SH, SW, PH, PW, DH, DW = stride, padding, dilation; PADDED_H = H + 2*PH; PADDED_W = W + 2*PW
//! require min(C, H, W, KH, KW) > 0 : "input is {input}, weight is {weight}, expected no 0 but for N in their shapes"
//! require CM > 0 && CM % C == 0 : \
//!           "weight has {CM} channels in dimension 0, input has {C} in its last; expected [{C}*M, 1, KH, KW]"
//! require min(SH, SW, DH, DW) > 0 : "stride is {stride}, dilation is {dilation}, expected at least 1"
//! require PH >= 0 && PW >= 0 : "padding is {padding}, expected at least 0"
//! require PADDED_H > DH*(KH - 1) && PADDED_W > DW*(KW - 1) : \
//!           "the window of {KH} x {KW} exceeds the padded input, {PADDED_H} x {PADDED_W}"
//! let     OH = (PADDED_H - DH*(KH - 1) - 1) / SH + 1; OW = (PADDED_W - DW*(KW - 1) - 1) / SW + 1
//! shape   bias [CM]; output [N, OH, OW, CM]
//! batch   N
//! linear  input bias; weight bias
// A block makes ROWS rows of STRIPS strips of WIDE columns, of CH channels, by AT_ONCE rows of the window;
// fewer and smaller ones in small tensors than BIG_ROWS by BIG_WIDE.
//! let     M = CM / C; EVEN = gcd(C, 16 / sizeof(scalar_t)); AT_ONCE = KH*KW <= 49 ? KH : 1; TURNS = KH / AT_ONCE
//! let     TAPS = AT_ONCE*KW; REACH_H, REACH_W, WHOLE_H = (AT_ONCE - 1)*DH, (KW - 1)*DW, (KH - 1)*DH
// DIRECT: of odd numbers of channels, from the images.
//! let     DIRECT = EVEN == 1 && TURNS == 1; UNIT = DIRECT ? 1 : 8; CHUNKS = cdiv(C, DIRECT ? min(256, 61440 / (TAPS*sizeof(scalar_t))) : 32)
//! let     CH = CHUNKS > 1 ? UNIT*cdiv(cdiv(C, CHUNKS), UNIT) : C; OUTPUTS = N*OH*OW
//! let     BIG_ROWS = SH > 1 ? 4 : OH % 7 == 0 ? 7 : 8; ROWS = OUTPUTS*C <= 131072 ? 2 : OUTPUTS*C <= 524288 && KH*KW <= 25 ? 4 : BIG_ROWS
//! let     BIG_WIDE = DIRECT ? (TAPS > 25 || SW > 1 ? 4 : 2) : (TAPS <= 25 || TURNS > 1) && OW >= 16 && SW == 1 ? 4 : 2; WIDE = ROWS < BIG_ROWS ? 2 : BIG_WIDE
//! let     BACKWARD, TOP, LEFT, LEAD_H, LEAD_W = 0, -PH, -PW, 0, 0
//! let     TILE_H = BACKWARD ? (ROWS - 1) / SH + REACH_H / SH + 1 : (ROWS - 1)*SH + REACH_H + 1
// As many strips as 64 KB of shared memory have room for, of gradients of weights beside the outputs' GRADS.
//! let     GRADS = 0; PIXEL = CH*sizeof(scalar_t)
//! let     FIT = DIRECT ? 256 : (64500 - (TAPS + TILE_H*(REACH_W + 1))*PIXEL) / ((TILE_H*SW + GRADS*ROWS)*WIDE*PIXEL)
//! let     ACROSS = cdiv(OW + LEAD_W, WIDE); ALONG = cdiv(ACROSS, max(1, min(256 / CH, FIT))); STRIPS = cdiv(ACROSS, ALONG)
//! let     DOWN = cdiv(OH + LEAD_H, ROWS); TILES = N*DOWN*ALONG; COLUMNS = STRIPS*WIDE
//! let     TILE_W = BACKWARD ? (COLUMNS - 1) / SW + REACH_W / SW + 1 : (COLUMNS - 1)*SW + REACH_W + 1
//! let     SHARED = max(((DIRECT ? 0 : TILE_H*TILE_W + GRADS*ROWS*COLUMNS) + TAPS)*PIXEL + 288, GRADS*CH*STRIPS*min(TAPS + 1, 16)*sizeof(acc_t))
//! let     TILED = cuda && M == 1 && TAPS <= 49 && max(SH, SW, DH, DW) <= 2 && (TURNS == 1 || SH*SW == 1) \
//!           && SHARED <= 65536 && TURNS <= 65535 && fits32(TILES*CHUNKS, PADDED_H*PADDED_W*C, 4*(H + OH), 4*(W + OW))
//! again   BACK : H, W, OH, OW, BACKWARD, LEAD_H, LEAD_W, TOP, LEFT, BIG_ROWS = OH, OW, H, W, 1, PH % SH, PW % SW, \
//!           PH / SH - WHOLE_H / SH, PW / SW - REACH_W / SW, SH == 1 && H % 7 == 0 ? 7 : 8
//! again   WEIGHT : GRADS, ROWS, WIDE = 1, DIRECT ? ROWS : BIG_ROWS, BIG_WIDE
// What is left: FEW channels a thread, BESIDE taps. PARTS: what gradients of weights are summed in.
//! let     FEW = M > 1 ? 1 : gcd(C, 4); BESIDE = KW <= 7 ? KW : 1; TALL = KH*cdiv(KW, BESIDE)
//! let     LANES = min(32, pow2(CM / FEW)); SETS = cpu ? cdiv(CM, 64 / sizeof(acc_t)) : cdiv(CM / FEW, LANES)
//! let     RESIDENT = 132*(TAPS <= 9 ? 4 : TAPS <= 25 ? 3 : 2)
//! let     PARTS = max(1, WEIGHT.TILED ? min(WEIGHT.TILES, RESIDENT / (CHUNKS*TURNS)) \
//!           : cpu ? min(cdiv(64, SETS*TALL), OUTPUTS / 4096) \
//!           : min(cdiv(1024, SETS*TALL), OUTPUTS / 1024))
// On the CPU tiles of outputs, whose inputs are vectors of 64 bytes of channels, up to IN_MOST of them.
//! let     BELOW = OW < 7 && OH >= 7; OUT_WIDE, IN_MOST = WHOLE_H > 12 ? 28 : 56, WHOLE_H > 12 ? 2240 : 1024; OUT_COLUMNS = OW <= OUT_WIDE ? OW : cdiv(OW, 7*cdiv(OW, OUT_WIDE))*7
//! let     IN_COLUMNS = ((BELOW ? OUT_COLUMNS : max(OUT_COLUMNS, 7)) - 1)*SW + REACH_W + 1; WHOLE = min(IN_COLUMNS, 4096)*min(H + BELOW*(WHOLE_H + SH), 4096) <= IN_MOST
//! let     OUT_ROWS = cdiv(OH, cdiv(OH, WHOLE ? OH : max(1, (IN_MOST / IN_COLUMNS - WHOLE_H - 1) / SH + 1))); ALL_ROWS = ((BELOW ? max(OUT_ROWS, 7) : OUT_ROWS) - 1)*SH + WHOLE_H + 1
//! let     IN_ROWS = BELOW ? ALL_ROWS : min(H, ALL_ROWS); TILES_DOWN = cdiv(OH, OUT_ROWS); TILES_ALONG = cdiv(OW, OUT_COLUMNS)
//! let     CPU_BYTES = 64*(min(KH*KW, 4096) + min(IN_COLUMNS, 4096)*min(IN_ROWS, 4096)); CPU_BLOCKS = N*cdiv(CM*sizeof(acc_t), 64)*TILES_DOWN*TILES_ALONG
// DENSE: most of what is copied is read, and for more than a row.
//! let     DENSE = WHOLE_H <= 3*OUT_ROWS + KH && SH*SW <= 2*KH*KW
//! let     CPU_TILED = cpu && CPU_BYTES <= 229376 && (M > 1 || DENSE && (C*sizeof(acc_t) >= 64 ? KH*KW > 9 || OW < 21 : C*sizeof(acc_t) > 32 || SW > 1))
//! again   TURN : H, W, OH, OW, PH, PW = OH, OW, H, W, WHOLE_H - PH, REACH_W - PW
// Of gradients of inputs by longer strides.
//! let     BACK_COLUMNS = W <= OUT_WIDE ? W : cdiv(W, 7*SW*cdiv(W, OUT_WIDE))*7*SW; GRAD_COLUMNS = (max(BACK_COLUMNS, 7*SW) - 1 + REACH_W) / SW + 2
//! let     BACK_ROWS = cdiv(H, cdiv(H, max(1, (IN_MOST / GRAD_COLUMNS - 2)*SH - WHOLE_H))); GRAD_ROWS = (BACK_ROWS - 1 + WHOLE_H) / SH + 2
//! let     GATHER_BYTES = 64*(min(KH*KW, 4096) + min(GRAD_COLUMNS, 4096)*min(GRAD_ROWS, 4096))
//! let     GATHERED = cpu && M == 1 && SH*SW > 1 && GATHER_BYTES <= 229376 && WHOLE_H <= 3*BACK_ROWS + KH
//! again   GATHER : OUT_ROWS, OUT_COLUMNS, IN_COLUMNS, TILES_DOWN, TILES_ALONG = BACK_ROWS, BACK_COLUMNS, GRAD_COLUMNS, cdiv(H, BACK_ROWS), cdiv(W, BACK_COLUMNS)
// PACKED: on the CPU a vector's weights at least, those of pixels side by side.
//! let     PACKED = cpu && M == 1 ? max(CM, 64 / sizeof(acc_t)) : CM
//! scratch packed [KH*KW, PACKED]; partial acc_t [PARTS, KH*KW + 1, CM]
//! empty   output grad_input grad_weight grad_bias
//! example input=[2,9,11,3] weight=[6,1,3,3] bias=[6] stride=2 padding=1
//! example input=[2,14,14,8] weight=[8,1,3,3] padding=1; input=[1,9,9,16] weight=[16,1,9,9] padding=4
//! example input=[1,12,10,8] weight=[8,1,5,5] bias=[8] padding=2 dilation=2
//! example input=[2,10,9,8] weight=[8,1,3,3] bias=[8] stride=2 padding=1; input=[1,9,20,3] weight=[3,1,3,3] bias=[3] padding=1
//! example input=[2,9,12,20] weight=[20,1,3,3] bias=[20] padding=1; input=[2,9,24,17] weight=[17,1,3,3] stride=[2,3] padding=1
//! example input=[2,30,2,17] weight=[17,1,5,2] bias=[17] padding=[2,1]; input=[1,7,8,9] weight=[18,1,3,3] bias=[18] padding=1
//! example input=[1,56,56,176] weight=[176,1,3,3] bias=[176] padding=1; input=[2,48,48,32] weight=[32,1,7,7] padding=3
//!
//! forward
//!   kernel  depthwise_last_forward when TILED grid TILES*CHUNKS block CH*STRIPS shared SHARED
//!   kernel  convolve_last_tiles when CPU_TILED grid CPU_BLOCKS block 1 shared CPU_BYTES
//!   kernel  pack_taps when !TILED && !CPU_TILED threads KH*KW*PACKED
//!   kernel  convolve_last_rows when cpu && !CPU_TILED threads N*OH by 1
//!   kernel  convolve_last_any<scalar_t, FEW> when cuda && !TILED threads N*OH*OW*(CM / FEW)
//! backward grad_input
//!   kernel  depthwise_last_grad_input when BACK.TILED as BACK grid TILES*CHUNKS block CH*STRIPS shared SHARED
//!   kernel  pack_taps when !BACK.TILED && !GATHERED && !(M*SH*SW == 1 && TURN.CPU_TILED) threads KH*KW*PACKED
//!   kernel  gather_level_tiles when M*SH*SW == 1 && TURN.CPU_TILED as TURN grid CPU_BLOCKS block 1 shared CPU_BYTES
//!   kernel  gather_last_tiles otherwise GATHERED as GATHER grid CPU_BLOCKS block 1 shared GATHER_BYTES
//!   kernel  gather_level_rows otherwise cpu && M*SH*SW == 1 threads N*H by 1
//!   kernel  gather_last_rows otherwise cpu threads N*H by 1
//!   kernel  gather_last<scalar_t, FEW> otherwise !BACK.TILED threads N*H*W*(C / FEW)
//! backward grad_weight grad_bias
//!   kernel  depthwise_last_grad_weight when WEIGHT.TILED as WEIGHT grid CHUNKS*PARTS, TURNS block CH*STRIPS shared SHARED
//!   kernel  sum_taps_rows<scalar_t, BESIDE> otherwise cpu grid SETS*TALL, PARTS block 1
//!   kernel  sum_taps<scalar_t, FEW, BESIDE, LANES> otherwise grid SETS*TALL, PARTS block 256
//!   kernel  join_taps_rows when cpu threads CM*(KH*KW + 1)
//!   kernel  join_taps otherwise grid cdiv(CM, 32)*(KH*KW + 1) block 512

#include "channels.cuh"
#include "depthwise_last.cuh"
#include "depthwise_last_cpu.cuh"

// Taps first, so that those of neighbouring channels lie side by side.
template <class T>
__global__ void pack_taps(const T *__restrict__ weight, T *__restrict__ packed, int64_t CM,
                          int64_t PACKED, int64_t KH, int64_t KW, int64_t count)
{
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t tap = i / PACKED, c = i % PACKED % CM;
        packed[i] = weight[c * (KH * KW) + tap];
    }
}

#ifndef OPD_CPU
// V channels of an output.
template <class T, int V>
__global__ void convolve_last_any(const T *__restrict__ input, const T *__restrict__ packed,
                                  const T *__restrict__ bias, T *__restrict__ output, int64_t H,
                                  int64_t W, int64_t OH, int64_t OW, int64_t C, int64_t CM,
                                  int64_t M, int64_t KH, int64_t KW, int64_t SH, int64_t SW,
                                  int64_t PH, int64_t PW, int64_t DH, int64_t DW, int64_t count)
{
    const bool whole = lie_whole<V>(input),
               whole_out = lie_whole<V>(output);
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t c = i % (CM / V) * V, at = i / (CM / V), ow = at % OW, oh = at / OW % OH,
                      n = at / OW / OH;
        acc_t sum[V];
#pragma unroll
        for (int e = 0; e < V; e++)
            sum[e] = bias ? opd::load(bias + c + e) : acc_t(0);
        for (int64_t kh = 0; kh < KH; kh++) {
            const int64_t h = oh * SH - PH + kh * DH;
            if (h < 0 || h >= H)
                continue;
            for (int64_t kw = 0; kw < KW; kw++) {
                const int64_t w = ow * SW - PW + kw * DW;
                if (w < 0 || w >= W)
                    continue;
                const opd::vec<T, V> v = read_channels<V>(input + ((n * H + h) * W + w) * C + c / M,
                                                          whole),
                                     t = opd::load_vec<V>(packed + (kh * KW + kw) * CM + c);
#pragma unroll
                for (int e = 0; e < V; e++)
                    sum[e] += opd::load(&t[e]) * opd::load(&v[e]);
            }
        }
        write_channels<V>(output + at * CM + c, sum, whole_out);
    }
}

// V channels of an input: what reads them, by each tap whose stride fits.
template <class T, int V>
__global__ void gather_last(const T *__restrict__ grad_output, const T *__restrict__ packed,
                            T *__restrict__ grad_input, int64_t H, int64_t W, int64_t OH,
                            int64_t OW, int64_t C, int64_t CM, int64_t M, int64_t KH, int64_t KW,
                            int64_t SH, int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW,
                            int64_t count)
{
    const bool whole = lie_whole<V>(grad_output),
               whole_in = lie_whole<V>(grad_input);
    CUDA_KERNEL_LOOP(i, count)
    {
        const int64_t c = i % (C / V) * V, at = i / (C / V), w = at % W, h = at / W % H,
                      n = at / W / H;
        acc_t sum[V] = {};
        for (int64_t kh = 0; kh < KH; kh++) {
            const int64_t y = h + PH - kh * DH, oh = y / SH;
            if (y < 0 || y % SH || oh >= OH)
                continue;
            for (int64_t kw = 0; kw < KW; kw++) {
                const int64_t x = w + PW - kw * DW, ow = x / SW;
                if (x < 0 || x % SW || ow >= OW)
                    continue;
                for (int64_t m = 0; m < M; m++) {
                    const T *from = grad_output + ((n * OH + oh) * OW + ow) * CM + c * M + m;
                    const opd::vec<T, V> g = read_channels<V>(from, whole),
                                         t = opd::load_vec<V>(packed + (kh * KW + kw) * CM + c * M +
                                                              m);
#pragma unroll
                    for (int e = 0; e < V; e++)
                        sum[e] += opd::load(&g[e]) * opd::load(&t[e]);
                }
            }
        }
        write_channels<V>(grad_input + at * C + c, sum, whole_in);
    }
}

// Block (set, some taps, part) sums COLUMNS taps side by side of LANES times V channels over its
// part of the outputs, and in the first row of taps the bias's. The others of its threads share
// the outputs.
template <class T, int V, int COLUMNS, int LANES>
__global__ void sum_taps(const T *__restrict__ input, const T *__restrict__ grad_output,
                         acc_t *__restrict__ partial, int64_t N, int64_t H, int64_t W, int64_t OH,
                         int64_t OW, int64_t CM, int64_t M, int64_t KH, int64_t KW, int64_t SH,
                         int64_t SW, int64_t PH, int64_t PW, int64_t DH, int64_t DW, int64_t SETS,
                         int64_t PARTS)
{
    enum { OTHERS = 256 / LANES };
    const int lane = (int)threadIdx.x % LANES, other = (int)threadIdx.x / LANES;
    const int64_t tall = blockIdx.x / SETS, set = blockIdx.x - tall * SETS, part = blockIdx.y;
    const int64_t c = (set * LANES + lane) * V, C = CM / M, outputs = N * OH * OW,
                  share = (outputs + PARTS - 1) / PARTS;
    const int64_t first = tall * COLUMNS, kh = first / KW, kw = first % KW;
    const bool whole = lie_whole<V>(input),
               whole_out = lie_whole<V>(grad_output), inside = c < CM;
    acc_t sum[COLUMNS + 1][V] = {};
    const int64_t end = min(outputs, (part + 1) * share);
    for (int64_t i = part * share + other; inside && i < end; i += OTHERS) {
        const int64_t ow = i % OW, oh = i / OW % OH, n = i / OW / OH;
        const int64_t ih = oh * SH - PH + kh * DH, iw = ow * SW - PW + kw * DW;
        const opd::vec<T, V> g = read_channels<V>(grad_output + i * CM + c, whole_out);
#pragma unroll
        for (int e = 0; e < V; e++)
            sum[COLUMNS][e] += opd::load(&g[e]);
        if (ih < 0 || ih >= H)
            continue;
        const T *line = input + (n * H + ih) * W * C + c / M;
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            const int64_t x = iw + k * DW;
            if (x < 0 || x >= W)
                continue;
            const opd::vec<T, V> v = read_channels<V>(line + x * C, whole);
#pragma unroll
            for (int e = 0; e < V; e++)
                sum[k][e] += opd::load(&g[e]) * opd::load(&v[e]);
        }
    }
    acc_t *to = partial + part * (KH * KW + 1) * CM;
    __shared__ acc_t parts[OTHERS][LANES * V];
#pragma unroll
    for (int k = 0; k < COLUMNS + 1; k++) {
        const int64_t tap = k < COLUMNS ? first + k : KH * KW;
        if (k == COLUMNS && first > 0)
            break;
        __syncthreads();
        for (int e = 0; e < V; e++)
            parts[other][lane * V + e] = sum[k][e];
        __syncthreads();
        for (int o = 1; o < OTHERS && other == 0; o++)
            for (int e = 0; e < V; e++)
                sum[k][e] += parts[o][lane * V + e];
        for (int e = 0; e < V && inside && other == 0; e++)
            to[tap * CM + c + e] = sum[k][e];
    }
}
#endif
