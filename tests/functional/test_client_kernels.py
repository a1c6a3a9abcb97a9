"""Operators of kinds that the shipped ones are not, and kernels that go wrong: kernels/."""

import inspect
import time
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import Daemon


@pytest.fixture(scope="module")
def own_daemon():
    daemon = Daemon("--kernels", str(Path(__file__).parent / "kernels"))
    yield daemon
    daemon.stop()


@pytest.fixture
def client(own_daemon):
    with own_daemon.connect() as client:
        yield client


def test_several_outputs_and_absent_inputs(client):
    a, b = np.arange(5.0), np.ones(5)
    total, difference = client.ops.weigh(a, b, by=[2, 3], offset=0.5)
    assert total.numpy().tolist() == [3.5, 5.5, 7.5, 9.5, 11.5]
    assert difference.numpy().tolist() == [-3, -1, 1, 3, 5]
    total, difference = client.ops.weigh(a, negate=True)
    assert total.numpy().tolist() == [0, -1, -2, -3, -4]
    total, _ = client.ops.weigh(a=a, b=None, by=2, offset=None)
    assert total.numpy().tolist() == [0, 2, 4, 6, 8]
    assert str(inspect.signature(client.ops.weigh)).startswith(
        "(a: 'Tensor', b: 'Optional[Tensor]' = None, *, by: 'float or 2 of them' = (1.0, 1.0), "
        "offset: 'float or None' = None, negate: 'bool' = False, "
    )


def test_gradients_of_several_outputs(client):
    a, b = np.arange(5.0), np.ones(5)
    _, ctx = client.ops.weigh.forward(a, b, by=(2, 3))
    ga, gb = ctx.backward(np.ones(5), None)
    assert ga.numpy().tolist() == [2] * 5 and gb.numpy().tolist() == [3] * 5
    ga, gb = ctx.backward(None, np.ones(5), wanted=["b"])
    assert ga is None and gb.numpy().tolist() == [-3] * 5
    _, ctx = client.ops.weigh.forward(a)
    ga, gb = ctx.backward(np.ones(5), np.ones(5))
    assert ga.numpy().tolist() == [2] * 5 and gb is None


def test_python_numbers_take_the_others_dtype(client):
    x = client.zeros(1, "float32")
    total, _ = client.ops.weigh(x, [2])
    assert (total.dtype, total.numpy().tolist()) == ("float32", [2])
    with pytest.raises(opd.InvalidArgument, match="b is float64, a is float32"):
        client.ops.weigh(x, np.ones(1))
    _, ctx = client.ops.weigh.forward(x)
    ga, _ = ctx.backward([1.0], None)
    assert ga.dtype == "float32"


def test_attributes_are_checked_before_anything_is_sent(client):
    x = client.zeros(3)
    for by in ("2", (1, 2, 3), None, [1, "2"], 1j):
        with pytest.raises(TypeError, match="argument 'by' must be float or 2 of them, not"):
            client.ops.weigh(x, by=by)
    with pytest.raises(TypeError, match="argument 'negate' must be bool, not int 1"):
        client.ops.weigh(x, negate=1)
    with pytest.raises(TypeError, match="argument 'n' must be int, not float 1.5"):
        client.ops.ramp(n=1.5)
    for by in (np.float32(2), np.array([2, 2]), np.int64(2), (2, 2.0)):
        client.ops.weigh(x, by=by, negate=np.bool_(True))
    assert client.ops.ramp(n=np.int64(2)).shape == (2,)


def test_in_place(client):
    x = client.tensor([1.0, 2.0])
    assert client.ops.nudge(x, by=0.5) is None
    assert x.numpy().tolist() == [1.5, 2.5]
    with pytest.raises(TypeError, match=r"nudge\(\) missing a required .*: 'by'"):
        x.nudge()


def test_without_inputs(client):
    y = client.ops.ramp(n=4, start=2, device=client.info["default_device"])
    assert (y.dtype, y.numpy().tolist()) == ("int32", [2, 3, 4, 5])
    assert "ramp" not in dir(y)
    with pytest.raises(opd.NotFound, match="device"):
        client.ops.ramp(n=4, device="cuda:77")


def test_a_kernel_that_does_not_compile(client):
    x = client.zeros(3)
    with pytest.raises(opd.CompileError) as e:
        client.ops.broken(x)
    assert e.value.op == "broken"
    assert "broken.cu" in e.value.log and "no_such_name" in e.value.log
    assert e.value.log.rstrip() in str(e.value)
    assert x.numpy().tolist() == [0, 0, 0]


def test_a_deadline(client):
    x = client.tensor(np.zeros(3, np.float32))
    client.ops.gelu(x)
    begin = time.monotonic()
    with pytest.raises(opd.DeadlineExceeded) as e:
        client.ops.endless(x, deadline=1.0)
    assert time.monotonic() - begin > 0.9
    assert e.value.op == "endless"
    assert client.ops.gelu(x).numpy().tolist() == [0, 0, 0]


def test_a_fault(client):
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(opd.KernelFault) as e:
        client.ops.outside(x)
    assert e.value.op == "outside"
    assert x.numpy().tolist() == [1, 1, 1]
    assert client.ops.gelu(x).shape == (3,)


def test_a_fault_in_a_batch(client):
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(opd.KernelFault):
        with client.batch():
            y = client.ops.outside(x)
            for _ in range(10):
                y = client.ops.gelu(y)
    assert x.numpy().tolist() == [1, 1, 1]


def test_what_follows_a_failure_without_waiting(client):
    """A request on the outputs of one that fails fails too, also if it was sent before that."""
    x = client.tensor(np.array([1, -1, 2], np.float32))
    client.ops.refuse(client.tensor(np.ones(3, np.float32)))  # compiled
    client.ops.gelu(x)
    with pytest.raises(opd.KernelFault), client.batch():
        y = client.ops.refuse(x)
        z = client.ops.gelu(y)
        w = client.ops.gelu(x)
    with pytest.raises(opd.NotFound):
        z.numpy()
    assert w.numpy().shape == (3,)
    assert x.numpy().tolist() == [1, -1, 2]
