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


AGAIN = """
//! op      cut(Tensor x, *, int[2] pair=[3,5], float half=0.5) -> (Tensor y, Tensor z)
//! dtypes  float32
//! shape   x [N, M]
//! let     P, Q, R = pair, 7
//! let     ROWS, START = min(N, P, Q), half + 1
//! let     TILES = cdiv(M, ROWS)
//! again   BACK : N, M, START = M, N, TILES + 0.25
//! again   NONE : R = R
//! let     WIDE = BACK.TILES > TILES && NONE.TILES == TILES
//! shape   y z [8]
//! example x=[2,11]
//! forward
//!   kernel  write when WIDE threads TILES by 32
//!   bind    to = y
//!   kernel  write otherwise BACK.ROWS > 1 threads TILES by 32 bind to = y bind R = BACK.TILES + R
//!   kernel  write as BACK threads TILES by 32 bind to = z bind R = gcd(P*R, 14*Q)

template <class T, int ROWS, int R, bool WIDE = false, int LAST = 9>
__global__ void write(const T *x, T *to, int TILES, int N, int M, float START, int64_t count)
{
    const float all[8] = { ROWS, R, WIDE + LAST * 2.f, float(TILES), float(N), float(M), START, float(count) };
    for (int i = threadIdx.x; i < 8; i += 32)
        to[i] = all[i];
}
"""


def test_lets_once_more_and_template_arguments_by_name(start_daemon, tmp_path):
    (tmp_path / "cut.cu").write_text(AGAIN)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        # ROWS 2, TILES 6; with N and M exchanged: ROWS 3, TILES 1, and BACK.TILES is TILES again.
        y, z = client.ops.cut(client.tensor(np.ones((2, 11), np.float32)))
        assert y.numpy().tolist() == [2, 8, 18, 6, 2, 11, 1.5, 6]
        assert z.numpy().tolist() == [3, 7, 19, 1, 11, 2, 6.25, 1]
        # ROWS 3, TILES 1; ROWS 2, TILES 6
        y, z = client.ops.cut(client.tensor(np.ones((11, 2), np.float32)), half=2.0)
        assert y.numpy().tolist() == [3, 7, 19, 1, 11, 2, 3, 1]
        assert z.numpy().tolist() == [2, 7, 18, 6, 2, 11, 1.25, 6]
