"""Operators that change tensors in place, have no inputs or no gradient, or give views."""

import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd
import opd.torch


def test_in_place(ops, draw):
    for param in (draw(4, 6), draw(4, 6).t(), draw(4, 6)[:, ::2]):
        grad = draw(*param.shape, seed=3)
        expected = param - 0.1 * grad
        version = param._version
        assert ops.step_down(param, grad, lr=0.1) is None
        assert_close(param, expected)
        assert param._version > version


def test_in_place_on_what_backward_needs_is_noticed(ops, draw):
    x = draw(5, grad=True)
    y = x * 2
    z = y * y
    ops.step_down(y.detach(), torch.ones_like(y))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_in_place_on_a_parameter(ops, draw):
    param = torch.nn.Parameter(draw(5))
    before = param.detach().clone()
    with torch.no_grad():
        ops.step_down(param, torch.ones_like(param))
    assert_close(param.detach(), before - 0.5)
    with pytest.raises(opd.OpdError, match="step_down changes param in place.*no_grad"):
        ops.step_down(param, torch.ones_like(param))


def test_in_place_names_what_was_given(ops, draw):
    param = draw(5, grad=True)
    with pytest.raises(opd.OpdError, match="sgd_step changes param in place"):
        ops.sgd_step(param, draw(5), lr=0.1)
    with pytest.raises(opd.OpdError, match="sgd_step changes param, momentum_buffer in place"):
        ops.sgd_step(param, draw(5), draw(5), lr=0.1)


def test_in_place_of_one_memory_twice_is_refused(ops, draw):
    param, grad = draw(8), draw(8)
    before = param.clone()
    both = torch.zeros(12, dtype=param.dtype, device=param.device)
    for m, v in ((both[:8], both[:8]), (both[:8], both[4:]), (param, both[:8])):
        with pytest.raises(opd.InvalidArgument, match="adam_step: two of the tensors .* share memory"):
            ops.adam_step(param, grad, m, v, step=1)
    assert torch.equal(param, before)
    apart = torch.zeros(8, 2, dtype=param.dtype, device=param.device)
    ops.adam_step(param, grad, apart[:, 0], apart[:, 1], step=1)
    assert not torch.equal(param, before) and (apart != 0).all()
    empty = param[:0].clone()
    ops.adam_step(empty, empty, empty, empty, step=1)


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_changed_in_place_shares_memory_with_what_is_read(ops, draw, alone):
    """All of it, or it is refused, as torch does."""
    with opd.torch.options(isolated=alone):
        for _ in range(3):
            whole = draw(5, 4)
            before = whole.clone()
            with pytest.raises(opd.InvalidArgument, match="step_down: .* shares a part of its memory"):
                ops.step_down(whole[1:], whole[:-1], lr=0.5)
            assert torch.equal(whole, before)
            ops.step_down(whole[1:4], draw(3, 4, seed=1), lr=0.5)
            assert_close(whole[1:4], before[1:4] - 0.5 * draw(3, 4, seed=1))
            ops.step_down(whole, whole, lr=0.5)
            assert_close(whole[0], before[0] / 2)


def change(step, p, g):
    """In place, beside views and in them."""
    p, q = p.clone(), p
    rest = p[1:]
    p.mul_(2)  # pending, for functionalize
    step(rest, g[1:])
    p[0] += 1
    step(p, g)
    step(q, g)
    return p, rest, q + 0


FUNCTIONALIZED = {
    "one": lambda p, g: opd.torch.ops.step_down(p, g, lr=0.5),
    "several": lambda p, g: opd.torch.ops.sgd_step(p, g, torch.ones_like(p), lr=0.5, momentum=0.5),
    "without an optional one": lambda p, g: opd.torch.ops.sgd_step(p, g, lr=0.5),
    "of lists": lambda p, g: opd.torch.ops.axpys([p, p.clone()], [g, g], a=0.5),
    "of lists that are absent": lambda p, g: opd.torch.ops.sgd_steps([p], [g], lr=0.5),
}


@pytest.mark.parametrize("how", FUNCTIONALIZED)
def test_functionalized(ops, draw, how):
    """As a whole, as a graph, whose inputs are changed at its end alone, and inside of another transform."""
    step = FUNCTIONALIZED[how]
    p, g = draw(4, 3), draw(4, 3, seed=1)
    ours, expected_p = p.clone(), p.clone()
    expected = change(step, expected_p, g)
    run = torch.func.functionalize(lambda p, g: change(step, p, g))
    assert_close(run(ours, g), expected)
    assert_close(ours, expected_p)
    graph = make_fx(run)(p.clone(), g)
    in_place = [n.args[0].op for n in graph.graph.nodes if str(n.target).startswith("aten.") and "_." in str(n.target)]
    assert in_place == ["placeholder"]
    ours = p.clone()
    assert_close(graph(ours, g), expected)
    assert_close(ours, expected_p)


def test_in_place_in_other_transforms_is_refused(ops, draw):
    functionalize, p, g = torch.func.functionalize, draw(1, 3), draw(1, 3)
    step = lambda p, g: change(FUNCTIONALIZED["one"], p, g)[0].sum()  # noqa: E731
    around = torch.vmap(step), functionalize(torch.vmap(step)), torch.vmap(functionalize(step)), torch.func.grad(step)
    for run in around:
        with pytest.raises(opd.OpdError, match="step_down changes tensors in place, which forward mode and"):
            run(p, g)


def test_without_inputs(ops):
    assert_close(ops.ramp(count=4, step=(2, 3)), torch.tensor([0.0, 3.0, 4.0, 9.0]))
    assert_close(ops.ramp(count=3, lambda_=5), torch.tensor([5.0, 6.0, 7.0]))
    assert ops.ramp(count=0).shape == (0,)


def add_ramp(x):
    return x + opd.torch.ops.ramp(count=3)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_without_inputs_results_are_where_torch_makes_its_own(ops, device, backend):
    """On `device`, else where torch's default is; fake ones, too."""
    make = ops.ramp
    if backend:
        make = torch.compile(lambda **given: ops.ramp(**given), backend=backend, fullgraph=True)
    expected = torch.tensor([0.0, 1.0, 2.0], device=device)
    try:
        for where in (device, "meta", torch.device(device)):
            torch.compiler.reset()  # it compiles for each default device
            place = torch.empty(0, device=where).device
            assert make(count=3, device=where).device == place
            with torch.device(where):
                assert make(count=3).device == place and make(count=3, device="meta").is_meta
            torch.set_default_device(where)
            assert make(count=3).device == place
            torch.set_default_device(None)
    finally:
        torch.set_default_device(None)
    assert_close(make(count=3, device=device), expected)
    assert make(count=3).device.type == torch.ops.opd.ramp(count=3).device.type == "cpu"
    assert_close(torch.vmap(add_ramp)(torch.zeros(2, 3)), expected.cpu().expand(2, 3))
    assert_close(torch.func.grad(lambda x: (x * add_ramp(x)).sum())(torch.ones(3)), expected.cpu() + 2)


def test_a_device_that_is_not_taken(ops):
    with pytest.raises(RuntimeError, match="nowhere"):
        ops.ramp(count=3, device="nowhere")
    with pytest.raises(TypeError, match="has no argument 'device'.*computed where they are"):
        ops.gelu(torch.ones(3), device="cpu")
    index = torch.cuda.device_count() - 1 if torch.cuda.is_available() else 1  # torch wants one that is there
    with FakeTensorMode():
        assert ops.ramp(count=3, device=f"cuda:{index}").device == torch.device("cuda", index)
    assert "device" in inspect.signature(ops.ramp).parameters
    assert "device" not in inspect.signature(ops.gelu).parameters


def test_without_gradient(ops, draw):
    x = draw(5)
    assert torch.equal(ops.marks(x), (x > 0).int())
    with pytest.raises(opd.OpdError, match="opd: marks has no gradient"):
        ops.marks(x.requires_grad_())
    with torch.no_grad():
        ops.marks(x)


def test_a_view_shares_memory_and_is_differentiable(ops, draw):
    x = draw(3, 4)
    y = ops.flatten(x)
    assert y.shape == (12,) and y.data_ptr() == x.data_ptr()
    y[5] = 7.0
    assert x[1, 1] == 7.0
    x.requires_grad_()
    (ops.flatten(x) * torch.arange(12.0, device=x.device)).sum().backward()
    assert_close(x.grad, torch.arange(12.0, device=x.device).view(3, 4).double())
    assert_close(ops.flatten(x.detach().t()), x.detach().t().flatten())
    assert torch.autograd.gradgradcheck(ops.flatten, (x,))
    torch.library.opcheck(ops.flatten.overload, (x,))
