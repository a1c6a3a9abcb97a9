"""`//! strided` in opd.torch: tensors that are taken as they lie, in this process and in the daemon."""

import pytest
import torch
from torch.testing import assert_close
from torch_fixtures import device, draw, isolated, ops, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd.torch._library import DEFAULT_ISOLATED

LAYOUTS = {
    "dense": lambda x: x,
    "turned": lambda x: x.t(),
    "steps": lambda x: x[1:, ::2],
    "rows": lambda x: x[:1].expand(5, 8),
    "one": lambda x: x[2, 3].expand(3, 4),
    "columns": lambda x: x[:, 3:4].expand(6, 7),
    "overlapping": lambda x: x.as_strided((3, 4), (4, 3)),
    "odd": lambda x: x.as_strided((1, 4), (77, 2)),
    "empty": lambda x: x[3:3, ::2],
}


@pytest.fixture(params=["here", "isolated"])
def way(request, isolated):
    if request.param == "isolated":
        isolated()
    elif DEFAULT_ISOLATED:
        pytest.skip("OPD_ISOLATED says that all runs in the daemon")


def dense(shape):
    return torch.empty(shape).stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(ops, draw, way, layout):
    for _ in range(3):  # the first is the daemon's
        leaf = draw(6, 8, grad=True)
        x = LAYOUTS[layout](leaf)
        y, steps = ops.read_strided(x)
        assert_close(y, x * x)
        assert y.stride() == dense(y.shape)
        if x.numel():
            assert tuple(steps.tolist()) == (dense(x.shape) if x.is_contiguous() else x.stride())
        grad = torch.randn_like(y)
        (found,) = torch.autograd.grad(y, leaf, grad)
        assert_close(found, torch.autograd.grad(x * x, leaf, grad)[0])
    given = LAYOUTS[layout](draw(6, 8)).detach().requires_grad_()
    (found,) = torch.autograd.grad(ops.read_strided(given)[0].sum(), given)
    assert found.stride() == dense(found.shape)


def test_nothing_is_copied(ops, draw, device, way, monkeypatch):
    x = draw(64, 64).t()
    ops.read_strided(x), ops.read_strided(x)
    copied = []
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t, *_: copied.append(t) or t.clone())
    ops.read_strided(x)
    assert not copied


def test_in_place(ops, draw, way):
    for layout in ("dense", "turned", "steps", "odd"):
        for _ in range(3):
            whole = draw(6, 8)
            expected = whole.clone()
            LAYOUTS[layout](expected).neg_()
            ops.flip_sign(LAYOUTS[layout](whole))
            assert_close(whole, expected)
    for layout in ("rows", "one", "columns", "overlapping"):
        whole = draw(6, 8)
        for _ in range(2):
            with pytest.raises(opd.InvalidArgument, match="whose elements overlap"):
                ops.flip_sign(LAYOUTS[layout](whole))
        assert_close(whole, draw(6, 8))


def test_products(ops, draw, way):
    a, b = draw(6, 8), draw(8, 6, seed=1)
    for x, y in ((a, b), (a, a.t()), (b.t(), b), (a[:, :4], a[:, 4:].t()), (b.t()[1:4], b[:, ::1])):
        for _ in range(2):
            assert_close(ops.strided_product(x, y), x @ y)
    with pytest.raises(opd.InvalidArgument, match="one after the other in memory"):
        ops.strided_product(a[:, ::2], b[:4])


def test_saved_tensors_that_come_back_in_another_layout(ops, draw, way):
    for layout in ("turned", "rows", "steps"):
        for _ in range(3):
            leaf = draw(6, 8, grad=True)
            x = LAYOUTS[layout](leaf)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
                y, _ = ops.read_strided(x)
            (found,) = torch.autograd.grad(y.sum(), leaf)
            assert_close(found, torch.autograd.grad((x * x).sum(), leaf)[0])


def test_compiled(ops, draw, device):
    if device != "cpu":
        pytest.skip("the same for all devices")

    def run(x):
        y, steps = ops.read_strided(x.t()[::2] + 0)
        z, _ = ops.read_strided(x.t()[::2])
        return y + z, steps

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (6, 8):
        x = draw(n, 8, grad=True)
        y, _ = compiled(x)
        assert_close(y, 2 * x.t()[::2] ** 2)
        assert_close(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad((2 * x.t()[::2] ** 2).sum(), x)[0])
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.empty(6, 8, dtype=torch.float64)).t()
        y, _ = torch.ops.opd.read_strided(fake)
        assert y.shape == (8, 6) and y.stride() == (6, 1)


def test_opcheck_and_gradcheck(ops, draw, device):
    x = draw(3, 4, grad=True)
    torch.autograd.gradcheck(lambda x: ops.read_strided(x.t()[:, ::2])[0], (x,))
    torch.library.opcheck(ops.read_strided.overload, (draw(3, 4).t(),))
    torch.library.opcheck(ops.flip_sign.overload, (draw(3, 4).t(),))


def test_batches(ops, draw, device):
    x = draw(4, 3, 5)
    found = torch.vmap(lambda x: ops.read_strided(x)[0], in_dims=2)(x)
    assert_close(found, (x * x).permute(2, 0, 1))


def test_rules_that_strides_break(ops, draw, way):
    x = draw(3, 2000)[:, ::1000]
    with pytest.raises(opd.InvalidArgument, match="x has 1000 elements between its columns"):
        ops.read_strided(x)
