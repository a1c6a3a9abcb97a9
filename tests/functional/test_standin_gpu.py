"""The CUDA backend where there is no GPU: on the stand-in for NVIDIA's driver (tests/driver/standin.h), which NVRTC's
PTX is interpreted by. What the driver is asked, in which order, and what becomes of its answers; nothing of races,
caches or time. `make standin TESTS=...` runs any other file so."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from operators import PICK, double_by, put_kernels
from raw import find_roles

import opd
from conftest import DEVICE, PATIENCE, PROGRAM, eventually

DRIVER = Path(PROGRAM).resolve().parent / "tests" / "libcuda.so.1"


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu" or has_driver(), reason="this machine has a driver of its own"),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no {DRIVER}: make programs"),
]

OPERATOR = """
//! op      {name}(Tensor x{options}) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[128]
//! deadline 1.0
//!
//! forward
//!   kernel {name}<scalar_t>
//!   grid   cdiv(N, 64)
//!   block  64

template <class T>
__global__ void {name}(const T *x, T *y, int N{parameters})
{{
    const int i = blockIdx.x * 64 + threadIdx.x;
    {body}
}}
"""
BODIES = {
    # Each block's threads in reverse, by shared memory.
    "reversed_blocks": (
        "",
        "__shared__ T tile[64]; tile[threadIdx.x] = i < N ? x[i] : T(0); __syncthreads();"
        " if (i < N) y[i] = tile[63 - threadIdx.x];",
    ),
    "talks": ("", 'if (i == 1) printf("i is %d of %d, x is %.1f\\n", i, N, (double)x[i]); if (i < N) y[i] = x[i];'),
    "strays": (", *, int by=0", "if (i < N) y[i] = x[i + (long long)by * N]; // here"),
    "hangs": (", *, bool on=True", "volatile const T *p = x; while (on && p[0] == T(0)) {} if (i < N) y[i] = x[i];"),
}


def text_of(name):
    options, body = BODIES[name]
    parameters = options.replace(", *", "").split("=")[0]
    return OPERATOR.format(name=name, options=options, parameters=parameters, body=body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    for name in BODIES:
        (folder / f"{name}.cu").write_text(text_of(name))
    return folder


def use_driver(patch):
    before = os.environ.get("LD_LIBRARY_PATH")
    patch.setenv("LD_LIBRARY_PATH", f"{DRIVER.parent}{':' + before if before else ''}")


@pytest.fixture(scope="module")
def served(start_shared, folder):
    with pytest.MonkeyPatch.context() as patch:
        use_driver(patch)
        daemon = start_shared("--kernels", folder, device="cuda:0")
    with daemon.connect() as client:
        try:
            client.ops.reversed_blocks(client.tensor(np.zeros(64, "float32")))
        except opd.OpdError as error:
            if "NVRTC" in str(error):
                pytest.skip("no NVRTC here")
            raise
    return daemon


@pytest.fixture
def client(served):
    with served.connect() as client:
        yield client


@pytest.fixture
def x(client):
    return client.tensor(np.arange(256, dtype="float32"))


def test_it_is_no_gpu(client):
    device = client.status()["devices"][0]
    assert device["name"] == "cuda:0" and device["model"] == "stand-in for a GPU", device


def test_operators_of_formulas(client):
    values = np.linspace(-3, 3, 1000, dtype="float32").reshape(10, 100)
    x = client.tensor(values)
    y, context = client.ops.silu.forward(x)
    np.testing.assert_allclose(client.ops.relu(x).numpy(), np.maximum(values, 0))
    np.testing.assert_allclose(client.ops.softmax(x).numpy().sum(axis=1), np.ones(10), rtol=1e-6)
    (grad,) = context.backward(client.tensor(np.ones_like(values)))
    p = 1 / (1 + np.exp(-values))
    np.testing.assert_allclose(y.numpy(), values * p, rtol=1e-5)
    np.testing.assert_allclose(grad.numpy(), p * (1 + values * (1 - p)), rtol=1e-5, atol=1e-6)


def test_shared_memory_and_barriers(client, x):
    expected = np.arange(256, dtype="float32").reshape(4, 64)[:, ::-1].ravel()
    np.testing.assert_array_equal(client.ops.reversed_blocks(x).numpy(), expected)


def test_what_a_kernel_prints(client, x, capsys):
    client.ops.talks(x).numpy()
    assert capsys.readouterr().out == "i is 1 of 256, x is 1.0\n"


def test_a_graph_is_replayed(client, x):
    with client.capture() as graph:
        y = client.ops.reversed_blocks(client.ops.relu(x))
    for k in range(4):  # the driver's own graph from the second time on
        values = np.arange(256, dtype="float32") + k
        x.write(values)
        graph.replay()
        np.testing.assert_array_equal(y.numpy(), values.reshape(4, 64)[:, ::-1].ravel())


def test_an_edit_is_served(client, folder, x):
    path = folder / "reversed_blocks.cu"
    path.write_text(text_of("reversed_blocks").replace("tile[63 - threadIdx.x]", "-tile[threadIdx.x]"))
    try:
        assert eventually(lambda: client.ops.reversed_blocks(x).numpy()[5] == -5)
    finally:
        path.write_text(text_of("reversed_blocks"))
        assert eventually(lambda: client.ops.reversed_blocks(x).numpy()[5] == 58)


def test_a_fault_costs_no_tensor(client, x):
    restarts = client.status()["devices"][0]["restarts"]
    with pytest.raises(opd.KernelFault, match="strays.*ILLEGAL_ADDRESS|strays.*illegal"):
        client.ops.strays(x, by=1 << 29).numpy()
    np.testing.assert_array_equal(x.numpy(), np.arange(256, dtype="float32"))
    np.testing.assert_array_equal(client.ops.strays(x).numpy(), x.numpy())
    assert client.status()["devices"][0]["restarts"] == restarts + 1


def test_a_hang_ends_at_its_deadline(client):
    zeros = client.tensor(np.zeros(64, "float32"))
    with pytest.raises(opd.DeadlineExceeded, match="hangs"):
        client.ops.hangs(zeros).numpy()
    assert client.ops.hangs(zeros, on=False).numpy().sum() == 0


def test_a_checked_build_tells_tensor_element_and_line(client, folder, x):
    neighbour = client.tensor(np.zeros(4096, "float32"))
    client.ops.strays(x, by=1).numpy()  # into the neighbour's, or what is left of the chunk
    restarts = client.status()["devices"][0]["restarts"]
    line = 1 + [k for k, s in enumerate((folder / "strays.cu").read_text().split("\n")) if "// here" in s][0]
    with pytest.raises(opd.KernelFault) as error:
        client.ops.strays(x, by=1, debug=True).numpy()
    expected = "out-of-bounds read of 'x': element 256 of 256 (float32)"
    assert expected in str(error.value) and str(error.value).endswith(f"strays.cu:{line}"), error.value
    assert client.status()["devices"][0]["restarts"] == restarts and not neighbour.numpy().any()


def test_memory_grows_by_chunks(client):
    before = client.status()["devices"][0]
    large = [client.zeros([33 << 20]) for _ in range(2)]  # of 132 MiB, half of a chunk and more
    small = client.tensor(np.arange(9, dtype="float32"))
    after = client.status()["devices"][0]
    assert after["memory_reserved"] > before["memory_reserved"], (before, after, large)
    assert small.numpy().tolist() == list(range(9))


def test_an_upgrade_keeps_what_is_there(served, client, x):
    executor = find_roles(served.pid, "executor")
    client.upgrade(PROGRAM)
    assert eventually(lambda: find_roles(served.pid, "executor") not in ([], executor))
    np.testing.assert_array_equal(x.numpy(), np.arange(256, dtype="float32"))
    np.testing.assert_array_equal(client.ops.relu(x).numpy(), x.numpy())


def test_a_stop_while_the_device_starts_again(start_daemon, folder, tmp_path, monkeypatch):
    """What a fault left to be run again with checks, and its next process to load, is given up."""
    use_driver(monkeypatch)
    waits = tmp_path / "waits"
    monkeypatch.setenv("OPD_STANDIN_WAITS", str(waits))
    daemon = start_daemon("--spare", "off", "--kernels", folder, device="cuda:0")
    with daemon.connect() as client:
        x = client.tensor(np.zeros(64, "float32"))
        client.ops.strays(x).numpy()
        waits.touch()
        with pytest.raises(opd.KernelFault, match="debug=True names"):
            client.ops.strays(x, by=1 << 29).numpy()
    daemon.stop()


@pytest.mark.unsanitized("check --run has sanitizers of its own")
def test_a_check_waits_for_a_device_that_opens_slowly(tmp_path, monkeypatch):
    """Which is not its cases' time."""
    use_driver(monkeypatch)
    monkeypatch.setenv("OPD_STANDIN_OPENS_IN", "1500")
    path = Path(put_kernels(tmp_path / "kernels", double_it=double_by(2))) / "double_it.cu"
    command = [Path(PROGRAM).parent / "opctl", "check", "--run", "--device", "cuda:0", "--deadline", "1", path]
    done = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_a_spare_takes_is_measured(client, x):
    """Asked of the driver, which has less of a stack for each thread than usual."""
    client.ops.relu(x).numpy()
    device = eventually(lambda: (d := client.status()["devices"][0])["spare"] == "ready" and d)
    assert device["spare_memory"] == 77 << 20, device


def test_a_spare_that_takes_too_much_is_none(start_daemon, monkeypatch):
    """More than the hundredth part of what the device has."""
    use_driver(monkeypatch)
    monkeypatch.setenv("OPD_STANDIN_TAKES", "700")
    daemon = start_daemon("--faults", "0", device="cuda:0")
    with daemon.connect() as client:
        x = client.zeros(4)
        assert client.ops.relu(x).numpy().tolist() == [0] * 4
        assert eventually(lambda: "its spare takes 700 MiB" in daemon.read_log())
        assert eventually(lambda: client.status()["devices"][0]["spare"] == "none")
        assert client.ops.relu(x).numpy().tolist() == [0] * 4


def test_where_no_pages_can_be_locked(start_daemon, tmp_path, monkeypatch):
    """Copies take longer, also those of what kernels report: calls go on, replays one by one."""
    use_driver(monkeypatch)
    monkeypatch.setenv("OPD_STANDIN_LOCKS_NONE", "1")
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "kernels", pick=PICK), device="cuda:0")
    with daemon.connect() as client:
        table = client.tensor(np.arange(15, dtype="float32").reshape(5, 3))
        rows = client.tensor(np.array([4, 0]))
        with client.capture() as graph:
            kept = [client.ops.pick(table, rows) for _ in range(4)]
        for n in range(1, 4):
            rows.write(np.array([n, 0]))
            graph.replay()
            assert all(y.numpy()[0, 0] == 3 * n for y in kept)
            rows.write(np.where(np.arange(2) == n % 2, 8, 1))
            for call in (lambda: client.ops.pick(table, rows).numpy(), graph.replay):
                with pytest.raises(opd.InvalidArgument, match=f"row {n % 2} of rows is not below 5"):
                    call()
    assert "of host memory are not page-locked" in daemon.read_log()


SINKS = """
//! op      sinks(Tensor x, *, int depth) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//!
//! forward
//!   kernel sinks<scalar_t>
//!   grid   1
//!   block  1

__device__ __noinline__ float sink(const float *x, int depth)
{
    volatile float frame[16];
    frame[depth & 15] = x[0];
    return depth > 1 ? sink(x, depth - 1) + frame[depth & 15] : frame[depth & 15];
}

template <class T> __global__ void sinks(const T *x, T *y, int N, int depth)
{
    for (int i = 0; i < N; i++)
        y[i] = sink(x, depth);
}
"""


def test_a_kernel_that_calls_itself_has_the_usual_stack(client):
    x = client.tensor(np.ones(4, "float32"))
    client.load(SINKS)
    assert client.ops.sinks(x, depth=6).numpy().tolist() == [6] * 4  # 384 bytes and more
    with pytest.raises(opd.KernelFault):
        client.ops.sinks(x, depth=100).numpy()
    assert client.ops.sinks(x, depth=6).numpy().tolist() == [6] * 4  # its next process, or spare, too
