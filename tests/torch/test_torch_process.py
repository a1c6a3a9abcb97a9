"""Threads, forks, other processes; the ways data go."""

import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from conftest import DEVICE, in_threads
from torch_fixtures import ops, run_fresh, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd.torch._library import find_library
from scale_operator import X, grad_of, save, scale, write_scale  # noqa: F401
from spawned import step


# --- threads and processes


def test_threads_take_turns(ops):
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 30):
            x = torch.randn(n * 100, generator=generator, dtype=torch.float64)
            x.requires_grad_()
            y = ops.gelu(x, approximate="none")
            assert_close(y, F.gelu(x))
            assert_close(grad_of(y, x), grad_of(F.gelu(x), x))

    in_threads(4, work)


@pytest.mark.skipif(os.environ.get("OPD_ISOLATED") == "1", reason="all calls run in the daemon")
def test_a_plan_that_another_thread_has_just_loaded(ops, monkeypatch):
    """Its version is known as soon as the plan runs: backward asks for it."""
    library = find_library()
    load = library.load

    def load_slowly(*args):
        serial = load(*args)
        time.sleep(0.05)
        return serial

    monkeypatch.setattr(library, "load", load_slowly)

    def work(seed):
        for n in range(1, 6):
            x = torch.full((n * 7 + 1000,), float(seed), dtype=torch.float64, requires_grad=True)
            assert_close(grad_of(ops.gelu(x, approximate="none"), x), grad_of(F.gelu(x), x))

    in_threads(4, work)


def test_threads_that_register_at_once(run_fresh):
    """Torch takes a name once: who comes second uses what the first one has made."""
    code = """
import os, threading, time, torch
os.environ.pop("OPD_ISOLATED", None)  # only torch's own process registers kernels
import opd.torch
from opd.torch._register import Operator
make, made = Operator.make_kernels, []
def make_slowly(operator, *args):
    time.sleep(0.2)
    made.append(operator.name)
    return make(operator, *args)
Operator.make_kernels = staticmethod(make_slowly)
opd.torch.ops.gelu  # known, and not called
barrier = threading.Barrier(4)
def work():
    barrier.wait()
    for _ in range(3):
        opd.torch.ops.gelu(torch.zeros(8))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(made)
"""
    assert run_fresh(code).strip() == "['gelu']"


def run_in_child(queue, x):
    y = opd.torch.ops.gelu(x, approximate="none")
    queue.put((y.tolist(), opd.torch._session.get_session().client._conn._pid))


def test_a_forked_child_has_its_own_connection(ops):
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)
    before = ops.gelu(x, approximate="none")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=run_in_child, args=(queue, x)) for _ in range(2)]
    for child in children:
        child.start()
    results = [queue.get() for _ in children]
    for child in children:
        child.join()
    assert {pid for _, pid in results} == {child.pid for child in children}
    for values, _ in results:
        assert values == before.tolist()
    assert torch.equal(ops.gelu(x, approximate="none"), before)


def test_a_spawned_process(ops, torch_daemon, monkeypatch):
    """By plain multiprocessing: a layer and a tensor go there by pickle, results come back. Tensors on the CPU are
    for kernels in its process only where the daemon serves that."""
    monkeypatch.setenv("OPD_SOCKET", torch_daemon.socket)
    layer = opd.torch.DepthwiseConv2d(3, padding=1, bias=True)
    x = torch.randn(2, 3, 6, 5, requires_grad=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pid, y, gradient, n_loaded = pool.apply(step, (layer, x.detach().requires_grad_()))
    here = layer(x)
    assert pid != os.getpid()
    assert_close(y, here)
    assert_close(gradient, grad_of(here, x))
    in_process = DEVICE == "cpu" and os.environ.get("OPD_ISOLATED") != "1"
    assert n_loaded in ((None, 2) if in_process else (None, 0))


class Interrupt(Exception):
    pass


def test_a_call_that_is_interrupted_does_no_harm_to_the_next(ops):
    """The daemon is still at work when the next call takes memory that it shares."""

    def interrupt(*_):
        raise Interrupt

    x = torch.ones(100)
    assert torch.equal(ops.slow_add(x, rounds=1), x + 1)
    before = signal.signal(signal.SIGUSR1, interrupt)
    rounds = 1 << 20
    took = 0.0
    while took < 0.3:
        rounds *= 2
        began = time.monotonic()
        ops.slow_add(x, rounds=rounds)
        took = time.monotonic() - began
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(Interrupt):
            ops.slow_add(x, rounds=4 * rounds)
    finally:
        signal.signal(signal.SIGUSR1, before)
    zeros = torch.zeros(300)  # it would cover the place of the other's result
    assert torch.equal(ops.gelu(zeros), zeros)
    assert torch.equal(ops.slow_add(x * 2, rounds=1), x * 2 + 1)


def interrupt_at_line(n):
    """For sys.settrace: raises at the n-th line of opd.torch that is run."""
    left = [n]

    def trace(frame, event, arg):
        if not frame.f_code.co_filename.startswith(os.path.dirname(opd.torch.__file__)):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    return trace


def test_a_look_up_that_is_interrupted_does_no_harm_to_the_next(ops, monkeypatch):
    """At whichever of its lines; torch keeps what was registered until then."""
    x = torch.ones(3, requires_grad=True)
    expected = ops.gelu(x), grad_of(ops.gelu(x), x), ops.gelu.__doc__
    for n in range(1, 1000):
        for known in ("_operators", "_registered", "_functions"):
            monkeypatch.setattr(opd.torch._ops, known, {})
        vars(ops).clear()
        before = sys.gettrace()
        sys.settrace(interrupt_at_line(n))
        try:
            ops.gelu
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        y = ops.gelu(x)
        assert torch.equal(y, expected[0]) and torch.equal(grad_of(y, x), expected[1])
        assert ops.gelu.__doc__ == expected[2] and ops.gelu.overload
    assert n > 50


def test_an_operator_named_as_the_part_of_another(scale, tmp_path):
    text = (tmp_path / "scale.cu").read_text()
    for name in ("scale__infer", "scale__2"):
        save(tmp_path / f"{name}.cu", text.replace("scale", name))
    scale.reload()
    assert_close(opd.torch.ops.scale__2(X), X * 2)
    assert_close(opd.torch.ops.scale(X), X * 2)
    assert_close(opd.torch.ops.scale__infer(X), X * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    assert_close(opd.torch.ops.scale(X), X * 6)
    assert_close(opd.torch.ops.scale__2(X), X * 2)


WORDS = """\
//! op      import(Tensor in, *, float class=2.0, float[2] lambda=1.0) -> Tensor is
//! dtypes  float32
//! let     by = class
//! let     more = lambda[1]
//! formula is = in * by + more
//! formula grad_in = grad_is * by
"""


def test_names_that_are_words_of_python(scale, tmp_path):
    save(tmp_path / "import.cu", WORDS)
    assert [c["state"] for c in scale.reload()] == ["serving"]
    x = X.clone().requires_grad_()
    operator = opd.torch.ops["import"]
    assert_close(operator(x), x * 2 + 1)
    y = operator(in_=x, class_=3, lambda_=5)
    assert_close(y, x * 3 + 5)
    assert_close(grad_of(y, x), torch.full_like(x, 3))
    assert list(inspect.signature(operator).parameters) == ["in_", "class_", "lambda_"]
    model = torch.compile(lambda x: operator(x, class_=3, lambda_=5), fullgraph=True, backend="eager")
    assert_close(model(X), X * 3 + 5)
    torch.compiler.reset()


# --- the ways data go


@pytest.mark.parametrize("transport", ["DirectTransport", "StagedTransport"])
def test_either_way_through_shared_memory(torch_daemon, monkeypatch, transport):
    from opd.torch import _host

    monkeypatch.setattr(_host, "DirectTransport", getattr(_host, transport))
    monkeypatch.setattr(_host, "StagedTransport", getattr(_host, transport))
    opd.torch.use(torch_daemon.socket)
    if transport == "DirectTransport" and os.environ.get("OPD_TEST_DEVICE", "cpu") != "cpu":
        opd.torch.use(None)
        pytest.skip("the daemon's kernels run in this process's memory on its CPU device alone")
    ops = opd.torch.ops
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        y, z = ops.two_results(x, gain=0.5)
        assert_close(y, 0.5 * x * torch.exp(x))
        assert_close(grad_of(y, x), grad_of(0.5 * x * torch.exp(x), x))
        param = torch.randn(5, 4).t()
        expected = param - 0.5
        ops.step_down(param, torch.ones(4, 5))
        assert_close(param, expected)
        assert ops.gelu(torch.empty(0, 3)).shape == (0, 3)
        big = torch.randn(1 << 19)
        assert_close(ops.gelu(big, approximate="none"), F.gelu(big), rtol=1e-5, atol=1e-5)
    opd.torch.use(None)


def test_a_very_large_call_leaves_no_memory_behind(ops, monkeypatch):
    from opd.torch import _host

    monkeypatch.setattr(_host, "_MAX_KEPT", 1 << 20)
    x = torch.randn(1 << 19)
    for _ in range(2):
        assert_close(ops.gelu(x, approximate="none"), F.gelu(x), rtol=1e-5, atol=1e-5)
        transport = opd.torch._session.get_session()._transports[torch.device("cpu")][1]
        assert transport._arena is None


def test_many_signatures(ops):
    """More than are kept."""
    for n in range(1, 700):
        assert ops.gelu(torch.zeros(n)).shape == (n,)
    assert len(opd.torch._session.get_session()._plans["gelu"]) >= 690


def test_a_fork_waits_for_a_registration_to_end(ops):
    """Else the child would wait for ever: who registers is not in it."""
    lock, held = opd.torch._inproc._lock, threading.Event()

    def register():
        with lock:
            held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=register)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(not lock.acquire(timeout=10))
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
