"""Sizes that torch's compilers leave open: shapes follow from the operators' rules."""

import math

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from scale_operator import X, save, scale, write_scale  # noqa: F401
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import assert_close
from torch_fixtures import DEVICE, device, draw, ops, run_fresh, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd._shapes import Misfit, Rules
from opd.torch._shapes import Symbols

SIZES = range(3, 53)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def requests(ops, monkeypatch):
    """The methods of all requests from now on."""
    made = []
    call = opd._conn.Connection.call

    def record(self, method, *args, **rest):
        made.append(method)
        return call(self, method, *args, **rest)

    monkeypatch.setattr(opd._conn.Connection, "call", record)
    return made


def compile_counting(f, backend="aot_eager", **options):
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    return torch.compile(f, backend=counter, fullgraph=True, **options), counter


# --- the rules

ROUNDS = 3


def open_sizes(inputs):
    """dtypes and shapes as of fake tensors, all sizes open but 0 and 1."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    return [
        d and (d["dtype"], tuple(mode.from_tensor(torch.empty(d["shape"], device="meta")).shape))
        for d in inputs
    ]


def to_number(size):
    return size.node.hint if isinstance(size, torch.SymInt) else size


@pytest.mark.parametrize("open", [False, True])
def test_every_operators_examples_as_planned(ops, torch_daemon, open):
    """Whose sizes and refusals are the daemon's; and no size that was open has become a number."""
    checked, left_open = 0, set()
    with torch_daemon.connect() as client:
        for info in client._conn.call("op_list"):
            if any(i.get("list") for i in info["inputs"]):
                continue  # the rules speak of a tensor of each
            for example in info["examples"]:
                inputs, attrs = example["inputs"], example["attrs"]
                for grown in range(ROUNDS):
                    sizes = [d and {**d, "shape": [n + grown * (n > 1) for n in d["shape"]]} for d in inputs]
                    descs = open_sizes(sizes) if open else [d and (d["dtype"], d["shape"]) for d in sizes]
                    given = [d and [d["dtype"], d["shape"]] for d in sizes]
                    try:
                        plan = client._conn.call("plan", info["name"], given, attrs, {"device": DEVICE})
                    except opd.InvalidArgument as e:
                        with pytest.raises(Misfit) as misfit:
                            infer(info, descs, attrs)
                        assert grown and (str(misfit.value) in str(e) or "dimension" in str(e)), info["name"]
                        continue
                    results = infer(info, descs, attrs)
                    for got, expected in ((results.outputs, plan["outputs"]), (results.saved, plan["saved"])):
                        assert [[d, list(map(to_number, s))] for d, s in got] == expected, info["name"]
                    checked += 1
                    if are_open(descs):
                        left_open.add(info["name"])
        # 3*S is 3 where S is 1, but no operator has only such examples.
        with_examples = {info["name"] for info in client._conn.call("op_list") if info["examples"]}
        with_examples = {name for name in with_examples & {*ops} if "[]" not in ops[name].schema}
        assert checked > 100 and (not open or left_open == with_examples)


def infer(info, descs, attrs):
    return Rules(info).infer(descs, list(attrs.values()), lambda: DEVICE == "cpu", Symbols())


def are_open(descs):
    sizes = [n.node for d in descs if d for n in d[1] if isinstance(n, torch.SymInt)]
    return not any(n.shape_env.replace(n.expr).is_number for n in sizes)


# --- torch.compile


def make_lltm(n, draw):
    return draw(n, 4), draw(15, 9), draw(15), draw(n, 5), draw(n, 5)


MODELS = {
    "gelu": (lambda ops, x: ops.gelu(x.sin(), approximate="tanh") * 2, lambda n, draw: [draw(n, n + 1)]),
    "depthwise_conv2d": (
        lambda ops, x, w, b: ops.depthwise_conv2d(x, w, b, stride=2, padding=1) + 1,
        lambda n, draw: [draw(2, 2, n + 2, n + 7), draw(4, 1, 3, 3), draw(4)],
    ),
    "scale": (
        lambda ops, x: ops.upsample_bilinear2d(x, scale=1.5),
        lambda n, draw: [draw(2, 1, n, n + 4)],
    ),
    "size": (
        lambda ops, x: ops.upsample_bilinear2d(x, size=7),
        lambda n, draw: [draw(2, 1, n, n + 4)],
    ),
    "open size": (
        lambda ops, x: ops.upsample_bilinear2d(x, size=(x.shape[2] * 2, x.shape[3] + 3)),
        lambda n, draw: [draw(2, 1, n, n + 4)],
    ),
    "lltm": (lambda ops, *tensors: ops.lltm(*tensors)[0] * 2, make_lltm),
    "broadcasting add": (lambda ops, x, y: ops.add(x, y), lambda n, draw: [draw(n, 1, 4), draw(n + 3, 1)]),
    "formula": (lambda ops, x: ops.silu(x), lambda n, draw: [draw(2, n)]),
    "view": (lambda ops, x: ops.flatten(x) * 2, lambda n, draw: [draw(2, n)]),
    "no input": (
        lambda ops, x: ops.ramp(count=x.shape[0], step=x.shape[0], device=x.device) + x,
        lambda n, draw: [draw(n)],
    ),
    "saved": (lambda ops, x, b: sum(ops.two_results(x, b)), lambda n, draw: [draw(n, 2), draw(n, 2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_frame_for_all_sizes(ops, draw, name, requests):
    f, make = MODELS[name]
    model, counter = compile_counting(lambda *tensors: f(ops, *tensors), dynamic=True)
    for n in SIZES:
        tensors = make(n, draw)
        with torch.no_grad():
            assert_close(model(*tensors), f(ops, *tensors))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "name, backend", [*((name, "aot_eager") for name in MODELS), ("gelu", "inductor"), ("lltm", "inductor")]
)
def test_backward_of_all_sizes(ops, draw, name, backend):
    f, make = MODELS[name]
    model, counter = compile_counting(lambda *tensors: f(ops, *tensors), backend, dynamic=True)
    for n in SIZES[:: 16 if backend == "inductor" else 5]:
        tensors = [t.requires_grad_() for t in make(n, draw)]
        y, expected = model(*tensors), f(ops, *tensors)
        grad = draw(*expected.shape, seed=1)
        assert_close(y, expected)
        assert_close(
            torch.autograd.grad(y, tensors, grad), torch.autograd.grad(expected, tensors, grad)
        )
    assert counter.frame_count == 1


TRANSFORMS = {
    "vmap": (
        lambda ops: torch.vmap(lambda x: ops.upsample_bilinear2d(x, scale=2.0)),
        lambda n, draw: [draw(n, 2, 1, n + 2, n + 3)],
    ),
    "grad": (
        lambda ops: torch.func.grad(lambda x: ops.silu(x).sum()),
        lambda n, draw: [draw(n, n + 2)],
    ),
    "jvp": (
        lambda ops: lambda x: torch.func.jvp(ops.silu, (x,), (x,))[1],
        lambda n, draw: [draw(n, n + 2)],
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_all_sizes(ops, draw, name):
    transform, make = TRANSFORMS[name]
    f = transform(ops)
    model, counter = compile_counting(f, dynamic=True)
    for n in SIZES[::8]:
        assert_close(model(*make(n, draw)), f(*make(n, draw)))
    assert counter.frame_count == 1


def test_dimensions_marked_dynamic(ops, draw):
    model, counter = compile_counting(lambda x: ops.upsample_bilinear2d(x, scale=2.0))
    for n in SIZES:
        x = draw(n, 1, 3, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(model(x), ops.upsample_bilinear2d(x, scale=2.0))
    assert counter.frame_count == 1


def test_sizes_that_grow_are_left_open_by_themselves(ops, draw):
    """As torch does: the second size opens it, and then there is one for all."""
    model, counter = compile_counting(lambda x: ops.gelu(x) + 1)
    for n in SIZES:
        model(draw(n, 5))
    assert counter.frame_count == 2


@pytest.mark.parametrize("s", ["more", "less"])
def test_every_way_to_make_a_size(ops, draw, s):
    model, counter = compile_counting(lambda x: ops.sizes(x, n=3, s=s), dynamic=True)
    for n in [*SIZES[::4], 100, 2]:
        for got, expected in zip(model(draw(n, 6)), ops.sizes(draw(n, 6), n=3, s=s)):
            assert got.shape == expected.shape and bool((got == 1).all())
    assert counter.frame_count <= 5  # torch compiles sizes of 1 apart, and 6 where it is N, too


@pytest.mark.parametrize("name", ["gelu", "depthwise_conv2d", "broadcasting add", "lltm", "saved"])
def test_dimensions_of_which_nothing_is_known(ops, draw, name):
    f, make = MODELS[name]
    model, counter = compile_counting(lambda *tensors: f(ops, *tensors))
    for n in (6, 9):
        tensors = make(n, draw)
        for t, other in zip(tensors, make(n + 1, draw)):
            for d in range(t.dim()):
                if t.shape[d] != other.shape[d]:
                    torch._dynamo.decorators.mark_unbacked(t, d)
        with torch.no_grad():
            assert_close(model(*tensors), f(ops, *tensors))
    assert counter.frame_count == 1


def test_in_place_of_all_sizes(ops, draw):
    def step(param, grad):
        ops.step_down(param, grad * 2, lr=0.25)
        return param + 1

    model, counter = compile_counting(step, "inductor", dynamic=True)
    for n in SIZES[::8]:
        param, grad = draw(n, 2), draw(n, 2, seed=1)
        expected = param - 0.5 * grad
        with torch.no_grad():
            assert_close(model(param, grad), expected + 1)
        assert_close(param, expected)
    assert counter.frame_count == 1


def test_sizes_that_depend_on_data(ops, draw):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        def f(x, n):
            some = x[x[:, 0, 0, 0] > 0]
            return ops.upsample_bilinear2d(ops.gelu(some), size=(n.item(), 3)), ops.flatten(some)

        model, counter = compile_counting(f)
        for seed in range(4):
            x, n = draw(9, 1, 2, 3, seed=seed), torch.tensor(seed + 4)
            assert_close(model(x, n), f(x, n))
        assert counter.frame_count == 1


def test_what_is_asked_while_compiling(ops, draw, requests):
    """The interface alone, and no shapes."""
    model, _ = compile_counting(lambda x: ops.gelu(ops.gelu(x)), dynamic=True)
    with torch.no_grad():
        ops.gelu(draw(3, 4))
        requests.clear()
        torch._dynamo.export(lambda x: ops.gelu(ops.gelu(x)))(torch.empty(5, 6))
    assert "plan" not in requests
    model(draw(3, 4))


def test_shapes_of_meta_tensors_ask_nothing(ops, requests):
    x = torch.empty(2, 3, 9, 8, device="meta")
    ops.depthwise_conv2d(x, torch.empty(3, 1, 3, 3, device="meta"))
    requests.clear()
    y = ops.depthwise_conv2d(x, torch.empty(3, 1, 2, 2, device="meta"), stride=2)
    assert y.shape == (2, 3, 4, 4) and requests == []


# --- errors

REFUSED = {
    (2, 2, 2, 6): "depthwise_conv2d: the window of 3 x 3 exceeds the padded input, 2 x 6",
    (2, 4, 6, 6): "depthwise_conv2d: weight has 2 channels in dimension 0, input has 4; expected",
    (2, 6, 6): "depthwise_conv2d: input has rank 3 .2, 6, 6., expected rank 4",
}


def test_what_is_refused_is_told_in_the_daemons_words(ops, draw):
    w = draw(2, 1, 3, 3)
    model, _ = compile_counting(lambda x: ops.depthwise_conv2d(x, w), dynamic=True)
    model(draw(2, 2, 6, 6))
    for shape, message in REFUSED.items():
        with pytest.raises(RuntimeError, match=message):
            model(draw(*shape))
        with pytest.raises(opd.InvalidArgument, match=message):
            ops.depthwise_conv2d(draw(*shape).to("meta"), w.to("meta"))


def test_what_is_refused_where_nobody_knows_the_size(ops, draw):
    """Nor can the daemon be asked: the rule's own words are told, with symbols in them."""
    w = draw(2, 1, 3, 3)

    def f(x, n):
        return ops.depthwise_conv2d(x[:, :, : min(n.item(), 2)], w)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        with pytest.raises(Exception, match="(exceeds the padded input|data-dependent)"):
            compile_counting(f)[0](draw(2, 2, 6, 6), torch.tensor(2))


def test_another_version_is_asked_of_the_daemon(scale, tmp_path):
    opd.torch.ops.scale(X)
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "scale.cu", text.replace("shape   y [...S]", "shape   y [2, ...S]"))
    scale.reload()
    opd.torch.refresh()
    x = torch.empty(3, device="meta")
    assert opd.torch.ops.scale(x).shape == (2, 3)
    with opd.torch.options(version=1):
        assert opd.torch.ops.scale(x).shape == (3,)


def test_an_edit_of_shapes_is_told_to_compiled_code(scale, tmp_path):
    model = torch.compile(lambda x: opd.torch.ops.scale(x) + 1, fullgraph=True, backend="aot_eager")
    assert_close(model(X), X * 2 + 1)
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "scale.cu", text.replace("//! let     by", "//! require n > 2\n//! let     by"))
    scale.reload()
    assert_close(model(X), X * 2 + 1)
    save(tmp_path / "scale.cu", text.replace("shape   y [...S]", "shape   y [2, ...S]"))
    scale.reload()
    with pytest.raises(opd.torch.InterfaceChanged, match="torch.compiler.reset"):
        model(X)
    torch.compiler.reset()
    assert model(X).shape == (2, 3)


# --- torch.export


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.conv = opd.torch.DepthwiseConv2d(3, bias=True, dtype=dtype)
        self.up = opd.torch.UpsampleBilinear2d(scale_factor=1.5)

    def forward(self, x, h):
        y = opd.torch.ops.gelu(self.up(self.conv(x)), approximate="tanh")
        y = opd.torch.ops.upsample_bilinear2d(y, size=(x.shape[2], 5))
        return opd.torch.ops.add(y, h), opd.torch.ops.flatten(y)


RANGES = ({0: Dim("N", min=2, max=16), 2: Dim("H", min=5, max=64), 3: Dim("W", min=5, max=64)}, None)
RUN = """
import sys, torch, opd.torch
opd.torch.register()
model = torch.export.load(sys.argv[1] + "/model.pt2").module()
torch.save([model(*args) for args in torch.load(sys.argv[1] + "/args.pt")], sys.argv[1] + "/y.pt")
try:
    x, h = torch.load(sys.argv[1] + "/args.pt")[0]
    model(x.new_zeros(2, 3, 65, 9), h)
except Exception as e:
    print(e)
"""


def test_an_exported_range_in_a_new_process(ops, draw, run_fresh, tmp_path):
    args = (draw(4, 3, 12, 14), draw(3, 1, 1))
    net = Net().to(args[0].device)
    exported = export(net, args, dynamic_shapes=RANGES)
    assert sorted(str(r) for r in exported.range_constraints.values())[0] == "VR[2, 16]"
    torch.export.save(exported, tmp_path / "model.pt2")
    calls = [(draw(*shape), args[1]) for shape in ((2, 3, 5, 6), (4, 3, 32, 33), (9, 3, 8, 64))]
    torch.save(calls, tmp_path / "args.pt")
    assert "64" in run_fresh(RUN, tmp_path)  # the range is told, of a size beyond it
    for got, call in zip(torch.load(tmp_path / "y.pt"), calls):
        assert_close(got, net(*call))


@pytest.mark.parametrize("factor", [2.0, 1.5, 0.7])
def test_a_resize_of_what_was_halved(ops, draw, factor):
    """A size that is a quotient stays open, odd or even, also where it is multiplied by a float."""
    x = draw(2, 3, 13, 12)
    net = torch.nn.Sequential(
        opd.torch.DepthwiseConv2d(3, 3, stride=2, padding=1).to(x),
        opd.torch.UpsampleBilinear2d(scale_factor=factor),
    )
    model = export(net, (x,), dynamic_shapes=({2: Dim("H", min=5, max=64)},)).module()
    for size in (5, 12, 33, 64):
        x = draw(2, 3, size, 12)
        assert_close(model(x), net(x))


def test_a_range_that_the_operator_refuses(ops, draw):
    """What `require` says becomes a bound of the range, in the daemon's names of nothing."""
    ranges = ({2: Dim("H", min=1, max=64)}, None)
    with pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated .H."):
        x = draw(4, 3, 12, 14)
        export(Net().to(x.device), (x, draw(3, 1, 1)), dynamic_shapes=ranges)


def test_decompositions_of_an_exported_range(ops, draw):
    args = (draw(4, 3, 12, 14), draw(3, 1, 1))
    core = export(Net().to(args[0].device), args, dynamic_shapes=RANGES, strict=True).run_decompositions()
    assert "opd.depthwise_conv2d__" in str(core.graph)
    x = draw(5, 3, 9, 20)
    for got, shape in zip(core.module()(x, args[1]), ((5, 3, 9, 5), (5 * 3 * 9 * 5,))):
        assert got.shape == shape and not math.isnan(got.sum())


def test_a_draft(ops, draw):
    """Of a size that depends on data, and with a tensor that is absent."""

    class Cut(torch.nn.Module):
        def forward(self, x, weight, n):
            return ops.depthwise_conv2d(x[:, : n.item()], weight[: n.item()], padding=n.item()).relu()

    x, weight = draw(2, 4, 5, 6), draw(4, 1, 3, 3)
    drafted = torch.export.draft_export(Cut(), (x, weight, torch.tensor(3)))
    for model in (drafted, drafted.run_decompositions()):
        for n in (3, 2):
            expected = F.conv2d(x[:, :n], weight[:n], padding=n, groups=n).relu()
            assert_close(model.module()(x, weight, torch.tensor(n)), expected)


def test_a_draft_of_what_changes_in_place(ops, draw):
    """Whether it changed by that or not."""

    class Step(torch.nn.Module):
        def forward(self, x, by):
            x = x.clone()
            ops.step_down(x, by, lr=0.5)
            return x[: int(x.sum().item())]

    x = torch.ones_like(draw(5))
    for by in (torch.zeros_like(x), x):
        drafted = torch.export.draft_export(Step(), (x, by))
        assert_close(drafted.module()(x, by), (x - 0.5 * by)[: 5 if by is not x else 2])


def test_opcheck_of_open_sizes(ops, draw):
    x, w = draw(1, 2, 5, 4, grad=True), draw(4, 1, 3, 3, grad=True)
    torch.library.opcheck(torch.ops.opd.depthwise_conv2d.SymInt, (x, w), {"stride": [2, 2]})
    y = torch.ops.opd.depthwise_conv2d(x, w, stride=2)
    assert_close(y, F.conv2d(x, w.repeat(1, 1, 1, 1), stride=2, groups=2))
