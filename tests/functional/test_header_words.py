"""What the header language spares a kernel and its header."""

import numpy as np

DIVIDE = """
//! op      divide(Tensor n, Tensor wide, *, int d=1) -> (Tensor q, Tensor r, Tensor wide_q, Tensor wide_r)
//! type    int32 : n q r
//! type    int64 : wide wide_q wide_r
//! shape   n [N]
//! shape   wide [N]
//! shape   q [N]
//! shape   r [N]
//! shape   wide_q [N]
//! shape   wide_r [N]
//! example n=[5] wide=[5] d=3
//! forward
//!   kernel divide threads N by 64

__global__ void divide(const int *n, const int64_t *wide, int *q, int *r, int64_t *wide_q, int64_t *wide_r,
                       int64_t count, opd::divisor d)
{
    CUDA_KERNEL_LOOP(i, count) {
        const unsigned u = n[i];
        q[i] = u / d;
        r[i] = n[i] - n[i] / d * d == n[i] % d ? u % d : -1; // int and unsigned
        wide_q[i] = wide[i] / d;
        wide_r[i] = wide[i] % d;
    }
}
"""


def test_divisor(start_daemon, tmp_path):
    (tmp_path / "divide.cu").write_text(DIVIDE)
    daemon = start_daemon("--kernels", str(tmp_path))
    rng = np.random.default_rng(1)
    edges = [1, 2, 3, 5, 7, 10, 641, 65535, 65537, 2**30, 2**30 + 1, 2**31 - 2, 2**31 - 1]
    with daemon.connect() as client:
        for d in [*edges, *rng.integers(1, 2**31, 9).tolist()]:
            near = rng.integers(0, 2**31 // d + 1, 200) * d
            n = np.concatenate([near, near - 1, near + 1, rng.integers(0, 2**31, 300), [0, 1, 2**31 - 1]])
            n = np.clip(n, 0, 2**31 - 1).astype(np.int32)
            wide = rng.integers(0, 2**62, n.size) // rng.integers(1, 2**40, n.size)
            found = client.ops.divide(client.tensor(n), client.tensor(wide), d=d)
            for got, wanted in zip(found, [n // d, n % d, wide // d, wide % d]):
                np.testing.assert_array_equal(got.numpy(), wanted)
