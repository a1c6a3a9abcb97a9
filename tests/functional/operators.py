"""Operators that several tests serve, as the text of their files."""

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
ROUNDS = 300_000_000 if DEVICE == "cpu" else 100_000_000  # of spin: about a second


def spin(result="sum"):
    """With what it writes; a compiler would leave out the rounds of one that writes no `sum`."""
    return _SPIN.replace("RESULT", result)


SPIN = spin()
