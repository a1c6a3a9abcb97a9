"""Operators that run in torch's own process: what finds a plan here, and where none can be."""

import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from conftest import ROOT, in_threads
from torch_fixtures import TORCH_DEVICES, device, draw, ops, run_fresh, torch_daemon  # noqa: F401
from scale_operator import grad_of, save, scale  # noqa: F401

import opd
import opd.torch
from opd._conn import Connection
from opd.torch._library import DEFAULT_ISOLATED, get_library
from in_process import RUNS, SERVED, asked, here, is_here, needs_cpu, pytestmark  # noqa: F401


# --- calls


def test_the_first_call_is_the_daemons_the_others_are_not(ops, draw, here, asked):
    x = draw(5, 7, dtype=torch.float32)
    for n in range(4):
        del asked[:]
        assert_close(ops.gelu(x, approximate="none"), F.gelu(x))
        assert ("forward" in asked) == (n == 0 and DEFAULT_ISOLATED is None)
    assert asked == []


def test_gradients(ops, draw, here, asked):
    x = draw(6, 7, dtype=torch.float32, grad=True)
    for n in range(3):
        del asked[:]
        assert_close(grad_of(ops.gelu(x, approximate="none"), x), grad_of(F.gelu(x), x))
        assert n == 0 or asked == []
    assert "gelu" in type(ops.gelu(x).grad_fn).__name__


@pytest.mark.parametrize("n", (2, 100, 300))
def test_lists(ops, draw, here, asked, n):
    """In place, with results, and backward; more tensors than a call keeps without lists."""
    xs, ys = [draw(3, k % 5 + 1) for k in range(n)], [draw(3, k % 5 + 1) for k in range(n)]
    w = draw(3)
    for run in range(3):
        del asked[:]
        before = [y.clone() for y in ys]
        ops.axpys(ys, xs, a=0.5)
        assert_close(ys, [y + 0.5 * x for y, x in zip(before, xs)])
        flat = [draw(k % 4, 3, grad=True) for k in range(n)]
        made, signs = ops.dots(flat, w)
        assert_close(list(made), [x @ w for x in flat])
        assert [s.dtype for s in signs] == [torch.int32] * n
        found = torch.autograd.grad(sum(y.sum() for y in made), flat)
        assert_close(list(found), [w.expand_as(x) for x in flat])
        (one,) = torch.autograd.grad(ops.dots(flat, w)[0][1].sum(), flat[1])  # of one of the list
        assert_close(one, w.expand_as(one))
        with torch.no_grad():
            assert_close(list(ops.dots(flat, w)[0]), [x @ w for x in flat])
        assert run == 0 or asked == []


def test_lists_that_share_memory(ops, draw, here):
    whole, x = draw(16).float(), draw(4).float()
    parts = lambda *starts: [whole[s : s + 4] for s in starts]  # noqa: E731
    for _ in range(2):
        for ys, xs in (
            (parts(0, 2), [x, x]),
            (parts(0, 8), [parts(4)[0], parts(6)[0]]),
            (parts(0, 8), parts(8, 0)),
            (parts(0, 0), [x, x]),
        ):
            before = whole.clone()
            with pytest.raises(opd.InvalidArgument, match="share memory, and"):
                ops.axpys(ys, xs)
            assert_close(whole, before)
        before = whole.clone()
        ops.axpys(parts(0, 8), parts(0, 8))  # the same at the same place
        ops.axpys(parts(4, 12), [x, x])
        assert_close(whole[:4], 3 * before[:4])
        assert_close(whole[12:], before[12:] + 2 * x)
        rows = [torch.ones(3, 4).t(), torch.ones(3, 4).t()]
        ops.axpys(rows, [torch.ones(4, 3)] * 2)  # lie otherwise: of copies, which go back
        assert_close(rows, [torch.full((4, 3), 3.0)] * 2)


def test_a_gradient_that_passes_is_the_one_that_came(ops, draw, here):
    """As with torch's own operators: of add, where nothing broadcasts, and of no other input."""
    x, y, row, g = draw(3, 40), draw(3, 40), draw(40), draw(3, 40)
    for tensor in (x, y, row):
        tensor.requires_grad_()
    for _ in range(3):  # the first in the daemon
        both = torch.autograd.grad(ops.add(x, y), (x, y), g)
        one, summed = torch.autograd.grad(ops.add(x, row), (x, row), g)
        same, turned = torch.autograd.grad(ops.sub(x, y), (x, y), g)
        expanded = torch.autograd.grad(ops.add(x, y).sum(), (x, y))
        for made in (*both, one, same):
            assert_close(made, g)
        assert_close(summed, g.sum(0))
        assert_close(turned, -g)
        for made in expanded:
            assert_close(made, torch.ones_like(x))
    assert both[0] is g and both[1] is g and one is g
    ops.add(x, y).backward(g)
    x.grad.zero_()
    assert_close(y.grad, g)
    assert g.abs().sum() > 0


def test_several_outputs_optional_inputs_and_saved_tensors(ops, draw, here, asked):
    for _ in range(3):
        del asked[:]
        x, b = draw(3, 5, grad=True), draw(3, 5, seed=1, grad=True)
        for given in ((x,), (x, b)):
            y, z = ops.two_results(*given, gain=0.5)
            expected = 0.5 * x * torch.exp(sum(given))
            assert_close((y, z), (expected, 2 * x))
            assert_close(torch.autograd.grad(y.sum() + z.sum(), given), torch.autograd.grad((expected + 2 * x).sum(), given))
        y, _ = ops.two_results(x, b=b)  # one output's gradient is absent, a tensor is given by name
        assert_close(grad_of(y, b), grad_of(x * torch.exp(x + b), b))
    assert asked == []


def test_in_place(ops, draw, here, asked):
    for _ in range(3):
        del asked[:]
        param, grad = draw(4, 6), draw(4, 6, seed=1)
        expected = param - 0.25 * grad
        before = param._version
        ops.step_down(param, grad, lr=0.25)
        assert_close(param, expected)
        assert param._version > before
        turned = draw(6, 4).t()  # its elements do not follow each other
        expected = turned - 0.25 * grad
        ops.step_down(turned, grad, lr=0.25)
        assert_close(turned, expected)
    assert asked == []


def test_what_has_no_default_behind_what_has_one(ops, draw, here, asked):
    x, other = draw(4, 6, grad=True), draw(4, 6, seed=1, grad=True)
    param, grad, buffer = draw(7), draw(7), torch.zeros(7, dtype=x.dtype, device=here)
    for _ in range(3):
        del asked[:]
        for given, how in ((x,), "plus"), ((x, other), "times"):
            product = x * other if len(given) == 2 else x
            expected = product * 0.5 if how == "times" else product + 0.5
            for function in ops.rate_after, torch.ops.opd.rate_after:
                y = function(*given, rate=0.5, how=how)
                assert_close(y, expected)
                slopes = torch.autograd.grad(expected.sum(), given, retain_graph=True)
                assert_close(torch.autograd.grad(y.sum(), given), slopes)
        expected = param - 0.25 * grad, 0.5 * buffer + grad
        ops.sgd_step(param, grad, lr=0.25)
        assert_close(param, expected[0])
        ops.sgd_step(param, grad, buffer, lr=0.25, momentum=0.5)
        assert_close((param, buffer), (expected[0] - 0.25 * expected[1], expected[1]))
    assert asked == []
    with pytest.raises(RuntimeError, match="missing .*rate"):
        ops.rate_after(x)


def test_products_of_matrices(ops, draw, here, asked):
    input, weights, bias = draw(4, 3, grad=True), draw(15, 8, grad=True), draw(15, grad=True)
    h, c = draw(4, 5, seed=1, grad=True), draw(4, 5, seed=2, grad=True)
    leaves = (input, weights, bias, h, c)
    for _ in range(3):
        del asked[:]
        new_h, new_cell = ops.lltm(*leaves)
        gates = F.linear(torch.cat([h, input], dim=1), weights, bias)
        i, o, candidate = gates.chunk(3, dim=1)
        cell = c + F.elu(candidate) * torch.sigmoid(i)
        expected = torch.tanh(cell) * torch.sigmoid(o)
        assert_close((new_h, new_cell), (expected, cell))
        ours = torch.autograd.grad((new_h * 3 + new_cell).sum(), leaves)
        assert_close(ours, torch.autograd.grad((expected * 3 + cell).sum(), leaves))
    assert asked == []


@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 0, 2), (100_000,)])
def test_shapes(ops, draw, here, shape):
    x = draw(*shape, dtype=torch.float32)
    for _ in range(3):
        assert_close(ops.gelu(x, approximate="none"), F.gelu(x))
        assert_close(ops.gelu(x.expand(2, *shape), approximate="none"), F.gelu(x.expand(2, *shape)))


def test_torchs_namespace_takes_the_same_way(ops, draw, here, asked):
    x = draw(9, 3)
    for function in (ops.gelu, torch.ops.opd.gelu, torch.ops.opd.gelu.default):
        for _ in range(2):
            function(x, approximate="none")
        del asked[:]
        assert_close(function(x, approximate="none"), F.gelu(x))
        assert asked == []


CHECKED = """\
//! op      take(Tensor x, Tensor at) -> Tensor y
//! dtypes  float32
//! type    int64 : at
//! shape   x [N]
//! shape   at [K]
//! shape   y [K]
//! check   in_range : "index {at} is out of x"
//! forward
//!   kernel take_forward

__global__ void take_forward(const float *x, const long long *at, float *y, int K, int N, unsigned long long *report)
{
    CUDA_KERNEL_LOOP(i, K) {
        bool fits = at[i] >= 0 && at[i] < N;
        opd::check(report, in_range, fits, i);
        y[i] = fits ? x[at[i]] : 0;
    }
}
"""


def test_what_a_kernel_checks(scale, tmp_path):
    save(tmp_path / "take.cu", CHECKED.replace("{at}", "[index]") if False else CHECKED)
    changed = scale.reload()
    if any(c["state"] == "failed" for c in changed):
        pytest.skip(f"the header language says checks otherwise: {changed}")
    for device in TORCH_DEVICES:
        if not is_here(device):
            continue
        x, good = torch.arange(5.0, device=device), torch.tensor([4, 0], device=device)
        for _ in range(3):
            assert_close(opd.torch.ops.take(x, good), x[good])
        bad = torch.tensor([1, 5], device=device)
        with pytest.raises(opd.InvalidArgument, match="take: index"):
            opd.torch.ops.take(x, bad)
            opd.torch.synchronize()
        assert_close(opd.torch.ops.take(x, good), x[good])
        opd.torch.synchronize()


# --- options


def test_options(ops, draw, here, asked):
    x = draw(4, 9)
    with opd.torch.options(isolated=False):
        ops.gelu(x)
    assert not set(RUNS) & set(asked)
    with opd.torch.options(isolated=True):
        ops.gelu(x)
        leaf = x.clone().requires_grad_()
        y = ops.gelu(leaf)
    y.sum().backward()  # as its forward was
    assert [m for m in asked if m in RUNS] == ["forward", "forward", "vjp"]
    for given in ({"debug": True}, {"deadline": 60}):
        del asked[:]
        with opd.torch.options(**given):
            ops.gelu(x)
        assert "forward" in asked
    del asked[:]
    ops.gelu(x)
    assert asked == []
    with pytest.raises(opd.InvalidArgument, match="isolated is 'yes', expected True, False or None"):
        with opd.torch.options(isolated="yes"):
            pass


# --- threads and processes


@needs_cpu
def test_a_forked_child_goes_on(ops):
    x = torch.randn(50_000)
    for _ in range(2):
        expected = ops.gelu(x, approximate="none")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work():
        sent = []
        Connection.send = lambda self, method, *a, **k: sent.append(method)
        made = ops.gelu(x, approximate="none").tolist()  # torch's own threads are the parent's, too
        queue.put((made, sent))

    child = context.Process(target=work)
    child.start()
    assert queue.get() == (expected.tolist(), [])
    child.join()
    assert child.exitcode == 0


def test_threads(ops):
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for n in range(200):
            x = torch.randn(n % 7 * 1000 + 1, generator=generator).to(SERVED)
            assert_close(ops.gelu(x, approximate="none"), F.gelu(x))

    in_threads(6, work)


# --- where it cannot


WITHOUT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, opd.torch
    for _ in range(3):
        y = opd.torch.ops.gelu(torch.ones(3), approximate="none")
assert torch.allclose(y, torch.nn.functional.gelu(torch.ones(3)))
print(sum("runs all operators in the daemon" in str(w.message) for w in caught))
"""


def test_a_torch_without_the_functions(ops, torch_daemon, tmp_path):
    """Today's way, said once."""
    package = os.path.dirname(os.path.dirname(opd.__file__))
    env = {**os.environ, "OPD_SOCKET": torch_daemon.socket, "PYTHONPATH": package}
    env["OPD_TORCH_LIB"] = str(tmp_path / "none.so")
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


FUNCTIONS = re.findall(r"^T\((\w+), REQUIRED", (ROOT / "client/torch/functions.def").read_text(), re.M)
START = """
import ctypes, sys
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
library.opd_torch_start.restype = ctypes.c_char_p
print(library.opd_torch_start(False))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
@pytest.mark.parametrize("missing", [None, FUNCTIONS[0], FUNCTIONS[-1]])
def test_an_older_torch(tmp_path, run_fresh, missing):
    """One that lacks a function, as those before 2.10 do; or a process without torch."""
    libraries = [get_library()._c._name]
    if missing:
        code = "".join(f"void {name}(void) {{}}\n" for name in FUNCTIONS if name != missing)
        (tmp_path / "torch.c").write_text(code)
        libraries.insert(0, str(tmp_path / "libtorch_cpu.so"))
        command = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libtorch_cpu.so", "-o", libraries[0], tmp_path / "torch.c"]
        subprocess.run(command, check=True)
    told = f"has no {missing} among its stable functions; 2.10" if missing else "this process has no libtorch_cpu.so"
    assert told in run_fresh(START, *libraries)


def test_nothing_keeps_a_graph(ops, draw, here):
    """Not even a first call, part of which is made in the daemon."""
    gc.collect()
    gc.disable()
    try:
        for n in range(3):
            middle = draw(11, n + 1, grad=True) * 2
            gone = weakref.ref(middle)
            ops.gelu(middle).sum().backward()
            del middle
            assert gone() is None
    finally:
        gc.enable()
