// The cell of lltm.cuh over T steps. What the gates take from inputs is one product for all steps;
// what they take from h is a product a step. Where weights[:, :S] fit into a block's registers one
// kernel walks through time; where all tiles of a step run at once on a large GPU, and bring no more
// to it than cuBLASLt's product would, one kernel makes product and cell.
//
//! op      lltm_sequence(Tensor inputs, Tensor weights, Tensor bias, Tensor h0, Tensor c0, *, \
//!           bool allow_tf32=False) -> (Tensor hs, Tensor h, Tensor c)
//! doc     lltm over T steps from (h0, c0): hs has h of each step, h and c are those of the last.
//! doc     Where h goes through a product for each step it is rounded to the dtype first, as in
//! doc     lltm step by step: over many steps, weights that amplify do so with 16-bit rounding too.
//! doc     allow_tf32: products of float32 on a GPU may be of TF32, which has 10 bits of fraction;
//! doc     those that are PyTorch's, in its process, may by its own setting, too.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   inputs [T, B, I]; h0 c0 h c [B, S]; hs [T, B, S]
//! shape   weights [3*S, S + I]; bias [3*S]
//! batch   B
//! let     K, n, last = S + I, B*S, T - 1
//! let     GROUPS = cdiv(S, 16)
//! let     WALK = cuda && T > 0 && B <= 1056 && S > 0 && S <= (is(scalar_t, float64) ? 64 : 128)
//! let     EXACT = is(scalar_t, float32) && !allow_tf32; COPIED = is(scalar_t, float32) ? 4 : 8
//! let     UNITS = EXACT && cdiv(B, 64)*cdiv(S, 32) > 100 ? 32 : 16
//! let     TILES = cdiv(B, 2*UNITS)*cdiv(S, UNITS)
//! let     TILED = cuda && !WALK && !is(scalar_t, float64) && S % COPIED == 0 && \
//!           K % COPIED == 0 && (EXACT && B > 32 || S <= (EXACT ? 256 : 512)) && \
//!           TILES <= (EXACT && UNITS == 16 ? 264 : 132)
//! let     STEPS = !WALK && !TILED; VEC = !cuda || S % 2 ? 1 : S % 4 ? 2 : 4
//! let     THREADS = max(32, min(256, pow2(cdiv(S, VEC))))
//! let     BACK_THREADS = max(32, min(256, pow2(S)))
//! saved   gates acc_t [T, B, 3*S]; cells acc_t [T, B, S]
//! scratch from_h acc_t [STEPS ? B : 0, 3*S]; biases acc_t [STEPS ? 3*S : 0]
//! scratch d_gates [T, B, 3*S]; dh acc_t [B, S]; dc acc_t [B, S]
//! empty   hs cells
//! example inputs=[3,2,5] weights=[12,9] bias=[12] h0=[2,4] c0=[2,4]
//! example inputs=[2,1060,8] weights=[24,16] bias=[24] h0=[1060,8] c0=[1060,8]
//! example inputs=[2,6410,8] weights=[24,16] bias=[24] h0=[6410,8] c0=[6410,8]
//! example inputs=[2,2,3] weights=[384,131] bias=[384] h0=[2,128] c0=[2,128]
//! example inputs=[2,3,6] weights=[1020,346] bias=[1020] h0=[3,340] c0=[3,340]
//
//! forward
//!   matmul  matrix(gates, T*B, 3*S) = matrix(inputs, T*B, I) @ matrix(weights, 3*S, I, K, S).T
//!   tf32    allow_tf32
//!   kernel  lltm_walk when WALK grid B block 64*GROUPS
//!   bind    steps = T bind KEEP = wanted(gates)
//!   formula biases = bias when STEPS
//!   repeat t < T
//!     kernel lltm_tile_step when TILED grid TILES bind KEEP = wanted(gates)
//!     shared 61440
//!     matmul from_h = h0 @ matrix(weights, 3*S, S, K).T
//!     tf32   allow_tf32 when STEPS && t == 0
//!     matmul from_h = matrix(hs, B, S, S, (t - 1)*n) @ matrix(weights, 3*S, S, K).T
//!     tf32   allow_tf32 when STEPS && t > 0
//!     kernel lltm_step when STEPS grid B*cdiv(S, VEC*THREADS) block THREADS
//!     bind   KEEP = wanted(gates)
//!   end
//!   formula h = h0 when T == 0
//!   formula c = c0 when T == 0
//
//! backward grad_inputs grad_weights grad_bias grad_h0 grad_c0
//!   kernel  lltm_walk_back when WALK grid B block 64*GROUPS bind steps = T
//!   repeat t < T
//!     kernel lltm_step_back when !WALK grid B*cdiv(S, BACK_THREADS) block BACK_THREADS
//!     bind   t = last - t
//!     matmul dh = matrix(d_gates, B, 3*S, 3*S, (last - t)*3*n) @ matrix(weights, 3*S, S, K)
//!     tf32   allow_tf32 when !WALK
//!   end
//!   formula grad_h0 = dh when !WALK && T > 0
//!   formula grad_h0 = grad_h when T == 0
//!   formula grad_c0 = dc when !WALK && T > 0
//!   formula grad_c0 = grad_c when T == 0
//!   matmul  matrix(grad_inputs, T*B, I) = matrix(d_gates, T*B, 3*S) \
//!             @ matrix(weights, 3*S, I, K, S) tf32 allow_tf32
//!   matmul  matrix(grad_weights, 3*S, I, K, S) = matrix(d_gates, T*B, 3*S).T \
//!             @ matrix(inputs, T*B, I) tf32 allow_tf32
//!   matmul  matrix(grad_weights, 3*S, S, K) = matrix(d_gates, B, 3*S).T @ h0
//!   tf32    allow_tf32 when T > 0
//!   matmul  matrix(grad_weights, 3*S, S, K) += matrix(d_gates, last*B, 3*S, 3*S, 3*n).T \
//!             @ matrix(hs, last*B, S)
//!   tf32    allow_tf32 when T > 1
//!   sum     grad_bias = d_gates over 0, 1

#include "lltm_tile.cuh"
#include "lltm_walk.cuh"

// What the next step reads comes into the L2 while its product is made.
__device__ __forceinline__ void prefetch(const acc_t *p)
{
#ifndef OPD_CPU
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// After the product with h; a thread has VEC units. What is kept for no backward, but for the cells
// of one step, is not stored.
template <int VEC, bool KEEP, class T>
__global__ void lltm_step(const acc_t *__restrict__ biases, const T *__restrict__ c0,
                          T *__restrict__ hs, T *__restrict__ h, T *__restrict__ c,
                          acc_t *__restrict__ gates, const acc_t *__restrict__ from_h,
                          acc_t *__restrict__ cells, int64_t t, int64_t n, int64_t S, int64_t last)
{
    const lltm_place<VEC> place(S);
    const int64_t b = place.b, s = place.s, at = b * S + s;
    if (s >= S)
        return;
    acc_t *g = gates + t * 3 * n + b * 3 * S + s;
    opd::vec<acc_t, VEC> z[3], cell;
    for (int i = 0; i < 3; i++) {
        const auto given = opd::load_vec<VEC>(g + i * S),
                   by = opd::load_vec<VEC>(biases + i * S + s),
                   more = opd::load_vec<VEC>(from_h + (b * 3 + i) * S + s);
        for (int e = 0; e < VEC; e++)
            z[i][e] = given[e] + by[e] + more[e];
    }
    for (int i = 0; i < 3 && t < last; i++)
        prefetch(g + 3 * n + i * S);
    if (t > 0)
        cell = opd::load_vec<VEC>(cells + (KEEP ? (t - 1) * n : 0) + at);
    else
        for (int e = 0; e < VEC; e++)
            cell[e] = opd::load(c0 + at + e);
    opd::vec<T, VEC> made;
    for (int e = 0; e < VEC; e++) {
        const lltm_gates a = lltm_gates::activate(z[0][e], z[1][e], z[2][e]);
        z[0][e] = a.i;
        z[1][e] = a.o;
        z[2][e] = a.candidate;
        cell[e] += a.candidate * a.i;
        opd::store(&made[e], a.make_h(cell[e]));
    }
    for (int i = 0; i < 3 && KEEP; i++)
        opd::store_vec(g + i * S, z[i]);
    opd::store_vec(cells + (KEEP ? t * n : 0) + at, cell);
    T *out = hs + t * n + at;
    if (VEC == 1 || opd::is_aligned(out, sizeof made))
        opd::store_vec(out, made);
    else
        for (int e = 0; e < VEC; e++)
            out[e] = made[e];
    for (int e = 0; e < VEC && t == last; e++) {
        h[at + e] = made[e];
        opd::store(c + at + e, cell[e]);
    }
}

// dh and dc are the gradients of h and c of step t, from the steps after it.
template <class T>
__global__ void lltm_step_back(const acc_t *__restrict__ gates, const acc_t *__restrict__ cells,
                               const T *__restrict__ grad_hs, const T *__restrict__ grad_h,
                               const T *__restrict__ grad_c, const acc_t *__restrict__ dh,
                               acc_t *__restrict__ dc, T *__restrict__ d_gates, int64_t t,
                               int64_t n, int64_t S, int64_t last)
{
    const lltm_place<1> place(S);
    const int64_t at = place.b * S + place.s, from = t * 3 * n + place.b * 3 * S + place.s;
    if (place.s >= S)
        return;
    const acc_t later_h = t == last ? opd::load(grad_h + at) : dh[at];
    const acc_t later_c = t == last ? opd::load(grad_c + at) : dc[at];
    const lltm_slopes d(lltm_gates::load(gates + from, S), cells[t * n + at],
                        opd::load(grad_hs + t * n + at) + later_h, later_c);
    for (int g = 0; g < 3; g++)
        opd::store(d_gates + from + g * S, d.g[g]);
    dc[at] = d.cell;
}
