"""What the tests of bad input share: the daemon says what is wrong, serves everyone else meanwhile,
holds a bounded amount of memory, and keeps nothing of whoever has gone.

Import both fixtures: `unharmed` looks after every test of the module."""

import os

import pytest

from conftest import SANITIZED
from raw import Raw, count_fds, eventually

MIB = 1 << 20
# The sanitizer keeps what was freed for a while.
SLACK = (400 if SANITIZED else 40) * MIB


@pytest.fixture
def raw(daemon):
    with Raw(daemon.socket) as raw:
        yield raw


@pytest.fixture(autouse=True)
def unharmed(daemon):
    """After every test the daemon serves, as the same process, and holds nothing of the test."""
    fds = None
    with Raw(daemon.socket) as other:
        assert other.call("hello", "before")["pid"] == daemon.pid
        fds = count_fds(daemon.pid)
    yield
    assert daemon.alive()
    with Raw(daemon.socket) as other:
        assert other.call("hello", "after")["pid"] == daemon.pid

        def settled():
            status = other.call("status")
            return status["connections"] == 1 and not any(d["tensors"] for d in status["devices"])

        assert eventually(settled), other.call("status")
        assert all(d["restarts"] == 0 for d in other.call("status")["devices"])
        assert other.call("tensor_list") == []
        # The first use of a device makes its staging memory, a first chunk, and some images.
        assert eventually(lambda: count_fds(daemon.pid) <= fds + 12), os.listdir(
            f"/proc/{daemon.pid}/fd"
        )
