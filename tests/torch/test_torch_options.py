"""opd.torch.options(), and what is said to who gives opd.torch.ops what is client.ops' alone."""

import inspect
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import device, draw, isolated, ops, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd._calls import CallConnection
from opd._conn import Connection
from scale_operator import X, grad_of, scale, write_scale  # noqa: F401


@pytest.fixture
def sent(monkeypatch):
    """(method, options) of each request that runs."""
    seen = []
    send = Connection.send

    def record(self, method, params, **rest):
        if method in ("forward", "vjp"):
            seen.append((method, dict(params[-1])))
        return send(self, method, params, **rest)

    monkeypatch.setattr(Connection, "send", record)
    return seen


def test_a_deadline(ops):
    x = torch.ones(100)
    with opd.torch.options(deadline=0.2):
        with pytest.raises(opd.DeadlineExceeded, match="slow_add"):
            ops.slow_add(x, rounds=1 << 40)
    assert torch.equal(ops.slow_add(x, rounds=1), x + 1)


def test_backward_has_what_its_forward_had(ops, sent):
    x = torch.ones(3, requires_grad=True)
    with opd.torch.options(deadline=30, debug=True):
        y = ops.gelu(x)
        with opd.torch.options(debug=False):
            z = ops.gelu(x)
    grad_of(y, x)
    with opd.torch.options(deadline=40):
        grad_of(z, x)
    given = [(method, o.get("deadline"), o.get("debug")) for method, o in sent]
    assert given == [
        ("forward", 30, True),
        ("forward", 30, None),
        ("vjp", 30, True),
        ("vjp", 40, None),
    ]
    sent.clear()
    grad_of(ops.gelu(x), x)
    assert all("deadline" not in o and "debug" not in o for _, o in sent)


def test_a_backward_of_another_thread(ops, sent):
    x = torch.ones(61, 1, 3, requires_grad=True)  # of this shape nothing is loaded in this process
    with opd.torch.options(deadline=30):
        y = ops.gelu(x)
        thread = threading.Thread(target=y.sum().backward)
        other = threading.Thread(target=ops.gelu, args=(x,))  # a thread has its own options
        for each in (thread, other):
            each.start()
            each.join()
    assert [(method, o.get("deadline")) for method, o in sent] == [
        ("forward", 30),
        ("vjp", 30),
        ("forward", None),
    ]


def test_in_compiled_code(ops):
    """It ends the graph, and says what to do where it may not."""

    def run(x):
        with opd.torch.options(isolated=True):
            return ops.gelu(x) + 1

    x = torch.randn(3)
    assert torch.equal(torch.compile(run, backend="aot_eager")(x), run(x))
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"opd.torch.options\(\) is for calls as they are made: put it around compiled code"):
        torch.compile(run, backend="aot_eager", fullgraph=True)(x)
    torch.compiler.reset()


def test_around_compiled_code(ops, sent):
    model = torch.compile(lambda x: ops.gelu(x) + 1, fullgraph=True, backend="aot_eager")
    x = torch.ones(62, 1, 3)  # of this shape nothing is loaded in this process
    model(x)
    with opd.torch.options(deadline=30):
        model(x)
    assert [o.get("deadline") for _, o in sent] == [None, 30]
    torch.compiler.reset()


def test_a_version(scale, tmp_path):
    x = X.clone().requires_grad_()
    assert_close(opd.torch.ops.scale(x), x * 2)
    write_scale(tmp_path, 5)
    scale.reload()
    for _ in range(2):
        with opd.torch.options(version=1):
            y = opd.torch.ops.scale(x)
        assert_close(y, x * 2)
        assert_close(grad_of(y, x), torch.full_like(x, 2))
        assert_close(opd.torch.ops.scale(x), x * 5)
    with opd.torch.options(version=7):
        with pytest.raises(opd.NotFound, match="scale: version 7 is not kept"):
            opd.torch.ops.scale(x)


def test_a_version_of_another_interface(scale, tmp_path):
    x = X.clone().requires_grad_()
    opd.torch.ops.scale(x)
    write_scale(tmp_path, 7, keeps=True)
    scale.reload()
    assert_close(opd.torch.ops.scale(x), x * 7)
    with opd.torch.options(version=1):
        with pytest.raises(opd.InvalidArgument, match="version 1 has 0 saved tensors, .* has 1"):
            opd.torch.ops.scale(x)
    assert_close(grad_of(opd.torch.ops.scale(x), x), torch.full_like(x, 7))


@pytest.mark.parametrize(
    "given", [{"deadline": 0}, {"deadline": "1"}, {"version": 0}, {"version": 1.5}, {"debug": 1}]
)
def test_what_is_no_option(given):
    with pytest.raises(TypeError, match=f"'{next(iter(given))}' must be"):
        with opd.torch.options(**given):
            pass


def test_options_are_no_arguments(ops):
    for name in ("deadline", "version", "debug", "device"):
        assert name not in inspect.signature(ops.gelu).parameters
        assert f"{name}:" not in ops.gelu.__doc__
        with pytest.raises(TypeError, match=rf"gelu\(\) has no argument '{name}'.*torch\.options"):
            ops.gelu(X, **{name: 1})


def test_a_tensor_of_a_client_is_refused_by_name(ops, torch_daemon):
    with torch_daemon.connect() as client:
        with pytest.raises(TypeError, match=r"not an opd\.Tensor; use client\.ops\.gelu"):
            ops.gelu(client.tensor([1.0]))


@pytest.fixture
def methods(monkeypatch):
    """Of each request that runs or prepares."""
    seen = []
    send, send_call = CallConnection.send, CallConnection.send_call

    def record(self, method, params, **rest):
        if method in ("forward", "vjp", "prepare"):
            seen.append(method)
        return send(self, method, params, **rest)

    def record_call(self, *args):
        seen.append("call")
        return send_call(self, *args)

    monkeypatch.setattr(CallConnection, "send", record)
    monkeypatch.setattr(CallConnection, "send_call", record_call)
    return seen


def test_isolated_calls_that_come_again_are_prepared(ops, draw, methods):
    x = draw(5, 7, grad=True)
    expected = grad_of(F.gelu(x), x)
    with opd.torch.options(isolated=True):
        for sent in ["forward", "vjp"], ["prepare", "forward", "prepare", "vjp"], ["call", "call"], ["call", "call"]:
            assert_close(grad_of(ops.gelu(x, approximate="none"), x), expected)
            assert methods == sent
            methods.clear()


def test_what_is_prepared_follows_edits(scale, tmp_path, isolated, methods):
    isolated()
    x = X.clone().requires_grad_()
    for _ in range(3):
        y = opd.torch.ops.scale(x)
        grad_of(y, x)
    old = opd.torch.ops.scale(x)
    for factor, keeps in (3, False), (5, True):  # the second has a saved tensor, which what is prepared has not
        write_scale(tmp_path, factor, keeps=keeps)
        scale.reload()
        methods.clear()
        for _ in range(4):
            y = opd.torch.ops.scale(x)
            assert_close(y, factor * x)
            assert_close(grad_of(y, x), torch.full_like(x, factor))
        assert "call" in methods
    assert_close(grad_of(old, x), torch.full_like(x, 2))


RUNS_OVER = """\
//! op      runs_over(Tensor x, Tensor w, *, int read=0, int write=0, int back=0) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   w [N]
//! shape   y [N]
//!
//! forward
//!   kernel  runs_over
//!   grid    1
//!   block   64
//! backward grad_x grad_w
//!   kernel  runs_over_back
//!   grid    1
//!   block   64

__global__ void runs_over(const float *x, const float *w, float *y, int64_t N, int64_t read, int64_t write)
{
    int64_t i = threadIdx.x;
    y[i + write] = w[i]; // write
    y[i] = x[i + read] + w[i]; // read
}

__global__ void runs_over_back(const float *grad_y, float *grad_x, float *grad_w, int64_t N, int64_t back)
{
    int64_t i = threadIdx.x;
    grad_w[i] = grad_x[i] = grad_y[i + back]; // back
}
"""


@pytest.mark.parametrize(
    "given, what, access",
    [
        ({"read": 1}, "read of 'x': element 64 of 64 (float32)", "// read"),
        ({"read": -4096}, "read of 'x': element -4096 of 64 (float32)", "// read"),
        ({"write": 64}, "write of 'y': element 64 of 64 (float32)", "// write"),
        ({"back": 1}, "read of 'grad_y': element 64 of 64 (float32)", "// back"),
    ],
)
def test_what_runs_over_into_the_next_tensor(ops, start_daemon, tmp_path, given, what, access):
    (tmp_path / "runs_over.cu").write_text(RUNS_OVER)
    line = [access in text for text in RUNS_OVER.splitlines()].index(True) + 1
    opd.torch.use(start_daemon("--kernels", str(tmp_path)).socket)
    x, w = torch.arange(64.0, requires_grad=True), torch.ones(64)

    def call(**given):
        y = opd.torch.ops.runs_over(x, w, **given)
        return y, torch.autograd.grad(y.sum(), x)[0]

    for _ in range(3):  # plain, prepared, prepared
        with opd.torch.options(isolated=True, debug=True):
            y, grad = call()
            assert torch.equal(y, x + 1) and torch.equal(grad, torch.ones(64))
            with pytest.raises(opd.KernelFault) as error:
                call(**given)
    assert f"out-of-bounds {what}, runs_over.cu:{line}" in str(error.value), error.value
    with opd.torch.options(isolated=True):
        y, grad = call()
    assert torch.equal(y, x + 1) and torch.equal(grad, torch.ones(64))
    opd.torch.release()
