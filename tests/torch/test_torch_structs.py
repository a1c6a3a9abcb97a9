"""A kernel whose parameters are structs, against PyTorch."""

import torch
from torch.testing import assert_close
from torch_fixtures import device, draw, isolated, ops, torch_daemon  # noqa: F401


def expected(a, b=None, gain=(1.0, 1.0), flip=False):
    y = gain[0] * a + (0 if b is None else gain[1] * b)
    return -y if flip else y


def test_structs(ops, draw):
    for dtype in (torch.float16, torch.float32, torch.float64):
        for _ in range(3):  # the first is the daemon's
            a, b = draw(3, 5, dtype=dtype, grad=True), draw(3, 5, dtype=dtype, seed=1, grad=True)
            for given, rest in (((a, b), {"gain": [0.5, 2.0], "flip": True}), ((a, b), {}), ((a,), {"flip": True})):
                y, right = ops.blend(*given, **rest), expected(*given, **rest)
                assert_close(y, right)
                grad = torch.randn_like(y)
                assert_close(torch.autograd.grad(y, given, grad), torch.autograd.grad(right, given, grad))


def test_gradcheck(ops, draw):
    torch.autograd.gradcheck(lambda a, b: ops.blend(a, b, gain=[0.5, 2.0]), (draw(2, 3, grad=True), draw(2, 3, grad=True)))
