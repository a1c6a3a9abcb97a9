"""Tensors through the Python client, against the real daemon."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import opd
from conftest import await_end, eventually, find_family
from opd import _dtypes

pytestmark = pytest.mark.unsanitized("of the client in Python")

NUMPY_DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
]  # fmt: skip


@pytest.fixture
def no_ml_dtypes(monkeypatch):
    monkeypatch.setattr(_dtypes, "_ml_bfloat16", lambda: None)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 5)])
def test_round_trip(client, dtype, shape):
    array = (np.random.default_rng(0).random(shape) * 100).astype(dtype)
    x = client.tensor(array)
    assert (x.shape, x.dtype, x.nbytes, x.name) == (shape, dtype, array.nbytes, None)
    assert x.device == client.info["default_device"]
    y = x.numpy()
    assert y.dtype == array.dtype and y.shape == shape
    assert np.array_equal(y, array)
    assert y.flags.writeable


@pytest.mark.parametrize("n", [16384, 16385, (5 << 20) + 3, (20 << 20) + 1])
def test_large_arrays(client, n):
    array = np.arange(n, dtype=np.float32)
    x = client.tensor(array)
    assert np.array_equal(x.numpy(), array)
    assert np.array_equal(x.read(n - 5, 5), array[-5:])
    part = x.read(7, n - 11)
    assert np.array_equal(part, array[7:-4])
    part[:] = -1  # the caller's own
    assert np.array_equal(x.numpy(), array)
    x.write(array[::-1])
    assert np.array_equal(x.numpy(), array[::-1])


def test_zeros(client):
    x = client.zeros((1000, 100), "float64")
    assert not x.numpy().any()


def test_what_can_become_a_tensor(client):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (base.T, base[::2, ::-1], base.astype(">f4"), np.asfortranarray(base)):
        assert np.array_equal(client.tensor(array).numpy(), array)
    assert client.tensor([[1.5, 2]]).dtype == "float64"
    assert client.tensor(3).item() == 3
    assert client.tensor([1.5, 2], "float16").numpy().tolist() == [1.5, 2]
    assert client.tensor([1, 2], "float32").dtype == "float32"
    assert client.tensor(client.tensor([1, 2])).numpy().tolist() == [1, 2]
    with pytest.raises(TypeError, match="cannot make int32 of float64"):
        client.tensor(np.array([1.5]), "int32")
    with pytest.raises(TypeError, match="dtype complex128 is not one of"):
        client.tensor(1j)
    with pytest.raises(TypeError, match="dtype float33 is not one of"):
        client.zeros(3, "float33")


VALUES = np.array([1.0, -2.5, 1.00390625, 1.01171875, 3e38, 3.4e38, np.inf, -np.inf, 0.0, 1e-40],
                  np.float32)  # fmt: skip


def test_bfloat16_rounds_to_nearest_even(client, no_ml_dtypes):
    x = client.tensor(VALUES, "bfloat16")
    assert (x.dtype, x.nbytes) == ("bfloat16", 20)
    y = x.numpy()
    assert y.dtype == np.float32
    assert y[:4].tolist() == [1.0, -2.5, 1.0, 1.015625]
    assert np.isinf(y[5:8]).all()
    assert np.isnan(client.tensor([np.nan], "bfloat16").numpy()).all()


def test_bfloat16_of_ml_dtypes(client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with np.errstate(over="ignore"):
        expected = VALUES.astype(ml_dtypes.bfloat16)
    assert np.array_equal(client.tensor(VALUES, "bfloat16").numpy(), expected)
    x = client.tensor(expected)
    assert x.dtype == "bfloat16" and x.numpy().dtype == expected.dtype
    assert client.tensor(expected, "float32").numpy().dtype == np.float32


class TorchTensor:
    """As much of torch.Tensor as the client uses, over bits of bfloat16."""

    dtype = "torch.bfloat16"

    def __init__(self, bits):
        self.bits = bits

    def detach(self):
        return self

    cpu = contiguous = detach

    def view(self, dtype):
        return self

    def numpy(self):
        return self.bits


def test_torch_bfloat16_without_torch(client, monkeypatch, no_ml_dtypes):
    monkeypatch.setattr(TorchTensor, "__module__", "torch")
    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"int16": "int16"}))
    x = client.tensor(TorchTensor(np.array([[0x3F80, 0x4000]], np.int16)))
    assert (x.dtype, x.numpy().tolist()) == ("bfloat16", [[1, 2]])


def test_torch_tensors(client):
    torch = pytest.importorskip("torch")
    t = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert np.array_equal(client.tensor(t).numpy().astype(np.float32), t.float().numpy())
    t = torch.rand(3, 4, requires_grad=True)
    assert np.array_equal(client.tensor(t.t()).numpy(), t.t().detach().numpy())
    assert client.zeros(3, torch.float16).dtype == "float16"


def test_views_share_memory(client):
    x = client.tensor(np.arange(12, dtype=np.int32))
    row = x.view((4,), offset=4)
    row.write(np.full(4, -1, np.int32))
    assert x.numpy().tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11]
    x.free()
    assert row.numpy().tolist() == [-1] * 4
    with pytest.raises(opd.InvalidArgument):
        row.view((5,))


def test_read_and_write_check_their_range(client):
    x = client.tensor(np.arange(12, dtype=np.int32).reshape(3, 4))
    assert x.read(2, 3).tolist() == [2, 3, 4]
    assert x.read(10).tolist() == [10, 11]
    with pytest.raises(
        opd.InvalidArgument, match="cannot read 3 elements at 10 of a tensor of 12"
    ):
        x.read(10, 3)
    with pytest.raises(opd.InvalidArgument, match=r"cannot write shape \[4\]"):
        x.write(np.zeros(4, np.int32))
    with pytest.raises(TypeError, match="cannot make int32 of float64"):
        x.write(np.zeros((3, 4)))


def test_as_an_array(client):
    x = client.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.add(x, 1).tolist() == [[2, 3], [4, 5]]
    assert np.asarray(x, np.float32).dtype == np.float32
    assert len(x) == 2
    assert repr(x) == f"<opd.Tensor float64 [2, 2] on {x.device}:\n[[1., 2.],\n [3., 4.]]>"
    with pytest.raises(TypeError):
        len(client.tensor(1.0))


def test_named_tensors_outlive_their_client(daemon, client):
    with daemon.connect() as other:
        w = other.tensor(np.arange(3), name="w")
        assert "'w'" in repr(w)
    w = client.attach("w")
    try:
        assert (w.name, w.numpy().tolist()) == ("w", [0, 1, 2])
        with pytest.raises(opd.InvalidArgument, match="w"):
            client.tensor(1.0, name="w")
        assert [t["name"] for t in client.tensors()] == ["w"]
    finally:
        w.free()
    with pytest.raises(opd.NotFound, match="w"):
        client.attach("w")


def test_unnamed_tensors_die_with_their_client(daemon, client):
    def used():
        return sum(d["memory_used"] for d in client.status()["devices"])

    before = used()
    with daemon.connect() as other:
        x = other.zeros((1 << 20,))
        assert used() >= before + (4 << 20)
        assert x.shape == (1 << 20,)
    assert eventually(lambda: used() <= before) and used() == before


def test_dropped_tensors_give_their_memory_back(client):
    def used():
        return sum(d["memory_used"] for d in client.status()["devices"])

    before = used()
    for _ in range(20):
        client.zeros((1 << 20,))
    with client.batch():
        for _ in range(20):
            client.zeros((1 << 20,))
    client.synchronize()
    assert used() == before


def test_tensors_of_another_client(daemon, client):
    with daemon.connect() as other:
        with pytest.raises(opd.InvalidArgument, match="another client"):
            client.ops.gelu(other.tensor([1.0]))


def test_a_daemon_that_is_killed(start_daemon):
    daemon = start_daemon()
    client = daemon.connect()
    x = client.tensor([1.0])
    family = find_family(daemon.pid)
    daemon.process.kill()
    daemon.process.wait()
    assert not await_end(family), "its processes do not end with it"
    with pytest.raises(opd.ConnectionLost):
        x.numpy()
    client.close()


def test_connections_leave_nothing_open(daemon, client):
    def count_fds():
        import os

        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    def use():
        with daemon.connect() as other:
            x = other.tensor(np.zeros(100_000, np.float32))
            other.ops.gelu.forward(x)

    use()
    before = count_fds()
    for _ in range(20):
        use()
    assert eventually(lambda: count_fds() <= before)


def test_without_numpy(daemon):
    """The package imports, and talks, where there is no numpy."""
    text = f"""
import sys
sys.modules["numpy"] = None
import opd
with opd.connect({daemon.socket!r}, start=False) as client:
    assert client.zeros((2, 3)).shape == (2, 3)
    assert client.ops.gelu(client.zeros(4)).dtype == "float32"
"""
    path = opd.__path__[0] + "/.."
    subprocess.run([sys.executable, "-c", text], check=True, env={"PYTHONPATH": path})


def test_a_tensor_is_not_copied_behind_the_daemons_back(client):
    """Two objects of one id would free each other's memory."""
    x = client.tensor(np.arange(3, dtype=np.float32))
    _, context = client.ops.gelu.forward(x)
    for thing in (x, context, client):
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"opd.{type(thing).__name__} is "):
                make(thing)
    np.testing.assert_array_equal(x.numpy(), [0, 1, 2])


def test_memory_that_could_not_be_shared_is_asked_for_again(client, monkeypatch):
    """After an interrupt, or a refusal."""
    send = type(client._conn).send

    def interrupt(self, method, params, **rest):
        if method == "shm_open":
            raise InterruptedError
        return send(self, method, params, **rest)

    data = np.arange(1 << 17, dtype=np.float32)
    monkeypatch.setattr(type(client._conn), "send", interrupt)
    with pytest.raises(InterruptedError):
        client.tensor(data)
    monkeypatch.undo()
    np.testing.assert_array_equal(client.tensor(data).numpy(), data)


def test_views_as_others_write_them(client):
    x = client.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    expected = np.arange(12).reshape(4, 3)
    for view in (x.view(4, 3), x.view((4, 3)), x.view([4, 3]), x.view(np.array([4, 3]).tolist())):
        assert np.array_equal(view.numpy(), expected)
    assert x.view(4).numpy().tolist() == [0, 1, 2, 3]
    assert x.view(2, 2, offset=3).numpy().tolist() == [[3, 4], [5, 6]]
    assert x.view((), offset=5).item() == x.view(offset=5).item() == 5
    for wrong in (((4,), 3), ([4, 3], 0), (4.0, 3), ("4",)):
        with pytest.raises(TypeError, match=r"given by name: view\(\(4, 3\), offset=2\)"):
            x.view(*wrong)
    with pytest.raises(TypeError):
        x.view(4, 3, offset=1.5)


@pytest.mark.parametrize(
    "dtype, name",
    [(float, "float64"), (int, "int64"), (bool, "bool"), ("half", "float16"), ("f4", "float32"),
     ("<i2", "int16"), ("double", "float64"), (np.dtype(">f4"), "float32"), (np.half, "float16")],
)  # fmt: skip
def test_dtypes_as_numpy_writes_them(client, dtype, name):
    assert client.zeros(3, dtype).dtype == name
    assert client.tensor(np.array([0, 1], bool), dtype).numpy().tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [None, complex, "c8", "M8", "U3", str, object, "float33", 3, [], ""])
def test_what_is_no_dtype(client, dtype):
    with pytest.raises(TypeError, match="is not one of bool, "):
        client.zeros(3, dtype)


LEFT_OPEN = """
import sys
import opd
client = opd.connect(sys.argv[1], start=False)
stream = client.events(follow=True)
dropped = opd.connect(sys.argv[1], start=False)
dropped.ops.relu(dropped.zeros(3))
del dropped
"""


def test_a_client_need_not_be_closed(daemon):
    options = ["-X", "dev", "-W", "error"]
    done = subprocess.run([sys.executable, *options, "-c", LEFT_OPEN, daemon.socket], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_numpy_it_is_told_what_to_install(daemon):
    script = "import sys, opd; sys.modules['numpy'] = None; c = opd.connect(sys.argv[1], start=False)\n"
    for use in ("c.tensor([1.0])", "c.zeros(3).numpy()", "c.zeros(3).write([1, 2, 3])"):
        command = [sys.executable, "-c", script + use, daemon.socket]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1 and "pip install numpy" in done.stderr.splitlines()[-1]
    command = [sys.executable, "-c", script + "c.status(); c.zeros(3)", daemon.socket]
    assert subprocess.run(command).returncode == 0
