"""Every operator that the daemon reports, exported and run without it: the plan's layout is all that
a client needs, and what it computes is the daemon's result, bit for bit.

The client is tests/exported_run.c, which knows base/exported.h and the ABI of the CPU's images.
"""

import os
import sys

import numpy as np
import pytest

from conftest import DEVICE, ROOT

sys.path.insert(0, str(ROOT / "tests" / "functional"))
from exported import LAUNCH, Runner, desc, export  # noqa: E402
from raw import Raw  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the images of the CPU are run here")


MOST = 1 << 22  # elements of all inputs
FLOATS = ("float16", "bfloat16", "float32", "float64")


def draw(rng, dtype, shape, whole):
    """Bytes. What may be integers stands for classes or indices, also where it is floating."""
    x = np.asarray(rng.random(shape))
    x = np.floor(x) if whole else x
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return x.astype(dtype).tobytes()


def examples(info, as_shipped):
    """The operator's examples in each of its dtypes, but the largest: descs of the inputs, attributes. As
    shipped are the kernels of float32, as in references.py."""
    for dtype in info["dtypes"]:
        if (dtype == "float32") != as_shipped:
            continue
        for example in info["examples"]:
            if sum(np.prod(i["shape"]) for i in example["inputs"] if i) > MOST:
                continue
            yield [
                i and [dtype if i["dtype"] == info["dtypes"][0] and dtype in spec["dtypes"] else i["dtype"], i["shape"]]
                for i, spec in zip(example["inputs"], info["inputs"], strict=True)
            ], example["attrs"]  # fmt: skip


def check_layout(plan, told, info, direction):
    """Against what `plan` says, and in itself."""
    assert (plan.op, plan.direction, plan.on_cpu, plan.target) == (info["name"], direction, True, "cpu")
    assert plan.version == told["version"]
    found = {(o.kind, o.index): o for o in plan.operands}
    assert len(found) == len(plan.operands)
    names = {o.name: o for o in plan.operands if o.kind == "saved"}
    for i, output in enumerate(told["outputs"]):
        operand = found.get(("output", i))
        assert operand is not None or direction == "backward"
        if operand is not None:
            assert desc(operand) == output and operand.name == info["outputs"][i]["name"]
            assert direction == "backward" or operand.view_of == told["views"][i]
    for name, saved in zip(info["saved"], told["saved"], strict=True):
        assert direction == "backward" or name in names
        assert name not in names or desc(names[name]) == saved
    for step in plan.steps:
        assert step.kind != LAUNCH or plan.kernels[step.kernel].payload[:4] == b"\x7fELF"
        for offset, operand in step.slots:
            assert step.args[offset : offset + 8] == bytes(8) and operand < len(plan.operands)


class Run:
    """One example, forward and backward, by the daemon and by the runner."""

    def __init__(self, raw, runner, info, inputs, attrs):
        self.raw, self.runner, self.info, self.inputs, self.attrs = raw, runner, info, inputs, attrs
        self.rng = np.random.default_rng(7)
        self.op = info["name"]
        self.told = raw.call("plan", self.op, inputs, attrs)
        self.ids, self.data = {}, {}

    def make(self, key, desc, whole=False):
        self.ids[key] = len(self.ids) + 1
        self.data[key] = draw(self.rng, *desc, whole)
        self.raw.make(self.ids[key], *desc, self.data[key])
        return self.ids[key]

    def read(self, key):
        return self.raw.call("tensor_read", self.ids[key], 0)

    def new(self, *key):
        self.ids[key] = len(self.ids) + 1
        return self.ids[key]

    def key(self, operand):
        return (operand.kind, operand.name if operand.kind == "saved" else operand.index)

    def compare(self, plan, fd, kinds):
        made = self.runner.run(plan, fd, lambda o: self.data[self.key(o)])
        for operand in plan.operands:
            if operand.kind in kinds and (operand.kind, operand.index) in made:
                assert made[operand.kind, operand.index] == self.read(self.key(operand)), (
                    self.op, self.inputs, self.attrs, plan.direction, operand)  # fmt: skip

    def forward(self):
        info = self.info
        inputs = [
            i and self.make(("input", n), i, "int64" in spec["dtypes"])
            for n, (i, spec) in enumerate(zip(self.inputs, info["inputs"], strict=True))
        ]
        self.raw.call("forward", self.op, inputs, self.attrs,
                      [self.new("output", i) for i in range(len(info["outputs"]))],
                      {"saved": [self.new("saved", s) for s in info["saved"]]})  # fmt: skip
        _, plan, fd = export(self.raw, self.op, "forward", self.inputs, self.attrs, keep=True)
        check_layout(plan, self.told, info, "forward")
        self.compare(plan, fd, ("input", "output", "saved"))
        os.close(fd)

    def backward(self):
        info = self.info
        for key in self.ids:
            self.data[key] = self.read(key)
        n = len(info["inputs"])
        can = [bool(i) and i[0] in FLOATS and spec["differentiable"]
               for i, spec in zip(self.inputs, info["inputs"], strict=True)]
        if not any(can):
            return
        grads = [self.make(("grad_output", i), d) for i, d in enumerate(self.told["outputs"])]
        self.raw.call("vjp", self.op, [self.ids.get(("input", i)) for i in range(n)],
                      [self.ids["output", i] for i in range(len(grads))],
                      [self.ids["saved", s] for s in info["saved"]], grads, self.attrs,
                      [self.new("grad_input", i) if can[i] else None for i in range(n)])  # fmt: skip
        _, plan, fd = export(self.raw, self.op, "backward", self.inputs, self.attrs)
        check_layout(plan, self.told, info, "backward")
        assert [("grad_input", i) in {(o.kind, o.index) for o in plan.operands} for i in range(n)] == can
        self.compare(plan, fd, ("grad_input",))
        os.close(fd)

    def free(self):
        self.raw.call("free", "tensor", list(self.ids.values()), {"drop": True})


def derive(info, told, inputs):
    """The inputs of an operator's derivative, "NAME.backward": gradients, then what backward reads."""
    grads = [d for d in told["outputs"] if d[0] in FLOATS]
    read = [d for d, spec in zip(inputs, info["inputs"], strict=True) if spec["used_backward"]]
    return grads + read + [d for d, spec in zip(told["outputs"], info["outputs"], strict=True) if spec["used_backward"]]


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        paths = (ROOT / "kernels_src").glob("*.cu")
        names = sorted(path.stem for path in paths if "Tensor[]" not in path.read_text())  # lists are not exported
        metafunc.parametrize("name", names)


@pytest.mark.parametrize("as_shipped", (True, False))
def test_without_the_daemon(own_products, tmp_path, name, as_shipped):
    with Raw(own_products[as_shipped].socket) as raw, Runner(tmp_path) as runner:
        info = raw.call("op_info", name)
        for inputs, attrs in examples(info, as_shipped):
            run = Run(raw, runner, info, inputs, attrs)
            run.forward()
            if info["has_backward"]:
                run.backward()
            run.free()
            if info["derivable"] and inputs[0][0] == "float64" and None not in inputs:
                again = raw.call("op_info", name + ".backward")
                run = Run(raw, runner, again, derive(info, run.told, inputs), attrs)
                run.forward()
                run.backward()
                run.free()


@pytest.fixture(scope="module")
def own_products(start_shared):
    """Daemons whose products of matrices are made by kernels, as those of a client without a library."""
    return [start_shared("--blas", "own", as_shipped=as_shipped) for as_shipped in (False, True)]
