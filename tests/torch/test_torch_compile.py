"""opd.torch.ops under torch.compile and torch.export."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, run_fresh, torch_daemon  # noqa: F401

import opd.torch

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ["aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_and_backward_in_one_graph(ops, draw, backend):
    @torch.compile(fullgraph=True, backend=backend)
    def model(x, w):
        y, z = ops.two_results(ops.depthwise_conv2d(x.sin(), w, padding=1), gain=0.5)
        return ops.gelu(y, approximate="tanh") * 2 + z

    def reference(x, w):
        c = F.conv2d(x.sin(), w, padding=1, groups=2)
        return F.gelu(0.5 * c * torch.exp(c), approximate="tanh") * 2 + 2 * c

    x, w = draw(1, 2, 5, 6, grad=True), draw(2, 1, 3, 3, grad=True)
    grad = draw(1, 2, 5, 6, seed=1)
    y = model(x, w)
    assert_close(y, reference(x, w))
    assert_close(
        torch.autograd.grad(y, (x, w), grad), torch.autograd.grad(reference(x, w), (x, w), grad)
    )
    with torch.no_grad():
        assert_close(model(x, w), reference(x, w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place(ops, draw, backend):
    @torch.compile(fullgraph=True, backend=backend)
    def step(param, grad):
        ops.step_down(param, grad * 2, lr=0.25)
        return param + 1

    param, grad = draw(6), draw(6, seed=1)
    expected = param - 0.5 * grad
    with torch.no_grad():
        assert_close(step(param, grad), expected + 1)
    assert_close(param, expected)


def test_an_operator_may_first_be_used_in_compiled_code(start_shared):
    opd.torch.use(start_shared("--kernels", str(ROOT / "examples")).socket)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(x):
        return opd.torch.ops.softplus(x, beta=2.0)

    x = torch.randn(10, dtype=torch.float64)
    assert_close(model(x), F.softplus(x, beta=2.0))


BREAK = """
import torch, opd.torch
def model(x):
    y = opd.torch.ops.elu(x)
    torch._dynamo.graph_break()
    return opd.torch.ops.silu(y)
x = torch.randn(10)
made = torch.compile(model, backend="eager")(x)
assert torch.equal(made, model(x))
"""


def test_operators_are_first_used_around_a_graph_break(run_fresh):
    """torch begins its analysis anew there, and compares what it meets."""
    run_fresh(BREAK)


def test_each_shape_is_compiled(ops, draw):
    model = torch.compile(lambda x: ops.gelu(x) + 1, fullgraph=True, backend="aot_eager")
    for n in (3, 4, 7):
        assert_close(model(draw(n, 5)), ops.gelu(draw(n, 5)) + 1)


def test_export(ops, draw):
    class Model(torch.nn.Module):
        def forward(self, x):
            return ops.gelu(x, approximate="tanh")

    x = draw(3, 4)
    exported = torch.export.export(Model(), (x,))
    assert torch.ops.opd.gelu.default in [node.target for node in exported.graph.nodes]
    assert_close(exported.module()(x), F.gelu(x, approximate="tanh"))


def test_an_error_in_compiled_code_is_the_daemons(ops, draw):
    model = torch.compile(ops.gelu, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="gelu: approximate is .*expected one of sigmoid, tanh, none"):
        model(draw(3), approximate="tahn")


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_operator_that_is_not_there(ops, fullgraph):
    model = torch.compile(lambda x: ops.nope(x), fullgraph=fullgraph, backend="eager")
    with pytest.raises(Exception, match="the daemon has no operator 'nope'; it has .*gelu"):
        model(torch.ones(3))


def test_more_shapes_than_the_limit(ops):
    """After it torch does without compiling."""
    model = torch.compile(lambda x: ops.gelu(x) * 2, backend="aot_eager", dynamic=True)
    for n in range(1, torch._dynamo.config.recompile_limit + 4):
        x = torch.randn(n)
        assert_close(model(x), ops.gelu(x) * 2)
