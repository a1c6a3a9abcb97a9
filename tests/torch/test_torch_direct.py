"""Calls that go to a kernel past torch's dispatcher: which do, and that they are worth it."""

import json
import platform
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from conftest import DEVICE, ROOT
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd.torch
from opd._native import native
from opd.torch._direct import MISS, get_direct
from opd.torch._library import DEFAULT_ISOLATED, get_library
from opd.torch._loader import FORWARD
from opd.torch._ops import _operators

sys.path.insert(0, str(ROOT / "tests" / "functional"))

from counts import Unable, count_torch  # noqa: E402

pytestmark = [
    pytest.mark.skipif(bool(DEFAULT_ISOLATED), reason="OPD_ISOLATED says that all runs in the daemon"),
    pytest.mark.skipif(get_library() is None, reason="this torch has not the functions"),
    pytest.mark.skipif(native is None, reason="there is no opd_native"),
]
GATES = json.loads((ROOT / "tests" / "bench" / "gates.json").read_text())
ROOM = 1.05
LEFT = object()  # a call was left to torch


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.fixture
def make(ops, device, draw):
    """make(apply): gelu's kernel, loaded for [2, 3], which gives LEFT instead of going to torch."""
    if device == "cpu" and DEVICE != "cpu":
        pytest.skip("the daemon has no device for tensors on the CPU")
    for kwargs in ({}, {"approximate": "tanh"}):
        for _ in range(2):
            ops.gelu(draw(2, 3), **kwargs)
    kernels = _operators["gelu"].kernels
    here = torch.ops.opd.gelu.here

    def make(apply=None):
        number = kernels.loader.numbers[FORWARD]
        rest = here, kernels._words, lambda *_, **__: LEFT, apply
        return get_direct(get_library()).make(number, kernels._layout, "t", *rest)

    return make


def test_plain_tensors(make, draw):
    call, x = make(), draw(2, 3)
    for wants in (False, True):
        x.requires_grad_(wants)
        assert_close(call(x), opd.torch.ops.gelu(x))
        assert_close(call(x, approximate="tanh"), opd.torch.ops.gelu(x, approximate="tanh"))
    assert_close(call(torch.nn.Parameter(x)), opd.torch.ops.gelu(x))
    assert_close(call(x.T.contiguous().T), opd.torch.ops.gelu(x))  # is copied first


MODES = {
    "a mode of functions": Functions,
    "a mode of dispatch": Dispatches,
    "autocast": lambda: torch.autocast("cpu"),
    "inference": torch.inference_mode,
    "forward AD": forward_ad.dual_level,
    "the profiler": torch.profiler.profile,
    "a default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(make, draw, mode):
    """torch's own, with all that they do; afterwards as before."""
    call, x = make(), draw(2, 3)
    with MODES[mode]():
        assert call(x) is LEFT
    assert call(x) is not LEFT


def test_transforms(make, draw):
    call, left = make(), []
    torch.func.vmap(lambda x: left.append(call(x)) or x)(draw(4, 2, 3))
    torch.func.grad(lambda x: left.append(call(x)) or x.sum())(draw(2, 3))
    assert left == [LEFT, LEFT]


class Mine(torch.Tensor):
    pass


OTHERS = {
    "negative": lambda x: torch._neg_view(x),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
    "of a class": lambda x: x.as_subclass(Mine),
    "of inference": lambda x: torch.inference_mode()(x.clone)(),
    "of another shape": lambda x: x[0],
    "of another dtype": lambda x: x.to(torch.complex64),
    "no tensor": lambda x: 1.0,
    "nothing": lambda x: None,
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_tensors(make, draw, other):
    assert make()(OTHERS[other](draw(2, 3))) is LEFT


def test_arguments_that_do_not_fit(make, draw):
    call, x = make(), draw(2, 3)
    assert call() is call(x, "none", 3) is call(x, nothing=1) is call(x, x=x) is LEFT
    assert call(x, approximate="sinh") is call(x, approximate=1.5) is call(x, approximate=1 << 70) is LEFT
    assert call(x, approximate=None) is call(x, approximate="\ud800") is LEFT


def test_a_loaded_kernel_takes_no_more_than_its_operator(ops, draw):
    """What stands behind the *, by position; the number of a word."""
    x = draw(2, 3)
    for call in 2 * [lambda f: f(x, "tanh"), lambda f: f(x, approximate=1), lambda f: f(x, approximate=0)]:
        for f in (ops.gelu, torch.ops.opd.gelu):
            with pytest.raises((RuntimeError, TypeError)):
                call(f)
            for approximate in ("sigmoid", "tanh"):
                for _ in range(2):
                    f(x, approximate=approximate)


def test_a_negative_view_is_computed(ops, draw):
    x = draw(2, 3)
    for _ in range(3):
        assert_close(ops.gelu(torch._neg_view(x)), ops.gelu(-x))


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_memory_that_was_taken_is_not_read(ops, draw, isolated, first):
    """As FSDP does with parameters: torch's own operators say so, too."""
    x = draw(4, 3)[first:]
    for _ in range(3):
        ops.gelu(x)
    x.untyped_storage().resize_(0)
    with opd.torch.options(isolated=isolated or None), pytest.raises((RuntimeError, opd.InvalidArgument)):
        ops.gelu(x)


@pytest.mark.parametrize("enabled", [False, True])
def test_what_wants_a_gradient(make, draw, enabled):
    given = []
    call = make(lambda *args: given.append(args) or LEFT)
    x = draw(2, 3).requires_grad_()
    with torch.set_grad_enabled(enabled):
        assert (call(x) is LEFT) == enabled
        assert make(MISS)(x) is (LEFT if enabled else MISS) or not enabled
    assert len(given) == enabled
    assert not given or (given[0][0] == {} and given[0][1] is x)


@pytest.mark.parametrize("name", ["gelu", "lltm", "depthwise_conv2d"])
def test_a_gradient_takes_no_python(ops, draw, device, name):
    """Saved inputs, outputs and tensors, inputs that are not read or absent, results that want nothing."""
    if device == "cpu" and DEVICE != "cpu":
        pytest.skip("this daemon's CPU tensors go to its GPU")
    shapes = {
        "gelu": [(4, 3)],
        "lltm": [(2, 3), (12, 7), (12,), (2, 4), (2, 4)],
        "depthwise_conv2d": [(1, 2, 5, 5), (2, 1, 3, 3)],
    }[name]
    values, kwargs = [draw(*shape) for shape in shapes], {"stride": [2, 2]} if len(shapes[0]) == 4 else {}
    wanted = [v.requires_grad_() for v in values[len(values) > 2 :]]

    def differentiate():
        made = ops[name](*values, **kwargs)
        made = made if isinstance(made, tuple) else (made,)
        return torch.autograd.grad(made[:1], wanted, torch.ones_like(made[0]), allow_unused=True)

    frames = set()

    def note(frame, event, argument):
        frames.add((frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name))

    with opd.torch.options(isolated=True):
        expected = differentiate()
    for _ in range(2):
        differentiate()
    sys.setprofile(note)
    found = differentiate()
    sys.setprofile(None)
    assert_close(found, expected)
    assert not any(file == "_function.py" for file, _ in frames), frames


def test_a_call_inside_of_another(ops, draw):
    """What autograd hands back is each call's own: here a hook of saved tensors calls one, too."""
    x, other = draw(4, 3).requires_grad_(), draw(4, 3).requires_grad_()
    made = []

    def pack(tensor):
        if not made:
            made.append(None)
            with torch.enable_grad():
                made[0] = ops.gelu(other)
        return tensor

    def differentiate():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made.append(ops.gelu(x))
        first, last = made
        made.clear()
        return torch.autograd.grad([first.sum(), last.sum()], [other, x])

    with opd.torch.options(isolated=True):
        expected = [torch.autograd.grad(ops.gelu(t).sum(), t)[0] for t in (other, x)]
    for _ in range(3):
        assert_close(list(differentiate()), expected)


def test_options(make, draw):
    call, x = make(), draw(2, 3)
    with opd.torch.options(isolated=True):
        assert call(x) is LEFT
    with opd.torch.options(isolated=False):
        assert call(x) is not LEFT


@pytest.mark.skipif(DEVICE != "cpu", reason="the CPU device is the one that is everywhere")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="gates.json is of x86-64")
@pytest.mark.skipif(platform.python_version() != GATES["python version"], reason="gates.json is of another Python")
@pytest.mark.skipif(torch.__version__.partition("+")[0] != GATES["torch version"], reason="gates.json is of another torch")
def test_instructions(start_daemon):
    """What a call takes in torch's process, beside one of torch's own."""
    try:
        found = count_torch(start_daemon(as_shipped=True).socket)
    except Unable as why:
        pytest.skip(str(why))
    assert all(n <= ROOM * GATES["torch"][kind] for kind, n in found.items()), (found, GATES["torch"])
    for kind, most in GATES["goals"]["torch"].items():
        assert found[kind] <= most * found["torch.relu"], (found, most)
