"""Operators of images whose channels lie side by side, beside PyTorch's in float64."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.as_shipped

BOUNDS = {np.float16: 1e-3, np.float32: 2e-6, np.float64: 1e-13}
WINDOWS = [(3, 3), (3, 3), (5, 5), (7, 7), (2, 4), (1, 1), (9, 9), (13, 13), (31, 31), (1, 31), (3, 15)]
CHANNELS = [1, 3, 4, 8, 20, 32, 36, 65, 72, 100]


def hold(found, expected, dtype, what):
    for a, b in zip(found, expected):
        a, b = a.numpy().astype(np.float64), b.detach().numpy()
        assert a.shape == b.shape, what
        assert np.linalg.norm(a - b) <= BOUNDS[dtype] * max(np.linalg.norm(b), 1e-30), what


def draw(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("seed", range(6))
def test_depthwise(client, dtype, seed):
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(8):
        c, m, window = pick.choice(CHANNELS), pick.choice([1, 1, 1, 2]), pick.choice(WINDOWS)
        stride, dilation = [pick.choice([1, 1, 2, 3])] * 2, [pick.choice([1, 1, 2, 3])] * 2
        padding = [pick.randint(0, k // 2 + 1) for k in window]
        reach = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(window, dilation, padding)]
        h, w = (max(1, r) + pick.randint(0, 30) for r in reach)
        x = draw(rng, [pick.choice([1, 2]), h, w, c], dtype)
        weight, bias = draw(rng, [c * m, 1, *window], dtype), draw(rng, [c * m], dtype)
        how = {"stride": stride, "padding": padding, "dilation": dilation}
        y, ctx = client.ops.depthwise_conv2d_nhwc.forward(x, weight, bias, **how)
        leaves = [torch.from_numpy(a).double().requires_grad_() for a in (x, weight, bias)]
        expected = F.conv2d(leaves[0].permute(0, 3, 1, 2), *leaves[1:], groups=c, **how).permute(0, 2, 3, 1)
        grad = draw(rng, expected.shape, dtype)
        slopes = torch.autograd.grad(expected, leaves, torch.from_numpy(grad).double())
        hold([y, *ctx.backward(grad)], [expected, *slopes], dtype, (x.shape, weight.shape, how))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("shape, size", [
    ([2, 7, 9, 3], [14, 18]), ([2, 12, 16, 8], [24, 24]), ([1, 5, 6, 5], [19, 24]), ([2, 9, 11, 4], [5, 4]),
    ([1, 3, 2, 40], [70, 31]), ([2, 1, 1, 64], [33, 33]), ([1, 1, 1, 7], [65, 65]), ([3, 5, 8, 16], [5, 8]),
    ([1, 4, 300, 34], [5, 700]), ([2, 13, 13, 21], [104, 104]), ([1, 3, 1, 2], [3, 600]), ([1, 90, 9, 6], [1, 7]),
])  # fmt: skip
def test_upsample(client, dtype, corners, shape, size):
    rng = np.random.default_rng(0)
    x, grad = draw(rng, shape, dtype), draw(rng, [shape[0], *size, shape[3]], dtype)
    mode = "align_corners" if corners else "half_pixel"
    y, ctx = client.ops.upsample_bilinear2d_nhwc.forward(x, size=size, mode=mode)
    leaf = torch.from_numpy(x).double().requires_grad_()
    expected = F.interpolate(leaf.permute(0, 3, 1, 2), size, mode="bilinear", align_corners=corners)
    expected = expected.permute(0, 2, 3, 1)
    (slope,) = torch.autograd.grad(expected, leaf, torch.from_numpy(grad).double())
    hold([y, ctx.backward(grad)[0]], [expected, slope], dtype, (shape, size))


@pytest.mark.parametrize("size", ([6, 14], [9, 5], [41, 3], [1, 1], [3, 100]))
def test_asymmetric_is_that_of_planes(client, size):
    x = draw(np.random.default_rng(1), [2, 3, 5, 6], np.float64)
    grad = draw(np.random.default_rng(2), [2, *size, 6], np.float64)
    y, ctx = client.ops.upsample_bilinear2d_nhwc.forward(x, size=size, mode="asymmetric")
    planes = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    expected, other = client.ops.upsample_bilinear2d.forward(planes, size=size, mode="asymmetric")
    assert np.allclose(y.numpy(), expected.numpy().transpose(0, 2, 3, 1), rtol=1e-13, atol=1e-13)
    slope = other.backward(np.ascontiguousarray(grad.transpose(0, 3, 1, 2)))[0].numpy()
    assert np.allclose(ctx.backward(grad)[0].numpy(), slope.transpose(0, 2, 3, 1), rtol=1e-12, atol=1e-12)


def test_empty_batches(client):
    x, weight = np.zeros([0, 5, 4, 3], np.float32), np.ones([3, 1, 3, 3], np.float32)
    y, ctx = client.ops.depthwise_conv2d_nhwc.forward(x, weight, padding=1)
    grads = ctx.backward(np.zeros(y.shape, np.float32))
    assert y.shape == (0, 5, 4, 3) and grads[0].shape == x.shape and not grads[1].numpy().any()
    for shape in ([0, 5, 4, 3], [2, 5, 4, 0]):
        y, ctx = client.ops.upsample_bilinear2d_nhwc.forward(np.zeros(shape, np.float32), scale=2)
        assert y.shape == (shape[0], 10, 8, shape[3])
        assert ctx.backward(np.zeros(y.shape, np.float32))[0].shape == tuple(shape)
