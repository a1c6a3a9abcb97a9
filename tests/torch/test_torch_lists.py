"""opd.torch's operators of lists of tensors: `Tensor[]` in, in place and out."""

import pytest
import torch
from torch.testing import assert_close
from torch_fixtures import device, ops, torch_daemon  # noqa: F401

import opd

SHAPES = [(4,), (5, 6), (0,), (100, 33), (), (3, 1, 2)]


def draw(device, n=len(SHAPES), dtype=torch.float32):
    return [torch.randint(-9, 10, SHAPES[i % len(SHAPES)], dtype=dtype, device=device) for i in range(n)]


def same(found, expected):
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        assert_close(f, e, rtol=0, atol=0)


@pytest.mark.parametrize("n", (0, 1, 6, 300))
def test_in_place(ops, device, n):
    ys, xs = draw(device, n), draw(device, n)
    before, versions = [y.clone() for y in ys], [y._version for y in ys]
    assert ops.axpys(ys, tuple(xs), a=0.5) is None
    same(ys, [y + 0.5 * x for y, x in zip(before, xs)])
    assert all(y._version > v for y, v in zip(ys, versions))
    torch.ops.opd.axpys(ys, xs, torch.tensor(3.0, device=device))  # with one that all share
    same(ys, [y + 2.5 * x + 3 for y, x in zip(before, xs)])
    rows = [torch.ones(3, 4, device=device).t() for _ in range(n)]  # what is no run of memory
    ops.axpys(rows, [torch.ones(4, 3, device=device)] * n)
    same(rows, [torch.full((4, 3), 3.0, device=device)] * n)


def test_calls_in_the_daemon_are_prepared(ops, device, torch_daemon):
    """Of an operator of lists as of others, in place and with results."""
    xs, by = draw(device), torch.tensor(3.0, device=device)
    ys = [torch.zeros_like(x) for x in xs]
    with torch_daemon.connect() as client, opd.torch.options(isolated=True):
        count = lambda: client._conn.call("status")["requests"].get("call", 0)  # noqa: E731
        for _ in range(4):
            ops.axpys(ys, xs, a=1.0)
            ops.scales(xs, by)
        before = count()
        for k in range(3):
            ops.axpys(ys, xs, a=1.0)
            scaled, signs = ops.scales(xs, by)
            same(scaled, [3 * x for x in xs])
            same(signs, [torch.where(x < 0, -1, 1).to(torch.int32) for x in xs])
            same(ys, [(5 + k) * x for x in xs])
        assert count() - before == 6


def test_results(ops, device):
    xs = [x.t() for x in draw(device, 4) if x.dim() < 2] + [torch.arange(12.0, device=device)[::3]]
    ys, signs = ops.scales(xs, torch.tensor(3.0, device=device))
    same(ys, [3 * x for x in xs])
    same(signs, [torch.where(x < 0, -1, 1).to(torch.int32) for x in xs])
    assert ops.scales([], torch.tensor(1.0)) == ([], [])
    metas = ops.scales([x.to("meta") for x in xs], torch.tensor(3.0, device="meta"))
    assert [[(t.shape, t.dtype) for t in ts] for ts in metas] == [
        [(x.shape, dtype) for x in xs] for dtype in (torch.float32, torch.int32)
    ]


def test_compiled(ops, device):
    def step(ys, xs, by):
        ops.axpys(ys, xs, a=3.0)
        scaled, signs = ops.scales(ys, by)
        return [s * sign for s, sign in zip(scaled, signs)]

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for n in (7, 9):
        xs = [torch.randn(n, device=device), torch.randn(n, 2, device=device)]
        ys, by = [torch.randn_like(x) for x in xs], torch.tensor(2.0, device=device)
        expected = [y + 3 * x for y, x in zip(ys, xs)]
        found = compiled(ys, xs, by)
        assert_close(ys, expected)
        assert_close(found, [2 * e.abs() for e in expected])


def make(device, *shape):
    return torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)


def draw_glus(device):
    xs = [make(device, *s) for s in ((3, 4), (4,), (2, 3, 1))]
    gates = [make(device, *s) for s in ((3, 1), (3, 4), (1, 3, 4))]
    return xs, gates, make(device, 4), make(device, 3, 1)


def glus(xs, gates, by, b):
    ys = [x * torch.tanh(g) * by + b * x * x for x, g in zip(xs, gates)]
    return ys, [(2 * x * torch.exp(by)).broadcast_to(y.shape) for x, y in zip(xs, ys)]


PICKS = {
    "all": lambda ys, zs: sum(v.sin().sum() for v in [*ys, *zs]),
    "one of a list": lambda ys, zs: ys[1].sin().sum(),
    "one list": lambda ys, zs: zs[2].sum() + zs[0].sum(),
}


@pytest.mark.parametrize("pick", PICKS)
def test_gradients(ops, device, pick):
    """By formulas, of lists and of what all share, against PyTorch's."""
    args = draw_glus(device)
    flat = [*args[0], *args[1], *args[2:]]
    found, expected = ops.glus(*args), glus(*args)
    assert_close(found, expected)
    wanted = torch.autograd.grad(PICKS[pick](*expected), flat, allow_unused=True)
    grads = torch.autograd.grad(PICKS[pick](*found), flat, allow_unused=True)
    for g, w in zip(grads, wanted):
        assert_close(torch.zeros_like(w) if g is None else g, w) if w is not None else not (g is not None and g.any())


def test_gradients_of_kernels(ops, device):
    xs, w = [make(device, 4, 3), make(device, 2, 3)], make(device, 3)
    assert torch.autograd.gradcheck(lambda *t: tuple(ops.dots(list(t[:2]), t[2])[0]), (*xs, w))
    ys, signs = ops.dots([x.detach() for x in xs], w)  # of one only
    assert all(y.requires_grad for y in ys) and not any(s.requires_grad for s in signs)
    sum(y.sum() for y in ys).backward()
    assert_close(w.grad, sum(x.detach().sum(0) for x in xs))
    ys, _ = ops.dots([], w)
    assert ys == []
    grad = torch.autograd.grad(ops.dots(xs, w)[0][0].sum(), xs[0], create_graph=True)[0]
    with pytest.raises(opd.OpdError, match="dots takes lists of tensors, which have no second derivatives"):
        grad.sum().backward()


def test_gradients_compiled(ops, device):
    args = draw_glus(device)
    flat = [*args[0], *args[1], *args[2:]]
    loss = lambda xs, gates, by, b: PICKS["all"](*ops.glus(xs, gates, by, b))  # noqa: E731
    found = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*args), flat)
    assert_close(found, torch.autograd.grad(PICKS["all"](*glus(*args)), flat))


def test_functionalized(ops, device):
    """Lists in and out, with gradients around."""
    args = draw_glus(device)
    flat = [*args[0], *args[1], *args[2:]]

    def pending(xs, gates, by, b):
        xs = [x * 1 for x in xs]
        xs[0][1:].mul_(2)
        return ops.glus(xs, gates, by, b), ops.shifts(xs)

    found, expected = (
        torch.autograd.grad(PICKS["all"](*made) + sum(y.sum() for y in shifted), flat)
        for made, shifted in (torch.func.functionalize(pending)(*args), pending(*args))
    )
    assert_close(found, expected)


class Drafted(torch.nn.Module):
    def forward(self, x, w):
        params = [x.clone(), w.clone()]
        opd.torch.ops.sgd_steps(params, [w, w], lr=0.5)
        opd.torch.ops.axpys(params, [w, w], a=0.0)  # in place, and the same as before
        ys = opd.torch.ops.shifts(params)
        zs, _ = opd.torch.ops.glus(opd.torch.ops.shifts(ys, params), params, w)
        n = int(ys[0].sum().item())  # what comes after knows the values
        return x[:n], *zs


def test_a_draft(ops, device):
    """Of lists that are absent, and of some that are changed in place."""
    x, w = torch.ones(4, device=device), torch.full((4,), 0.5, device=device)
    drafted = torch.export.draft_export(Drafted(), (x, w))
    expected = Drafted()(x, w)
    assert expected[0].shape == (4,)
    for model in (drafted, drafted.run_decompositions()):
        same(model.module()(x, w), expected)


class DraftedConstants(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.quarters = torch.full((4,), 0.25, device=device)

    def forward(self, x):
        ys = opd.torch.ops.shifts([self.quarters, x])
        (zs,) = opd.torch.ops.shifts([self.quarters], a=1.0)
        return x[: int(ys[0].sum().item())], x[: int(zs.sum().item())]


def test_a_draft_of_constants(ops, device):
    """In lists with and without tensors of the caller's."""
    x = torch.ones(4, device=device)
    model = DraftedConstants(device)
    expected = model(x)
    assert [len(y) for y in expected] == [2, 1]
    same(torch.export.draft_export(model, (x,)).module()(x), expected)


def test_opcheck(ops, device):
    torch.library.opcheck(ops.glus.overload, draw_glus(device))
    ys, xs = draw(device, 2), draw(device, 2)
    torch.library.opcheck(ops.axpys.overload, (ys, xs))
    torch.library.opcheck(ops.scales.overload, (xs, torch.tensor(2.0, device=device)))


def batch_grads(ops, leaf):
    batch = torch.eye(len(leaf), device=leaf.device)
    return torch.autograd.grad(ops.shifts([leaf])[0], leaf, batch, is_grads_batched=True)


def vmap_grads(ops, leaf):
    y = ops.shifts([leaf])[0]
    return torch.vmap(lambda grad: torch.autograd.grad(y, leaf, grad))(torch.eye(len(leaf), device=leaf.device))


def test_refused(ops, device):
    x, z, y = (torch.zeros(n, device=device) for n in (4, 4, 5))
    leaf = torch.zeros(4, device=device, requires_grad=True)
    whole = torch.zeros(8, device=device)
    by = torch.tensor(1.0, device=device)
    for error, call, message in (
        (opd.InvalidArgument, lambda: ops.axpys([x, y], [z]), "xs has 1 tensor, ys has 2; expected as many"),
        (opd.InvalidArgument, lambda: ops.axpys([x, y], [z, z]), r"at \[1\]: xs is \[4\]"),
        (opd.InvalidArgument, lambda: ops.axpys([x, x], [z, z]), r"ys\[0\] and ys\[1\] share memory, and ys\[.\] is"),
        (opd.InvalidArgument, lambda: ops.axpys([x, z], [z, z]), r"ys\[1\] and xs\[0\] share memory, and ys\[1\] is"),
        (opd.InvalidArgument, lambda: ops.axpys([whole[:4]], [whole[2:6]]), r"ys\[0\] and xs\[0\] share memory"),
        (opd.OpdError, lambda: ops.axpys([leaf], [z]), "axpys changes ys in place, which autograd cannot follow; call"),
        (opd.OpdError, lambda: ops.scales([leaf], by), "scales has no gradient; call it under torch.no_grad"),
        (opd.OpdError, lambda: torch.func.vmap(lambda t: ops.scales([t], by)[0][0])(x[None]), "scales"),
        (opd.OpdError, lambda: torch.func.jvp(lambda t: ops.scales([t], by)[0][0], (x,), (z,)), "scales takes lists"),
        (opd.OpdError, lambda: batch_grads(ops, leaf), "shifts cannot be used under torch.vmap or is_grads_batched=True"),
        (opd.OpdError, lambda: vmap_grads(ops, leaf), "shifts cannot be used under torch.vmap or is_grads_batched=True"),
        (RuntimeError, lambda: ops.axpys(x, [z]), "argument 'ys' must be a list of tensors, not Tensor; it is axpys"),
        (RuntimeError, lambda: ops.axpys([x], [None]), "'xs' must be a list of tensors, one is None; it is axpys"),
        (RuntimeError, lambda: ops.axpys([x], [1]), "argument 'xs' must be a list of tensors, not int 1; it is"),
    ):
        with pytest.raises(error, match=message):
            call()
    ops.axpys((t for t in [x, z]), [x, z])  # the same at the same place
    assert not x.any() and not leaf.any()


@pytest.mark.parametrize("name", ("sgd_steps", "adam_steps"))
def test_optimizers(ops, device, name):
    """Those that come with opd, as a training loop uses them."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 2)).to(device)
    other = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 2)).to(device)
    other.load_state_dict(model.state_dict())
    params, x = list(model.parameters()), torch.randn(5, 7, device=device)
    state = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    if name == "sgd_steps":
        theirs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    else:
        theirs = torch.optim.Adam(other.parameters(), lr=0.01)
    for step in range(1, 4):
        for each in (model, other):
            each.zero_grad()
            each(x).square().sum().backward()
        grads = [p.grad for p in params]
        with torch.no_grad():
            if name == "sgd_steps":
                ops.sgd_steps(params, grads, state[0], lr=0.1, momentum=0.9)
            else:
                ops.adam_steps(params, grads, *state, step=step, lr=0.01)
        theirs.step()
        assert_close(params, list(other.parameters()))
