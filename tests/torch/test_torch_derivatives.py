"""Derivatives and batches of every operator that the daemon has, generated from what it says of them:
opcheck, gradcheck, gradgradcheck, forward mode, vmap, hessian; or a refusal by name."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd
import opd.torch

FILES = sorted(p.stem for p in (ROOT / "kernels_src").glob("*.cu")) + ["mixed", "by_output"]


def get_spec(name):
    return opd.torch._session.get_session().find(name)


def shrink(shape):
    return [n if n < 5 else 2 + n % 3 for n in shape]


def find_examples(spec):
    """The file's own and the same made small, the smallest first."""
    found = []
    for example in spec.info["examples"]:
        for change in (list, shrink):
            inputs = [i and {**i, "shape": change(i["shape"])} for i in example["inputs"]]
            size = sum(math.prod(i["shape"]) for i in inputs if i)
            found.append((size, len(found), inputs, example["attrs"]))
    return [(inputs, attrs) for _, _, inputs, attrs in sorted(found, key=lambda e: e[:2])]


class Case:
    """An operator as a function of its floating tensors, with the others and attributes fixed."""

    def __init__(self, ops, name):
        self.name, self.spec = name, get_spec(name)
        self.function = ops[name]
        generator = torch.Generator().manual_seed(1)
        for inputs, attrs in find_examples(self.spec):
            self.tensors = [self._draw(i, info, generator) for i, info in zip(inputs, self.spec.inputs)]
            self.attrs = dict(zip(self.spec.attrs, attrs.values()))
            try:
                self.function(*(t if t is None else t.clone() for t in self.tensors), **self.attrs)
                break
            except opd.InvalidArgument:
                continue  # a shape that was made smaller than it may be
        # What is floating but has no gradient, as labels in a loss, stays as it is.
        able = [i for i, t in enumerate(self.tensors) if t is not None and t.is_floating_point()]
        if self.spec.info["has_backward"]:
            able = [i for i in able if self.spec.inputs[i]["differentiable"]]
        self.floating = able
        self.given = tuple(self.tensors[i].requires_grad_() for i in able)
        self.mutates = any(i["in_place"] for i in self.spec.inputs)
        self.differentiable = self.spec.info["has_backward"] and not self.mutates
        views = any(o["view"] for o in self.spec.outputs)
        self.again = self.differentiable and bool(
            self.spec.info["derivable"] or self.spec.info["linear"] or views
        )
        self.views = views

    def _draw(self, described, info, generator):
        if described is None:
            return None
        dtype = getattr(torch, "float64" if "float64" in info["dtypes"] else described["dtype"])
        values = torch.rand(described["shape"], generator=generator, dtype=torch.float64)
        number = info["differentiable"] or not self.spec.info["has_backward"]
        return (0.1 + 0.8 * values if number else values.round()).to(dtype)

    def __call__(self, *given):
        tensors = list(self.tensors)
        for i, tensor in zip(self.floating, given):
            tensors[i] = tensor
        return self.function(*tensors, **self.attrs)

    def total(self, *given):
        made = self(*given)
        return sum((t**2).sum() for t in (made if isinstance(made, tuple) else (made,)))


@pytest.fixture(params=FILES)
def case(ops, request):
    if request.param not in ops:
        pytest.skip("another file gives it")
    if "Tensor[]" in ops[request.param].schema:
        pytest.skip("lists have no derivatives")
    return Case(ops, request.param)


def only(condition, why):
    if not condition:
        pytest.skip(why)


def test_opcheck(case):
    tensors = [t if t is None else t.detach().clone() for t in case.tensors]
    if case.differentiable:
        for i, info in enumerate(case.spec.inputs):
            if info["differentiable"] and tensors[i] is not None:
                tensors[i].requires_grad_()
    torch.library.opcheck(case.function.overload, tuple(tensors), case.attrs)


def test_gradcheck(case):
    only(case.differentiable, "it has no gradient")
    modes = {"check_forward_ad": True, "check_batched_forward_grad": True} if case.again else {}
    assert gradcheck(case, case.given, fast_mode=True, check_batched_grad=True, **modes)


def test_gradgradcheck(case):
    only(case.differentiable, "it has no gradient")
    if case.again:
        assert gradgradcheck(case, case.given, fast_mode=True, check_fwd_over_rev=True)
        return
    with pytest.raises(opd.OpdError, match=f"opd: {case.name} has no second derivative; .*`linear` lines"):
        gradgradcheck(case, case.given, fast_mode=True)


def test_forward_mode(case):
    only(case.differentiable and not case.again, "gradcheck checks it")
    with forward_ad.dual_level(), pytest.raises(
        opd.OpdError, match=f"opd: {case.name} has no forward-mode derivative; .*`linear` lines"
    ):
        case(*(forward_ad.make_dual(t.detach(), torch.ones_like(t)) for t in case.given))
    with pytest.raises(opd.OpdError, match=f"opd: {case.name} has no forward-mode derivative"):
        torch.func.jvp(case, tuple(t.detach() for t in case.given), case.given)


def in_tuple(made):
    return made if isinstance(made, tuple) else (made,)


def test_vmap(case):
    only(not case.mutates, "it changes its tensors")
    given = [torch.stack([t.detach(), 0.5 * t.detach(), 0.3 * t.detach()]) for t in case.given]
    for dims in {(0,) * len(given), (0,) + (None,) * (len(given) - 1), (None,) * (len(given) - 1) + (0,)}:
        values = [t if d == 0 else t[0] for t, d in zip(given, dims)]
        got = in_tuple(torch.vmap(case, in_dims=dims)(*values))
        rows = [in_tuple(case(*(t[k] if d == 0 else t for t, d in zip(values, dims)))) for k in range(3)]
        assert_close(got, tuple(map(torch.stack, zip(*rows))))


def test_gradients_of_each_of_a_batch(case):
    only(case.differentiable, "it has no gradient")
    given = [torch.stack([t.detach(), 0.5 * t.detach()]) for t in case.given]
    grad = torch.func.grad(case.total, argnums=tuple(range(len(given))))
    rows = [grad(*(t[k] for t in given)) for k in range(2)]
    assert_close(torch.vmap(grad)(*given), tuple(map(torch.stack, zip(*rows))))


def test_hessian(case):
    only(case.again, "gradgradcheck says that it has none")
    x = case.given[0].detach()
    rest = [t.detach() for t in case.given[1:]]
    got = torch.func.hessian(lambda v: case.total(v, *rest))(x)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(case.total(leaf, *rest), leaf, create_graph=True)
    rows = [torch.autograd.grad(s, leaf, retain_graph=True)[0] for s in slope.reshape(-1)[:5]]
    assert_close(got.reshape(-1, *x.shape)[: len(rows)], torch.stack(rows))


def test_tangent_of_tangents(case):
    only(case.again, "it has no second derivatives")
    given = tuple(t.detach() for t in case.given)

    def push(f):
        return lambda *values: torch.func.jvp(f, values, given)[1]

    grad = torch.func.grad(case.total, argnums=tuple(range(len(given))))
    slopes = torch.func.jvp(grad, given, given)[1]
    assert_close(push(push(case.total))(*given), sum((s * t).sum() for s, t in zip(slopes, given)))


def test_vmap_of_no_calls(case):
    only(not case.mutates, "it changes its tensors")
    given = [t.detach() for t in case.given]
    none = [t.new_empty((0, *t.shape)) for t in given]
    made = in_tuple(torch.vmap(case)(*none))
    assert [t.shape for t in made] == [(0, *t.shape) for t in in_tuple(case(*given))]

    def run(*values):
        return [t for t in in_tuple(case(*values)) if t.is_floating_point()]

    def pull(*values):  # torch sums no empty batch
        made, back = torch.func.vjp(run, *values)
        return back(made)

    if case.differentiable:
        assert [t.shape for t in torch.vmap(pull)(*none)] == [t.shape for t in none]


def test_what_changes_its_tensors_is_refused(case):
    only(case.mutates, "it changes none")
    with pytest.raises(opd.OpdError, match=f"opd: {case.name} changes tensors in place, .*call it outside"):
        torch.vmap(case)(*(torch.stack([t.detach()] * 2) for t in case.given))


# --- against torch's own


REFERENCES = {
    "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "elu": F.elu, "relu": F.relu,
    "acos": torch.acos, "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("way", ["ops", "torch.ops"])
def test_transforms_give_torchs_values(ops, draw, name, way):
    function = ops[name] if way == "ops" else getattr(torch.ops.opd, name)
    reference, x = REFERENCES[name], 0.3 * draw(4)
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        assert_close(transform(function)(x), transform(reference)(x))
    if name in ("layer_norm", "rms_norm"):  # of scalars there is none
        return
    third = [torch.func.grad(torch.func.grad(torch.func.grad(f))) for f in (function, reference)]
    assert_close(torch.vmap(third[0])(x), torch.vmap(third[1])(x))
    for strategy in ("reverse-mode", "forward-mode"):
        jacobian = torch.autograd.functional.jacobian(function, x, vectorize=True, strategy=strategy)
        assert_close(jacobian, torch.func.jacrev(reference)(x))


@pytest.mark.parametrize("name", ["relu", "elu", "silu", "sigmoid", "tanh"])
def test_corners_are_torchs(ops, device, name):
    x = torch.tensor([-2.0, -0.0, 0.0, 1.0], device=device)
    found, expected = (
        [f(x), *torch.func.jvp(f, (x,), (torch.ones_like(x),)), torch.func.grad(lambda x: f(x).sum())(x)]
        for f in (ops[name], REFERENCES[name])
    )
    assert_close(found, expected)


def test_batches_of_gradients_in_another_thread(ops, draw):
    """As autograd's own for GPUs, where torch does not count the levels of its vmap."""
    from torch._vmap_internals import _vmap

    x = draw(4, grad=True)
    y = ops.silu(x)

    def differentiate(grad):
        return torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    def in_thread(grad):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(differentiate, grad).result()

    grads = draw(2, 3, 4)
    got = _vmap(_vmap(in_thread, 0, 0), 0, 0)(grads)
    assert_close(got, torch.stack([torch.stack([differentiate(g) for g in row]) for row in grads]))


def test_a_batch_is_one_call(ops, draw, monkeypatch):
    session, calls = opd.torch._session.get_session(), []
    forward = session.forward
    monkeypatch.setattr(session, "forward", lambda *a: (calls.append(a[0].name), forward(*a))[1])
    with opd.torch.options():
        torch.vmap(ops.silu)(draw(7, 4))
        torch.vmap(ops.mul, in_dims=(1, None))(draw(4, 7), draw(3, 4))
        torch.vmap(ops.gelu)(draw(7, 4))
        torch.vmap(ops.depthwise_conv2d, in_dims=(0, None))(draw(5, 2, 3, 6, 6), draw(3, 1, 3, 3))
        torch.vmap(ops.depthwise_conv2d)(draw(5, 2, 3, 6, 6), draw(5, 3, 1, 3, 3))
        torch.vmap(lambda x: ops.upsample_bilinear2d(x, scale=2))(draw(5, 2, 3, 6, 6))
        cell = draw(5, 2, 3), draw(12, 7), draw(12), draw(5, 2, 4), draw(5, 2, 4)
        torch.vmap(ops.lltm, in_dims=(0, None, None, 0, 0))(*cell)
    assert len(calls) <= 7


def test_batches_of_gradients_of_what_folds(ops, draw):
    """What was saved for one call serves the batch."""
    sizes = (2, 3), (12, 7), (12,), (2, 4), (2, 4)
    leaves = [draw(*size, grad=i in (0, 3, 4)) for i, size in enumerate(sizes)]
    h, wanted, grads = ops.lltm(*leaves)[0], [leaves[i] for i in (0, 3, 4)], draw(6, 2, 4)
    got = torch.autograd.grad(h, wanted, grads, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(h, wanted, g, retain_graph=True) for g in grads]
    assert_close(got, tuple(map(torch.stack, zip(*each))))


def test_gradients_of_each_example_of_a_convolution(ops, draw):
    x, weight, bias = draw(3, 2, 2, 6, 5), draw(4, 1, 3, 3), draw(4)

    def per_example(function):
        def loss(weight, bias, x):
            return function(x, weight, bias).pow(2).sum()

        return torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, None, 0))(weight, bias, x)

    got = per_example(lambda *a: ops.depthwise_conv2d(*a, padding=1))
    assert_close(got, per_example(lambda *a: F.conv2d(*a, padding=1, groups=2)))


def test_tangents_in_compiled_code(ops, draw):
    x, w = draw(1, 2, 5, 5), draw(2, 1, 3, 3)

    def push(x, w):
        return torch.func.jvp(ops.depthwise_conv2d, (x, w), (w.sum() * x, w))[1]

    assert_close(torch.compile(push, backend="eager")(x, w), push(x, w))


def test_autocast_reaches_into_torch_func(ops, draw):
    x, w = draw(1, 2, 5, 5, dtype=torch.float32), draw(2, 1, 3, 3, dtype=torch.float32)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y, tangent = torch.func.jvp(lambda x: ops.depthwise_conv2d(x, w), (x,), (x,))
    assert y.dtype == tangent.dtype == torch.bfloat16


def test_backward_twice_after_an_edit(start_daemon, tmp_path):
    """What forward ran is what is differentiated, however often."""
    text = "//! op cube(Tensor x) -> Tensor y\n//! dtypes float64\n//! formula y = {} * x * x * x\n//! example x=[3]\n"
    (tmp_path / "cube.cu").write_text(text.format(1))
    daemon = start_daemon("--kernels", str(ROOT / "kernels_src"), "--kernels", str(tmp_path))
    opd.torch.use(daemon.socket)
    x = torch.tensor([1.0, 2, 3], dtype=torch.float64, requires_grad=True)
    y = opd.torch.ops.cube(x)
    (tmp_path / "cube.cu").write_text(text.format(10))
    with daemon.connect() as client:
        client.reload()
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(slope.sum(), x)
    assert_close(slope.detach(), 3 * x.detach() ** 2)
    assert_close(again, 6 * x.detach())
    assert_close(opd.torch.ops.cube(x.detach()), 10 * x.detach() ** 3)


AROUND = {
    "nothing": lambda f, x: f(x),
    "autograd": lambda f, x: torch.autograd.grad(f(x).sum(), x)[0],
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: torch.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ["silu", "depthwise_conv2d"])
def test_functionalized(ops, draw, name, around):
    x, weight = draw(2, 1, 4, 5, 5, grad=around == "autograd"), draw(4, 1, 3, 3)
    call, theirs = {
        "silu": (ops.silu, F.silu),
        "depthwise_conv2d": (
            lambda x: ops.depthwise_conv2d(x.flatten(0, -4), weight),
            lambda x: F.conv2d(x.flatten(0, -4), weight, groups=4),
        ),
    }[name]

    def change_first(x):  # what is pending in a view of x, it must see
        x = x.clone()
        x[..., 0].mul_(2)
        return call(x)

    def expected(x):
        x = x.clone()
        x[..., 0].mul_(2)
        return theirs(x)

    assert_close(AROUND[around](torch.func.functionalize(change_first), x), AROUND[around](expected, x))


@pytest.mark.parametrize("around", [w for w in AROUND if w not in ("nothing", "autograd")])
def test_functionalized_around_another_transform(ops, draw, around):
    with pytest.raises(opd.OpdError, match="silu cannot be followed by torch.func.functionalize around another"):
        torch.func.functionalize(lambda x: AROUND[around](ops.silu, x))(draw(2, 3))
