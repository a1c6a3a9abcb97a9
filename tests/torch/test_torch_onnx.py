"""Models with operators of opd, exported by torch.onnx.export(dynamo=True), in ONNX Runtime."""

import warnings

import pytest
import torch
from scale_operator import X, save, scale  # noqa: F401
from torch import nn
from torch.export import Dim
from torch.testing import assert_close
from torch_fixtures import KERNELS, ops, torch_daemon  # noqa: F401

import opd.torch

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Call(nn.Module):
    def __init__(self, name, **attrs):
        super().__init__()
        self.name, self.attrs = name, attrs

    def forward(self, *tensors):
        return opd.torch.ops[self.name](*tensors, **self.attrs)


def export(model, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(model, given, dynamo=True, verbose=False, **options)


def nodes(program):
    return [(f"{n.domain}::" if n.domain else "") + n.op_type for n in program.model.graph]


def compute(program, *given):
    """By ONNX Runtime."""
    text = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    results = session.run(None, dict(zip(names, (t.detach().numpy() for t in given))))
    return [torch.from_numpy(r) for r in results]


def draw(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 1.8 - 0.9


GIVEN = draw(2, 3, 7, 6)
CASES = [
    (Call("acos"), ["Acos"]),
    (Call("elu", alpha=0.7), ["Elu"]),
    (Call("relu"), ["Relu"]),
    (Call("sigmoid"), ["Sigmoid"]),
    (Call("tanh"), ["Tanh"]),
    (Call("silu"), ["Sigmoid", "Mul"]),
    (Call("flatten"), ["Reshape"]),
    (Call("gelu", approximate="none"), ["Gelu"]),
    (Call("gelu", approximate="tanh"), ["Gelu"]),
    (Call("gelu"), ["Mul", "Sigmoid", "Mul"]),
    (Call("softmax"), ["Softmax"]),
    (Call("layer_norm"), ["LayerNormalization"]),
    (opd.torch.DepthwiseConv2d(3, (3, 2), stride=2, padding=(1, 0), bias=True), ["Conv"]),
    (opd.torch.DepthwiseConv2d(3), ["Conv"]),
]
CASES += [
    (opd.torch.UpsampleBilinear2d(**given, mode=mode), ["Resize"])
    for mode in ("half_pixel", "align_corners", "asymmetric")
    for given in ({"size": (9, 4)}, {"size": 1}, {"scale_factor": (1.7, 0.6)}, {"scale_factor": 2})
]


@pytest.mark.parametrize("model, expected", CASES, ids=lambda v: str(getattr(v, "name", v))[:60])
def test_standard_nodes(ops, model, expected):
    program = export(model, GIVEN, opset_version=20)
    assert nodes(program) == expected
    with torch.no_grad():
        assert_close(compute(program, GIVEN), [model(GIVEN)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, node", [("add", "Add"), ("mul", "Mul"), ("sub", "Sub"), ("div", "Div")])
def test_two_tensors(ops, name, node):
    given = draw(2, 3, 4), draw(3, 1, seed=1)
    program = export(Call(name), *given)
    assert nodes(program) == [node]
    assert_close(compute(program, *given), [ops[name](*given)])


def test_a_filter_for_each_of_several_outputs(ops):
    given = draw(1, 2, 5, 5), draw(4, 1, 3, 3, seed=1)
    program = export(Call("depthwise_conv2d", dilation=2, padding=1), *given)
    assert nodes(program) == ["Conv"]
    assert_close(compute(program, *given), [ops.depthwise_conv2d(*given, dilation=2, padding=1)])


def test_a_cell(ops):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = opd.torch.LLTM(3, 4)

        def forward(self, x, h, c):
            return self.cell(x, (h, c))

    model, given = Cell(), (draw(2, 3), draw(2, 4, seed=1), draw(2, 4, seed=2))
    program = export(model, *given)
    assert not any("opd" in node for node in nodes(program))
    with torch.no_grad():
        assert_close(compute(program, *given), list(model(*given)))


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 4, 1),
        opd.torch.DepthwiseConv2d(4, padding=1, bias=True),
        nn.BatchNorm2d(4),
        Call("gelu", approximate="tanh"),
        opd.torch.UpsampleBilinear2d(scale_factor=2),
        nn.Flatten(),
        nn.Linear(4 * 14 * 12, 5),
    ).eval()


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
def test_sizes_that_are_open(ops, mode):
    model = nn.Sequential(
        opd.torch.DepthwiseConv2d(3, padding=1, stride=2, bias=True),
        opd.torch.UpsampleBilinear2d(scale_factor=(2, 1.5), mode=mode),
        Call("gelu", approximate="none"),
    )
    sizes = {0: Dim("batch"), 2: Dim("height", min=3), 3: Dim("width", min=3)}
    program = export(model, GIVEN, dynamic_shapes=(sizes,))
    assert nodes(program) == ["Conv", "Resize", "Gelu"]
    for shape in ((2, 3, 7, 6), (5, 3, 10, 13)):
        x = draw(*shape)
        with torch.no_grad():
            assert_close(compute(program, x), [model(x)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("before", ["nothing", "export"])
def test_a_model(ops, before):
    model = make_model()
    program = export(torch.export.export(model, (GIVEN,)) if before == "export" else model, GIVEN)
    assert {"Conv", "Gelu", "Resize", "Gemm"} <= set(nodes(program))
    assert not any(n.domain for n in program.model.graph)
    with torch.no_grad():
        assert_close(compute(program, GIVEN), [model(GIVEN)], rtol=1e-4, atol=1e-5)


def test_the_exporter_leaves_nothing_behind(ops):
    """A call after it, also of traced code, is opd's again."""
    model = Call("silu")
    export(model, GIVEN)
    core = torch.export.export(model, (GIVEN,)).run_decompositions()
    assert "opd.silu__infer" in str(core.graph)


def test_what_onnx_has_no_node_for(ops):
    class Model(nn.Module):
        def forward(self, x, b):
            y, z = ops.two_results(x, b, gain=0.5)
            return ops.two_results(y, gain=2.0)[0] + z

    given = draw(3, 4), draw(3, 4, seed=1)
    program = export(Model(), *given)
    assert nodes(program) == ["opd::two_results", "opd::two_results", "Add"]
    first, second, _ = program.model.graph
    assert len(first.inputs) == 2 and len(first.outputs) == 2
    assert first.attributes["gain"].value == 0.5 and second.attributes["gain"].value == 2.0
    assert list(first.outputs[0].shape) == [3, 4]
    with pytest.raises(Exception, match="opd:two_results"):
        compute(program, *given)


class Changing(nn.Module):
    """In place, in a view too, and of lists, of which one is absent."""

    def forward(self, x, g):
        x, y = x.clone(), x + 1
        opd.torch.ops.step_down(x[1:], g[1:], lr=0.5)
        opd.torch.ops.axpys([x, y], [g, x * 2], a=0.25)
        shifted = opd.torch.ops.shifts([x, y, g], [g, x, y], a=3.0)
        return shifted[0] * 2 + shifted[1] * 3 + shifted[2] + opd.torch.ops.shifts([y])[0]


def test_what_changes_in_place_and_lists(ops):
    """Their nodes, given functions, compute what the operators do."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    def pair(flat, lengths):
        n = lengths[0]
        return zip(flat[:n], flat[n : 2 * n] if lengths[1] == n else [0] * n)

    def make(name, run):
        return type(name, (OpRun,), {"op_domain": "opd", "_run": run})

    functions = [
        make("step_down", lambda self, param, grad, lr: (param - lr * grad,)),
        make("axpys", lambda self, *flat, a, lengths: tuple(y + a * x for y, x in pair(flat, lengths))),
        make("shifts", lambda self, *flat, a, lengths: tuple(a * x + b for x, b in pair(flat, lengths))),
    ]
    given = draw(4), draw(4, seed=1)
    program = export(Changing(), *given)
    own = [n for n in program.model.graph if n.domain == "opd"]
    assert [n.op_type for n in own] == ["step_down", "axpys", "shifts", "shifts"]
    assert [list(n.attributes["lengths"].value) for n in own[1:]] == [[2, 2, -1], [3, 3, -1], [1, -1, -1]]
    evaluator = ReferenceEvaluator(program.model_proto, new_ops=functions)
    found = evaluator.run(None, dict(zip(("x", "g"), (t.numpy() for t in given))))
    assert_close(torch.from_numpy(found[0]), Changing()(*given))


def test_a_translation_of_the_users_own(ops):
    from onnxscript import opset20 as op

    def translate(x, b=None, gain=1.0):
        return op.Identity(x), op.Identity(x)

    table = {torch.ops.opd.two_results.default: translate}
    program = export(Call("two_results"), draw(3), custom_translation_table=table)
    assert set(nodes(program)) == {"Identity"}


def test_an_operator_that_replaces_one_of_opds(scale, tmp_path):
    """It may compute something else, so it is no node of ONNX's."""
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "silu.cu", text.replace("scale", "silu"))
    scale.reload()
    assert_close(opd.torch.ops.silu(X), X * 2)
    assert nodes(export(Call("silu"), X)) == ["opd::silu"]
