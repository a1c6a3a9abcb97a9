"""Operators by their names in torch.ops.opd, which nothing has looked up before."""

import pytest
import torch
import torch.nn.functional as F
from scale_operator import X, save, scale  # noqa: F401
from torch.testing import assert_close
from torch_fixtures import ops, run_fresh, torch_daemon  # noqa: F401

import opd.torch

FIRST = """
import os, sys, torch
held = torch.ops.opd
import opd.torch
dir(held), repr(held)
assert not os.listdir(sys.argv[2])  # nobody was asked, and no daemon started
opd.torch.use(sys.argv[1])
x = torch.linspace(-2, 2, 9, requires_grad=True)
if {compiled}:
    model = torch.compile(lambda x: torch.ops.opd.gelu(x, approximate="none"), fullgraph=True, backend="aot_eager")
else:
    model = lambda x: held.gelu(x, approximate="none")
y = model(x)
assert torch.allclose(y, torch.nn.functional.gelu(x), atol=1e-6)
y.sum().backward()
assert x.grad is not None
assert held is torch.ops.opd and held.gelu is torch.ops.opd.gelu
assert held.gelu.default is opd.torch.ops.gelu.overload
for gelu, relu in ((held.gelu, torch.ops.aten.relu), (held.gelu.default, torch.ops.aten.relu.default)):
    assert gelu.__module__ == relu.__module__.replace("aten", "opd")
    assert str(gelu) == str(relu).replace("aten.relu", "opd.gelu")
assert torch.equal(held.tanh__infer.default(x.detach()), held.tanh(x))  # a part first
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_without_a_look_up(torch_daemon, run_fresh, tmp_path, compiled):
    nobody = tmp_path / "none.sock"
    run_fresh(FIRST.format(compiled=compiled), torch_daemon.socket, tmp_path, socket=nobody)


def test_a_name_that_no_operator_has(ops):
    message = "'opd' object has no attribute 'nope': the daemon has no operator 'nope'; it has .*gelu"
    with pytest.raises(AttributeError, match=message):
        torch.ops.opd.nope
    with pytest.raises(AttributeError, match="no attribute 'nope__infer'.*no operator 'nope__infer'"):
        torch.ops.opd.nope__infer
    assert not hasattr(torch.ops.opd, "__nope__")


def test_a_word_of_python(scale, tmp_path):
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "raise.cu", text.replace("scale", "raise"))
    scale.reload()
    assert_close(torch.ops.opd.raise_(X), X * 2)


def test_register(ops):
    opd.torch.register("elu", "silu")
    assert {"elu", "silu"} <= set(torch.ops.opd.__dict__)
    with pytest.raises(opd.NotFound, match="no operator 'nope'"):
        opd.torch.register("nope")


LOAD = """
import sys, torch, opd.torch
x = torch.load(sys.argv[1] + "/x.pt")
results = [torch.export.load(sys.argv[1] + f"/{name}.pt2").module()(x) for name in ("model", "core")]
results.append(torch.load(sys.argv[1] + "/graph.pt", weights_only=False)(x))
opd.torch.register()
results.append(torch.jit.load(sys.argv[1] + "/model.pt")(x))
torch.save(results, sys.argv[1] + "/y.pt")
"""


def test_what_was_saved_is_loaded_in_a_new_process(ops, run_fresh, tmp_path):
    model = torch.nn.Sequential(
        opd.torch.DepthwiseConv2d(3, bias=True), opd.torch.UpsampleBilinear2d(scale_factor=2)
    )
    x = torch.randn(2, 3, 6, 5)
    torch.save(x, tmp_path / "x.pt")
    exported = torch.export.export(model, (x,))
    torch.export.save(exported, tmp_path / "model.pt2")
    core = exported.run_decompositions()
    assert "opd.upsample_bilinear2d__" in str(core.graph)  # of parts alone
    torch.export.save(core, tmp_path / "core.pt2")
    torch.save(torch.fx.symbolic_trace(model), tmp_path / "graph.pt")
    torch.jit.trace(model, x).save(str(tmp_path / "model.pt"))
    run_fresh(LOAD, tmp_path)
    results = torch.load(tmp_path / "y.pt")
    assert len(results) == 4
    for y in results:
        assert_close(y, model(x))


def test_a_trace_is_the_first_call(scale, tmp_path):
    """torch traces twice, and compares; the first makes what later calls are shorter by."""
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "traced.cu", text.replace("scale", "traced"))
    scale.reload()
    traced = torch.jit.trace(lambda x: torch.ops.opd.traced(x) + 1, (X,))
    assert_close(traced(X), X * 2 + 1)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.ops.opd.gelu(torch.full((3,), float(i)), approximate="none")


@pytest.mark.parametrize("start, workers", [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader(ops, torch_daemon, monkeypatch, start, workers):
    monkeypatch.setenv("OPD_SOCKET", torch_daemon.socket)
    ops.gelu(X)
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=4, num_workers=workers, multiprocessing_context=start
    )
    rows = torch.cat(list(loader))
    assert_close(rows, F.gelu(torch.arange(8.0)[:, None].expand(8, 3)))
