"""An exception of a signal's handler, after any call that the package's own code makes: Python looks for signals there.
Whatever was under way, the client goes on, or says that a signal has ended it; nothing is lost to another call, and
nothing leaks. $OPD_TEST_STEP is 1 for each call, else it is some of them."""

import dis
import functools
import gc
import os
import sys
import threading

import numpy as np
import pytest
from conftest import DEVICE

import opd
from opd import _dlpack, _kept

pytestmark = pytest.mark.unsanitized("of the client in Python")

PACKAGE = os.path.dirname(opd.__file__)
CALLS = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "RESUME"))}
STEP = int(os.environ.get("OPD_TEST_STEP", 7))
FINALIZERS = ("__del__", "_delete_struct")  # of what comes in these Python only tells
SMALL, LARGE = np.arange(4, dtype=np.float32), np.arange(1 << 18, dtype=np.float32)


class Signalled(BaseException):
    """As KeyboardInterrupt is."""


class After:
    """Within it, Signalled comes after the nth call; `came` tells whether there were so many."""

    def __init__(self, n):
        self.left, self.came, self.last = n, False, {}

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exc):
        sys.settrace(None)
        self.last.clear()

    def trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name in FINALIZERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame, event, arg):
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            before = self.last.get(frame, at)
            self.left -= code.co_code[before] in CALLS and find_handlers(code, before) == find_handlers(code, at)
            if self.left == 0 and not self.came:
                self.came = True
                raise Signalled
            self.last[frame] = at
        return self.step


@functools.cache
def find_handlers(code, at):
    """Of an exception there. It comes in the call, and is raised here behind it."""
    return [entry.target for entry in dis._parse_exception_table(code) if entry.start <= at < entry.end]


class User:
    def __init__(self, daemon):
        self.client = daemon.connect(timeout=60)
        self.n_prepared = 0
        self.x, self.large = self.client.tensor(SMALL), self.client.tensor(LARGE)

    def batch(self):
        with self.client.batch():
            y = self.client.ops.relu(self.client.ops.gelu(self.x))
        return y

    def capture(self):
        with self.client.capture() as graph:
            self.client.ops.relu(self.x)
        graph.replay()

    def context(self):
        y, context = self.client.ops.gelu.forward(self.x)
        context.backward(y)

    def prepare(self):
        self.n_prepared += 1
        for _ in range(4):
            self.client.ops.elu(self.x, alpha=float(self.n_prepared))

    def read(self):
        self.large.read(0, 1 << 15)  # in the slots of writes
        self.large.numpy()

    def write(self):
        self.large.write(LARGE)

    def export(self):
        np.from_dlpack(self.x)

    def look(self):
        """What must be as it was."""
        gc.collect()
        _dlpack.sweep()
        self.client._conn.discard("tensor", 0)  # what was given up goes with the next request
        self.client.synchronize()
        link, conn, transfer = self.client._link, self.client._conn, self.client._link.transfer
        regions = transfer._kept._regions if transfer._kept else ()  # two descriptors each: a mapping has its own
        n_fds = len(os.listdir("/proc/self/fd")) - 2 * len(regions) - bool(transfer._map) - bool(conn.bell)
        unfinished = len(conn.replies), len(conn._out), len(link.batches)
        return len(self.client.tensors()), n_fds, unfinished, is_free(conn.lock)

    def check(self, n):
        """What is written is what is computed with, and read."""
        given = SMALL + n
        self.x.write(given)
        assert np.array_equal(self.client.ops.relu(self.x).numpy(), given)
        self.large.write(LARGE * n)
        assert np.array_equal(self.large.numpy(), LARGE * n)
        assert is_free(_kept._lending)


def is_free(lock):
    """For another thread."""
    taken = []

    def take():
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


@pytest.mark.skipif(DEVICE != "cpu", reason="it is of the client")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="where exceptions are handled is told otherwise there")
@pytest.mark.parametrize("what", ["batch", "capture", "context", "prepare", "read", "write", "export"])
def test_after_any_call(daemon, what):
    user, lost, seen = None, 0, None
    for n in range(1, sys.maxsize, STEP):
        if user is None:
            user = User(daemon)
            for i in range(4):
                getattr(user, what)()
                user.check(i)
            seen = user.look()
        after = After(n)
        try:
            with after:
                getattr(user, what)()
        except Signalled:
            pass
        except opd.ConnectionLost as e:
            assert "signal came in the middle" in str(e)
        if not after.came:
            break
        if user.client._conn.closed:
            with pytest.raises(opd.ConnectionLost, match="signal came in the middle"):
                user.client.synchronize()
            user, lost = None, lost + 1
            gc.collect()
            continue
        user.check(n % 7)
        assert user.look() == seen, n
    user.client.close()
    assert n > 20 and lost < n / STEP / 2, (n, lost)


def test_what_has_come_is_taken(daemon):
    """Before more is awaited: a signal's exception may have come in between."""
    client = daemon.connect(timeout=60)
    reply = client._conn.send("sync", ())
    client._conn.inbox.append(client._conn._sock.recv(1 << 15))
    client._conn.wait(reply)
    client.close()
