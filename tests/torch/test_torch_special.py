"""Formulas at NaN, infinities, zeros, subnormal and huge numbers: what PyTorch gives. (Of few elements, as
its vectorized code for the CPU has answers of its own for some of these.)"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import device, ops, torch_daemon  # noqa: F401

FORMULAS = {
    "acos": torch.acos,
    "elu": F.elu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
}
# Where their second derivatives are as PyTorch has them.
SECOND = {"acos": [1, -1, 0], "elu": [math.inf, -math.inf, math.nan]}


def derive(function, values, create_graph=False):
    x = values.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=create_graph)
    return y, gradient, x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", FORMULAS)
def test_special_values(ops, device, name, dtype):
    limits = torch.finfo(dtype)
    some = [math.nan, math.inf, 0.0, limits.tiny, limits.tiny / 4, limits.max, 1.0]
    for values in some, [-v for v in some]:
        values = torch.tensor(values, dtype=torch.float64).to(device, dtype)
        for ours, theirs in zip(derive(ops[name], values)[:2], derive(FORMULAS[name], values)[:2]):
            assert_close(ours, theirs, equal_nan=True, msg=lambda m: f"{values}: {ours}, not {theirs}: {m}")


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(ops, device, name):
    values = torch.tensor(SECOND[name], dtype=torch.float64, device=device)
    found = []
    for function in ops[name], FORMULAS[name]:
        _, gradient, x = derive(function, values, create_graph=True)
        found += torch.autograd.grad(gradient, x, torch.ones_like(x))
    assert_close(*found, equal_nan=True)
