// The cell of lltm.cu and lltm_sequence.cu: long-long-term memory, an LSTM without forget gate
// whose candidate is an ELU.
//   i = sigmoid(g0), o = sigmoid(g1), candidate = elu(g2)
//   new_cell = old_cell + candidate * i, new_h = tanh(new_cell) * o
// Its functions are those of formulas, which are as exact as the dtype asks for.
#pragma once

// Of a thread: a row, and the first of its VEC units. A block stays in a row: units lie side by
// side, and on the CPU they are vectors.
template <int VEC> struct lltm_place {
    int64_t b, s;

    __device__ __forceinline__ explicit lltm_place(int64_t S)
    {
        const uint32_t tiles = (uint32_t)((S / VEC + blockDim.x - 1) / blockDim.x);
        b = blockIdx.x / tiles;
        s = (blockIdx.x % tiles * blockDim.x + threadIdx.x) * VEC;
    }
};

// The three gates of a unit, activated.
struct lltm_gates {
    acc_t i, o, candidate;

    __device__ __forceinline__ static acc_t sigmoid(acc_t z)
    {
        return opd::formula_divide(acc_t(1), 1 + opd::formula_exp<scalar_t>(-z));
    }

    __device__ __forceinline__ static acc_t elu(acc_t z)
    {
        return z > 0 ? z : opd::formula_expm1<scalar_t>(z);
    }

    __device__ __forceinline__ static lltm_gates activate(acc_t g0, acc_t g1, acc_t g2)
    {
        return { sigmoid(g0), sigmoid(g1), elu(g2) };
    }

    __device__ __forceinline__ acc_t make_h(acc_t new_cell) const
    {
        return opd::formula_tanh<scalar_t>(new_cell) * o;
    }

    // A unit's gates stand S apart.
    __device__ __forceinline__ static lltm_gates load(const acc_t *p, int64_t S)
    {
        return { p[0], p[S], p[2 * S] };
    }

    __device__ __forceinline__ void store(acc_t *p, int64_t S) const
    {
        p[0] = i;
        p[S] = o;
        p[2 * S] = candidate;
    }
};

// The gradients of a unit's gates before activation, and of old_cell.
struct lltm_slopes {
    acc_t g[3], cell;

    __device__ __forceinline__ lltm_slopes(const lltm_gates &a, acc_t new_cell, acc_t grad_h,
                                           acc_t grad_cell)
    {
        const acc_t y = opd::formula_tanh<scalar_t>(new_cell);
        cell = grad_cell + grad_h * a.o * (1 - y * y);
        g[0] = cell * a.candidate * a.i * (1 - a.i);
        g[1] = grad_h * y * a.o * (1 - a.o);
        g[2] = cell * a.i * (a.candidate > 0 ? acc_t(1) : a.candidate + 1);
    }
};
