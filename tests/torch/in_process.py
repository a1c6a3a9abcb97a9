"""What tests of operators in torch's own process share."""

import pytest
from conftest import DEVICE
from torch_fixtures import TORCH_DEVICES, device  # noqa: F401

from opd._conn import Connection
from opd.torch._library import DEFAULT_ISOLATED, get_library

pytestmark = [
    pytest.mark.skipif(bool(DEFAULT_ISOLATED), reason="OPD_ISOLATED says that all runs in the daemon"),
    pytest.mark.skipif(get_library() is None, reason="this torch has not the functions"),
]
RUNS = ("forward", "vjp")
needs_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="the daemon has no device for tensors on the CPU")
gpu = [d for d in TORCH_DEVICES if d != "cpu"]
SERVED = (gpu or ["cpu"])[0]  # tensors there are computed in this process
needs_gpu = pytest.mark.skipif(not gpu, reason="no GPU")


@pytest.fixture
def asked(monkeypatch):
    """The requests of this process, as they are sent."""
    methods = []
    send = Connection.send

    def record(self, method, *args, **rest):
        methods.append(method)
        return send(self, method, *args, **rest)

    monkeypatch.setattr(Connection, "send", record)
    return methods


def is_here(device):
    """Whether tensors there can be computed in this process."""
    return device != "cpu" or DEVICE == "cpu"


@pytest.fixture
def here(device):
    if not is_here(device):
        pytest.skip("the daemon has no device for tensors on the CPU")
    return device
