"""upsample_bilinear2d beyond the cases of references.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE

import opd

pytestmark = pytest.mark.as_shipped


def random(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.skipif(DEVICE != "cpu" and not torch.cuda.is_available(),
                    reason="PyTorch sums in another order on the CPU")
def test_published_bounds(client):
    """Of the extension this operator replaces, against PyTorch: 1.3e-6 and 5.6e-6."""
    where = "cpu" if DEVICE == "cpu" else "cuda"
    for seed in range(5):
        x = torch.rand([1, 1, 32, 32], generator=torch.Generator().manual_seed(seed))
        grad = torch.rand([1, 1, 64, 64], generator=torch.Generator().manual_seed(seed + 99))
        leaf = x.to(where, copy=True).requires_grad_()
        expected = F.interpolate(leaf, scale_factor=2, mode="bilinear", align_corners=False)
        expected.backward(grad.to(where))
        y, ctx = client.ops.upsample_bilinear2d.forward(x.numpy(), scale=2)
        found = ctx.backward(grad.numpy())[0]
        assert np.linalg.norm(y.numpy() - expected.detach().cpu().numpy()) <= 1.3e-6
        assert np.linalg.norm(found.numpy() - leaf.grad.cpu().numpy()) <= 5.6e-6


@pytest.mark.parametrize("mode", ("half_pixel", "align_corners"))
@pytest.mark.parametrize("size", ((3, 6007), (5, 2999)))
def test_far_columns_in_float32(client, mode, size):
    """The bound holds where rounding a coordinate to float32 would break it."""
    x, grad = random([1, 2, 4, 5003]), random([1, 2, *size], 1)
    exact = torch.from_numpy(x).double().requires_grad_()
    expected = F.interpolate(exact, size, mode="bilinear", align_corners=mode == "align_corners")
    expected.backward(torch.from_numpy(grad).double())
    y, ctx = client.ops.upsample_bilinear2d.forward(x, size=list(size), mode=mode)
    for found, ref in ((y, expected.detach()), (ctx.backward(grad)[0], exact.grad)):
        error = np.linalg.norm(found.numpy() - ref.numpy()) / np.linalg.norm(ref.numpy())
        assert error < 1e-6


@pytest.mark.parametrize("mode", ("half_pixel", "align_corners", "asymmetric"))
@pytest.mark.parametrize("size", ([6, 14], [9, 5], [2, 2], [41, 3], [1, 1], [3, 100]))
def test_backward_is_the_transpose(client, mode, size):
    """forward is a matrix; backward is it transposed, element by element."""
    op = client.ops.upsample_bilinear2d
    height, width = 3, 5
    basis = np.eye(height * width).reshape(-1, 1, height, width)
    matrix = op(basis, size=size, mode=mode).numpy().reshape(height * width, -1)
    assert np.allclose(matrix.sum(axis=0), 1, atol=1e-14)
    _, ctx = op.forward(np.zeros([size[0] * size[1], 1, height, width]), size=size, mode=mode)
    outputs = np.eye(size[0] * size[1]).reshape(-1, 1, *size)
    found = ctx.backward(outputs)[0].numpy().reshape(-1, height * width)
    assert np.allclose(found, matrix.T, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mode", ("half_pixel", "align_corners"))
@pytest.mark.parametrize(("shape", "size"), (
    ([2, 2, 9, 11], [80, 136]), ([1, 2, 4, 300], [9, 2500]), ([1, 2, 16, 64], [6, 900]), ([1, 2, 40, 3], [1, 60]),
    ([3, 1, 51, 52], [1051, 520]), ([2, 2, 24, 64], [12, 32]), ([2, 2, 24, 64], [17, 41]), ([256, 16, 8, 16], [16, 256]),
))  # fmt: skip
@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_backward_of_all_kernels(client, mode, shape, size, dtype):
    """Up far, wide, of many planes, and down; of gradients that begin anywhere, too."""
    exact = torch.from_numpy(random(shape).astype(np.float64)).requires_grad_()
    expected = F.interpolate(exact, size, mode="bilinear", align_corners=mode == "align_corners")
    grad = random([expected.numel() + 1]).astype(dtype)[1:].reshape(expected.shape)
    expected.backward(torch.from_numpy(grad.astype(np.float64)))
    _, ctx = client.ops.upsample_bilinear2d.forward(client.zeros(shape, dtype.__name__), size=size, mode=mode)
    whole = client.tensor(np.append(dtype(0), grad.ravel()))
    for given in (grad, whole[1:].reshape(list(grad.shape))):
        found = ctx.backward(given)[0].numpy().astype(np.float64)
        error = np.linalg.norm(found - exact.grad.numpy()) / np.linalg.norm(exact.grad.numpy())
        assert error < {np.float16: 5e-4, np.float32: 1e-6, np.float64: 3e-14}[dtype]


def test_same_bits_on_every_run(client):
    grad = random([2, 3, 97, 131])
    _, ctx = client.ops.upsample_bilinear2d.forward(random([2, 3, 40, 50]), size=[97, 131])
    first = ctx.backward(grad)[0].numpy()
    for _ in range(3):
        assert np.array_equal(ctx.backward(grad)[0].numpy(), first)


@pytest.mark.parametrize("mode", ("half_pixel", "align_corners", "asymmetric"))
@pytest.mark.parametrize("how", ({"size": [2, 3]}, {"scale": 1}, {"scale": [1.2, 1.3]}))
def test_unchanged_size_is_a_copy(client, mode, how):
    x = np.array([[[[np.inf, 1e-40, -0.0], [np.nan, -np.inf, 5]]]], np.float32)
    y, ctx = client.ops.upsample_bilinear2d.forward(x, mode=mode, **how)
    assert y.numpy().tobytes() == x.tobytes()
    assert ctx.backward(x)[0].numpy().tobytes() == x.tobytes()


def test_size_from_scale_is_rounded_down(client):
    op = client.ops.upsample_bilinear2d
    x = client.zeros([1, 2, 10, 10])
    assert op(x, scale=[1.99, 0.19]).shape == (1, 2, 19, 1)
    assert op(x, scale=3).shape == (1, 2, 30, 30)


def test_errors(client):
    op = client.ops.upsample_bilinear2d
    x = client.zeros([1, 2, 4, 4])
    for attrs, match in (
        ({}, "size is None, scale is None; expected exactly one of them"),
        ({"size": [2, 2], "scale": 2}, "expected exactly one of them"),
        ({"scale": [1, -2]}, r"scale is \[1, -2\], expected numbers above 0"),
        ({"scale": float("nan")}, "expected numbers above 0"),
        ({"scale": 0.1}, "the output would be 0 x 0, expected at least 1 x 1"),
        ({"size": [0, 3]}, "the output would be 0 x 3"),
        ({"size": 4, "mode": "nearest"}, "mode"),
    ):
        with pytest.raises(opd.InvalidArgument, match=match):
            op(x, **attrs)
    with pytest.raises(opd.InvalidArgument, match="input has 0 rows of 4 columns"):
        op(client.zeros([1, 2, 0, 4]), size=2)
    with pytest.raises(opd.InvalidArgument, match="input has rank 3"):
        op(client.zeros([2, 4, 4]), size=2)
