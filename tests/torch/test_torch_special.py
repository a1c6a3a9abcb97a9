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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*FORMULAS, "gelu"])
def test_an_infinite_gradient_does_not_become_finite(ops, device, name, dtype):
    """Nor where PyTorch's is finite one that is not."""
    values = [-math.inf, -1e30, -200, -1, -0.5, 0, 0.5, 1, 3, math.inf]
    finite = []
    for function in ops[name], FORMULAS.get(name, lambda x: x * torch.sigmoid(1.702 * x)):
        x = torch.tensor(values, dtype=dtype, device=device, requires_grad=True)
        y = function(x)
        (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, math.inf))
        finite.append(gradient.isfinite().tolist())
    assert finite[0] == finite[1]


def test_derivatives_that_are_not_as_PyTorch_has_them(ops, device):
    """docs/pytorch.md says so."""
    x = torch.tensor([-100.0, 0.0, 1e30], dtype=torch.float64, device=device)
    _, gradient, at = derive(ops.elu, x, create_graph=True)
    assert torch.autograd.grad(gradient, at, torch.ones_like(at))[0].tolist()[1:] == [1, 0]
    _, gradient, at = derive(lambda x: ops.gelu(x, approximate="none"), x, create_graph=True)
    assert torch.autograd.grad(gradient, at, torch.ones_like(at))[0][2] == 0
    assert 0 < derive(ops.tanh, x)[1][0] < 1e-80 and 0 < derive(ops.sigmoid, x)[1][0] < 1e-40


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(ops, device, name):
    values = torch.tensor(SECOND[name], dtype=torch.float64, device=device)
    found = []
    for function in ops[name], FORMULAS[name]:
        _, gradient, x = derive(function, values, create_graph=True)
        found += torch.autograd.grad(gradient, x, torch.ones_like(x))
    assert_close(*found, equal_nan=True)
