"""Operators that several tests serve, as the text of their files."""

import struct

from conftest import DEVICE

_SPIN = """\
//! op      spin(Tensor x, *, int rounds) -> Tensor y
//! doc     Takes its time.
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4] rounds=10
//
//! forward
//!   kernel  spin
//!   grid    1
//!   block   1

extern "C" __global__ void spin(const float *x, float *y, int N, long long rounds)
{
    float sum = x[0];
    for (long long i = 0; i < rounds; i++)
        sum = sum * 0.999999f + 0.000001f;
    for (int i = 0; i < N; i++)
        y[i] = RESULT;
}
"""
_DOUBLE = """\
//! op      double_it(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! example x=[5]
//
//! forward
//!   kernel  double_it
//!   bind    n = numel(x)

extern "C" __global__ void double_it(const scalar_t *x, scalar_t *y, long long n)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = x[i] * FACTOR;
}
"""
ROUNDS = 300_000_000 if DEVICE == "cpu" else 100_000_000  # of spin: about a second


# Changes nothing in place.
FAILS = """\
//! op      fails(Tensor x, *, str how="not") -> Tensor y
//! dtypes  float32
//! words   how not fault hang
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  fails
//!   grid    1
//!   block   1
extern "C" __global__ void fails(const float *x, float *y, int N, int how)
{
    for (int i = 0; i < N; i++)
        y[i] = x[i] + 1;
    if (how == 1)
        y[int64_t(1) << 40] = 1;
    if (how == 2)
        for (volatile float *p = y; *p == *p || *p != *p;)
            ;
}
"""


# A check on the device fails where x is below 0.
REFUSE = """\
//! op      refuse(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! check   low : "x[{index}] is below 0"
//! example x=[4]
//
//! forward
//!   kernel  refuse

__global__ void refuse(const scalar_t *x, scalar_t *y, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, low, x[i] >= 0, i))
            y[i] = x[i];
}
"""


# Checks on the device, in forward and in backward; in place.
PICK = """\
//! op      pick(Tensor table, Tensor rows, *, int bias=0) -> Tensor y
//! dtypes  float32 float64
//! type    int64 : rows
//! shape   table [N, C]
//! shape   rows [M]
//! shape   y [M, C]
//! check   below : "row {index} of rows is negative (bias {bias})"
//! check   above : "row {index} of rows is not below {N} of {table}: {index}"
//! example table=[5,3] rows=[4]
//
//! forward
//!   kernel pick
//! backward grad_table
//!   zero   grad_table
//!   kernel put
//!   grid   cdiv(M * C, 256)

__global__ void pick(const scalar_t *table, const int64_t *rows, scalar_t *y,
                     opd::report_t *report, int64_t N, int64_t M, int64_t C, int64_t bias)
{
    CUDA_KERNEL_LOOP(i, M * C) {
        int64_t row = rows[i / C] + bias;
        if (opd::check(report, below, row >= 0, i / C) && opd::check(report, above, row < N, i / C))
            y[i] = table[row * C + i % C];
    }
}

__global__ void put(const int64_t *rows, const scalar_t *grad_y, scalar_t *grad_table,
                    opd::report_t *report, int64_t N, int64_t M, int64_t C, int64_t bias)
{
    CUDA_KERNEL_LOOP(i, M * C) {
        int64_t row = rows[i / C] + bias;
        if (opd::check(report, above, row >= 0 && row < N, row))
            atomicAdd(&grad_table[row * C + i % C], grad_y[i]);
    }
}
"""
MARK = """\
//! op      mark(Tensor(a!) x) -> ()
//! dtypes  int64
//! shape   x [N]
//! check   positive : "x[{index}] is not positive"
//
//! forward
//!   kernel mark

__global__ void mark(scalar_t *x, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, positive, x[i] > 0, i))
            x[i] = 7;
}
"""


# y = x[i], read through a pointer that `bad` breaks.
FAULTY = """
//! op      faulty(Tensor x, Tensor bad) -> Tensor y
//! dtypes  float32
//! type    flag_t int32 : bad
//! shape   x [N]
//! shape   bad [1]
//! shape   y [N]
//! example x=[4] bad=[1]
//
//! forward
//!   kernel  faulty
//!   grid    1
//!   block   1

extern "C" __global__ void faulty(const float *x, const int *bad, float *y, int N)
{
    for (int i = 0; i < N; i++)
        y[i] = bad[0] ? *(volatile const float *)(8ULL + i) : x[i];
}
"""
ADD = """
//! op      add_to(Tensor(a!) x, Tensor y) -> ()
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4] y=[4]
//
//! forward
//!   kernel  add_to
//!   grid    1
//!   block   1

extern "C" __global__ void add_to(float *x, const float *y, int N)
{
    for (int i = 0; i < N; i++)
        x[i] += y[i];
}
"""


# As long as its input says.
COUNT = """
//! op      count(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//!
//! forward
//!   kernel  count
//!   grid    1
//!   block   1

extern "C" __global__ void count(const float *x, float *y, int N)
{
    for (int i = 0; i < N; i++)
        for (volatile float n = y[i] = 0; n < x[i]; n = n + 1)
            y[i] = n + 1;
}
"""


# A replay of a graph of one call, or that call.
_BOTH = """
//! op      both(Tensor(a!) sum, Tensor x) -> Tensor y
//! dtypes  float32
//! shape   sum [N]
//! shape   x [N]
//! shape   y [N]
//! example sum=[4] x=[4]
//
//! forward
//!   kernel  both
//!   grid    1
//!   block   1

extern "C" __global__ void both(float *sum, const float *x, float *y, int N)
{
    for (int i = 0; i < N; i++)
        sum[i] += y[i] = x[i] * FACTOR;
}
"""


def spin(result="sum"):
    """With what it writes; a compiler would leave out the rounds of one that writes no `sum`."""
    return _SPIN.replace("RESULT", result)


SPIN = spin()


def double_by(factor):
    return _DOUBLE.replace("FACTOR", str(factor))


def both_by(factor):
    return _BOTH.replace("FACTOR", str(factor))


def double(raw, id=1):
    """What double_it makes of 21."""
    raw.make(id, "float32", [1], struct.pack("f", 21))
    raw.call("forward", "double_it", [id], {}, [id + 1])
    return struct.unpack("f", raw.call("tensor_read", id + 1, 0))[0]


def put_kernels(folder, **sources):
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.cu").write_text(source)
    return str(folder)
