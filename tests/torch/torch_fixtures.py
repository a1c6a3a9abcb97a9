"""opd.torch against a daemon on $OPD_TEST_DEVICE, for tensors on the CPU and, where that is a GPU
and torch has it, on the GPU. (No conftest.py: other folders' tests import that by its name.)"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opd.torch

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
KERNELS = Path(__file__).parent / "kernels"
TORCH_DEVICES = ["cpu"]
if DEVICE.startswith("cuda") and torch.cuda.is_available():
    TORCH_DEVICES.append(DEVICE)


_daemons = []


@pytest.fixture
def torch_daemon(start_shared):
    """One for all tests here, wherever this fixture is imported."""
    if not _daemons:
        _daemons.append(start_shared("--kernels", str(KERNELS)))
    return _daemons[0]


@pytest.fixture
def ops(torch_daemon):
    if opd.torch._session._current._socket != torch_daemon.socket:
        opd.torch.use(torch_daemon.socket)
    return opd.torch.ops


@pytest.fixture
def run_fresh(torch_daemon):
    """run_fresh(code, *args): what a program prints in a new process, whose default daemon is the
    tests' or that of another socket."""

    def run(code, *args, socket=torch_daemon.socket):
        package = os.path.dirname(os.path.dirname(opd.__file__))
        env = {**os.environ, "OPD_SOCKET": str(socket), "PYTHONPATH": package}
        command = [sys.executable, "-c", code, *map(str, args)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(params=TORCH_DEVICES)
def device(request, ops):
    """Where torch's tensors are."""
    return request.param


@pytest.fixture
def draw(device):
    def make(*shape, dtype=torch.float64, seed=0, grad=False):
        generator = torch.Generator().manual_seed(seed + sum(shape))
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(device, dtype).requires_grad_(grad)

    return make


@pytest.fixture
def isolated():
    """isolated() has the daemon run all calls of the test's thread, for what that alone does."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(opd.torch.options(isolated=True))
