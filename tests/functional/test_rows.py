"""What formulas make of rows: sums of them in one pass, and rows of any length, wherever they begin."""

import numpy as np
import pytest

MOMENTS = """\
//! op      moments(Tensor x) -> (Tensor y, Tensor top)
//! dtypes  float32 float64
//! formula a = sum(x, -1)
//! formula b = sum(x * x, -1)
//! formula top = amax(x * x, -1) - amin(x, -1) + amax(x, -1)
//! formula c = sum(abs(x), -1) * mean(x * x * x, -1) + mean(fmax(x, 0), -1)
//! formula d = mean((x - a) * b, -1)
//! formula y = x * d + c
//! example x=[3,9]
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_a_row_in_one_pass(start_daemon, tmp_path, dtype):
    """More of them than one pass makes, of several kinds, and one that waits for others; rows of a warp and of blocks."""
    (tmp_path / "moments.cu").write_text(MOMENTS)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        for shape in ((3, 9), (70, 197), (33, 1000), (5, 8193), (2, 70001)):
            given = np.random.default_rng(0).uniform(-1, 1, shape).astype(dtype)
            y, top = (t.numpy() for t in client.ops.moments(given))
            x = given.astype(np.float64)
            a, b = (t.sum(-1, keepdims=True) for t in (x, x * x))
            c = np.abs(x).sum(-1, keepdims=True) * (x**3).mean(-1, keepdims=True) + np.maximum(x, 0).mean(-1, keepdims=True)
            d = ((x - a) * b).mean(-1, keepdims=True)
            bound = {"float32": 2e-5, "float64": 1e-12}[dtype]
            assert np.abs(y - (x * d + c)).max() < bound * (np.abs(c) + np.abs(d)).max(), shape
            expected = (x * x).max(-1, keepdims=True) - x.min(-1, keepdims=True) + x.max(-1, keepdims=True)
            assert np.allclose(top, expected, rtol=bound), shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("at", [0, 1])
def test_rows_that_begin_within_a_vector(client, dtype, at):
    """Of odd lengths, and views that begin there: a warp's, a block's, and such as are read again for each pass."""
    random = np.random.default_rng(0)
    bound = {"bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13}[dtype]
    for shape in ([340, 197], [70, 1001], [9, 8195], [2, 40001]):
        whole = [client.tensor(random.standard_normal(n + at).astype(np.float32), dtype=dtype)
                 for n in (shape[0] * shape[1], shape[1], shape[1], shape[0] * shape[1])]
        x, weight, bias, grad = (t.view(s, offset=at) for t, s in zip(whole, (shape, shape[1:], shape[1:], shape)))
        u, w, b, g = (t.numpy().astype(np.float64) for t in (x, weight, bias, grad))

        y, ctx = client.ops.softmax.forward(x)
        e = np.exp(u - u.max(-1, keepdims=True))
        e /= e.sum(-1, keepdims=True)
        made = y.numpy().astype(np.float64)  # which the gradient is made from
        close(made, e, bound)
        close(ctx.backward(grad)[0].numpy(), made * (g - (g * made).sum(-1, keepdims=True)), bound)

        y, ctx = client.ops.layer_norm.forward(x, weight, bias)
        scale = 1 / np.sqrt(u.var(-1, keepdims=True) + 1e-5)
        n = (u - u.mean(-1, keepdims=True)) * scale
        close(y.numpy(), n * w + b, bound)
        grad_x, grad_w, grad_b = (t.numpy() for t in ctx.backward(grad))
        d = g * w
        close(grad_x, scale * (d - d.mean(-1, keepdims=True) - n * (d * n).mean(-1, keepdims=True)), bound)
        close(grad_w, (g * n).sum(0), bound)
        close(grad_b, g.sum(0), bound)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("at", [0, 1])
def test_gradient_of_a_factor_for_each_row(client, dtype, at):
    """Sums along rows that begin anywhere, of integers, which are exact in float32: one part of a row, and several."""
    random = np.random.default_rng(0)
    for shape in ([1100, 67], [340, 197], [70, 1001], [9, 8195], [1, 70001]):
        x, grad = (client.tensor(random.integers(-2, 3, shape[0] * shape[1] + at).astype(np.float32), dtype=dtype)
                   .view(shape, offset=at) for _ in range(2))  # fmt: skip
        _, ctx = client.ops.mul.forward(x, client.tensor(np.ones([shape[0], 1], np.float32), dtype=dtype))
        expected = (x.numpy().astype(np.float64) * grad.numpy()).sum(-1, keepdims=True)
        got = ctx.backward(grad)[1].numpy().astype(np.float64)
        assert np.abs(got - expected).max() <= (0.004 if dtype == "bfloat16" else 0) * np.abs(expected).max(), shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_elements_of_views_that_are_not_aligned(client, dtype):
    """Blocks of them and what is left, and a row that each of many goes with: small integers, exact in both."""
    random = np.random.default_rng(0)
    for shape in ([5], [4096], [100003], [300, 257], [70, 1000]):
        x, y, row = (
            client.tensor(random.integers(-8, 9, np.prod(s) + at).astype(np.float32), dtype=dtype).view(s, offset=at)
            for s, at in ((shape, 1), (shape, 3), (shape[-1:], 2))
        )
        for other in y, row:
            assert np.array_equal(client.ops.mul(x, other).numpy(), x.numpy() * other.numpy()), shape


def close(got, expected, bound):
    assert np.abs(got.astype(np.float64) - expected).max() < bound * np.abs(expected).max()


LESS = """\
//! op      less(Tensor m, Tensor x) -> (Tensor y, Tensor total)
//! dtypes  float32
//! type    mask_t uint8 int8 float32 : m
//! formula total = sum(m, -1)
//! formula y = m * x - sum(m, -1)
//! example m=[3,9] x=[1]
"""


@pytest.mark.parametrize("mask", ["uint8", "int8", "float32"])
def test_no_element_of_a_row_is_left_out(start_daemon, tmp_path, mask):
    """Sums of integers are exact: elements before and behind a row's vectors, types of which a vector has many."""
    (tmp_path / "less.cu").write_text(LESS)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        for shape in ([4096, 257], [300, 259], [70, 1003], [9, 8195], [2, 40001], [300, 255]):
            m = np.random.default_rng(0).integers(0, 9, shape).astype(mask)
            y, total = (t.numpy() for t in client.ops.less(client.tensor(m, dtype=mask), np.ones(1, np.float32)))
            expected = m.astype(np.int64).sum(-1, keepdims=True)
            assert np.array_equal(total.reshape(expected.shape), expected), shape
            assert np.array_equal(y, m - expected), shape
