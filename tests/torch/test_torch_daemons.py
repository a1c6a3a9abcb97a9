"""Daemons that come and go under the calls of a process, and what a process keeps there."""

import os
import socket
import subprocess
import sys
import threading

import pytest
import torch
from torch.testing import assert_close
from conftest import CACHE, DEVICE, PROGRAM, eventually
from torch_fixtures import TORCH_DEVICES, isolated, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd.torch._library import find_library
from scale_operator import X, grad_of, scale, write_scale  # noqa: F401


def test_the_default_daemon_is_the_environments(torch_daemon):
    code = "import opd.torch, torch; print(opd.torch.ops.gelu(torch.ones(2)).sum().item() > 1)"
    package = os.path.dirname(os.path.dirname(opd.__file__))
    env = {**os.environ, "OPD_SOCKET": torch_daemon.socket, "PYTHONPATH": package}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_nobody_serves(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_BIN", "/nonexistent/opd")
    opd.torch.use(str(tmp_path / "none.sock"))
    with pytest.raises(opd.ConnectionLost, match="no daemon serves"):
        opd.torch.ops.gelu
    opd.torch.use(None)


def test_use_takes_a_client(scale):
    with scale.connect() as client:
        opd.torch.use(client)
    assert_close(opd.torch.ops.scale(X), X * 2)  # over a connection of its own


def use_scale(start_daemon, folder):
    """A daemon that serves scale by 2 from there."""
    write_scale(folder, 2)
    daemon = start_daemon("--kernels", str(folder))
    opd.torch.use(daemon.socket)
    return daemon


def test_connects_again_to_a_daemon_that_was_started_anew(start_daemon, tmp_path, monkeypatch):
    daemon = use_scale(start_daemon, tmp_path)
    assert_close(opd.torch.ops.scale(X), X * 2)
    opd.torch._session.get_session().client._conn.interrupt()
    assert_close(opd.torch.ops.scale(X), X * 2)
    opd.torch.use(None)


def is_listening(path):
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


def kill_and_start(daemon, folder):
    """As after a crash: another daemon at the same socket, which knows nothing."""
    daemon.process.kill()
    daemon.process.wait()
    daemon.process.stdout.close()
    assert eventually(lambda: not is_listening(daemon.socket))  # a process that it was starting has its socket a while
    options = ["--device", DEVICE, "--cache", str(CACHE), "--kernels", str(folder)]
    daemon._start([PROGRAM, "--socket", daemon.socket, *options])


@pytest.mark.parametrize("transport", ["DirectTransport", "StagedTransport"])
def test_a_daemon_killed_between_calls(start_daemon, tmp_path, monkeypatch, transport, isolated):
    """One call tells, the next is served by the daemon that is there then."""
    from opd.torch import _host

    if DEVICE == "cpu":
        monkeypatch.setattr(_host, "DirectTransport", getattr(_host, transport))
    daemon = use_scale(start_daemon, tmp_path)
    isolated()
    x = X.clone().requires_grad_()
    before = opd.torch.ops.scale(x)
    opd.torch.ops.scale(torch.ones(1 << 20))  # another arena: the next call begins with tensors
    write_scale(tmp_path, 3, attr="by_what=2.0")
    kill_and_start(daemon, tmp_path)
    with pytest.raises(opd.ConnectionLost, match="the connection to .* is closed"):
        opd.torch.ops.scale(x)
    y = opd.torch.ops.scale(x)  # what was known of the other daemon's operators is forgotten
    assert_close(y, x * 6)
    assert_close(grad_of(y, x), torch.full_like(x, 6))
    assert_close(before, x * 2)
    opd.torch.use(None)


def test_a_daemon_started_anew_between_forward_and_backward(start_daemon, tmp_path, isolated):
    """Its versions begin at 1 again. Backward runs what ran forward, or nothing."""
    isolated()
    daemon = use_scale(start_daemon, tmp_path)
    x = X.clone().requires_grad_()
    first = opd.torch.ops.scale(x)
    with daemon.connect() as client:
        write_scale(tmp_path, 3)
        client.reload()
    second = opd.torch.ops.scale(x)
    kill_and_start(daemon, tmp_path)
    with pytest.raises(opd.ConnectionLost):
        opd.torch.ops.scale(x)
    assert_close(grad_of(second, x), torch.full_like(x, 3))  # version 1 here
    with pytest.raises(opd.NotFound, match="scale: the daemon was started anew .* run forward again"):
        grad_of(first, x)
    with daemon.connect() as client:
        write_scale(tmp_path, 2)
        client.reload()
    assert_close(grad_of(first, x), torch.full_like(x, 2))
    assert_close(grad_of(second, x), torch.full_like(x, 3))
    opd.torch.use(None)


def test_a_daemon_started_anew_without_the_operator(start_daemon, tmp_path, isolated):
    """Its backward says what has happened, as for one that has another version."""
    isolated()
    daemon = use_scale(start_daemon, tmp_path)
    x = X.clone().requires_grad_()
    y = opd.torch.ops.scale(x)
    (tmp_path / "scale.cu").unlink()
    kill_and_start(daemon, tmp_path)
    with pytest.raises(opd.ConnectionLost):
        opd.torch.ops.scale(x)
    with pytest.raises(opd.NotFound, match="scale: the daemon was started anew .* run forward again"):
        grad_of(y, x)
    opd.torch.use(None)


@pytest.mark.skipif(os.environ.get("OPD_ISOLATED") == "1", reason="all calls run in the daemon")
def test_a_backward_that_is_loaded_outlives_its_daemon(start_daemon, tmp_path):
    """Until the one after that has been replaced, too: what is kept does not grow."""
    daemon = use_scale(start_daemon, tmp_path)
    scale, count = opd.torch.ops.scale, find_library().count
    x = X.to(TORCH_DEVICES[-1], copy=True).requires_grad_()  # what the daemon serves
    for factor in range(3, 9):
        assert_close(grad_of(scale(x), x), torch.full_like(x, factor - 1))
        old = scale(x)
        write_scale(tmp_path, factor)
        kill_and_start(daemon, tmp_path)
        assert eventually(lambda: torch.equal(scale(x), x * factor))
        assert_close(grad_of(scale(x), x), torch.full_like(x, factor))
        assert_close(grad_of(old, x), torch.full_like(x, factor - 1))
        plans = count().loaded
        assert factor < 5 or plans == before
        before = plans
    opd.torch.use(None)


def test_release_starts_no_daemon(start_daemon, tmp_path, monkeypatch, isolated):
    isolated()
    write_scale(tmp_path, 2)
    daemon = start_daemon("--kernels", str(tmp_path))
    monkeypatch.setenv("OPD_BIN", PROGRAM)
    opd.torch.use(daemon.socket)
    opd.torch.ops.scale(X)
    daemon.process.kill()
    daemon.process.wait()
    with pytest.raises(opd.ConnectionLost):
        opd.torch.ops.scale(X)
    for _ in range(2):
        opd.torch.release()
    # "is closed": a child of the daemon that was about to be has its socket for a moment more.
    with pytest.raises(opd.ConnectionLost, match="no daemon serves|is closed"):
        opd.connect(daemon.socket, start=False)
    opd.torch.use(None)
    daemon.process.stdout.close()


def test_an_operators_own_deadline_is_waited_for(scale, monkeypatch):
    """Silence is no failure for as long as the operator's file lets it run."""
    session = opd.torch._session.get_session()
    session.find("scale").deadline = 500.0
    deadlines = []
    pump = opd._conn.Connection.pump

    def record(self, until, what):
        deadlines.extend(r.deadline for r in self.replies.values() if r.method == "forward")
        return pump(self, until, what)

    monkeypatch.setattr(opd._conn.Connection, "pump", record)
    opd.torch.ops.scale(X)
    assert deadlines == [500.0]


def test_what_is_kept_for_calls_is_given_back(scale):
    with scale.connect() as client:
        opd.torch.ops.scale(torch.randn(1 << 20))
        assert opd.torch.ops.scale(X).shape == X.shape
        opd.torch.release()
        opd.torch.ops.scale(X)
        client.synchronize()
        assert all(t["bytes"] < 1 << 20 for t in client.tensors())


@pytest.mark.parametrize("transport", ["DirectTransport", "StagedTransport"])
def test_calls_before_and_after_an_upgrade(scale, tmp_path, monkeypatch, transport):
    """Over one connection, with a backward that spans it, and one whose version only it needs."""
    from opd.torch import _host

    if transport == "DirectTransport" and os.environ.get("OPD_TEST_DEVICE", "cpu") != "cpu":
        pytest.skip("the daemon's kernels run in this process's memory on its CPU device alone")
    monkeypatch.setattr(_host, "DirectTransport", getattr(_host, transport))
    write_scale(tmp_path, 2, keeps=True)
    scale.reload()
    x = torch.linspace(-2, 2, 1000).requires_grad_()
    before = opd.torch.ops.scale(x)
    assert_close(before, x * 2)
    connection = opd.torch._session.get_session().client._conn
    with scale.connect() as client:
        for n in range(1, 4):
            assert client.upgrade()["upgrades"] == n
            between = opd.torch.ops.scale(x)
            assert_close(between, before)
            assert_close(grad_of(before, x), torch.full_like(x, 2))
            assert_close(grad_of(between, x), torch.full_like(x, 2))
        write_scale(tmp_path, 3, keeps=True)
        client.reload()
        assert_close(opd.torch.ops.scale(x), x * 3)
        client.upgrade()
        assert_close(grad_of(before, x), torch.full_like(x, 2))
        assert_close(grad_of(opd.torch.ops.scale(x), x), torch.full_like(x, 3))
        big = torch.randn(1 << 19)  # the arena grows
        assert_close(opd.torch.ops.scale(big), big * 3)
    assert opd.torch._session.get_session().client._conn is connection


def test_calls_while_the_daemon_is_upgraded(scale):
    failures, stop = [], threading.Event()

    def work(seed):
        try:
            x = torch.full((64,), float(seed), requires_grad=True)
            while not stop.is_set():
                y = opd.torch.ops.scale(x)
                assert torch.equal(y, x * 2) and torch.equal(grad_of(y, x), torch.full_like(x, 2))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    with scale.connect() as client:
        for _ in range(5):
            client.upgrade()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
