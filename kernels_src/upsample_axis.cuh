// Where outputs of upsample_bilinear2d.cu and of its NHWC read, along one dimension.
#pragma once

template <class A, class I> struct tap {
    I low, high;
    A weight; // of high
};

// One dimension: where each output reads, and which outputs read an input. The step is kept in two
// parts and the fraction comes of one fma, so that float's are good to 1e-7 in images of any size,
// where rounding src itself would cost 1e-4 at column 1000.
template <class A, class I> struct axis {
    I in, out;
    A step, rest, shift;

    __device__ __forceinline__ axis(I n_in, I n_out, double exact_step, double exact_shift)
        : in(n_in), out(n_out), step((A)exact_step), rest((A)(exact_step - (double)(A)exact_step)),
          shift((A)exact_shift)
    {
    }

    __device__ __forceinline__ tap<A, I> at(I dst) const
    {
        const A d = (A)dst + shift, src = fma(d, step, -shift);
        const I low = min((I)max(src, A(0)), in - 1);
        const A weight = fma(d, step, -((A)low + shift)) + d * rest;
        return { low, min(low + 1, in - 1), src > 0 ? weight : A(0) };
    }

    // The first output whose `low` is at least that: guessed by the inverse, then found.
    __device__ __forceinline__ I find(I low) const
    {
        if (low <= 0 || step == 0)
            return low <= 0 ? 0 : out;
        I dst = min((I)max(((A)low + shift) / step - shift, A(0)), out);
        while (dst > 0 && at(dst - 1).low >= low)
            dst--;
        while (dst < out && at(dst).low < low)
            dst++;
        return dst;
    }

    // What output dst adds to input i. The last one is its own second neighbour.
    __device__ __forceinline__ static A share(const tap<A, I> &t, I i)
    {
        return (t.low == i ? 1 - t.weight : A(0)) + (t.high == i ? t.weight : A(0));
    }
};

// Rounded as PyTorch's compiler does it.
template <class A> __device__ __forceinline__ A mix(A low, A high, A weight)
{
    return fma(1 - weight, low, weight * high);
}

// Where columns of outputs read, for all rows.
__global__ void upsample_columns(int *__restrict__ low_of, acc_t *__restrict__ weight_of, int64_t W,
                                 int64_t OW, double step_w, double shift)
{
    CUDA_KERNEL_LOOP(ow, OW)
    {
        const tap<double, int64_t> x = axis<double, int64_t>(W, OW, step_w, shift).at(ow);
        low_of[ow] = (int)x.low;
        weight_of[ow] = (acc_t)x.weight;
    }
}
