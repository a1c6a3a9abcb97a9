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


def spin(result="sum"):
    """With what it writes; a compiler would leave out the rounds of one that writes no `sum`."""
    return _SPIN.replace("RESULT", result)


SPIN = spin()


def double_by(factor):
    return _DOUBLE.replace("FACTOR", str(factor))


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
