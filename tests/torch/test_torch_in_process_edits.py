"""Operators that run in torch's own process, under edits, and when the daemon ends."""

import threading
import time

import torch
from torch.testing import assert_close
from conftest import CACHE, DEVICE, PROGRAM, eventually, in_threads
from scale_operator import X, grad_of, scale, write_scale  # noqa: F401

import opd
import opd.torch
from opd.torch._library import get_library
from in_process import RUNS, SERVED, asked, pytestmark  # noqa: F401


def test_backward_of_a_forward_before_an_edit(scale, tmp_path):
    x = X.to(SERVED, copy=True).requires_grad_()
    for _ in range(3):
        old = opd.torch.ops.scale(x)
    for factor in (5, 6, 7, 8, 9):
        write_scale(tmp_path, factor)
        scale.reload()
        for _ in range(3):
            new = opd.torch.ops.scale(x)
            assert_close(new, x * factor)
            assert_close(grad_of(new, x), torch.full_like(x, factor))
        assert_close(grad_of(old, x), torch.full_like(x, 2))


def test_edits_under_callers(scale, tmp_path):
    """No call that begins after reload() has answered runs a version from before."""
    served, done = [2], threading.Event()
    x = torch.ones(100, device=SERVED)

    def work(number):
        if number == 8:
            try:
                for factor in range(3, 33):
                    write_scale(tmp_path, factor)
                    scale.reload()
                    served.append(factor)
                    time.sleep(0.01)
            finally:
                done.set()
            return
        while not done.is_set():
            least = served[-1]
            found = opd.torch.ops.scale(x)[0].item()
            assert least <= found <= served[-1] + 1, (least, found, served[-1])

    in_threads(9, work)
    assert_close(opd.torch.ops.scale(x), x * 32)


def test_edits_leave_nothing_behind(scale, tmp_path):
    x = X.to(SERVED, copy=True).requires_grad_()
    counts, maps = [], []
    for n in range(24):
        write_scale(tmp_path, n + 3)
        scale.reload()
        for _ in range(2):
            assert_close(grad_of(opd.torch.ops.scale(x), x), torch.full_like(x, n + 3))
        counts.append(get_library().count())
        with open("/proc/self/maps") as file:
            maps.append(sum("opd-kernel" in line for line in file))
    assert counts[-1].loaded <= counts[7].loaded and eventually(lambda: get_library().count().retired == 0)
    assert maps[-1] <= maps[7]


def test_a_rollback(scale, tmp_path):
    x = X.to(SERVED)
    assert_close(opd.torch.ops.scale(x), x * 2)
    write_scale(tmp_path, 3)
    scale.reload()
    for _ in range(2):
        assert_close(opd.torch.ops.scale(x), x * 3)
    with scale.connect() as client:
        client._conn.call("rollback", "scale")
    for _ in range(2):
        assert_close(opd.torch.ops.scale(x), x * 2)


# --- the daemon comes and goes


def kill(daemon):
    daemon.process.kill()
    daemon.process.wait()
    daemon.process.stdout.close()


def test_a_daemon_that_is_killed_and_another(start_daemon, tmp_path):
    """What is loaded goes on; the next daemon's versions are followed as soon as there is one."""
    write_scale(tmp_path, 2)
    daemon = start_daemon("--kernels", str(tmp_path))
    opd.torch.use(daemon.socket)
    x = X.to(SERVED, copy=True).requires_grad_()
    for _ in range(2):
        old = opd.torch.ops.scale(x)
        old_gradient = grad_of(old, x)
    kill(daemon)
    end = time.monotonic() + 2.5  # it is looked for each second
    while time.monotonic() < end:
        assert_close(opd.torch.ops.scale(x), x * 2)
        assert_close(grad_of(opd.torch.ops.scale(x), x), old_gradient)
    write_scale(tmp_path, 3)
    options = ["--device", DEVICE, "--cache", str(CACHE), "--kernels", str(tmp_path)]
    daemon._start([PROGRAM, "--socket", daemon.socket, *options])
    assert eventually(lambda: torch.equal(opd.torch.ops.scale(x), x * 3))
    with daemon.connect() as client:
        write_scale(tmp_path, 4)
        client.reload()
    assert_close(opd.torch.ops.scale(x), x * 4)
    opd.torch.use(None)


def test_an_upgrade_is_not_noticed(scale, asked):
    x = X.to(SERVED)
    for _ in range(2):
        opd.torch.ops.scale(x)
    with scale.connect() as client:
        for _ in range(2):
            client.upgrade()
            del asked[:]
            assert_close(opd.torch.ops.scale(x), x * 2)
            assert not set(RUNS) & set(asked)
