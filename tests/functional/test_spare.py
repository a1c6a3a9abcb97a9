"""A device's next executor waits until the one that serves fails: it has what that has, and nothing is lost by it."""

import ctypes
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import DEVICE, PROGRAM
from operators import FAILS, double_by, put_kernels
from raw import Raw, RpcError, await_kernel, count_fds, eventually, find_family, find_roles

on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="a CPU's executor has begun one command at most")
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="of a GPU's executor the maps say nothing")

def device_of(client):
    return client.status()["devices"][0]


def await_spare(daemon, other_than=None):
    """The pid of the spare that waits."""
    def waits():
        spares = find_roles(daemon.pid, "spare")
        return spares != [other_than] and raw.call("status")["devices"][0]["spare"] == "ready" and spares

    with Raw(daemon.socket) as raw:
        (spare,) = eventually(waits)
        return spare


def fail(client, x, how):
    with pytest.raises(opd.DeadlineExceeded if how == "hang" else opd.KernelFault):
        client.ops.fails(x, how=how, **({"deadline": 0.2} if how == "hang" else {})).numpy()


@pytest.fixture
def house(start_daemon, tmp_path):
    sources = {"fails": FAILS, "double_it": double_by(2.0)}
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", **sources))
    daemon.kernels = tmp_path / "k"
    with daemon.connect() as client:
        client.ops.fails(client.zeros(4)).numpy()
        daemon.spare = await_spare(daemon)
    return daemon


@pytest.mark.parametrize("how", ["fault", "hang", "kill"])
def test_it_is_promoted(house, how):
    with house.connect() as client:
        kept = client.tensor(np.arange(100_000, dtype=np.float32))
        (dead,) = find_roles(house.pid, "executor")
        await_spare(house)
        if how == "kill":
            os.kill(dead, signal.SIGKILL)
        else:
            fail(client, client.zeros(4), how)
        assert client.ops.fails(kept).numpy().tolist() == list(range(1, 100_001))
        assert eventually(lambda: find_roles(house.pid, "executor") == [house.spare])
        assert Path(f"/proc/{house.spare}/comm").read_text() == f"opd: {DEVICE}\n"
        assert device_of(client)["restarts"] == 1 and kept.suspect is None
        assert eventually(lambda: dead not in dict(find_family(house.pid)))
        assert await_spare(house) != house.spare


def test_what_others_have_sent_is_run_by_it(house):
    """Behind one that hangs: what changes something in place too, in its order."""
    with Raw(house.socket) as bad, Raw(house.socket) as good:
        bad.make(1, "float32", [4])
        good.make(1, "float32", [1000], b"\0" * 4000)
        hangs = bad.request("forward", "fails", [1], {"how": "hang"}, [2], {"deadline": 0.2})
        ids = []
        for i in range(20):
            ids.append(good.request("forward", "fails", [1], {}, [10 + i]))
            ids.append(good.request("forward", "fails", [10 + i], {}, [None], {"into": [1]}))
        for id in ids:
            good.wait(id)
        assert good.call("tensor_read", 1, 0) == np.full(1000, 40, np.float32).tobytes()
        assert "deadline" in str(pytest.raises(Exception, bad.wait, hangs).value)
        assert eventually(lambda: find_roles(house.pid, "executor") == [house.spare])


def test_one_that_is_killed_is_replaced_later_and_later(house):
    """The one that serves knows nothing of it."""
    with house.connect() as client:
        (serving,) = find_roles(house.pid, "executor")
        spare, times = house.spare, []
        for _ in range(5):
            began = time.monotonic()
            os.kill(spare, signal.SIGKILL)
            spare = await_spare(house, spare)
            times.append(time.monotonic() - began)
        assert times[4] > 0.3 and times[3] > 0.15, f"it is tried again too soon: {times}"
        assert eventually(lambda: find_roles(house.pid, "executor") == [serving])
        assert device_of(client)["restarts"] == 0
        assert client.ops.fails(client.zeros(2)).numpy().tolist() == [1, 1]
        os.kill(serving, signal.SIGKILL)
        assert client.ops.fails(client.zeros(2)).numpy().tolist() == [1, 1]


def test_faults_while_the_next_one_starts(house):
    with house.connect() as client:
        x = client.tensor(np.arange(4, dtype=np.float32))
        for _ in range(5):
            fail(client, x, "fault")
        assert client.ops.fails(x).numpy().tolist() == [1, 2, 3, 4]
        for _ in range(5):
            for pid in find_roles(house.pid, "executor") + find_roles(house.pid, "spare"):
                os.kill(pid, signal.SIGKILL)
            assert client.ops.fails(x).numpy().tolist() == [1, 2, 3, 4]
        assert 10 <= device_of(client)["restarts"] <= 15  # one that is dead may be promoted


def maps_of(pid, what):
    return sorted(re.findall(rf"^\S+ \S+ \S+ \S+ (\d+) +/memfd:{what}", Path(f"/proc/{pid}/maps").read_text(), re.M))


def has_the_same(house, what):
    (serving,), (spare,) = find_roles(house.pid, "executor"), find_roles(house.pid, "spare")
    return len(set(maps_of(serving, what))) == len(set(maps_of(spare, what)))


@on_cpu
def test_chunks_that_come_and_go_while_it_waits(house):
    with house.connect() as client:
        x = client.tensor(np.arange(1 << 20, dtype=np.float32))
        more = [client.zeros(20 << 20) for _ in range(3)]  # chunks of their own
        more[1].write(np.ones(20 << 20, np.float32))
        assert len(set(maps_of(house.spare, "opd-chunk"))) >= 3
        assert eventually(lambda: has_the_same(house, "opd-chunk"))
        del more[2], more[0]
        client.synchronize()
        assert eventually(lambda: len(set(maps_of(house.spare, "opd-chunk"))) <= 3)
        assert eventually(lambda: has_the_same(house, "opd-chunk"))
        os.kill(find_roles(house.pid, "executor")[0], signal.SIGKILL)
        assert client.ops.fails(x).numpy()[-1] == 1 << 20
        assert more[0].numpy().sum() == 20 << 20
        fresh = client.zeros(20 << 20)
        assert fresh.numpy().sum() == 0
        assert eventually(lambda: find_roles(house.pid, "executor") == [house.spare])


def test_edits_while_it_waits(house):
    with house.connect() as client:
        x = client.tensor(np.ones(4, np.float32))
        for factor in [2, 3, 4]:
            (house.kernels / "double_it.cu").write_text(double_by(float(factor)))
            assert eventually(lambda f=factor: client.ops.double_it(x).numpy()[0] == f)
        if DEVICE == "cpu":
            assert eventually(lambda: has_the_same(house, "opd-kernel")), "of old versions something is left"
        (serving,) = find_roles(house.pid, "executor")
        os.kill(serving, signal.SIGKILL)
        assert client.ops.double_it(x).numpy().tolist() == [4] * 4
        assert eventually(lambda: find_roles(house.pid, "executor") == [house.spare])


def test_an_upgrade_starts_another(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", fails=FAILS))
    with daemon.connect() as client:
        x = client.tensor(np.ones(4, np.float32), name="x")
        client.ops.fails(x).numpy()
        before = {await_spare(daemon), *find_roles(daemon.pid, "executor")}
        subprocess.run([Path(PROGRAM).parent / "opctl", "--socket", daemon.socket, "upgrade"], check=True,
                       env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}, stdout=subprocess.DEVNULL)  # fmt: skip
        assert client.ops.fails(x).numpy().tolist() == [2] * 4
        assert eventually(lambda: not before & set(dict(find_family(daemon.pid))))
        spare = await_spare(daemon)
        fail(client, client.zeros(4), "fault")
        assert client.ops.fails(x).numpy().tolist() == [2] * 4
        assert eventually(lambda: find_roles(daemon.pid, "executor") == [spare])
        x.free()


def test_off(start_daemon, tmp_path):
    config = tmp_path / "opd.conf"
    config.write_text("spare = off\n")
    folder = put_kernels(tmp_path / "k", fails=FAILS)
    daemon = start_daemon("--kernels", folder, "--config", str(config))
    with daemon.connect() as client:
        x = client.tensor(np.ones(4, np.float32))
        for _ in range(2):
            fail(client, client.zeros(4), "fault")
            assert client.ops.fails(x).numpy().tolist() == [2] * 4
        time.sleep(0.1)
        assert not find_roles(daemon.pid, "spare")
        assert (device_of(client)["spare"], device_of(client)["spare_memory"]) == ("none", 0)
    bad = subprocess.run([PROGRAM, "--spare", "on"], capture_output=True, text=True)
    assert bad.returncode == 2 and "--spare: 'on', expected auto or off" in bad.stderr


@on_cpu
def test_where_it_would_take_too_much_there_is_none(start_daemon):
    daemon = start_daemon("--memory-limit", "16M")
    with daemon.connect() as client:
        client.ops.relu(client.zeros(4)).numpy()
        time.sleep(0.1)
        assert device_of(client)["spare"] == "none"


def test_what_it_takes_is_said(house):
    with house.connect() as client:
        device = device_of(client)
        assert device["spare"] == "ready" and 0 < device["spare_memory"] < device["memory_total"] / 100
        with Raw(house.socket) as raw:
            metrics = str(raw.call("metrics"))
        assert f'opd_device_spare_memory_bytes{{device="{DEVICE}"}} {device["spare_memory"]}' in metrics
        assert Path(f"/proc/{house.spare}/comm").read_text() == "opd: spare\n"
    shown = subprocess.run(
        [Path(PROGRAM).parent / "opctl", "--socket", house.socket, "status"], capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "300", "ASAN_OPTIONS": "detect_leaks=0"}, check=True,
    )  # fmt: skip
    assert "SPARE" in shown.stdout, shown.stdout


@pytest.mark.unsanitized("a sanitizer has a thread of its own")
def test_it_sleeps(house):
    """Nothing wakes it."""

    def switches():
        return [line for line in Path(f"/proc/{house.spare}/status").read_text().splitlines() if "switches" in line]

    before = eventually(lambda: (s := switches()) and time.sleep(0.05) is None and s == switches() and s)
    time.sleep(0.3)
    assert switches() == before


def test_fifty_faults_leave_nothing(house):
    def held():
        await_spare(house)
        return count_fds(house.pid), len(find_family(house.pid))

    with house.connect() as client:
        x = client.zeros(4)
        for n in range(55):
            fail(client, x, "fault")
            assert client.ops.fails(x).numpy().tolist() == [1] * 4
            before = held() if n == 4 else before if n > 4 else None  # the client has words in its memory by then
        assert eventually(lambda: held() <= before), (before, held())
        assert device_of(client)["restarts"] == 55


PTRACE_SEIZE, PTRACE_DETACH, PTRACE_O_TRACEEXIT, WALL = 0x4206, 17, 0x40, 0x40000000


@contextmanager
def held_at_its_end(pid):
    """It dies in there, and is not gone before the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_SEIZE, pid, None, PTRACE_O_TRACEEXIT) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    try:
        yield
        os.waitpid(pid, WALL)
    finally:
        libc.ptrace(PTRACE_DETACH, pid, None, None)


@on_cpu
def test_what_the_dead_one_may_write_is_left_to_it(house):
    """Until it is gone: also what was given up while it ran, and to others then. All else goes on meanwhile."""
    with Raw(house.socket) as bad, Raw(house.socket) as good:
        for raw in bad, good:
            raw.make(1, "float32", [4])
        (dead,) = find_roles(house.pid, "executor")
        await_spare(house)
        with held_at_its_end(dead):
            hangs = bad.request("forward", "fails", [1], {"how": "hang"}, [2], {"deadline": 0.2})
            bad.call("free", "tensor", [2])
            elsewhere, there = good.together(("tensor_write", 1, 0, bytes(16)), ("tensor_new", 2, "float32", [4], None))
            with pytest.raises(RpcError, match="deadline"):
                bad.wait(hangs)
            good.wait(elsewhere)
            with pytest.raises(TimeoutError):
                good.wait(there, 0.5)
        good.wait(there)


@on_gpu
def test_what_the_dead_one_has_staged_is_left_to_it(house):
    """A copy behind what hung is made by the next one too: where it went is nobody else's until the other is gone."""
    size = 40 << 20  # most of what there is for copies
    with Raw(house.socket) as bad, Raw(house.socket) as good:
        bad.make(1, "float32", [4])
        good.make(1, "float32", [size // 4])
        (dead,) = find_roles(house.pid, "executor")
        await_spare(house)
        with held_at_its_end(dead):
            hangs = bad.request("forward", "fails", [1], {"how": "hang"}, [2], {"deadline": 2})
            await_kernel(dead)
            first = good.request("tensor_read", 1, 0)
            with pytest.raises(RpcError, match="deadline"):
                bad.wait(hangs)
            assert good.wait(first) == bytes(size)
            assert good.call("tensor_read", 1, 0, 4096) == bytes(4096)
            second = good.request("tensor_read", 1, 0)
            with pytest.raises(TimeoutError):
                good.wait(second, 0.5)
        assert good.wait(second) == bytes(size)
