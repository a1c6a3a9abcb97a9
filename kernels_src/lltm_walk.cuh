// All steps of lltm_sequence.cu in one launch, forward and backward: a block walks through time
// with a row of the batch. Each unit has four threads, which keep its weights in registers: to
// read them from shared memory for every step took twice as long. A thread has the weights of h's
// elements (4*j + lane)*4 to +3 for j below GROUPS, so that the four read 64 bytes of h at once; of
// steps to come it loads what does not depend on h one step ahead.
#pragma once
#include "lltm.cuh"

enum { WALK_LANES = 4 };

template <class T, int GROUPS> struct lltm_weights {
    opd::vec<T, 4> w[3][GROUPS];

    // Of weight(gate, k), which is 0 where k is no element of h.
    template <class F> __device__ __forceinline__ void load(const F &weight)
    {
#pragma unroll
        for (int i = 0; i < 3 * GROUPS * 4; i++) {
            const int j = i / 4 % GROUPS, lane = (int)threadIdx.x % WALK_LANES;
            w[i / 4 / GROUPS][j][i % 4] = weight(i / 4 / GROUPS,
                                                 (j * WALK_LANES + lane) * 4 + i % 4);
        }
    }

    // Adds group j of a gate's times x, which lies in shared memory, to sum.
    __device__ __forceinline__ void add(acc_t &sum, int gate, int j, const acc_t *x) const
    {
        const int lane = (int)threadIdx.x % WALK_LANES;
        const auto v = opd::load_vec<4>(x + (j * WALK_LANES + lane) * 4);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum += opd::load(&w[gate][j][e]) * v[e];
    }
};

__device__ __forceinline__ acc_t sum_lanes(acc_t v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <class T, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 64)
    lltm_walk(const T *__restrict__ weights, const T *__restrict__ bias, const T *__restrict__ h0,
              const T *__restrict__ c0, T *__restrict__ hs, T *__restrict__ h, T *__restrict__ c,
              acc_t *__restrict__ gates, acc_t *__restrict__ cells, int64_t steps, int64_t B, int S,
              int64_t K, bool KEEP)
{
    __shared__ opd::vec<acc_t, 4> memory[2][GROUPS * WALK_LANES]; // h of this step, of the next
    const int lane = (int)threadIdx.x % WALK_LANES, unit = (int)threadIdx.x / WALK_LANES;
    const int gate = min(lane, 2); // lanes 0 to 2 activate one gate each
    const int first = (int)threadIdx.x % 32 - lane;
    const int64_t b = blockIdx.x, start = b * S + unit;
    const bool inside = unit < S;
    auto state = [&](int64_t t) { return (acc_t *)memory[t % 2]; };
    auto load_given = [&](int64_t t) {
        return inside && t < steps ? gates[((t * B + b) * 3 + gate) * S + unit] : acc_t(0);
    };
    lltm_weights<T, GROUPS> w;
    w.load(
        [&](int g, int k) { return inside && k < S ? weights[(g * S + unit) * K + k] : T(0.f); });
    const acc_t by = inside ? opd::load(bias + gate * S + unit) : acc_t(0);
    acc_t cell = inside ? opd::load(c0 + start) : acc_t(0), made = 0, given = load_given(0);
    if (lane < 2)
        state(lane)[unit] = inside && lane == 0 ? opd::load(h0 + start) : acc_t(0);
    __syncthreads();
    for (int64_t t = 0; t < steps; t++) {
        const acc_t next = load_given(t + 1);
        acc_t sum[3];
#pragma unroll
        for (int g = 0; g < 3; g++)
            sum[g] = lane == g ? given + by : acc_t(0);
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int g = 0; g < 3; g++)
                w.add(sum[g], g, j, state(t));
#pragma unroll
        for (int g = 0; g < 3; g++)
            sum[g] = sum_lanes(sum[g]);
        const acc_t z = gate == 0 ? sum[0] : gate == 1 ? sum[1] : sum[2];
        const acc_t mine = gate < 2 ? lltm_gates::sigmoid(z) : lltm_gates::elu(z);
        const acc_t i = __shfl_sync(0xffffffffu, mine, first),
                    o = __shfl_sync(0xffffffffu, mine, first + 1),
                    candidate = __shfl_sync(0xffffffffu, mine, first + 2);
        cell += candidate * i;
        made = opd::formula_tanh<T>(cell) * o;
        given = next;
        const int64_t row = t * B + b;
        if (inside && lane < 3 && KEEP)
            gates[(row * 3 + lane) * S + unit] = mine;
        if (inside && lane == 3 && KEEP)
            cells[row * S + unit] = cell;
        if (inside && lane == 0) {
            state(t + 1)[unit] = made;
            opd::store(hs + row * S + unit, made);
        }
        __syncthreads();
    }
    if (inside && lane == 0) {
        opd::store(h + start, made);
        opd::store(c + start, cell);
    }
}

// Back through time: each step takes h's gradient from the slopes of the step after it.
template <class T, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 64)
    lltm_walk_back(const T *__restrict__ weights, const acc_t *__restrict__ gates,
                   const acc_t *__restrict__ cells, const T *__restrict__ grad_hs,
                   const T *__restrict__ grad_h, const T *__restrict__ grad_c,
                   T *__restrict__ d_gates, T *__restrict__ grad_h0, T *__restrict__ grad_c0,
                   int64_t steps, int64_t B, int S, int64_t K)
{
    __shared__ opd::vec<acc_t, 4> memory[2][3][GROUPS * WALK_LANES]; // slopes of every other step
    const int lane = (int)threadIdx.x % WALK_LANES, unit = (int)threadIdx.x / WALK_LANES;
    const int64_t b = blockIdx.x, start = b * S + unit;
    const bool inside = unit < S;
    auto slopes = [&](int64_t t, int g) { return (acc_t *)memory[t % 2][g]; };
    lltm_weights<T, GROUPS> w;
    w.load(
        [&](int g, int k) { return inside && k < S ? weights[(g * S + k) * K + unit] : T(0.f); });
    lltm_gates a;
    acc_t cell, d_h;
    auto load_step = [&](int64_t t) {
        const int64_t row = t * B + b;
        const bool there = inside && t >= 0;
        a = there ? lltm_gates::load(gates + row * 3 * S + unit, S) : lltm_gates{ 0, 0, 0 };
        cell = there ? cells[row * S + unit] : acc_t(0);
        d_h = there ? opd::load(grad_hs + row * S + unit) : acc_t(0);
    };
    acc_t later_h = inside ? opd::load(grad_h + start) : acc_t(0);
    acc_t later_c = inside ? opd::load(grad_c + start) : acc_t(0);
    load_step(steps - 1);
    for (int64_t t = steps - 1; t >= 0; t--) {
        const lltm_slopes d(a, cell, d_h + later_h, later_c);
        const acc_t mine = lane == 0 ? d.g[0] : lane == 1 ? d.g[1] : d.g[2];
        later_c = d.cell;
        if (lane < 3)
            slopes(t, lane)[unit] = inside ? mine : acc_t(0);
        if (inside && lane < 3)
            opd::store(d_gates + ((t * B + b) * 3 + lane) * S + unit, mine);
        load_step(t - 1);
        __syncthreads();
        acc_t sum[3] = {};
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int g = 0; g < 3; g++)
                w.add(sum[g], g, j, slopes(t, g));
        later_h = sum_lanes(sum[0] + sum[1] + sum[2]);
    }
    if (!inside || lane > 0)
        return;
    if (grad_h0)
        opd::store(grad_h0 + start, later_h);
    if (grad_c0)
        opd::store(grad_c0 + start, later_c);
}
