"""Tensors of more than 2^31 elements, on a GPU that has room for them: the GPU's own test.

All but the last rows is zero, so that the reference needs those alone.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE

pytestmark = [pytest.mark.skipif(DEVICE == "cpu", reason="takes a GPU's memory and speed"), pytest.mark.own_card]

SIDE = 46400  # squared, more than 2^31
ROWS = 3


@pytest.fixture
def roomy(client):
    """The client of a device with 64 GiB free."""
    device = client.status()["devices"][0]
    free = device["memory_limit"] - device["memory_used"]
    assert free > 64 << 30, f"{free >> 30} GiB free on {device['name']}; expected 64"
    return client


def test_gelu(roomy):
    start = 2**31 + 5
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    x, grad = (roomy.zeros([start + 1000]) for _ in range(2))
    x.view([1000], offset=start).write(values)
    grad.view([1000], offset=start).write(np.ones(1000, np.float32))
    y, ctx = roomy.ops.gelu.forward(x)
    s = 1 / (1 + np.exp(-1.702 * values.astype(np.float64)))
    assert np.allclose(y.read(start, 1000), values * s, rtol=1e-5, atol=1e-6)
    assert not y.read(start - 1000, 1000).any()
    (slope,) = ctx.backward(grad)
    expected = s + 1.702 * values * s * (1 - s)
    assert np.allclose(slope.read(start, 1000), expected, rtol=1e-5, atol=1e-6)


def test_depthwise_conv2d(roomy):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1, 1, 3, 3, generator=generator)
    tail, grad_tail = torch.randn(2, 1, 1, ROWS, SIDE, generator=generator)
    start = (SIDE - ROWS) * SIDE
    x, grad = (roomy.zeros([1, 1, SIDE, SIDE]) for _ in range(2))
    x.view([1, 1, ROWS, SIDE], offset=start).write(tail.numpy())
    grad.view([1, 1, ROWS, SIDE], offset=start).write(grad_tail.numpy())
    y, ctx = roomy.ops.depthwise_conv2d.forward(x, roomy.tensor(weight.numpy()), padding=1)
    grad_x, grad_weight, _ = ctx.backward(grad, wanted=("input", "weight"))

    # The same with a row of zeros above, which stands for all of them.
    above = F.pad(tail.double(), (0, 0, 1, 0)).requires_grad_()
    w = weight.double().requires_grad_()
    expected = F.conv2d(above, w, padding=1)
    expected.backward(F.pad(grad_tail.double(), (0, 0, 1, 0)))

    def last(t):
        return t.read(start, ROWS * SIDE)

    assert np.allclose(last(y), expected.detach()[..., 1:, :].numpy().ravel(), atol=1e-4)
    assert np.allclose(last(grad_x), above.grad[..., 1:, :].numpy().ravel(), atol=1e-4)
    error = np.linalg.norm(grad_weight.numpy() - w.grad.numpy()) / np.linalg.norm(w.grad.numpy())
    assert error < 1e-5
    assert not y.read(0, SIDE).any()


def test_add_of_a_row(roomy):
    """A formula operator, broadcasting; the row's gradient is a sum over 2^21 rows."""
    rows, width = 2**21 + 3, 1024
    row, last = np.random.default_rng(1).standard_normal((2, width)).astype(np.float32)
    x, grad = (roomy.zeros([rows, width]) for _ in range(2))
    x.view([width], offset=(rows - 1) * width).write(last)
    grad.view([width], offset=(rows - 1) * width).write(last)
    y, ctx = roomy.ops.add.forward(x, row)
    assert np.array_equal(y.read((rows - 1) * width, width), last + row)
    assert np.array_equal(y.read((rows - 2) * width, width), row)
    grad_x, grad_row = ctx.backward(grad)
    assert np.array_equal(grad_x.read((rows - 1) * width, width), last)
    assert np.allclose(grad_row.numpy(), last, rtol=1e-6)


def test_upsample_bilinear2d(roomy):
    side, rows = SIDE // 2, 4
    generator = torch.Generator().manual_seed(2)
    tail, grad_tail = (torch.randn(1, 1, n, m, generator=generator)
                       for n, m in ((rows, side), (2 * rows, SIDE)))
    grad_tail[:, :, :4] = 0  # what reaches above the tail
    x, grad = roomy.zeros([1, 1, side, side]), roomy.zeros([1, 1, SIDE, SIDE])
    x.view([1, 1, rows, side], offset=(side - rows) * side).write(tail.numpy())
    grad.view([1, 1, 2 * rows, SIDE], offset=(SIDE - 2 * rows) * SIDE).write(grad_tail.numpy())
    y, ctx = roomy.ops.upsample_bilinear2d.forward(x, scale=2)
    (grad_x,) = ctx.backward(grad)
    leaf = tail.double().requires_grad_()
    expected = F.interpolate(leaf, scale_factor=2, mode="bilinear")
    expected.backward(grad_tail.double())
    found = y.read((SIDE - 4) * SIDE, 4 * SIDE)
    assert np.allclose(found, expected.detach()[..., -4:, :].numpy().ravel(), atol=1e-3)
    found = grad_x.read((side - rows) * side, rows * side)
    assert np.allclose(found, leaf.grad.numpy().ravel(), atol=1e-3)


def test_sgd_step(roomy):
    start = 2**31 + 5
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    param, grad = (roomy.zeros([start + 1000]) for _ in range(2))
    param.view([1000], offset=start).write(values)
    grad.view([1000], offset=start).write(2 * values)
    roomy.ops.sgd_step(param, grad, lr=0.25)
    assert np.allclose(param.read(start, 1000), values / 2, rtol=1e-6)
    assert not param.read(start - 1000, 1000).any()
