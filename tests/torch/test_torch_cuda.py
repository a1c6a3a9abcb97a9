"""CUDA tensors of torch. The bookkeeping of shared allocations is tested everywhere, with a driver
that is made up; the rest needs a GPU, and a torch that has it."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import isolated, ops, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd._reply import Batch
from opd.torch._cuda import Imports, Range, find_card
from opd.torch._dtypes import Desc

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
needs_gpu = pytest.mark.skipif(
    not (DEVICE.startswith("cuda") and torch.cuda.is_available()),
    reason="needs OPD_TEST_DEVICE=cuda:N and a torch with CUDA",
)
only_in_process = pytest.mark.skipif(
    os.environ.get("OPD_ISOLATED") == "1", reason="all calls run in the daemon"
)


# --- which allocations the daemon has open


class MadeUp:
    """A driver, a session and its connection: allocations by base, and the messages sent."""

    def __init__(self):
        self.ranges, self.sent, self.dropped, self.shareable, self.last_id = {}, [], [], True, 0
        self.conn = self

    def find_range(self, address):
        return next((r for r in self.ranges.values() if 0 <= address - r.base < r.size), None)

    def get_handle(self, range):
        return bytes(64) if self.shareable else None

    def new_id(self):
        self.last_id += 1
        return self.last_id

    def send(self, method, params, batch=None):
        self.sent.append((method, *params))

    def wait(self, reply):
        pass

    def discard(self, kind, id):
        self.dropped.append(id)

    def take(self):
        sent, self.sent = self.sent, []
        return [message[0] for message in sent]


@pytest.fixture
def world():
    world = MadeUp()
    world.ranges[0x1000] = Range(0x1000, 0x1000, 1)
    return world


FOUR = Desc("float32", (4,))


def test_an_allocation_is_opened_once(world):
    imports = Imports(world, "cuda:0", world)
    first = imports.find(FOUR, 0x1010, Batch())
    assert world.sent == [
        ("import_open", 1, "cuda:0", "cuda_ipc", bytes(64), 0x1000),
        ("import_tensor", 2, 1, 0x10, "float32", (4,)),
    ]
    world.take()
    assert imports.find(FOUR, 0x1010, Batch()) == first
    assert world.take() == []
    assert imports.find(FOUR, 0x1020, Batch()) != first
    assert imports.find(Desc("int32", (4,)), 0x1010, Batch()) != first
    assert world.take() == ["import_tensor", "import_tensor"]


def test_an_address_that_was_given_anew_is_opened_anew(world):
    imports = Imports(world, "cuda:0", world)
    old = imports.find(FOUR, 0x1010, Batch())
    world.take()
    world.ranges[0x1000] = Range(0x1000, 0x1000, 2)
    new = imports.find(FOUR, 0x1010, Batch())
    assert new != old and world.dropped == [old]
    assert world.take() == ["free", "import_open", "import_tensor"]


def test_what_was_freed_is_closed_in_time(world):
    imports = Imports(world, "cuda:0", world)
    imports.find(FOUR, 0x1010, Batch())
    world.ranges[0x9000] = Range(0x9000, 0x1000, 3)
    imports.find(FOUR, 0x9000, Batch())
    del world.ranges[0x1000]
    world.take()
    for _ in range(200):
        imports.sweep()
    assert world.sent == [("free", "import", [1])]
    imports.close_all()
    assert world.take()[-1] == "free"
    imports.close_all()
    assert world.take() == []


def test_ids_are_given_up_between_calls_alone(world):
    """Those of a call's first tensors are still needed when its last is the one too many."""
    world.ranges[0x10000] = Range(0x10000, 1 << 20, 4)
    imports = Imports(world, "cuda:0", world)
    for i in range(0, 3000, 3):
        imports.sweep()
        ids = {imports.find(FOUR, 0x10000 + 16 * (i + j), Batch()) for j in range(3)}
        assert len(ids) == 3 and not ids.intersection(world.dropped)
    assert 1000 < len(world.dropped) < 3000


def test_open_allocations_are_bounded(world):
    imports = Imports(world, "cuda:0", world)
    for i in range(3000):
        base = 0x100000 + 0x1000 * i
        world.ranges[base] = Range(base, 0x1000, 100 + i)
        imports.sweep()
        imports.find(FOUR, 0x1000, Batch())  # in use all the time
        imports.find(FOUR, base, Batch())
    sent = world.take()
    assert 300 < sent.count("import_open") - sent.count("free") < 600
    imports.find(FOUR, 0x1000, Batch())
    assert world.take() == []


def test_memory_that_cannot_be_shared_is_refused(world):
    imports = Imports(world, "cuda:0", world)
    world.shareable = False
    with pytest.raises(opd.InvalidArgument, match="expandable_segments:False"):
        imports.find(FOUR, 0x1010, Batch())
    assert world.sent == []
    with pytest.raises(opd.InvalidArgument, match="0x7000"):
        imports.find(FOUR, 0x7000, Batch())


def test_the_card_is_found_by_its_uuid(monkeypatch):
    class Properties:
        name = "NVIDIA H200"
        uuid = "01020304-0506-0708-090A-0B0C0D0E0F10"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    cards = [
        {"name": "cpu", "model": "a CPU", "uuid": ""},
        {"name": "cuda:0", "model": "other", "uuid": "GPU-11020304-0506-0708-090a-0b0c0d0e0f10"},
        {"name": "cuda:1", "model": "this", "uuid": "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"},
    ]
    assert find_card(0, cards) == "cuda:1"
    with pytest.raises(opd.Unavailable, match=r"does not serve cuda:0 .*it serves cpu \(a CPU\)"):
        find_card(0, cards[:1])


# --- on a GPU


def gelu(x):
    return F.gelu(x, approximate="tanh")


def imports_of(device=DEVICE):
    session = opd.torch._session.get_session()
    return session._transports[torch.device(device)][1]._imports


@needs_gpu
def test_results_are_written_in_torchs_memory(ops):
    x = torch.randn(1 << 20, device=DEVICE)
    used = opd.torch._session.get_session().client.status()["devices"][0]["memory_used"]
    y = ops.gelu(x, approximate="tanh")
    assert y.device == x.device
    assert_close(y, gelu(x))
    status = opd.torch._session.get_session().client.status()["devices"][0]
    assert status["memory_used"] == used


def give_back_and_take_again(ops):
    for n in range(1, 6):
        x = torch.randn(n << 20, device=DEVICE)
        assert_close(ops.gelu(x, approximate="tanh"), gelu(x))
        del x
        torch.cuda.empty_cache()
    return torch.randn(100, device=DEVICE)


@needs_gpu
def test_memory_that_torch_gives_back_and_takes_again(ops, isolated):
    isolated()
    x = give_back_and_take_again(ops)
    for _ in range(200):
        ops.gelu(x)
    assert len(imports_of()._open) <= 3
    opd.torch.release()
    assert not imports_of()._open
    assert_close(ops.gelu(x, approximate="tanh"), gelu(x))


@needs_gpu
@only_in_process
def test_memory_is_not_held_for_calls_that_run_here(ops):
    """Only the first call of each shape has needed the daemon."""
    opd.torch.release()
    x = give_back_and_take_again(ops)
    ops.gelu(x, approximate="tanh")
    assert not imports_of()._open


@needs_gpu
def test_the_current_stream_comes_first(ops):
    """Work that is still to be done on a side stream is seen; and what follows sees the result."""
    stream = torch.cuda.Stream(DEVICE)
    a = torch.randn(3000, 3000, device=DEVICE)
    a /= a.norm()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x = a
        for _ in range(30):
            x = x @ a + a
        y = ops.gelu(x, approximate="tanh") + 1
    stream.synchronize()
    assert_close(y, gelu(x) + 1)


@needs_gpu
def test_backward_in_autograds_thread(ops):
    x = torch.randn(1000, device=DEVICE, dtype=torch.float64, requires_grad=True)
    ops.gelu(ops.gelu(x, approximate="tanh"), approximate="tanh").sum().backward()
    expected = torch.autograd.grad(gelu(gelu(x)).sum(), x)[0]
    assert_close(x.grad, expected)


@needs_gpu
def test_the_clients_cuda_error_is_left_clean(ops):
    x = torch.randn(100, device=DEVICE)
    with pytest.raises(opd.InvalidArgument):
        ops.gelu(x, approximate="tahn")
    range = imports_of()._driver.find_range(1 << 20)  # no such memory: the driver fails
    assert range is None
    torch.cuda.synchronize()
    assert_close(x + x, 2 * x)
    assert_close(ops.gelu(x, approximate="tanh"), gelu(x))


@needs_gpu
def test_tensors_on_two_devices(ops):
    with pytest.raises(opd.InvalidArgument, match="tensors are on .*expected one device"):
        ops.depthwise_conv2d(torch.randn(1, 2, 5, 5, device=DEVICE), torch.randn(2, 1, 3, 3))


@needs_gpu
def test_a_daemon_without_the_card_says_so(start_daemon):
    daemon = start_daemon(device="cpu")
    opd.torch.use(daemon.socket)
    with pytest.raises(opd.Unavailable, match="does not serve cuda:.*it serves cpu"):
        opd.torch.ops.gelu(torch.randn(3, device=DEVICE))
    assert opd.torch.ops.gelu(torch.randn(3)).shape == (3,)
    opd.torch.use(None)


@needs_gpu
def test_a_capture_is_refused_in_the_daemon(ops, isolated):
    isolated()
    x = torch.randn(100, device=DEVICE)
    ops.gelu(x)
    torch.cuda.synchronize()
    with pytest.raises(opd.InvalidArgument, match="CUDA graph"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ops.gelu(x)
    torch.cuda.synchronize()
    assert_close(ops.gelu(x, approximate="tanh"), gelu(x))


@needs_gpu
@only_in_process
def test_a_capture(ops):
    x, y = torch.randn(100, device=DEVICE), torch.randn(101, device=DEVICE)
    ops.gelu(x, approximate="tanh")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = ops.gelu(x, approximate="tanh")
    x.normal_()
    graph.replay()
    assert_close(got, gelu(x))
    with pytest.raises(opd.InvalidArgument, match="is not loaded in this process yet; make it once"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ops.gelu(y, approximate="tanh")
    torch.cuda.synchronize()
    assert_close(ops.gelu(y, approximate="tanh"), gelu(y))


EXPANDABLE = """
import torch, opd.torch
x = torch.randn(100, device="{device}")
try:
    opd.torch.ops.gelu(x)
except opd.InvalidArgument as e:
    assert "expandable_segments:False" in str(e), e
    torch.cuda.synchronize()
    assert (x + x).isfinite().all()
    print("refused")
"""


@needs_gpu
def test_expandable_segments_are_refused(torch_daemon):
    env = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "OPD_SOCKET": torch_daemon.socket,
        "PYTHONPATH": os.path.dirname(os.path.dirname(opd.__file__)),
    }
    code = EXPANDABLE.format(device=DEVICE)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


@needs_gpu
def test_after_a_fault_shared_memory_is_opened_again(start_daemon, tmp_path):
    (tmp_path / "wild.cu").write_text(
        "//! op wild(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N]\n"
        "//! shape y [N]\n//! forward\n//!   kernel wild\n"
        "__global__ void wild(const float *x, float *y, int64_t N)\n"
        "{ CUDA_KERNEL_LOOP(i, N) y[i] = x[i + (1LL << 40)]; }\n"
    )
    daemon = start_daemon("--kernels", str(tmp_path))
    opd.torch.use(daemon.socket)
    x = torch.randn(1000, device=DEVICE)
    assert_close(opd.torch.ops.gelu(x, approximate="tanh"), gelu(x))
    with pytest.raises(opd.KernelFault, match="wild"):
        opd.torch.ops.wild(x)
    assert_close(opd.torch.ops.gelu(x, approximate="tanh"), gelu(x))
    assert_close(x + x, 2 * x)
    opd.torch.use(None)
