// The cell of lltm.cuh over T steps. What the gates take from inputs is one product for all steps;
// what they take from h is a product a step, or, where weights[:, :S] fits into shared memory, one
// kernel walks through time.
//
//! op      lltm_sequence(Tensor inputs, Tensor weights, Tensor bias, Tensor h0, Tensor c0) \
//!           -> (Tensor hs, Tensor h, Tensor c)
//! doc     lltm over T steps from (h0, c0): hs has h of each step, h and c are those of the last.
//! doc     Where h goes through a product for each step it is rounded to the dtype first, as in
//! doc     lltm step by step: over many steps, weights that amplify do so with 16-bit rounding too.
//! dtypes  float16 bfloat16 float32 float64
//! autocast lower
//! shape   inputs [T, B, I]; h0 c0 h c [B, S]; hs [T, B, S]
//! shape   weights [3*S, S + I]; bias [3*S]
//! batch   B
//! let     K, n, last = S + I, B*S, T - 1
//! let     ROWS = B > 264 ? 4 : B > 132 ? 2 : 1; ROOM = 232448 - 7*ROWS*S*sizeof(acc_t)
//! let     WALK = cuda && T > 0 && B <= 1056 && 3*S*(S + 8)*sizeof(scalar_t) <= ROOM
//! let     UNITS = max(32, min(256, pow2(S)))
//! saved   gates acc_t [T, B, 3*S]; cells acc_t [T, B, S]
//! scratch d_gates [T, B, 3*S]; dh acc_t [B, S]; dc acc_t [B, S]
//! empty   cells
//! example inputs=[3,2,5] weights=[12,9] bias=[12] h0=[2,4] c0=[2,4]
//! example inputs=[4,140,3] weights=[6,5] bias=[6] h0=[140,2] c0=[140,2]
//! example inputs=[2,300,1] weights=[3,2] bias=[3] h0=[300,1] c0=[300,1]
//! example inputs=[2,3,6] weights=[1020,346] bias=[1020] h0=[3,340] c0=[3,340]
//
//! forward
//!   matmul  matrix(gates, T*B, 3*S) = matrix(inputs, T*B, I) @ matrix(weights, 3*S, I, K, S).T
//!   kernel  lltm_walk when WALK grid cdiv(B, ROWS) block 1024 bind steps = T
//!   shared  3*S*(S + 8)*sizeof(scalar_t) + 3*ROWS*S*sizeof(acc_t)
//!   repeat t < T
//!     matmul matrix(gates, B, 3*S, 3*S, t*3*n) += h0 @ matrix(weights, 3*S, S, K).T
//!     when   !WALK && t == 0
//!     matmul matrix(gates, B, 3*S, 3*S, t*3*n) += matrix(hs, B, S, S, (t - 1)*n) \
//!              @ matrix(weights, 3*S, S, K).T
//!     when   !WALK && t > 0
//!     kernel lltm_step when !WALK grid B*cdiv(S, UNITS) block UNITS
//!   end
//!   formula h = h0 when T == 0
//!   formula c = c0 when T == 0
//
//! backward grad_inputs grad_weights grad_bias grad_h0 grad_c0
//!   kernel  lltm_walk_back when WALK grid cdiv(B, ROWS) block 1024 bind steps = T
//!   shared  3*S*(S + 4)*sizeof(scalar_t) + 7*ROWS*S*sizeof(acc_t)
//!   repeat t < T
//!     kernel lltm_step_back when !WALK threads n bind t = last - t
//!     matmul dh = matrix(d_gates, B, 3*S, 3*S, (last - t)*3*n) @ matrix(weights, 3*S, S, K)
//!     when   !WALK
//!   end
//!   formula grad_h0 = dh when !WALK && T > 0
//!   formula grad_h0 = grad_h when T == 0
//!   formula grad_c0 = dc when !WALK && T > 0
//!   formula grad_c0 = grad_c when T == 0
//!   matmul  matrix(grad_inputs, T*B, I) = matrix(d_gates, T*B, 3*S) \
//!             @ matrix(weights, 3*S, I, K, S)
//!   matmul  matrix(grad_weights, 3*S, I, K, S) = matrix(d_gates, T*B, 3*S).T \
//!             @ matrix(inputs, T*B, I)
//!   matmul  matrix(grad_weights, 3*S, S, K) = matrix(d_gates, B, 3*S).T @ h0 when T > 0
//!   matmul  matrix(grad_weights, 3*S, S, K) += matrix(d_gates, last*B, 3*S, 3*S, 3*n).T \
//!             @ matrix(hs, last*B, S) when T > 1
//!   sum     grad_bias = d_gates over 0, 1

#include "lltm.cuh"

template <class T>
__global__ void lltm_step(const T *__restrict__ bias, const T *__restrict__ c0, T *__restrict__ hs,
                          T *__restrict__ h, T *__restrict__ c, acc_t *__restrict__ gates,
                          acc_t *__restrict__ cells, int64_t t, int64_t n, int64_t S, int64_t last)
{
    // A block stays in a row: units lie side by side, and on the CPU they are vectors.
    const int64_t tiles = (S + blockDim.x - 1) / blockDim.x, b = blockIdx.x / tiles;
    const int64_t s = blockIdx.x % tiles * blockDim.x + threadIdx.x, at = b * S + s;
    if (s >= S)
        return;
    acc_t *g = gates + t * 3 * n + b * 3 * S + s;
    const lltm_gates a = lltm_gates::activate(g[0] + opd::load(bias + s),
                                              g[S] + opd::load(bias + S + s),
                                              g[2 * S] + opd::load(bias + 2 * S + s));
    const acc_t old = t > 0 ? cells[(t - 1) * n + at] : opd::load(c0 + at);
    const acc_t cell = old + a.candidate * a.i, made = tanh(cell) * a.o;
    a.store(g, S);
    cells[t * n + at] = cell;
    opd::store(hs + t * n + at, made);
    if (t == last) {
        opd::store(h + at, made);
        opd::store(c + at, cell);
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
    CUDA_KERNEL_LOOP(at, n)
    {
        const int64_t from = t * 3 * n + at / S * 3 * S + at % S;
        const acc_t later_h = t == last ? opd::load(grad_h + at) : dh[at];
        const acc_t later_c = t == last ? opd::load(grad_c + at) : dc[at];
        const lltm_slopes d(lltm_gates::load(gates + from, S), cells[t * n + at],
                            opd::load(grad_hs + t * n + at) + later_h, later_c);
        for (int g = 0; g < 3; g++)
            opd::store(d_gates + from + g * S, d.g[g]);
        dc[at] = d.cell;
    }
}

// weights[:, :S] into shared memory, its rows `stride` apart: so that 8 threads along a row, or
// down a column, and 4 units beside them meet in no bank.
template <class T>
__device__ __forceinline__ void copy_weights(T *to, const T *weights, int S, int64_t K, int stride)
{
    for (int i = (int)threadIdx.x; i < 3 * S * S; i += (int)blockDim.x)
        to[i / S * stride + i % S] = weights[i / S * K + i % S];
}

template <int ROWS, int N> __device__ __forceinline__ void sum_over_lanes(acc_t (&sum)[ROWS][N])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int g = 0; g < N; g++)
#pragma unroll
            for (int offset = 4; offset > 0; offset /= 2)
                sum[r][g] += __shfl_xor_sync(0xffffffffu, sum[r][g], offset);
}

// A block walks through time with ROWS rows of the batch; 8 threads share the sums of a unit.
template <class T, int ROWS>
__global__ void __launch_bounds__(1024)
    lltm_walk(const T *__restrict__ weights, const T *__restrict__ bias, const T *__restrict__ h0,
              const T *__restrict__ c0, T *__restrict__ hs, T *__restrict__ h, T *__restrict__ c,
              acc_t *__restrict__ gates, acc_t *__restrict__ cells, int64_t steps, int64_t B, int S,
              int64_t K)
{
    extern __shared__ double lltm_memory[];
    acc_t *state = (acc_t *)lltm_memory,
          *cell = state + 2 * ROWS * S; // state of this step, of next
    T *w = (T *)(cell + ROWS * S);
    const int lane = (int)threadIdx.x % 8, group = (int)threadIdx.x / 8, stride = S + 8;
    const int64_t top = (int64_t)blockIdx.x * ROWS;
    copy_weights(w, weights, S, K, stride);
    for (int i = (int)threadIdx.x; i < ROWS * S; i += (int)blockDim.x) {
        const bool inside = top + i / S < B;
        state[i] = inside ? opd::load(h0 + top * S + i) : acc_t(0);
        cell[i] = inside ? opd::load(c0 + top * S + i) : acc_t(0);
    }
    __syncthreads();
    for (int64_t t = 0; t < steps; t++) {
        const acc_t *now = state + t % 2 * ROWS * S;
        acc_t *next = state + (t + 1) % 2 * ROWS * S;
        for (int first = 0; first < S; first += (int)blockDim.x / 8) {
            const int unit = first + group;
            // Lane g has what gate g takes from the input and the bias, on its way during the sums.
            acc_t sum[ROWS][3] = {}, given[ROWS] = {};
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (unit < S && lane < 3 && top + r < B)
                    given[r] = gates[((t * B + top + r) * 3 + lane) * S + unit] +
                               opd::load(bias + lane * S + unit);
            for (int k = lane; k < S && unit < S; k += 8)
#pragma unroll
                for (int g = 0; g < 3; g++) {
                    const acc_t x = opd::load(w + (g * S + unit) * stride + k);
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        sum[r][g] += x * now[r * S + k];
                }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int g = 0; g < 3; g++)
                    sum[r][g] += lane == g ? given[r] : acc_t(0);
            sum_over_lanes(sum);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int64_t row = t * B + top + r;
                if (lane != 0 || unit >= S || top + r >= B)
                    continue;
                const lltm_gates a = lltm_gates::activate(sum[r][0], sum[r][1], sum[r][2]);
                const acc_t made = cell[r * S + unit] + a.candidate * a.i;
                cell[r * S + unit] = made;
                cells[row * S + unit] = made;
                a.store(gates + row * 3 * S + unit, S);
                next[r * S + unit] = tanh(made) * a.o;
                opd::store(hs + row * S + unit, next[r * S + unit]);
            }
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < ROWS * S; i += (int)blockDim.x)
        if (top + i / S < B) {
            opd::store(h + top * S + i, state[steps % 2 * ROWS * S + i]);
            opd::store(c + top * S + i, cell[i]);
        }
}

// Back through time: each step takes h's gradient from the slopes of the step after it.
template <class T, int ROWS>
__global__ void __launch_bounds__(1024)
    lltm_walk_back(const T *__restrict__ weights, const acc_t *__restrict__ gates,
                   const acc_t *__restrict__ cells, const T *__restrict__ grad_hs,
                   const T *__restrict__ grad_h, const T *__restrict__ grad_c,
                   T *__restrict__ d_gates, T *__restrict__ grad_h0, T *__restrict__ grad_c0,
                   int64_t steps, int64_t B, int S, int64_t K)
{
    extern __shared__ double lltm_memory[];
    acc_t *slopes = (acc_t *)lltm_memory, *dc = slopes + 6 * ROWS * S; // of the step after, of this
    T *w = (T *)(dc + ROWS * S);
    const int lane = (int)threadIdx.x % 8, group = (int)threadIdx.x / 8, stride = S + 4;
    const int64_t top = (int64_t)blockIdx.x * ROWS;
    copy_weights(w, weights, S, K, stride);
    for (int i = (int)threadIdx.x; i < ROWS * S; i += (int)blockDim.x)
        dc[i] = top + i / S < B ? opd::load(grad_c + top * S + i) : acc_t(0);
    __syncthreads();
    for (int64_t t = steps - 1; t >= -1; t--) {
        acc_t *now = slopes + (t & 1) * 3 * ROWS * S;
        const acc_t *after = slopes + (~t & 1) * 3 * ROWS * S;
        for (int first = 0; first < S; first += (int)blockDim.x / 8) {
            const int unit = first + group;
            acc_t sum[ROWS][1] = {};
            for (int k = lane; k < 3 * S && unit < S && t < steps - 1; k += 8) {
                const acc_t x = opd::load(w + k * stride + unit);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    sum[r][0] += x * after[r * 3 * S + k];
            }
            sum_over_lanes(sum);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int64_t row = t * B + top + r, at = (top + r) * S + unit;
                if (lane != 0 || unit >= S || top + r >= B)
                    continue;
                const acc_t later = t == steps - 1 ? opd::load(grad_h + at) : sum[r][0];
                if (t < 0) {
                    if (grad_h0)
                        opd::store(grad_h0 + at, later);
                    if (grad_c0)
                        opd::store(grad_c0 + at, dc[r * S + unit]);
                    continue;
                }
                const lltm_slopes d(lltm_gates::load(gates + row * 3 * S + unit, S),
                                    cells[row * S + unit],
                                    opd::load(grad_hs + row * S + unit) + later, dc[r * S + unit]);
                for (int g = 0; g < 3; g++) {
                    now[(r * 3 + g) * S + unit] = d.g[g];
                    opd::store(d_gates + (row * 3 + g) * S + unit, d.g[g]);
                }
                dc[r * S + unit] = d.cell;
            }
        }
        __syncthreads();
    }
}
