"""Headers of the field, in a file pasted whole: CUB, cooperative groups, 16-bit floats, cuRAND."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from conftest import PATIENCE, PROGRAM

pytestmark = pytest.mark.unsanitized("of what kernels work out")

FILE = pathlib.Path(__file__).with_name("kernels") / "field.cu"
WORD = (1 << 32) - 1


@pytest.fixture(scope="module")
def client(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("field")
    shutil.copy(FILE, folder)
    with start_shared("--kernels", str(folder)).connect() as client:
        yield client


def philox(seed, sequence, block):
    """Philox4x32-10, by Salmon and others: four words of a counter and a key."""
    c = [block & WORD, block >> 32, sequence & WORD, sequence >> 32]
    k0, k1 = seed & WORD, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & WORD, (a >> 32) ^ c[3] ^ k1, a & WORD]
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c


def step(v):
    t = v[0] ^ v[0] >> 2
    return [*v[1:], (v[4] ^ v[4] << 4 ^ t ^ t << 1) & WORD]


def jump(v, sequence):
    """By 2^67 steps for each: the map as a matrix of bits, squared."""
    to_bits = lambda v: np.array([w >> i & 1 for w in v for i in range(32)])  # noqa: E731
    matrix = np.array(
        [to_bits(step([(i // 32 == w) << i % 32 for w in range(5)])) for i in range(160)]
    ).T.astype(np.float32)
    for _ in range(67):
        matrix = matrix @ matrix % 2
    bits = to_bits(v)
    for _ in range(sequence):
        bits = (matrix @ bits % 2).astype(int)
    return [int(sum(int(b) << i for i, b in enumerate(bits[32 * w : 32 * w + 32]))) for w in range(5)]


def xorwow(seed, sequence, offset, n):
    """Marsaglia's generator, with the starts that cuRAND gives it."""
    t0 = 1099087573 * (seed & WORD ^ 0xAAD26B49) & WORD
    t1 = 2591861531 * (seed >> 32 ^ 0xF7DCEFDD) & WORD
    d = 6615241 + t1 + t0
    v = [123456789 + t0, 362436069 ^ t0, 521288629 + t1, 88675123 ^ t1, 5783321 + t0]
    v = jump([w & WORD for w in v], sequence)
    out = []
    for _ in range(offset + n):
        v, d = step(v), d + 362437
        out.append(v[4] + d & WORD)
    return out[offset:]


def test_philox_reference():
    assert philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # published


@pytest.mark.parametrize("seed, sequence, offset", [(0, 0, 0), (7, 3, 5), (123456789, 2, 6)])
def test_field(client, seed, sequence, offset):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 300)).astype(np.float32)
    h = rng.standard_normal(40).astype(np.float16)
    total, scan, best, groups, halves, words, normals = (
        y.numpy()
        for y in client.ops.field(
            client.tensor(x), client.tensor(h), seed=seed, sequence=sequence, offset=offset
        )
    )
    np.testing.assert_allclose(total, x.sum(1, dtype=np.float64), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scan, x.cumsum(1, dtype=np.float64), rtol=1e-5, atol=2e-5)
    assert best.tolist() == x.argmax(1).tolist()

    lane = np.arange(64) % 32
    most = x[:, :64].reshape(3, 8, 8).max(2).repeat(8, 1)
    np.testing.assert_allclose(groups, most + 100 * (lane % 2) + 10000.0 * lane, rtol=1e-6)

    v = h.astype(np.float64).reshape(-1, 2)
    r = (v * v + 0.5).astype(np.float16) + h.reshape(-1, 2)[:, ::-1]
    np.testing.assert_array_equal(halves.reshape(-1, 2), np.where(v[:, :1] > v[:, 1:], r, r + r))

    blocks = np.concatenate([philox(seed, sequence, i) for i in range(5)])
    drawn = blocks[offset : offset + 5]
    assert words[:5].tolist() == drawn.tolist()
    assert words[5:].tolist() == xorwow(seed, sequence, offset, 5)
    uniform = drawn * 2.0**-32 + 2.0**-33
    np.testing.assert_allclose(normals[2:], uniform[[0, 3]], rtol=1e-6)
    angle, radius = 2 * np.pi * uniform[1], np.sqrt(-2 * np.log(uniform[0]))
    expected = [radius * np.sin(angle), radius * np.cos(angle)]
    np.testing.assert_allclose(normals[:2], expected, rtol=1e-4, atol=1e-5)


def test_a_sync_of_the_whole_grid_is_refused(tmp_path):
    """It would need a cooperative launch."""
    file = tmp_path / "grid.cu"
    file.write_text(
        "//! op      grid(Tensor x) -> Tensor y\n//! dtypes  float32\n//! shape   x [N]\n"
        "//! shape   y [N]\n//! example x=[4]\n//! forward\n//!   kernel k\n"
        "#include <cooperative_groups.h>\n"
        "__global__ void k(const float *x, float *y, int64_t N)\n{\n"
        "    cooperative_groups::this_grid().sync();\n    CUDA_KERNEL_LOOP(i, N) y[i] = x[i];\n}\n"
    )
    opctl = pathlib.Path(PROGRAM).with_name("opctl")
    done = subprocess.run([opctl, "check", file, "--target", "cpu"], timeout=PATIENCE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 1
    assert "grid.cu:11" in done.stdout and "cooperative launch, which opd has not" in done.stdout
